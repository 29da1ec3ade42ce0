"""The history over torch versions as rows of text: what a terminal and Markdown show alike.

Conventions: a fix has a row per quantity: status, drift, latency ratio with the half of its 95 % interval in per cent,
bytes. An en dash is *nothing here*. A factor stands for new over old. Markup is left to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from precision_eval.results.asv import build_words
from precision_eval.studies.versions.changes import ChangePoint, StatusChange
from precision_eval.studies.versions.history import CaseHistory, Cell, FixTable, VersionHistory
from precision_eval.studies.versions.upstream import UpstreamChange

NOTHING = "–"
UNEXPLAINED = "unexplained"
_BYTES = ("peak_bytes", "stored_bytes", "peakmem")
_BESIDE = ("drift", "latency_ratio", "peak_bytes", "stored_bytes")
CHANGE_COLUMNS = ("metric", "fix", "where", "from → to", "change", "p", "upstream")
STATUS_COLUMNS = ("fix", "where", "from → to", "change", "upstream")


@dataclass(frozen=True)
class Grid:
    """A table of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grids(history: VersionHistory, case: CaseHistory) -> Iterator[Grid]:
    """Yield the tables of a case: fix × position for each mode and size, changes of status, change points."""
    for table in case.tables:
        title = f"{case.case}, {table.mode}, {table.size}"
        yield Grid(title, ("fix", "", *history.positions), tuple(_rows(table, history.positions)))
    if case.status_changes:
        rows = tuple(status_rows(history, case.status_changes))
        yield Grid(f"{case.case}: changes of status", STATUS_COLUMNS, rows)
    if case.changes:
        yield Grid(f"{case.case}: change points", CHANGE_COLUMNS, tuple(change_rows(history, case.changes)))


def _rows(table: FixTable, positions: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for fix in table.fixes:
        cells = [table.cells[fix, position] for position in positions]
        lines: list[tuple[str, list[str]]] = [
            ("status", [_status(cell) for cell in cells]),
            ("drift", [_value("drift", cell) for cell in cells]),
            ("latency", [_ratio(cell) for cell in cells]),
        ]
        others = dict.fromkeys(metric for cell in cells for metric in cell.values if metric not in _BESIDE[:2])
        lines += [(metric.replace("_", " "), [_value(metric, cell) for cell in cells]) for metric in others]
        kept = [line for line in lines if any(text != NOTHING for text in line[1])]
        for number_, (name, texts) in enumerate(kept or lines[:1]):
            yield (fix if number_ == 0 else "", name, *texts)


def _status(cell: Cell) -> str:
    return NOTHING if cell.status is None else "n/a" if cell.status == "not_applicable" else cell.status


def _value(metric: str, cell: Cell) -> str:
    return number(metric, cell.values[metric]) if metric in cell.values else NOTHING


def _ratio(cell: Cell) -> str:
    if cell.ratio is None:
        return NOTHING
    if cell.ratio_interval is None:
        return f"{cell.ratio:.3g}"
    half = 100.0 * (math.sqrt(cell.ratio_interval[1] / cell.ratio_interval[0]) - 1.0)
    return f"{cell.ratio:.3g} ±{half:.2g}%"


def number(metric: str, value: float) -> str:
    """Write a metric's value: bytes with a binary prefix, drift in powers of ten, anything else to three digits."""
    if metric in _BYTES:
        size, prefix = value, ""
        for prefix in ("", "Ki", "Mi", "Gi"):
            if abs(size) < 1024.0 or prefix == "Gi":
                break
            size /= 1024.0
        return f"{size:.4g} {prefix}B"
    return f"{value:.1e}" if metric == "drift" else f"{value:.3g}"


def change_text(change: ChangePoint) -> str:
    """Write a change: levels, factor and its interval."""
    levels = f"{number(change.metric, change.old)} → {number(change.metric, change.new)}"
    if change.factor_interval is None:
        return f"{levels} (×{change.factor:.3g})"
    low, high = change.factor_interval
    seeds = f" over {change.seeds} seeds" if change.seeds > 1 else ""
    return f"{levels} (×{change.factor:.3g} [{low:.3g}, {high:.3g}]{seeds})"


def change_rows(history: VersionHistory, changes: Sequence[ChangePoint]) -> Iterator[tuple[str, ...]]:
    """Yield a row of text per change point; see ``CHANGE_COLUMNS``."""
    for one in changes:
        exact = "of its seeds" if one.seeds > 1 else "exact"
        p_value = exact if one.adjusted_p_value is None else f"{one.adjusted_p_value:.1g}"
        cause = _cause(history, one.explained_by)
        if one.with_baseline:
            cause = f"float32 itself changed here; {cause}"
        place = f"{one.mode}, {one.size}"
        yield (one.metric.replace("_", " "), one.fix, place, _between(history, one), change_text(one), p_value, cause)


def status_rows(history: VersionHistory, changes: Sequence[StatusChange]) -> Iterator[tuple[str, ...]]:
    """Yield a row of text per change of status; see ``STATUS_COLUMNS``."""
    for one in changes:
        cause = _cause(history, one.explained_by)
        yield (one.fix, f"{one.mode}, {one.size}", _between(history, one), f"{one.old} → {one.new}", cause)


def _between(history: VersionHistory, change: ChangePoint | StatusChange) -> str:
    """Where a change lies, with the month of the release that has it."""
    release = history.releases.get(change.at) if history.axis == "torch" else None
    when = f" ({release.date:%Y-%m})" if release is not None and release.date is not None else ""
    return f"{change.before} → {change.at}{when}"


def _cause(history: VersionHistory, explained_by: Sequence[UpstreamChange]) -> str:
    if history.axis != "torch":
        return NOTHING
    return "; ".join(f"{one.id} (since {one.since})" for one in explained_by) or UNEXPLAINED


def heading(history: VersionHistory) -> str:
    """Say in one line what was read."""
    what = "torch version" if history.axis == "torch" else "commit"
    count = f"{len(history.positions)} {what}{'' if len(history.positions) == 1 else 's'}"
    cpu = history.hardware.get("cpu")
    return f"{count} on {history.machine}{f' ({cpu})' if cpu else ''}, {build_words(history.sets)}"


def markdown(history: VersionHistory) -> str:
    """Return the whole history as Markdown."""
    lines = [heading(history), ""]
    for case in history.cases:
        lines += [f"## {case.case}", ""]
        for grid in grids(history, case):
            lines += [f"### {grid.title}", "", *_markdown_table(grid), ""]
    if history.upstream:
        lines += ["## Upstream", ""]
        lines += [
            f"- **{one.id}** (since {one.since}): {one.text} {one.reference} {one.confirmed}"
            for one in history.upstream
        ]
        lines.append("")
    lines += [f"- {note}" for note in history.notes]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(grid: Grid) -> Iterator[str]:
    for row in (grid.columns, tuple("---" for _ in grid.columns), *grid.rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
