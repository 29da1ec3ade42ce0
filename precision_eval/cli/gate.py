"""The command ``gate``: compare two result sets, say what became worse, and end with a code that says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from precision_eval.cli import options
from precision_eval.cli.application import TRACK, app, flowing, split
from precision_eval.cli.exit_codes import EXIT_COULD_NOT_TELL, EXIT_DONE, EXIT_VERDICT
from precision_eval.core.errors import ParameterError, RecordError

EXIT_CODES = {"regression": EXIT_VERDICT, "could not tell": EXIT_COULD_NOT_TELL, "no regression": EXIT_DONE}

_HELP = """Compare two result sets and fail where head is worse than base beyond a margin.

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


@app.command(help=flowing(_HELP), rich_help_panel=TRACK)
def gate(
    base: Annotated[str, typer.Argument(metavar="BASE", help="What is known: a run folder, commit or torch version.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="What is proposed, of the same kind.")],
    results: options.AsvResults = None,
    machine: options.Machine = None,
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
    as_json: options.Json = False,
) -> None:
    """Gate a change."""
    from precision_eval.results.gate import Margins, compare_sides, open_sides, to_json
    from precision_eval.results.gate import markdown as markdown_of

    margins = Margins(
        drift=_number("--margin-drift", margin_drift),
        latency=_fraction("--margin-latency", margin_latency),
        memory=_fraction("--margin-memory", margin_memory),
        anchor=_fraction("--margin-anchor", margin_anchor),
    )
    required = tuple(kind for kind in split(require) if kind != "none")
    outcome = compare_sides(
        *open_sides(base, head, results=results, machine=machine), margins=margins, required=required
    )
    summary = markdown_of(outcome)
    if markdown is not None:
        _write(markdown, summary)
    sys.stdout.write(to_json(outcome) if as_json else summary)
    raise typer.Exit(EXIT_CODES[outcome.outcome])


def _fraction(name: str, text: str) -> float:
    """Read ``1%`` or ``0.01``."""
    number = text.strip()
    if number.endswith("%"):
        return _number(name, number[:-1], shown=text) / 100.0
    return _number(name, number, shown=text)


def _number(name: str, text: str, *, shown: str | None = None) -> float:
    try:
        return float(text.strip().removeprefix("×").removeprefix("x"))
    except ValueError as error:
        raise ParameterError(f"{name} is '{shown or text}'; expected a number such as 1% or 1.2") from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}; give another file with --markdown") from error
