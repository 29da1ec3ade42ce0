"""The history over torch versions for other programs: strict JSON, and CSV with one line per value.

Conventions: numbers are full precision; what is not finite is null in JSON and empty in CSV. An upstream change is told
once and named by its id elsewhere.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.files import written_whole
from precision_eval.studies.versions.changes import ChangePoint, StatusChange, status_at
from precision_eval.studies.versions.history import CaseHistory, VersionHistory
from precision_eval.studies.versions.series import Series, SeriesPoint

SCHEMA_VERSION = 1
CSV_COLUMNS = (
    "case",
    "mode",
    "size",
    "fix",
    "metric",
    "position",
    "state",
    "value",
    "low_95",
    "high_95",
    "processes",
    "unit",
    "status",
    "benchmark_version",
)


def as_json(history: VersionHistory) -> str:
    """Return the history as one JSON object, ended by a newline."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "axis": history.axis,
        "machine": history.machine,
        "hardware": dict(history.hardware),
        "cuda_build": history.cuda_build,
        "positions": [_position(history, number) for number in range(len(history.positions))],
        "cases": [_case(one) for one in history.cases],
        "upstream": [asdict(one) for one in history.upstream],
        "notes": list(history.notes),
    }
    return json.dumps(_plain(content), allow_nan=False, ensure_ascii=False, indent=1) + "\n"


def write_csv(history: VersionHistory, path: Path) -> None:
    """Write every point of every series."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for case in history.cases:
        for series in case.series:
            writer.writerows(_csv_row(series, point) for point in series.points if point.state != "absent")
    try:
        with written_whole(path) as partial:
            partial.write_text(buffer.getvalue(), encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"{path} cannot be written: {error.strerror}; give another file") from error


def _csv_row(series: Series, point: SeriesPoint) -> list[Any]:
    value = point.value if point.value is not None and math.isfinite(point.value) else ""
    low, high = point.interval or ("", "")
    where = [series.case, series.mode, series.size, series.fix, series.metric, point.position, point.state]
    status = status_at(point) if series.kind == "status" else ""
    return [*where, value, low, high, len(point.samples) or "", series.unit, status, point.benchmark_version]


def _position(history: VersionHistory, number: int) -> dict[str, Any]:
    one, release = history.sets[number], history.releases.get(history.sets[number].torch_version)
    return {
        "name": history.positions[number],
        "torch": one.torch_version,
        "released": release.date.isoformat() if release and release.date else None,
        "commit": one.commit,
        "commit_date_ms": one.date_ms,
        "environment": one.environment,
        "python": one.python,
        "file": one.source.name,
    }


def _case(case: CaseHistory) -> dict[str, Any]:
    return {
        "case": case.case,
        "series": [_series(one) for one in case.series],
        "changes": [_change(one) for one in case.changes],
        "status_changes": [_change(one) for one in case.status_changes],
    }


def _series(series: Series) -> dict[str, Any]:
    content = asdict(series)
    if series.kind == "status":
        for point, known in zip(content["points"], series.points, strict=True):
            point["status"] = status_at(known)
    return content


def _change(change: ChangePoint | StatusChange) -> dict[str, Any]:
    return asdict(change) | {"explained_by": [one.id for one in change.explained_by]}


def _plain(value: Any) -> Any:
    """Return plain data, with null for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
