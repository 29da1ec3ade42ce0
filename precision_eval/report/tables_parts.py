"""What stands behind a drift: its parts, and what the sampler's own rounding does; cells and a table.

Conventions: parts of a drift are shares of the total mean square error in per cent and add up to 100 with the
cross-term, which may be negative. The sampler is run alone, on the reference's logits rounded to a fix's dtype: how
many positions get another nucleus (the tokens that top-p keeps), and the total variation (0 to 1) between its
distribution and float64's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_eval.core.formatting import MISSING, fixed, scientific
from precision_eval.report.tables import Table, tables_of
from precision_eval.results.model import Group, Row, figure_of
from precision_eval.results.reading import Run

PARTS = {
    "input_cast_mse": "input cast, %",
    "compute_mse": "compute, %",
    "output_rounding_mse": "output rounding, %",
    "cross_mse": "cross-term, %",
}
"""Key of a part in the records, and its heading."""

FEWEST_POSITIONS = 20
"""Fewer positions make no share."""

_NOTES = {
    "cross-term, %": "Parts: shares of the drift's mean square error; where they cancel or add up, the cross-term.",
    "nucleus moved": "Sampler: run alone on float64's logits in the fix's dtype, so no error of attention is in it.",
}


def shares_of(drift: Mapping[str, Any] | None) -> list[float] | None:
    """Return the parts of a drift in per cent of its mean square error, in the order of ``PARTS``; None without."""
    total = figure_of(drift, "split", "total_mse")
    parts = [figure_of(drift, "split", name) for name in PARTS]
    if not total or any(part is None for part in parts):
        return None
    return [100.0 * float(part or 0.0) / total for part in parts]


def shares_text(drift: Mapping[str, Any] | None) -> str:
    """Write the parts in one cell: ``60 / 25 / 10 / 5``."""
    shares = shares_of(drift)
    return MISSING if shares is None else " / ".join(fixed(share, decimals=0) for share in shares)


def sampler_text(row: Row) -> str:
    """Share of positions whose nucleus the sampler's own rounding changes; a single position makes no share."""
    data = row.data("sampler")
    positions, changed = figure_of(data, "positions"), figure_of(data, "changed_nucleus")
    if positions is None or changed is None or positions < FEWEST_POSITIONS:
        return MISSING
    return f"{100.0 * changed:.0f} % of {positions:.0f}"


def parts_table(section: Group) -> Table | None:
    """Return the parts of each fix's drift and the sampler's rounding; None where neither was measured."""
    rows = [row for row in section.fixes if shares_of(row.drift_data) is not None or row.data("sampler") is not None]
    if not rows:
        return None
    headings = ("drift", *PARTS.values(), "sampler in", "nucleus moved", "its total variation")
    cells = [_cells(row) for row in rows]
    kept = [place for place in range(len(headings)) if any(line[place] != MISSING for line in cells)]
    columns = tuple(headings[place] for place in kept)
    return Table(
        title=f"What the drift consists of · {section.title}",
        columns=("fix", *columns),
        rows=tuple((row.fix, *(line[place] for place in kept)) for row, line in zip(rows, cells, strict=True)),
        kinds=("passed",) * len(rows),
        notes=tuple(note for column, note in _NOTES.items() if column in columns),
    )


def all_tables(run: Run, section: Group) -> tuple[Table, ...]:
    """Return the tables of a section (:func:`~precision_eval.report.tables.tables_of`), and its parts of the drift."""
    parts = parts_table(section)
    return (*tables_of(run, section), *(() if parts is None else (parts,)))


def _cells(row: Row) -> list[str]:
    shares, sampler = shares_of(row.drift_data), row.data("sampler")
    return [
        scientific(figure_of(row.drift_data, "relative_error")),
        *([MISSING] * len(PARTS) if shares is None else [fixed(share, decimals=0) for share in shares]),
        MISSING if sampler is None else str(sampler.get("dtype", MISSING)),
        _moved(sampler),
        scientific(figure_of(sampler, "total_variation")),
    ]


def _moved(sampler: Mapping[str, Any] | None) -> str:
    """Positions whose nucleus changed, of how many: ``22 of 64``."""
    positions, changed = figure_of(sampler, "positions"), figure_of(sampler, "changed_nucleus")
    return MISSING if positions is None or changed is None else f"{changed * positions:.0f} of {positions:.0f}"
