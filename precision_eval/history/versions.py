"""A result folder over torch versions or commits: tables, series, changes, and what upstream explains.

Conventions: on the axis of torch versions all sets are of one commit; on the axis of commits all are of one torch
version. Where the folder holds more, the commit with the most versions (the version with the most commits) is taken,
the newest of equals, and the rest is named in a note. Cases and metrics are chosen by globs.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precision_eval.core.errors import ParameterError, RecordError, check_known, unknown_name
from precision_eval.core.formatting import grouped
from precision_eval.fixes.catalog import FIXES
from precision_eval.history.changes import (
    FALSE_SHARE,
    SESSION_MARGIN,
    TURN_MARGIN,
    ChangePoint,
    SmallDrift,
    StatusChange,
    change_points,
    drifts_of_one_seed,
    reach,
    status_at,
    status_changes,
)
from precision_eval.history.series import (
    EXACT,
    PAIRED,
    MetricSeries,
    SeedDrift,
    SeriesPoint,
    build_series,
    in_turn,
    read_drift_seeds,
)
from precision_eval.history.tracking import DEVICE
from precision_eval.history.upstream import Upstream, UpstreamChange, load_upstream
from precision_eval.results.asv import ResultSet, check_one_build, check_one_machine, version_key
from precision_eval.run.plan import matching

AXES = ("torch", "commit")
SHORT_COMMIT = 8
MOST_SMALL = 4
"""Drifts of one seed that a note names."""


@dataclass(frozen=True, kw_only=True)
class FixCell:
    """What a fix comes to at one position."""

    status: str | None
    ratio_interval: tuple[float, float] | None
    values: Mapping[str, float]

    @property
    def drift(self) -> float | None:
        """Relative error to float64."""
        return self.values.get("drift")

    @property
    def ratio(self) -> float | None:
        """Latency over that of ``full_float32``."""
        return self.values.get("latency_ratio")


@dataclass(frozen=True, kw_only=True)
class FixTable:
    """Fix × position, for one mode and size of a case."""

    mode: str
    size: str
    fixes: tuple[str, ...]
    cells: Mapping[tuple[str, str], FixCell]


@dataclass(frozen=True, kw_only=True)
class CaseHistory:
    """One case over all positions."""

    case: str
    tables: tuple[FixTable, ...]
    series: tuple[MetricSeries, ...]
    changes: tuple[ChangePoint, ...]
    status_changes: tuple[StatusChange, ...]


@dataclass(frozen=True, kw_only=True)
class VersionHistory:
    """A result folder over its axis."""

    axis: str
    positions: tuple[str, ...]
    sets: tuple[ResultSet, ...]
    releases: Mapping[str, datetime.date]
    machine: str
    hardware: Mapping[str, str]
    cuda_build: bool | None
    cases: tuple[CaseHistory, ...]
    upstream: tuple[UpstreamChange, ...]
    notes: tuple[str, ...]


def history_of(
    sets: Sequence[ResultSet],
    *,
    axis: str = "torch",
    cases: Sequence[str] = ("*",),
    metrics: Sequence[str] = ("*",),
    shown: str | None = None,
    upstream: Upstream | None = None,
) -> VersionHistory:
    """Put together what result sets say over their axis, of cases and metrics by globs.

    Where they hold several, `shown` begins the commit to show on the axis of torch versions, or is the torch version to
    show on that of commits.
    """
    upstream = upstream or load_upstream()
    check_known("axis", axis, AXES)
    machine, cuda_build = check_one_machine(sets), check_one_build(sets)
    chosen, notes = _chosen(sets, axis, shown)
    positions = tuple(_position(result, axis) for result in chosen)
    series = _named(build_series(chosen, positions), cases, metrics)
    known = [change for change in upstream.changes if change.device in ("any", DEVICE)]
    seeds = _seeds_beside(chosen) if axis == "torch" else ()
    changes = change_points(series, known, axis=axis, seeds=seeds)
    turned = status_changes(series, known, axis=axis)
    names = dict.fromkeys(item.case for item in series)
    return VersionHistory(
        axis=axis,
        positions=positions,
        sets=tuple(chosen),
        releases={name: day for name in {one.torch_version for one in chosen} if (day := upstream.releases.get(name))},
        machine=machine,
        hardware=chosen[-1].hardware,
        cuda_build=cuda_build,
        cases=tuple(_case(name, series, positions, changes, turned) for name in names),
        upstream=_used(known, (*changes, *turned)),
        notes=(*notes, *_doubts(series, positions), *_small_drifts(drifts_of_one_seed(series, changes, seeds))),
    )


def _seeds_beside(sets: Sequence[ResultSet]) -> tuple[SeedDrift, ...]:
    """Return the drifts over seeds that lie beside the results, of the same processor where the results name theirs."""
    folders = dict.fromkeys(result.source.parent.parent for result in sets)
    cpus = {result.hardware.get("cpu") for result in sets} - {None, ""}
    drifts = (drift for folder in folders for drift in read_drift_seeds(folder))
    return tuple(drift for drift in drifts if not cpus or drift.cpu in cpus)


def _small_drifts(drifts: Sequence[SmallDrift]) -> list[str]:
    """Name the drifts that move by less than is called, largest first."""
    if not drifts:
        return []
    ordered = sorted(drifts, key=lambda drift: -abs(math.log(drift.factor)))
    named = [_small_drift(drift) for drift in ordered if drift.over_seeds or drift in ordered[:MOST_SMALL]]
    more = f"; and {len(drifts) - len(named)} smaller" if len(drifts) > len(named) else ""
    return [
        f"drift is of one seed, so a move within ×{EXACT['drift']:g} is shown and not called a change unless several "
        f"seeds were measured: {'; '.join(named)}{more}"
    ]


def _small_drift(drift: SmallDrift) -> str:
    mode, case, _, fix, size = drift.key
    text = f"{case}/{fix} ({mode}, {size}) ×{drift.factor:.3g} at {drift.at}"
    if drift.over_seeds is None:
        return text
    low, high = drift.over_seeds.interval
    return f"{text}, over {drift.over_seeds.seeds} seeds ×{drift.over_seeds.factor:.3g} [{low:.3g}, {high:.3g}]"


def _position(result: ResultSet, axis: str) -> str:
    return result.torch_version if axis == "torch" else result.commit[:SHORT_COMMIT]


def _chosen(sets: Sequence[ResultSet], axis: str, wanted: str | None) -> tuple[list[ResultSet], list[str]]:
    """Return the sets along the axis, in order, and what was left aside."""
    by_torch = axis == "torch"
    groups = grouped((result.commit if by_torch else result.torch_version, result) for result in sets)
    name = _wanted(groups, wanted, by_torch=by_torch)
    kept = groups.pop(name)
    kept.sort(key=lambda result: (version_key(result.torch_version) if by_torch else (), result.date_ms))
    _check_positions(kept, axis)
    if not groups:
        return kept, []
    what, option, length = ("commit", "--commit", SHORT_COMMIT) if by_torch else ("torch version", "--torch", None)
    others = ", ".join(other[:length] for other in sorted(groups))
    return kept, [f"{what} {name[:length]} is shown; {option} shows another: {others}"]


def _wanted(groups: Mapping[str, Sequence[ResultSet]], wanted: str | None, *, by_torch: bool) -> str:
    """Return the group to show: the one asked for, else the largest, else the newest."""
    if wanted is None:
        return max(groups, key=lambda name: (len(groups[name]), max(group.date_ms for group in groups[name]), name))
    named = [name for name in groups if (name.startswith(wanted) if by_torch else name == wanted)]
    if not named:
        raise unknown_name("commit" if by_torch else "torch version", wanted, groups)
    if len(named) > 1:
        raise ParameterError(
            f"--commit {wanted} begins {len(named)} commits ({', '.join(sorted(named))}); give more of it"
        )
    return named[0]


def _check_positions(sets: Sequence[ResultSet], axis: str) -> None:
    seen: dict[str, ResultSet] = {}
    for result in sets:
        other = seen.setdefault(_position(result, axis), result)
        if other is not result:
            raise ParameterError(
                f"{other.environment} and {result.environment} are both {_position(result, axis)}; "
                "keep one of the two, or read them from separate folders"
            )


def _named(series: Sequence[MetricSeries], cases: Sequence[str], metrics: Sequence[str]) -> list[MetricSeries]:
    if not series:
        raise RecordError("the results hold no benchmark of a case (eager.*, compiled.*); run those of benchmarks/")
    kept_cases = set(matching("case", cases, sorted({member.case for member in series})))
    kept_metrics = set(matching("metric", metrics, sorted({member.metric for member in series})))
    return [member for member in series if member.case in kept_cases and member.metric in kept_metrics]


def _case(
    name: str,
    series: Sequence[MetricSeries],
    positions: Sequence[str],
    changes: Iterable[ChangePoint],
    turned: Iterable[StatusChange],
) -> CaseHistory:
    own = tuple(item for item in series if item.case == name)
    tables = sorted({(item.mode, item.size) for item in own}, key=lambda table: (table[0] != "eager", table))
    order = {position: number for number, position in enumerate(positions)}
    return CaseHistory(
        case=name,
        tables=tuple(_table(mode, size, own, positions) for mode, size in tables),
        series=own,
        changes=tuple(sorted((c for c in changes if c.case == name), key=lambda c: (order[c.at], c.key))),
        status_changes=tuple(sorted((c for c in turned if c.case == name), key=lambda c: (order[c.at], c.key))),
    )


def _table(mode: str, size: str, series: Sequence[MetricSeries], positions: Sequence[str]) -> FixTable:
    catalogue = [fix.id for fix in FIXES]
    own = [item for item in series if (item.mode, item.size) == (mode, size)]
    fixes = sorted({item.fix for item in own}, key=lambda fix: (_rank(fix, catalogue), fix))
    cells = {
        (fix, position): _cell({item.metric: item.points[number] for item in own if item.fix == fix})
        for fix in fixes
        for number, position in enumerate(positions)
    }
    return FixTable(mode=mode, size=size, fixes=tuple(fixes), cells=cells)


def _rank(fix: str, catalogue: Sequence[str]) -> int:
    """Place of a fix in the catalogue; a redefined one (``autocast~2``) beside its first definition."""
    name = fix.partition("~")[0]
    return catalogue.index(name) if name in catalogue else len(catalogue)


def _cell(points: Mapping[str, SeriesPoint]) -> FixCell:
    values = {metric: point.value for metric, point in points.items() if point.value is not None and metric != "status"}
    ratio = points.get("latency_ratio")
    interval = None if ratio is None else ratio.interval
    return FixCell(status=status_at(points.get("status")), ratio_interval=interval, values=values)


def _used(known: Iterable[UpstreamChange], changes: Iterable[ChangePoint | StatusChange]) -> tuple[UpstreamChange, ...]:
    used = {explanation.id for change in changes for explanation in change.explained_by}
    return tuple(change for change in known if change.id in used)


def _doubts(series: Sequence[MetricSeries], positions: Sequence[str]) -> list[str]:
    """Say what cannot be judged."""
    notes = []
    if len(positions) == 1:
        notes.append(f"{positions[0]} is all there is; a change needs two versions or commits")
    bare = sorted({item.metric for item in series if item.kind == "paired" and item.noise is None and item.measured})
    if bare:
        notes.append(
            f"{', '.join(bare)} without samples of several processes: changes are not judged; "
            "run asv with --record-samples and several rounds"
        )
    other = sorted({item.metric for item in series if item.kind == "other" and item.measured})
    if other:
        notes.append(f"{', '.join(other)}: shown, not judged; their noise is not in these files")
    anew = sorted({f"{item.case}/{item.metric}" for item in series if len(item.runs) > 1})
    if anew:
        notes.append(f"defined anew within the range, so not compared across it: {', '.join(anew)}")
    not_finite = sorted(
        {f"{item.case}/{item.fix}/{item.metric}" for item in series for point in item.points if _is_broken(point)}
    )
    if not_finite:
        notes.append(f"not finite, so left out of series: {', '.join(not_finite)}")
    return [*notes, *_sessions(series), *_too_few(series)]


def _sessions(series: Sequence[MetricSeries]) -> list[str]:
    """Say what the noise of latencies holds."""
    judged = [item for item in series if item.metric in PAIRED and item.noise is not None and len(item.points) > 1]
    turned = [all(in_turn([p for p in run if p.samples]) for run in item.runs) for item in judged]
    cases = {
        way: ", ".join(sorted({item.case for item, is_way in zip(judged, turned, strict=True) if is_way is way}))
        for way in (False, True)
    }
    notes = []
    if not all(turned):
        which = f" of {cases[False]}" if any(turned) else ""
        notes.append(
            f"latencies{which}: each version or commit was measured in one session, and what differs from one session "
            "to the next is not in the noise between its processes, so a step is called only where its interval lies "
            f"beyond {_margins(SESSION_MARGIN)}, chosen after smaller steps did not come back when torch versions were "
            "measured in turn, as torch-sweep now does"
        )
    if any(turned):
        notes.append(
            f"latencies of {cases[True]}: versions were measured in turn, so the noise holds what sessions differ by; "
            f"a step is called where its interval lies beyond {_margins(TURN_MARGIN)}, a judgement and no calibration"
        )
    return notes


def _margins(margins: Mapping[str, float]) -> str:
    if len(set(margins.values())) == 1:
        return f"{100 * max(margins.values()):g} %"
    return " and ".join(f"{100 * margin:g} % ({metric})" for metric, margin in margins.items())


def _too_few(series: Sequence[MetricSeries]) -> list[str]:
    """Name the cases where a paired change has little or no chance to be called."""
    notes = []
    for name in dict.fromkeys(item.case for item in series):
        reached = reach(item for item in series if item.case == name)
        if reached is None or not (reached.none or reached.unsure):
            continue
        note = f"too few versions or processes to call any paired change in {name}"
        if reached.none:
            note += f": p is {reached.smallest:.2g} or more, {FALSE_SHARE:g} at most would be called"
        else:
            note += (
                f" without luck: one series' step, however large, has p of about {reached.clear:.2g}, times "
                f"{reached.tested} series tested together, and {FALSE_SHARE:g} at most is called"
            )
        notes.append(note)
    return notes


def _is_broken(point: SeriesPoint) -> bool:
    return point.value is not None and not math.isfinite(point.value)
