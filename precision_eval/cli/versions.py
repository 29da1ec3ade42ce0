"""The command ``versions``: read asv's results, find what changed over torch versions or commits, and write it out.

Conventions: tables on a terminal, Markdown elsewhere, JSON where asked for; all to standard output. ``--html`` and
``--csv`` write files as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from precision_eval.cli import options
from precision_eval.cli.application import split
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import visible
from precision_eval.core.table import print_lines, print_table
from precision_eval.results.asv import read_results

if TYPE_CHECKING:
    from precision_eval.history.versions import VersionHistory

_STYLES = {"passed": "green", "raised": "red", "failed": "red", "non_finite": "red", "unexplained": "yellow"}

HELP = """\
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


def versions(
    results: options.AsvResults = None,
    case: options.Case = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="status, drift, latency_ratio, peak_bytes, …, or globs.")
    ] = None,
    machine: options.Machine = None,
    by: Annotated[str, typer.Option(help="The axis: torch or commit.")] = "torch",
    commit: Annotated[str | None, typer.Option(help="By torch: the commit to take, of several.")] = None,
    torch: Annotated[str | None, typer.Option(help="By commit: the torch version to take, of several.")] = None,
    as_json: options.Json = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with figures to this folder.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write every value to this file.")] = None,
) -> None:
    """Show versions."""
    from precision_eval.history.text import as_json as json_text
    from precision_eval.history.text import markdown, write_csv
    from precision_eval.history.versions import history_of

    _check(html=html, by=by, torch=torch, commit=commit)
    history = history_of(
        read_results(results or Path("results/torch-versions"), machine=machine),
        axis=by,
        cases=split(case, ("*",)),
        metrics=split(metric, ("*",)),
        shown=commit if by == "torch" else torch,
    )
    console, notes = Console(emoji=False), Console(stderr=True)
    if as_json:
        typer.echo(json_text(history), nl=False)
    elif console.is_terminal:
        print_history(history, console)
    else:
        typer.echo(visible(markdown(history)), nl=False)
    if csv is not None:
        write_csv(history, csv)
        print_lines([f"wrote {csv}"], notes)
    if html is not None:
        from precision_eval.history.html_report import write_html

        print_lines([f"wrote {write_html(history, html)}"], notes)


def _check(*, html: Path | None, by: str, torch: str | None, commit: str | None) -> None:
    """Refuse a file in the place of a folder, and an option that would choose one place of the axis."""
    if html is not None and html.exists() and not html.is_dir():
        raise ParameterError(f"--html {html} is a file; give a folder")
    for axis, option, value, other in (("torch", "--torch", torch, "commit"), ("commit", "--commit", commit, "torch")):
        if by == axis and value is not None:
            raise ParameterError(
                f"{option} {value} would choose one place on the axis, and all of them are shown; leave it out, or "
                f"give --by {other}"
            )


def print_history(history: VersionHistory, console: Console) -> None:
    """Print tables, then what upstream says, then notes."""
    from precision_eval.history.text import heading, tables

    print_lines([heading(history)], console)
    for case in history.cases:
        for table in tables(history, case):
            print_table(table, console, styles=_STYLES)
    for change in history.upstream:
        console.print(
            f"[bold]{escape(change.id)}[/bold] (since {change.since}): {escape(change.text)}", highlight=False
        )
        print_lines([f"  {change.reference}", f"  {change.confirmed}"], console, style="dim")
    print_lines([f"note: {note}" for note in history.notes], console)
