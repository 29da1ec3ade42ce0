"""The command ``expect``: run the expectation table's cells and compare them with what is recorded.

Conventions: results go to standard output, progress to standard error where that is a terminal. Exit code 0 where all
is as recorded (or was recorded now), 1 where something differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from precision_eval.cases.systems import CASES, Case
from precision_eval.cli import options
from precision_eval.cli.application import EXIT_VERDICT, split
from precision_eval.core.errors import ParameterError
from precision_eval.core.table import make_table, print_lines, print_table
from precision_eval.results import expectations
from precision_eval.results.expectations import Expectation, ExpectationChange, ExpectationDifference, Table
from precision_eval.results.operations import operations_table

HELP = """\
The table says, per torch version, what passes and what raises with which message; [cyan]--changes[/cyan] prints where
a status turns over with the version. Exit code 1 where this torch does otherwise than recorded.

[bold]Examples[/bold]

[cyan]precision-eval expect[/cyan]  eager, all cases

[cyan]precision-eval expect --mode eager,compiled-aot_eager --record[/cyan]  add this torch's column
"""


def expect(
    case: options.Case = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="eager, compiled-aot_eager, compiled-inductor; [dim]default: eager[/dim]"),
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="Write this torch's column instead of comparing.")] = False,
    changes: Annotated[
        bool, typer.Option("--changes", help="Run nothing; print what changed with the version.")
    ] = False,
    table: Annotated[Path | None, typer.Option(help="Another table than the package's own.")] = None,
) -> None:
    """Run the cells, compare or record them, and print what differs."""
    if changes and record:
        raise ParameterError("--changes runs nothing and --record needs a run; give one of them")
    if table is not None and not record and not table.is_file():
        raise ParameterError(f"--table {table} is no file; give a table, or --record to write one")
    path, cases, console = table or expectations.TABLE, _chosen(split(case, ("*",))), Console()
    columns = expectations.load_table(path)
    if changes:
        named = {entry.id for entry in cases}
        turning = [one for one in expectations.changes(columns) if one.cell.partition("/")[0] in named]
        _print_changes(console, turning, tuple(columns))
        return
    _run(split(mode, ("eager",)), cases, columns, path, record=record, console=console)


def _run(
    modes: tuple[str, ...], cases: list[Case], table: Table, path: Path, *, record: bool, console: Console
) -> None:
    import torch

    version = str(torch.__version__)
    release = expectations.release(version)
    expected = None if record else expectations.column_for(table, version)
    with Console(stderr=True).status("running") as status:
        observed = expectations.observe(modes, cases=cases, on_cell=lambda cell: status.update(f"running {cell}"))
    if not observed.cells:
        raise ParameterError("no cell was run; name a mode, and a case that has the size tiny")
    if expected is None:
        old = table.get(release)
        expectations.save_table(expectations.updated(table, version, observed), path)
        print_lines([f"recorded {len(observed.cells)} cells of torch {release} in {path.name}"], console)
        if old is not None:
            found = expectations.differences(old, observed, same_version=True)
            _print_differences(console, [one for one in found if one.expected])
        return
    recorded, column = expected
    found = expectations.differences(column, observed, same_version=recorded == release)
    _print_differences(console, found)
    against = f"{len(observed.cells)} cells of torch {version} against those of {recorded}"
    if found:
        print_lines([f"{against}: {len(found)} differ; {expectations.REMEDY}"], console)
        raise typer.Exit(EXIT_VERDICT)
    print_lines([f"{against}: as recorded"], console)


def _chosen(globs: tuple[str, ...]) -> list[Case]:
    """Return the cases that one of the globs names; each glob must name one."""
    from precision_eval.run.plan import matching

    named = matching("case", globs, [case.id for case in CASES])
    return [case for case in CASES if case.id in named]


def _words(expectation: Expectation | None) -> str:
    if expectation is None:
        return "–"
    return expectation.status + (f": {expectation.message}" if expectation.message else "")


def _print_differences(console: Console, differences: list[ExpectationDifference]) -> None:
    rows = [(one.cell, one.note, _words(one.expected), _words(one.found)) for one in differences]
    if rows:
        print_table(make_table(("cell", "what", "recorded", "found"), rows), console)


def _print_changes(console: Console, changes: list[ExpectationChange], versions: tuple[str, ...]) -> None:
    """Print where a status turns over, then what torch's own operations do with mixed dtypes."""
    rows = [(change.cell, expectations.spans_text(change)) for change in changes]
    title = f"Cells whose status depends on the torch version; recorded for torch {', '.join(versions) or 'none'}"
    print_table(make_table(("cell", "status"), rows, title=title), console)
    print_table(operations_table(), console)
    print_lines(["`python -m precision_eval.results.operations` runs these operations here."], console)
