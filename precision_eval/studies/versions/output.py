"""A history over torch versions, written out: tables for a terminal and Markdown, strict JSON, CSV of every value.

Conventions: a fix has a row per quantity: status, drift, latency ratio with the half of its 95 % interval in per cent,
bytes. An en dash is *nothing here*. A factor stands for new over old. In JSON and CSV numbers have full precision;
what is not finite is null in JSON and empty in CSV, and an upstream change is written once and named by its id
elsewhere.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.files import written_whole
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Table, make_table, to_markdown
from precision_eval.results.asv import build_words
from precision_eval.studies.versions.changes import ChangePoint, StatusChange, status_at
from precision_eval.studies.versions.history import CaseHistory, FixCell, FixTable, VersionHistory
from precision_eval.studies.versions.series import MetricSeries, SeriesPoint
from precision_eval.studies.versions.upstream import UpstreamChange

SCHEMA_VERSION = 2
CSV_COLUMNS = (
    "case", "mode", "size", "fix", "metric", "position", "state", "value", "low_95", "high_95", "processes", "unit",
    "status", "benchmark_version",
)  # fmt: skip

UNEXPLAINED = "unexplained"
_BYTES = ("peak_bytes", "stored_bytes", "peakmem")
_IN_EVERY_TABLE = ("drift", "latency_ratio")
CHANGE_COLUMNS = ("metric", "fix", "where", "from → to", "change", "p", "upstream")
STATUS_COLUMNS = ("fix", "where", "from → to", "change", "upstream")


def tables(history: VersionHistory, case: CaseHistory) -> Iterator[Table]:
    """Yield the tables of a case: fix × position for each mode and size, changes of status, change points."""
    for table in case.tables:
        title = f"{case.case}, {table.mode}, {table.size}"
        yield make_table(("fix", "", *history.positions), _rows(table, history.positions), title=title)
    if case.status_changes:
        rows = status_rows(history, case.status_changes)
        yield make_table(STATUS_COLUMNS, rows, title=f"{case.case}: changes of status")
    if case.changes:
        yield make_table(CHANGE_COLUMNS, change_rows(history, case.changes), title=f"{case.case}: change points")


def _rows(table: FixTable, positions: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for fix in table.fixes:
        cells = [table.cells[fix, position] for position in positions]
        lines: list[tuple[str, list[str]]] = [
            ("status", [_status(cell) for cell in cells]),
            ("drift", [_value("drift", cell) for cell in cells]),
            ("latency", [_ratio(cell) for cell in cells]),
        ]
        others = dict.fromkeys(metric for cell in cells for metric in cell.values if metric not in _IN_EVERY_TABLE)
        lines += [(metric.replace("_", " "), [_value(metric, cell) for cell in cells]) for metric in others]
        kept = [line for line in lines if any(text != MISSING for text in line[1])]
        for number_, (name, texts) in enumerate(kept or lines[:1]):
            yield (fix if number_ == 0 else "", name, *texts)


def _status(cell: FixCell) -> str:
    return MISSING if cell.status is None else "n/a" if cell.status == "not_applicable" else cell.status


def _value(metric: str, cell: FixCell) -> str:
    return number(metric, cell.values[metric]) if metric in cell.values else MISSING


def _ratio(cell: FixCell) -> str:
    if cell.ratio is None:
        return MISSING
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
    for change in changes:
        exact = "of its seeds" if change.seeds > 1 else "exact"
        p_value = exact if change.adjusted_p_value is None else f"{change.adjusted_p_value:.1g}"
        cause = _cause(history, change.explained_by)
        if change.with_baseline:
            cause = f"float32 itself changed here; {cause}"
        place = f"{change.mode}, {change.size}"
        yield (
            change.metric.replace("_", " "),
            change.fix,
            place,
            _between(history, change),
            change_text(change),
            p_value,
            cause,
        )


def status_rows(history: VersionHistory, changes: Sequence[StatusChange]) -> Iterator[tuple[str, ...]]:
    """Yield a row of text per change of status; see ``STATUS_COLUMNS``."""
    for change in changes:
        cause = _cause(history, change.explained_by)
        yield (
            change.fix,
            f"{change.mode}, {change.size}",
            _between(history, change),
            f"{change.old} → {change.new}",
            cause,
        )


def _between(history: VersionHistory, change: ChangePoint | StatusChange) -> str:
    """Where a change lies, with the month of the release that has it."""
    release = history.releases.get(change.at) if history.axis == "torch" else None
    when = f" ({release.date:%Y-%m})" if release is not None and release.date is not None else ""
    return f"{change.before} → {change.at}{when}"


def _cause(history: VersionHistory, explained_by: Sequence[UpstreamChange]) -> str:
    if history.axis != "torch":
        return MISSING
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
        for table in tables(history, case):
            lines += [f"### {table.title}", "", to_markdown(table, heading=False), ""]
    if history.upstream:
        lines += ["## Upstream", ""]
        for change in history.upstream:
            since = f"**{change.id}** (since {change.since})"
            lines.append(f"- {since}: {change.text} {change.reference} {change.confirmed}")
        lines.append("")
    lines += [f"- {note}" for note in history.notes]
    return "\n".join(lines).rstrip() + "\n"


def as_json(history: VersionHistory) -> str:
    """Return the history as one JSON object, ended by a newline."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "axis": history.axis,
        "machine": history.machine,
        "hardware": dict(history.hardware),
        "cuda_build": history.cuda_build,
        "positions": [_position(history, number) for number in range(len(history.positions))],
        "cases": [
            {
                "case": case.case,
                "series": [_series(series) for series in case.series],
                "changes": [_change(change) for change in case.changes],
                "status_changes": [_change(change) for change in case.status_changes],
            }
            for case in history.cases
        ],
        "upstream": [asdict(change) for change in history.upstream],
        "notes": list(history.notes),
    }
    return json.dumps(_plain(content), allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def write_csv(history: VersionHistory, path: Path) -> None:
    """Write every point of every series."""
    rows = [
        _csv_row(series, point)
        for case in history.cases
        for series in case.series
        for point in series.points
        if point.state != "absent"
    ]
    try:
        with written_whole(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([CSV_COLUMNS, *rows])
    except OSError as error:
        raise ParameterError(f"{path} cannot be written: {error.strerror}; give another file") from error


def _csv_row(series: MetricSeries, point: SeriesPoint) -> list[Any]:
    value = point.value if point.value is not None and math.isfinite(point.value) else ""
    low, high = point.interval or ("", "")
    where = [series.case, series.mode, series.size, series.fix, series.metric, point.position, point.state]
    status = status_at(point) if series.kind == "status" else ""
    return [*where, value, low, high, len(point.samples) or "", series.unit, status, point.benchmark_version]


def _position(history: VersionHistory, number: int) -> dict[str, Any]:
    result = history.sets[number]
    release = history.releases.get(result.torch_version)
    return {
        "name": history.positions[number],
        "torch": result.torch_version,
        "released": release.date.isoformat() if release and release.date else None,
        "commit": result.commit,
        "commit_date_ms": result.date_ms,
        "environment": result.environment,
        "python": result.python,
        "file": result.source.name,
    }


def _series(series: MetricSeries) -> dict[str, Any]:
    content = asdict(series)
    if series.kind == "status":
        for point, known in zip(content["points"], series.points, strict=True):
            point["status"] = status_at(known)
    return content


def _change(change: ChangePoint | StatusChange) -> dict[str, Any]:
    return asdict(change) | {"explained_by": [known.id for known in change.explained_by]}


def _plain(value: Any) -> Any:
    """Return plain data, with null for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
