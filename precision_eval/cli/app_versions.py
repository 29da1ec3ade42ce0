"""The command ``versions``, registered on the application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli.application import app, flowing, split

_VERSIONS_HELP = """Show what torch releases changed: status, drift, latency and memory of each fix, version by version.

Reads asv's results. Bytes repeat exactly, so any change of theirs is real; drift does too, but of one seed, so a small
change counts only where several seeds were measured. Latency ratios are judged against the spread between processes, at
a false discovery rate of 5 % over all fixes of a case, and against what sessions differ by; each change has its
interval. A status that turns over is shown with the change in torch that did it, or as unexplained. Tables on a
terminal, Markdown in a pipe.

[bold]Examples[/bold]

[cyan]precision-eval versions[/cyan]  the sweep in results/torch-versions

[cyan]precision-eval versions --case 'dia-*' --metric status,drift --html page[/cyan]

[cyan]precision-eval versions --results .asv/results --by commit --json[/cyan]
"""


@app.command(help=flowing(_VERSIONS_HELP))
def versions(
    results: Annotated[Path, typer.Option(help="asv's results_dir.")] = Path("results/torch-versions"),
    case: Annotated[list[str], typer.Option(help="Names or globs.")] = ["*"],  # noqa: B006
    metric: Annotated[list[str], typer.Option(help="status, drift, latency_ratio, peak_bytes, …, or globs.")] = ["*"],  # noqa: B006
    machine: Annotated[str | None, typer.Option(help="Of asv, where the folder holds several.")] = None,
    by: Annotated[str, typer.Option(help="The axis: torch or commit.")] = "torch",
    commit: Annotated[str | None, typer.Option(help="By torch: the commit to take, of several.")] = None,
    torch: Annotated[str | None, typer.Option(help="By commit: the torch version to take, of several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with figures to this folder.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write every value to this file.")] = None,
) -> None:
    """Show versions."""
    from precision_eval.cli.versions import Request, versions_command

    versions_command(
        Request(
            results=results,
            cases=split(case),
            metrics=split(metric),
            machine=machine,
            commit=commit,
            torch=torch,
            axis=by,
            as_json=as_json,
            html=html,
            csv=csv,
        )
    )
