"""What ``precision-eval versions`` does: read asv's results, find what changed over torch versions or commits, show it.

Conventions: tables on a terminal, Markdown elsewhere, JSON where asked for; all to standard output. ``--html`` and
``--csv`` write beside that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from precision_eval.core.errors import ParameterError

if TYPE_CHECKING:
    from precision_eval.studies.versions.history import VersionHistory
    from precision_eval.studies.versions.table import Grid

_STYLES = {"passed": "green", "raised": "red", "failed": "red", "non_finite": "red", "unexplained": "yellow"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of ``versions``, as given."""

    results: Path
    cases: tuple[str, ...] = ("*",)
    metrics: tuple[str, ...] = ("*",)
    machine: str | None = None
    commit: str | None = None
    torch: str | None = None
    axis: str = "torch"
    as_json: bool = False
    html: Path | None = None
    csv: Path | None = None


def versions_command(request: Request) -> None:
    """Read, judge and show."""
    from precision_eval.results.asv import read_results
    from precision_eval.studies.versions.export import as_json, write_csv
    from precision_eval.studies.versions.history import HistoryChoice, history_of
    from precision_eval.studies.versions.table import markdown

    if request.html is not None and request.html.exists() and not request.html.is_dir():
        raise ParameterError(f"--html {request.html} is a file; give a folder")
    given = (("torch", "--torch", request.torch, "commit"), ("commit", "--commit", request.commit, "torch"))
    for axis, option, value, other in given:
        if request.axis == axis and value is not None:
            raise ParameterError(
                f"{option} {value} would choose one place on the axis, and all of them are shown; leave it out, or "
                f"give --by {other}"
            )
    choice = HistoryChoice(
        axis=request.axis,
        cases=request.cases,
        metrics=request.metrics,
        commit=request.commit,
        torch=request.torch,
    )
    history = history_of(read_results(request.results, machine=request.machine), choice)
    console, notes = Console(), Console(stderr=True)
    if request.as_json:
        typer.echo(as_json(history), nl=False)
    elif console.is_terminal:
        _show(history, console)
    else:
        typer.echo(markdown(history), nl=False)
    if request.csv is not None:
        write_csv(history, request.csv)
        notes.print(f"wrote {request.csv}", highlight=False, markup=False)
    if request.html is not None:
        from precision_eval.studies.versions.html_report import write_html

        notes.print(f"wrote {write_html(history, request.html)}", highlight=False, markup=False)


def _show(history: VersionHistory, console: Console) -> None:
    """Print tables, then what upstream says, then what to know."""
    from precision_eval.studies.versions.table import grids, heading

    console.print(heading(history), highlight=False, markup=False)
    for case in history.cases:
        for grid in grids(history, case):
            console.print(_rich_table(grid))
    for one in history.upstream:
        console.print(f"[bold]{escape(one.id)}[/bold] (since {one.since}): {escape(one.text)}", highlight=False)
        console.print(f"  {one.reference}\n  {one.confirmed}", highlight=False, markup=False, style="dim")
    for note in history.notes:
        console.print(f"note: {note}", highlight=False, markup=False)


def _rich_table(grid: Grid) -> Table:
    table = Table(title=escape(grid.title), title_justify="left", pad_edge=False)
    for number, name in enumerate(grid.columns):
        table.add_column(escape(name), overflow="fold", no_wrap=number == 0)
    for number, row in enumerate(grid.rows):
        following = grid.rows[number + 1 : number + 2]
        table.add_row(*map(_styled, row), end_section=bool(following and following[0][0] and not row[0]))
    return table


def _styled(text: str) -> str:
    style = _STYLES.get(text)
    return f"[{style}]{escape(text)}[/{style}]" if style else escape(text)
