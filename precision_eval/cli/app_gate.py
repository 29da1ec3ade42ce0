"""The command ``gate``, registered on the application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import app, flowing, split

_GATE_HELP = """Compare two result sets and fail where head is worse than base beyond a margin.

BASE and HEAD are two folders that [cyan]run[/cyan] has filled, or two commits or two torch versions in asv's results.
Latency is compared by the paired ratios of each process, all cells together: false alarms are held to about 1 % a gate
where the processes of both sides are draws of one distribution, five or more a side; what the machine does between the
two sides is not in it. Other machines and builds are refused.

Exit code 0: compared, and no regression. 1: a regression. 2: input that cannot be compared. 4: could not tell, because
figures are missing in HEAD, unlike, torn or of too few processes, or because nothing that is required was judged.

[bold]Examples[/bold]

[cyan]precision-eval gate runs/main runs/change --markdown summary.md[/cyan]

[cyan]precision-eval gate main HEAD --results .asv/results[/cyan]  two commits that asv has run

[cyan]precision-eval gate 2.12.0 2.13.0 --results results/torch-versions[/cyan]  two torch versions
"""


@app.command(help=flowing(_GATE_HELP))
def gate(
    base: Annotated[str, typer.Argument(metavar="BASE", help="What is known: a run folder, commit or torch version.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="What is proposed, of the same kind.")],
    results: Annotated[Path | None, typer.Option(help="asv's results_dir; [dim]default: .asv/results[/dim]")] = None,
    machine: Annotated[str | None, typer.Option(help="Of asv, where several have results of both.")] = None,
    margin_latency: Annotated[
        str, typer.Option(help="Relative change that counts as none, of ratios to full_float32.")
    ] = "1%",
    margin_anchor: Annotated[
        str,
        typer.Option(help="The same of ratios to the anchor, which the machine's state moves; less on a quiet one."),
    ] = "10%",
    margin_drift: Annotated[str, typer.Option(help="Factor that counts as none.")] = "1.2",
    margin_memory: Annotated[str, typer.Option(help="Relative change that counts as none.")] = "1%",
    require: Annotated[
        list[str],
        typer.Option(
            metavar="KINDS",
            help="What must have a verdict for exit code 0: status, latency, absolute-speed, drift, memory, or none; "
            "repeat or separate by commas.",
        ),
    ] = ["latency"],  # noqa: B006
    markdown: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON instead.")] = False,
) -> None:
    """Gate a change."""
    from precision_eval.cli.gate import gate_command

    gate_command(
        base,
        head,
        results=results,
        machine=machine,
        margins={"latency": margin_latency, "anchor": margin_anchor, "drift": margin_drift, "memory": margin_memory},
        required=tuple(kind for kind in split(require) if kind != "none"),
        summary_path=markdown,
        as_json=as_json,
    )
