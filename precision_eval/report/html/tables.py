"""Tables of the HTML report: costs and sound per group, statuses of every group, messages, and the environment.

Conventions: a table's first column names the row; cells are figures, words or None. Columns that no row fills are left
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_eval.core.drawing import STATUS_STYLES
from precision_eval.core.formatting import METRIC_TITLES, fixed
from precision_eval.core.records import Record
from precision_eval.fixes.catalog import FIXES
from precision_eval.report.figures.over_time import sound_rows
from precision_eval.report.html.facts import COSTS, Cell, Figure, figure, pointer, ranged, record_of
from precision_eval.report.html.places import GroupView
from precision_eval.report.tables import WHOLE_FILE_METRICS, plugin_figures
from precision_eval.results.messages import short_reason
from precision_eval.results.model import Row, is_identical
from precision_eval.results.reading import Run


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """One row: a fix or a reference, how it is shown, and its cells."""

    fix: str
    kind: str
    cells: tuple[Cell | tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of figures."""

    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]


@dataclass(frozen=True, kw_only=True)
class StatusTable:
    """Which fix runs where."""

    fixes: tuple[str, ...]
    rows: tuple[tuple[GroupView, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message, and the cells that ended in it."""

    status: str
    short: str
    whole: str
    record: str
    where: tuple[str, ...]


def cost_grid(place: GroupView) -> Grid:
    """Return everything recorded about the fixes of a group."""
    section, others = place.section, plugin_figures(place.section)
    rows = []
    for row in section.fixes:
        given = [figure(record_of(row, path[0]), *path[1:], write=lambda value: f"{value:.4g}") for path in others]
        rows.append((row, [row.status.replace("_", " "), *(fact.read(row, section) for fact in COSTS), *given]))
    return _filled(("status", *(fact.title for fact in COSTS), *(".".join(path) for path in others)), rows)


def sound_grid(place: GroupView) -> Grid | None:
    """Return the sound of each fix beside reference, noise floor and controls; None where none was measured."""
    fixes, comparators = sound_rows(place.run, place.section)
    if not fixes:
        return None
    first = [row for row in comparators if row.role == "reference"]
    last = [row for row in comparators if row.role != "reference"]
    titles = [f"{METRIC_TITLES[key][0]} to reference, dB" for key in METRIC_TITLES]
    titles += ["MCD to original, dB", "its slope per min", "phonemes right", "first third", "last third"]
    return _filled(titles, [(row, _sound_cells(row)) for row in (*first, *fixes, *last)])


def _sound_cells(row: Row) -> list[Cell | tuple[Cell, ...]]:
    record = record_of(row, "audio")
    cells: list[Cell | tuple[Cell, ...]] = [_distance(row, record, metric) for metric in METRIC_TITLES]
    cells.append(figure(record, "against_original", "mel_mcd_db", "mean", write=_two))
    slope = ("against_original", "mel_mcd_db", "slope_per_min")
    cells.append(ranged(record, slope, "slope_low", "slope_high", write=_two))
    names = ("value", "first_third", "last_third")
    return [*cells, *(figure(record, "phoneme_accuracy", name, write=_three) for name in names)]


def _distance(row: Row, record: Record | None, metric: str) -> Cell | tuple[Cell, ...]:
    """The mean over windows; the whole file's value where the metric is a ratio of energies, or has no mean."""
    mean, whole = (figure(record, "against_reference", metric, name, write=_two) for name in ("mean", "whole_file"))
    value = whole if mean is None or (metric in WHOLE_FILE_METRICS and whole is not None) else mean
    if value is None:
        return "identical" if is_identical(row) else None
    times = figure(record, "against_reference", metric, "ratio_to_null", write=lambda ratio: f"× {ratio:.2f}")
    return value if times is None else (value, times)


def _filled(columns: Sequence[str], rows: Sequence[tuple[Row, Sequence[Any]]]) -> Grid:
    kept = [i for i in range(len(columns)) if any(cells[i] is not None for _, cells in rows)]
    return Grid(
        columns=tuple(columns[i] for i in kept),
        rows=tuple(GridRow(fix=row.fix, kind=_kind(row), cells=tuple(cells[i] for i in kept)) for row, cells in rows),
    )


def _kind(row: Row) -> str:
    return "reference" if row.role != "fix" else "passed" if row.status == "passed" else "failed"


def status_table(places: Sequence[GroupView]) -> StatusTable:
    """Return the status of every fix in every group."""
    tried = {row.fix for place in places for row in place.section.fixes}
    known = [fix.id for fix in FIXES if fix.id in tried]
    fixes = (*known, *sorted(tried - set(known)))
    return StatusTable(
        fixes=fixes,
        rows=tuple((place, tuple(_look(place, fix) for fix in fixes)) for place in places),
    )


def _look(place: GroupView, fix: str) -> tuple[str, str]:
    row = next((row for row in place.section.fixes if row.fix == fix), None)
    if row is None:
        return "", ""
    return row.status, STATUS_STYLES[row.status].title + (" *" if row.incomplete else "")


def messages_of(places: Sequence[GroupView]) -> tuple[Message, ...]:
    """Gather the messages of everything that did not pass, most frequent first."""
    found: dict[tuple[str, str], list[tuple[GroupView, Row, Record]]] = {}
    for place in places:
        for row in place.section.rows:
            for record in _telling(row):
                found.setdefault((record.status, short_reason(record.reason)), []).append((place, row, record))
    messages = []
    for (status, short), ends in sorted(found.items(), key=lambda item: -len(item[1])):
        record = ends[0][2]
        where: dict[str, list[str]] = {}
        for place, row, _ in ends:
            where.setdefault(place.title, []).append(row.fix)
        lines = [f"{title}: {', '.join(dict.fromkeys(fixes))}" for title, fixes in where.items()]
        text = record.reason or ""
        messages.append(
            Message(status=status.replace("_", " "), short=short, whole=text, record=record.cell, where=tuple(lines))
        )
    return tuple(messages)


def _telling(row: Row) -> list[Record]:
    """Return the records that say why: the one behind the row's status, and those that differ from it."""
    if row.status == "passed":
        return [record for record in row.records.values() if record.status != "passed"]
    first = next((one for one in row.records.values() if one.status == row.status and one.reason == row.reason), None)
    rest = [one for one in row.records.values() if one.status not in (row.status, "passed")]
    return [*([] if first is None else [first]), *rest]


def environment_facts(run: Run) -> list[tuple[str, str, Figure | str]]:
    """Return (name, JSON pointer, value) of what the run was measured with; long lists and hashes are left out."""
    return list(_facts(run.environment, ()))


def _facts(node: Mapping[str, Any], path: tuple[str, ...]) -> list[tuple[str, str, Figure | str]]:
    found: list[tuple[str, str, Figure | str]] = []
    for name, value in node.items():
        here = (*path, name)
        if name in ("assets", "config") or value is None:
            continue
        if isinstance(value, Mapping):
            found += _facts(value, here)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            found.append((".".join(here), pointer(*here), str(value)))
        else:
            number = Figure(
                value=float(value), text=f"{value:,}", records=("environment.json",), paths=(pointer(*here),)
            )
            found.append((".".join(here), pointer(*here), number))
    return found


def _two(value: float) -> str:
    return fixed(value, decimals=2)


def _three(value: float) -> str:
    return fixed(value, decimals=3)
