"""Statuses that depend on the torch version: what a run found beside what the expectation table holds.

Conventions: the table (:mod:`precision_eval.results.expectations`) was recorded at size ``tiny`` on the CPU; a run's
own size stands in its rows. A compiled cell of a run is held to what was recorded with Inductor for its torch
version where that was, else to ``aot_eager``, which traces alike. Only cells of a run whose recorded status turns
over between versions are listed; cells with pinned settings are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Code, MarkdownText, Table
from precision_eval.results.expectations import (
    SIZE,
    Column,
    ExpectationChange,
    changes,
    column_for,
    load_table,
    release,
    spans_text,
)
from precision_eval.results.model import Group
from precision_eval.results.reading import Run

TITLE = "Statuses that depend on the torch version"
_COMPILED = ("compiled-inductor", "compiled-aot_eager")


@dataclass(frozen=True, kw_only=True)
class VersionNote:
    """One cell of a run whose status turns over between torch versions."""

    cell: str
    size: str
    found: str
    recorded: str | None
    spans: str

    @property
    def agreement(self) -> str:
        """Whether the run's status is the recorded one, in words."""
        if self.recorded is None:
            return MISSING
        return "as recorded" if self.found == self.recorded else f"differs from the record ({self.recorded})"


def version_notes(run: Run, table: Mapping[str, Column] | None = None) -> list[VersionNote]:
    """List what a run found in cells whose status turns over between torch versions."""
    table = load_table() if table is None else table
    version = _torch_version(run)
    if version is None:
        return []
    own = _own_column(table, version)
    by_cell = _turning(changes(table))
    notes = []
    for section in run.sections:
        for row in section.fixes:
            change = None if section.pins else by_cell.get(f"{section.case}/{row.fix}/{section.mode}")
            if change is not None:
                notes.append(
                    VersionNote(
                        cell=f"{section.case}/{row.fix}/{section.mode}",
                        size=section.size,
                        found=row.status,
                        recorded=_recorded(own, section, row.fix),
                        spans=spans_text(change),
                    )
                )
    return notes


def version_table(run: Run, *, case: str | None = None, table: Mapping[str, Column] | None = None) -> Table | None:
    """Return the notes of a run as a table; None where there are none."""
    table = load_table() if table is None else table
    notes = [n for n in version_notes(run, table) if case is None or n.cell.split("/")[0] == case]
    version = _torch_version(run)
    if not notes or version is None:
        return None
    return Table(
        title=TITLE,
        columns=("cell", "size", f"here, torch {release(version)}", "recorded versions", "agreement"),
        rows=tuple((Code(n.cell), n.size, n.found, n.spans, n.agreement) for n in notes),
        kinds=tuple("passed" if n.found == n.recorded or n.recorded is None else "failed" for n in notes),
        notes=(MarkdownText(_origin(table, version)),),
    )


def _turning(found: Sequence[ExpectationChange]) -> dict[str, ExpectationChange]:
    """Return the changes by ``case/fix/mode`` of a run; of two compilers, the one recorded on more versions."""
    by_cell: dict[str, ExpectationChange] = {}
    for change in found:
        name, _, mode = change.cell.rpartition("/")
        key = f"{name}/{mode.partition('-')[0]}"
        if key not in by_cell or len(change.by_version) > len(by_cell[key].by_version):
            by_cell[key] = change
    return by_cell


def _own_column(table: Mapping[str, Column], version: str) -> Column:
    try:
        return column_for(dict(table), version)[1]
    except ParameterError:  # older than everything recorded
        return Column()


def _recorded(column: Column, section: Group, fix: str) -> str | None:
    modes = ("eager",) if section.mode == "eager" else _COMPILED
    found = (column.cells.get(f"{section.case}/{fix}/{mode}") for mode in modes)
    return next((expectation.status for expectation in found if expectation is not None), None)


def _origin(table: Mapping[str, Column], version: str) -> str:
    """Say where the recorded statuses are from."""
    try:
        recorded = column_for(dict(table), version)[0]
    except ParameterError:
        held = "nothing is recorded for this torch version or an older one"
    else:
        held = f"this run is held to what was recorded for {recorded}"
    return (
        f"Recorded at size {SIZE} on the CPU for torch {', '.join(table)} (compiled by aot_eager; by Inductor where it "
        f"was run); {held}. `precision-eval expect` runs these cells here."
    )


def _torch_version(run: Run) -> str | None:
    torch = run.environment.get("torch")
    version = torch.get("version") if isinstance(torch, Mapping) else None
    return version if isinstance(version, str) else None
