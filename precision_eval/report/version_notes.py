"""Statuses that depend on the torch version: what a run found beside what the expectation table holds.

Conventions: the table (:mod:`precision_eval.results.expectations`) was recorded at size ``tiny`` on the CPU; a run's
own size stands in its rows. A compiled cell of a run is held to what was recorded with Inductor for its torch
version where that was, else to ``aot_eager``, which traces alike. Only cells of a run whose recorded status turns
over between versions are listed; cells with pinned settings are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def version_table(run: Run, *, case: str | None = None, table: Mapping[str, Column] | None = None) -> Table | None:
    """Return what a run found in cells whose status turns over between torch versions; None where there are none."""
    table, version = load_table() if table is None else table, _torch_version(run)
    if version is None:
        return None
    try:
        recorded_for, own = column_for(dict(table), version)
        held = f"this run is held to what was recorded for {recorded_for}"
    except ParameterError:  # older than everything recorded
        own, held = Column(), "nothing is recorded for this torch version or an older one"
    by_cell, rows, kinds = _turning(changes(table)), [], []
    for group in run.sections:
        for row in group.fixes if case in (None, group.case) and not group.pins else ():
            cell = f"{group.case}/{row.fix}/{group.mode}"
            if cell in by_cell:
                recorded = _recorded(own, group, row.fix)
                agrees = recorded in (None, row.status)
                said = "as recorded" if agrees else f"differs from the record ({recorded})"
                agreement = MISSING if recorded is None else said
                rows.append((Code(cell), group.size, row.status, spans_text(by_cell[cell]), agreement))
                kinds.append("passed" if agrees else "failed")
    if not rows:
        return None
    origin = (
        f"Recorded at size {SIZE} on the CPU for torch {', '.join(table)} (compiled by aot_eager; by Inductor where it "
        f"was run); {held}. `precision-eval expect` runs these cells here."
    )
    return Table(
        title=TITLE,
        columns=("cell", "size", f"here, torch {release(version)}", "recorded versions", "agreement"),
        rows=tuple(rows),
        kinds=tuple(kinds),
        notes=(MarkdownText(origin),),
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


def _recorded(column: Column, section: Group, fix: str) -> str | None:
    modes = ("eager",) if section.mode == "eager" else _COMPILED
    found = (column.cells.get(f"{section.case}/{fix}/{mode}") for mode in modes)
    return next((expectation.status for expectation in found if expectation is not None), None)


def _torch_version(run: Run) -> str | None:
    torch = run.environment.get("torch")
    version = torch.get("version") if isinstance(torch, Mapping) else None
    return version if isinstance(version, str) else None
