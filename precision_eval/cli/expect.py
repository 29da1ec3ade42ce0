"""What ``precision-eval expect`` does: run the expectation table's cells and compare them with what is recorded.

Conventions: results go to standard output, progress to standard error where that is a terminal. Exit code 0 where all
is as recorded (or was recorded now), 1 where something differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table as RichTable

from precision_eval.cli import EXIT_VERDICT
from precision_eval.core.errors import ParameterError, unknown_name

if TYPE_CHECKING:
    from precision_eval.cases.systems import Case
    from precision_eval.results.expectations import Expectation, ExpectationChange, ExpectationDifference, Table


@dataclass(frozen=True, kw_only=True)
class ExpectRequest:
    """The arguments of ``expect``, as given."""

    modes: tuple[str, ...]
    cases: tuple[str, ...]
    record: bool
    show_changes: bool
    table: Path | None


def expect_command(request: ExpectRequest) -> None:
    """Run the cells, compare or record them, and print what differs."""
    from precision_eval.results.expectations import TABLE, changes, load_table

    if request.show_changes and request.record:
        raise ParameterError("--changes runs nothing and --record needs a run; give one of them")
    if request.table is not None and not request.record and not request.table.is_file():
        raise ParameterError(f"--table {request.table} is no file; give a table, or --record to write one")
    path = request.table or TABLE
    table = load_table(path)
    console = Console()
    if request.show_changes:
        _chosen(request.cases)
        named = [change for change in changes(table) if _is_named(change.cell.split("/")[0], request.cases)]
        _print_changes(console, named, tuple(table))
        return
    _run(request, table, path, console)


def _run(request: ExpectRequest, table: Table, path: Path, console: Console) -> None:
    import torch

    from precision_eval.results.expectations import (
        REMEDY,
        column_for,
        differences,
        observe,
        release,
        save_table,
        updated,
    )

    version = str(torch.__version__)
    expected = None if request.record else column_for(table, version)
    with Console(stderr=True).status("running") as status:
        found = observe(
            request.modes,
            cases=_chosen(request.cases),
            on_cell=lambda cell: status.update(f"running {cell}"),
        )
    if not found.cells:
        raise ParameterError("no cell was run; name a mode, and a case that has the size tiny")
    if expected is None:
        old = table.get(release(version))
        table = updated(table, version, found)
        save_table(table, path)
        console.print(f"recorded {len(found.cells)} cells of torch {release(version)} in {path.name}", highlight=False)
        if old is not None:
            _print_differences(console, [d for d in differences(old, found, same_version=True) if d.expected])
        return
    recorded, column = expected
    found_differences = differences(column, found, same_version=recorded == release(version))
    _print_differences(console, found_differences)
    against = f"{len(found.cells)} cells of torch {version} against those of {recorded}"
    if found_differences:
        console.print(f"{against}: {len(found_differences)} differ; {REMEDY}", highlight=False)
        raise typer.Exit(EXIT_VERDICT)
    console.print(f"{against}: as recorded", highlight=False)


def _chosen(globs: tuple[str, ...]) -> list[Case]:
    """Return the cases that one of the globs names; each glob must name one."""
    from precision_eval.cases.systems import CASES

    for glob in globs:
        if not any(fnmatchcase(case.id, glob) for case in CASES):
            raise unknown_name("case", glob, (case.id for case in CASES))
    return [case for case in CASES if _is_named(case.id, globs)]


def _is_named(case: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(case, glob) for glob in globs)


def _words(expectation: Expectation | None) -> str:
    if expectation is None:
        return "–"
    return expectation.status + (f": {expectation.message}" if expectation.message else "")


def _print_differences(console: Console, found: list[ExpectationDifference]) -> None:
    if not found:
        return
    table = RichTable()
    for name in ("cell", "what", "recorded", "found"):
        table.add_column(name, overflow="fold")
    for one in found:
        table.add_row(one.cell, one.note, _words(one.expected), _words(one.found))
    console.print(table)


def _print_changes(console: Console, found: list[ExpectationChange], versions: tuple[str, ...]) -> None:
    from precision_eval.results.expectations import spans_text

    caption = f"recorded for torch {', '.join(versions)}" if versions else None
    table = RichTable(title="cells whose status depends on the torch version", caption=caption)
    table.add_column("cell", overflow="fold")
    table.add_column("status", overflow="fold")
    for change in found:
        table.add_row(change.cell, spans_text(change))
    console.print(table)
    _print_operations(console)


def _print_operations(console: Console) -> None:
    """Print what torch's own operations do with mixed dtypes, beside the cells that rest on them."""
    from precision_eval.diagnose.explain.operations import operations_table

    found = operations_table()
    table = RichTable(
        title=found.title, caption="`python -m precision_eval.diagnose.explain.operations` runs them here"
    )
    for column in found.columns:
        table.add_column(column, overflow="fold")
    for row in found.rows:
        table.add_row(*row)
    console.print(table)
