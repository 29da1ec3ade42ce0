"""What changed at which version, in lines, tables for a terminal and Markdown, strict JSON, and CSV of every value.

Conventions: a *group* holds the changes between two positions that have the same explanation, kind, fix and direction;
it becomes one line that names its cases. Factors are new over old. In tables a fix has a row per quantity: status,
drift, latency ratio with the half of its 95 % interval in per cent, bytes; an en dash is *nothing here*. In JSON and
CSV numbers have full precision; what is not finite is null in JSON and empty in CSV, and an upstream change is written
once and named by its id elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.files import null_where_not_finite, to_json, written_whole
from precision_eval.core.formatting import MISSING, counted, factor_text, join, memory_text, scientific, status_text
from precision_eval.core.table import Table, make_table, to_csv, to_markdown
from precision_eval.history.changes import ChangePoint, StatusChange, reach, status_at
from precision_eval.history.series import MetricSeries, SeriesPoint
from precision_eval.history.upstream import UpstreamChange
from precision_eval.history.versions import CaseHistory, FixCell, FixTable, VersionHistory
from precision_eval.results.asv import build_words

Change = ChangePoint | StatusChange

SCHEMA_VERSION = 2
METRIC_TITLES = {
    "status": "status",
    "latency_ratio": "latency ÷ full_float32",
    "latency_to_anchor": "latency ÷ anchor",
    "drift": "drift",
    "peak_bytes": "peak memory of a call",
    "stored_bytes": "weights and caches",
    "divergence": "divergence",
    "audio_degradation": "audio degradation",
    "time": "time of a call",
    "peakmem": "peak resident memory",
}
CSV_COLUMNS = (
    "case", "mode", "size", "fix", "metric", "position", "state", "value", "low_95", "high_95", "processes", "unit",
    "status", "benchmark_version",
)  # fmt: skip
UNEXPLAINED = "unexplained"
MOST_NAMES = 6
_BYTES = ("peak_bytes", "stored_bytes", "peakmem")
_IN_EVERY_TABLE = ("drift", "latency_ratio")


@dataclass(frozen=True, kw_only=True)
class ChangeGroup:
    """Changes that one line tells; all lie between the same two positions.

    `what` reads ``"query_to_half: latency ÷ full_float32"``, `change` ``"raised → passed"``, or the factor or its
    range, `where` names cases and modes, and `before` is the last position with the old value.
    """

    what: str
    change: str
    where: str
    before: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True)
class ChangesAt:
    """What changed at one version or commit."""

    name: str
    since: str
    explained: tuple[tuple[UpstreamChange, tuple[ChangeGroup, ...]], ...]
    unexplained: tuple[ChangeGroup, ...]
    count: int


def changes_of(case: CaseHistory) -> tuple[Change, ...]:
    """Return every change of a case, statuses first."""
    return (*case.status_changes, *case.changes)


def all_changes(history: VersionHistory) -> tuple[Change, ...]:
    """Return every change of a history."""
    return tuple(change for case in history.cases for change in changes_of(case))


def positions_of(history: VersionHistory) -> tuple[ChangesAt, ...]:
    """Return what changed at each position, in the order of the axis; positions without changes are left out."""
    changes = all_changes(history)
    by_name = {name: [change for change in changes if change.at == name] for name in history.positions}
    return tuple(_changes_at(name, members) for name, members in by_name.items() if members)


def _changes_at(name: str, changes: Sequence[Change]) -> ChangesAt:
    known = {cause.id: cause for change in changes for cause in change.explained_by}
    before = {change.before for change in changes}
    return ChangesAt(
        name=name,
        since=before.pop() if len(before) == 1 else "",
        explained=tuple(
            (cause, _groups(change for change in changes if cause in change.explained_by)) for cause in known.values()
        ),
        unexplained=_groups(change for change in changes if not change.explained_by),
        count=len(changes),
    )


def _groups(changes: Iterable[Change]) -> tuple[ChangeGroup, ...]:
    """Gather changes of one kind, fix and direction: statuses first, then what is large and frequent."""
    groups = [tuple(members) for _, members in groupby(sorted(changes, key=_kind), key=_kind)]
    groups.sort(key=lambda members: (_kind(members[0])[0] != "status", -sum(map(_weight, members)), _kind(members[0])))
    return tuple(map(_group, groups))


def _kind(change: Change) -> tuple[str, str, str, bool, str]:
    if isinstance(change, StatusChange):
        return ("status", change.fix, f"{change.old} → {change.new}", False, change.before)
    return (change.metric, change.fix, "up" if change.factor > 1.0 else "down", change.with_baseline, change.before)


def _weight(change: Change) -> float:
    """How much a change weighs in the order of lines: the size of its logarithm, at most that of 1000."""
    if isinstance(change, StatusChange) or change.factor <= 0.0:
        return math.log(1000.0)
    return min(abs(math.log(change.factor)), math.log(1000.0))


def _group(members: tuple[Change, ...]) -> ChangeGroup:
    first = members[0]
    note = ", with the float32 baseline" if isinstance(first, ChangePoint) and first.with_baseline else ""
    modes = list(dict.fromkeys(change.mode for change in members))
    return ChangeGroup(
        what=f"{first.fix}: {METRIC_TITLES.get(first.metric, first.metric)}{note}",
        change=change_text(members),
        where=f"{_names(list(dict.fromkeys(change.case for change in members)))}; {join(modes)}",
        before=first.before,
        changes=members,
    )


def change_text(members: Sequence[Change]) -> str:
    """Write changes of one kind: both statuses, both levels and the factor of a single one, or the factors' range."""
    first = members[0]
    if isinstance(first, StatusChange):
        return f"{status_text(first.old)} → {status_text(first.new)}"
    points = [change for change in members if isinstance(change, ChangePoint)]
    counts = {point.seeds for point in points}
    seeds = f" over {counts.pop()} seeds" if len(counts) == 1 and 1 not in counts else ""
    if len(points) == 1:
        old, new = (value_text(value, first.metric) for value in (first.old, first.new))
        return f"{old} → {new}, {factor_text(first.factor, *(first.factor_interval or ()))}{seeds}"
    low, high = min(point.factor for point in points), max(point.factor for point in points)
    span = "" if f"{low:.2g}" == f"{high:.2g}" else f" to {factor_text(high)}"
    return f"{factor_text(low)}{span}{seeds}"


def headline(history: VersionHistory) -> str:
    """Return the answer in one or two sentences."""
    changes = all_changes(history)
    axis = "torch " if history.axis == "torch" else "commit "
    if len(history.positions) < 2:
        return f"Only {axis}{history.positions[0]} was measured: nothing to compare."
    span = f"Between {axis}{history.positions[0]} and {history.positions[-1]}"
    unjudged = _unjudged(history)
    if not changes:
        what = "exact metric changed" if unjudged else "metric changed beyond its noise"
        return f"{span}, no status turned over and no {what}.{unjudged}"
    statuses = sum(isinstance(change, StatusChange) for change in changes)
    turned = f"{statuses} status{'' if statuses == 1 else 'es'} turned over"
    steps = f"{len({change.at for change in changes})} of {len(history.positions) - 1} steps"
    sentence = f"{span}, {turned} and {counted(len(changes) - statuses, 'metric')} changed, at {steps}."
    if history.axis == "torch":
        known = sum(bool(change.explained_by) for change in changes)
        sentence += f" A known change in torch explains {known} of these {len(changes)}."
    return sentence + unjudged


def _unjudged(history: VersionHistory) -> str:
    """Say where paired latencies could not be judged, or only with luck; empty where they could."""
    lines: dict[str, list[str]] = {}
    for case in history.cases:
        reached, paired = reach(case.series), [series for series in case.series if series.kind == "paired"]
        if reached is None and not any(len(run) > 1 for series in paired for run in series.runs):
            continue
        if reached is None or reached.none:
            lines.setdefault("could not be judged", []).append(case.case)
        elif reached.unsure:
            lines.setdefault("could hardly be judged", []).append(case.case)
    return "".join(f" Paired latencies {what}: {_names(names)}." for what, names in lines.items())


def _names(cases: Sequence[str]) -> str:
    """Name cases; many only by number."""
    return join(cases) if len(cases) <= MOST_NAMES else f"{len(cases)} cases"


def value_text(value: float | None, metric: str) -> str:
    """Write a value of a metric: bytes in binary units, everything else with three digits."""
    return memory_text(value) if metric in _BYTES else scientific(value, digits=3)


def tables(history: VersionHistory, case: CaseHistory) -> Iterator[Table]:
    """Yield the tables of a case: fix × position for each mode and size, changes of status, change points."""
    for table in case.tables:
        title = f"{case.case}, {table.mode}, {table.size}"
        yield make_table(("fix", "", *history.positions), _rows(table, history.positions), title=title)
    if case.status_changes:
        turned = [(change.fix, *_row(history, change)) for change in case.status_changes]
        head = ("fix", "where", "from → to", "change", "upstream")
        yield make_table(head, turned, title=f"{case.case}: changes of status")
    if case.changes:
        rows = [(change, _row(history, change)) for change in case.changes]
        points = [(c.metric.replace("_", " "), c.fix, *row[:-1], _p_value(c), row[-1]) for c, row in rows]
        columns = ("metric", "fix", "where", "from → to", "change", "p", "upstream")
        yield make_table(columns, points, title=f"{case.case}: change points")


def _rows(table: FixTable, positions: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for fix in table.fixes:
        cells = [table.cells[fix, position] for position in positions]
        others = dict.fromkeys(metric for cell in cells for metric in cell.values if metric not in _IN_EVERY_TABLE)
        lines = {"status": [_status(cell) for cell in cells]}
        lines |= {"drift": [_value("drift", cell) for cell in cells], "latency": [_ratio(cell) for cell in cells]}
        lines |= {metric.replace("_", " "): [_value(metric, cell) for cell in cells] for metric in others}
        kept = {name: texts for name, texts in lines.items() if set(texts) != {MISSING}}
        for number, (name, texts) in enumerate((kept or {"status": lines["status"]}).items()):
            yield ("" if number else fix, name, *texts)


def _status(cell: FixCell) -> str:
    return MISSING if cell.status is None else "n/a" if cell.status == "not_applicable" else cell.status


def _value(metric: str, cell: FixCell) -> str:
    return value_text(cell.values.get(metric), metric)


def _ratio(cell: FixCell) -> str:
    if cell.ratio is None:
        return MISSING
    if cell.ratio_interval is None:
        return f"{cell.ratio:.3g}"
    half = 100.0 * (math.sqrt(cell.ratio_interval[1] / cell.ratio_interval[0]) - 1.0)
    return f"{cell.ratio:.3g} ±{half:.2g}%"


def _p_value(change: ChangePoint) -> str:
    if change.adjusted_p_value is not None:
        return f"{change.adjusted_p_value:.1g}"
    return "of its seeds" if change.seeds > 1 else "exact"


def _row(history: VersionHistory, change: Change) -> tuple[str, str, str, str]:
    """Return where a change lies, between what, with the month of the release that has it, the change and its cause."""
    day = history.releases.get(change.at)
    when = "" if day is None else f" ({day:%Y-%m})"
    cause = "; ".join(f"{known.id} (since {known.since})" for known in change.explained_by) or UNEXPLAINED
    if history.axis != "torch":
        cause = MISSING
    if isinstance(change, ChangePoint) and change.with_baseline:
        cause = f"float32 itself changed here; {cause}"
    levels = f"{change.old} → {change.new}" if isinstance(change, StatusChange) else change_text([change])
    return f"{change.mode}, {change.size}", f"{change.before} → {change.at}{when}", levels, cause


def heading(history: VersionHistory) -> str:
    """Say in one line what was read."""
    count = counted(len(history.positions), "torch version" if history.axis == "torch" else "commit")
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
        "positions": [_position_data(history, number) for number in range(len(history.positions))],
        "cases": [
            {
                "case": case.case,
                "series": [_series_data(series) for series in case.series],
                "changes": [_change_data(change) for change in case.changes],
                "status_changes": [_change_data(change) for change in case.status_changes],
            }
            for case in history.cases
        ],
        "upstream": [asdict(change) for change in history.upstream],
        "notes": list(history.notes),
    }
    return to_json(null_where_not_finite(content), what="the history", indent=1) + "\n"


def _position_data(history: VersionHistory, number: int) -> dict[str, Any]:
    result = history.sets[number]
    day = history.releases.get(result.torch_version)
    return {
        "name": history.positions[number],
        "torch": result.torch_version,
        "released": None if day is None else day.isoformat(),
        "commit": result.commit,
        "commit_date_ms": result.date_ms,
        "environment": result.environment,
        "python": result.python,
        "file": result.source.name,
    }


def _series_data(series: MetricSeries) -> dict[str, Any]:
    content = asdict(series)
    if series.kind == "status":
        for point, known in zip(content["points"], series.points, strict=True):
            point["status"] = status_at(known)
    return content


def _change_data(change: Change) -> dict[str, Any]:
    return asdict(change) | {"explained_by": [known.id for known in change.explained_by]}


def write_csv(history: VersionHistory, path: Path) -> None:
    """Write every point of every series."""
    series = [series for case in history.cases for series in case.series]
    rows = [_csv_row(member, point) for member in series for point in member.points if point.state != "absent"]
    try:
        with written_whole(path) as partial:
            partial.write_text(to_csv(make_table(CSV_COLUMNS, rows)), encoding="utf-8")
    except OSError as error:
        raise ParameterError(f"{path} cannot be written: {error.strerror}; give another file") from error


def _csv_row(series: MetricSeries, point: SeriesPoint) -> list[Any]:
    value = point.value if point.value is not None and math.isfinite(point.value) else ""
    low, high = point.interval or ("", "")
    where = [series.case, series.mode, series.size, series.fix, series.metric, point.position, point.state]
    status = status_at(point) if series.kind == "status" else ""
    return [*where, value, low, high, len(point.samples) or "", series.unit, status, point.benchmark_version]
