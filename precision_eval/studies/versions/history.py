"""A result folder over torch versions or commits: tables, series, changes, and what upstream explains.

Conventions: on the axis of torch versions all sets are of one commit; on the axis of commits all are of one torch
version. Where the folder holds more, the commit with the most versions (the version with the most commits) is taken,
the newest of equals, and the rest is named in a note. Cases and metrics are chosen by globs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from precision_eval.core.errors import ParameterError, RecordError, unknown_name
from precision_eval.fixes.catalog import FIXES
from precision_eval.results.asv import ResultSet, check_one_build, check_one_machine
from precision_eval.results.expectations import version_key
from precision_eval.studies.tracking.definitions import DEVICE
from precision_eval.studies.versions.changes import (
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
from precision_eval.studies.versions.series import (
    EXACT,
    PAIRED,
    MetricSeries,
    SeedDrift,
    SeriesPoint,
    build_series,
    in_turn,
    read_drift_seeds,
)
from precision_eval.studies.versions.upstream import Release, Upstream, UpstreamChange, load_upstream

AXES = ("torch", "commit")
SHORT_COMMIT = 8
MOST_SMALL = 4
"""Drifts of one seed that a note names."""


@dataclass(frozen=True, kw_only=True)
class FixCell:
    """What a fix comes to at one position."""

    status: str | None
    drift: float | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    peak_bytes: float | None
    stored_bytes: float | None
    values: Mapping[str, float]


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
    releases: Mapping[str, Release]
    machine: str
    hardware: Mapping[str, str]
    cuda_build: bool | None
    cases: tuple[CaseHistory, ...]
    upstream: tuple[UpstreamChange, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HistoryChoice:
    """What to tell of a folder.

    Attributes
    ----------
    axis : str
        ``"torch"`` or ``"commit"``.
    cases, metrics : tuple of str
        Globs; each must name something that is there.
    commit : str or None
        On the axis of torch versions, the beginning of the commit to take.
    torch : str or None
        On the axis of commits, the torch version to take.
    """

    axis: str = "torch"
    cases: tuple[str, ...] = ("*",)
    metrics: tuple[str, ...] = ("*",)
    commit: str | None = None
    torch: str | None = None


def history_of(
    sets: Sequence[ResultSet], choice: HistoryChoice | None = None, *, upstream: Upstream | None = None
) -> VersionHistory:
    """Put together what result sets say over their axis."""
    choice = choice or HistoryChoice()
    upstream = upstream or load_upstream()
    if choice.axis not in AXES:
        raise ParameterError(f"unknown axis '{choice.axis}'; expected {' or '.join(AXES)}")
    machine, cuda_build = check_one_machine(sets), check_one_build(sets)
    chosen, notes = _chosen(sets, choice)
    positions = tuple(_position(one, choice.axis) for one in chosen)
    series = _named(build_series(chosen, positions), choice)
    known = [change for change in upstream.changes if change.device in ("any", DEVICE)]
    seeds = _seeds_beside(chosen) if choice.axis == "torch" else ()
    changes = change_points(series, known, axis=choice.axis, seeds=seeds)
    turned = status_changes(series, known, axis=choice.axis)
    names = dict.fromkeys(item.case for item in series)
    cases = tuple(_case(name, series, positions, changes, turned) for name in names)
    return VersionHistory(
        axis=choice.axis,
        positions=positions,
        sets=tuple(chosen),
        releases={
            one.torch_version: upstream.releases[one.torch_version] for one in chosen if _is_known(one, upstream)
        },
        machine=machine,
        hardware=chosen[-1].hardware,
        cuda_build=cuda_build,
        cases=cases,
        upstream=_used(known, (*changes, *turned)),
        notes=(*notes, *_doubts(series, positions), *_small_drifts(drifts_of_one_seed(series, changes, seeds))),
    )


def _seeds_beside(sets: Sequence[ResultSet]) -> tuple[SeedDrift, ...]:
    """Return the drifts over seeds that lie beside the results, of the same processor where the results name theirs."""
    folders = dict.fromkeys(one.source.parent.parent for one in sets)
    cpus = {one.hardware.get("cpu") for one in sets} - {None, ""}
    found = (drift_seed for folder in folders for drift_seed in read_drift_seeds(folder))
    return tuple(one for one in found if not cpus or one.cpu in cpus)


def _small_drifts(found: Sequence[SmallDrift]) -> list[str]:
    """Name the drifts that move by less than is called, largest first."""
    if not found:
        return []
    ordered = sorted(found, key=lambda one: -abs(math.log(one.factor)))
    shown = [_small_drift(one) for one in ordered if one.over_seeds or one in ordered[:MOST_SMALL]]
    more = f"; and {len(found) - len(shown)} smaller" if len(found) > len(shown) else ""
    return [
        f"drift is of one seed, so a move within ×{EXACT['drift']:g} is shown and not called a change unless several "
        f"seeds were measured: {'; '.join(shown)}{more}"
    ]


def _small_drift(one: SmallDrift) -> str:
    mode, case, _, fix, size = one.key
    told = f"{case}/{fix} ({mode}, {size}) ×{one.factor:.3g} at {one.at}"
    if one.over_seeds is None:
        return told
    low, high = one.over_seeds.interval
    return f"{told}, over {one.over_seeds.seeds} seeds ×{one.over_seeds.factor:.3g} [{low:.3g}, {high:.3g}]"


def _is_known(one: ResultSet, upstream: Upstream) -> bool:
    return one.torch_version in upstream.releases


def _position(one: ResultSet, axis: str) -> str:
    return one.torch_version if axis == "torch" else one.commit[:SHORT_COMMIT]


def _chosen(sets: Sequence[ResultSet], choice: HistoryChoice) -> tuple[list[ResultSet], list[str]]:
    """Return the sets along the axis, in order, and what was left aside."""
    by_torch = choice.axis == "torch"
    groups: dict[str, list[ResultSet]] = {}
    for one in sets:
        groups.setdefault(one.commit if by_torch else one.torch_version, []).append(one)
    name = _wanted(groups, choice)
    kept = groups.pop(name)
    kept.sort(key=lambda one: (version_key(one.torch_version), one.date_ms) if by_torch else ((), one.date_ms))
    _check_positions(kept, choice.axis)
    if not groups:
        return kept, []
    what, option = ("commit", "--commit") if by_torch else ("torch version", "--torch")
    shown = [other[:SHORT_COMMIT] if by_torch else other for other in sorted(groups)]
    taken = name[:SHORT_COMMIT] if by_torch else name
    return kept, [f"{what} {taken} is shown; {option} shows another: {', '.join(shown)}"]


def _wanted(groups: Mapping[str, Sequence[ResultSet]], choice: HistoryChoice) -> str:
    """Return the group to show: the one asked for, else the largest, else the newest."""
    asked = choice.commit if choice.axis == "torch" else choice.torch
    if asked is None:
        return max(groups, key=lambda name: (len(groups[name]), max(group.date_ms for group in groups[name]), name))
    found = (
        [name for name in groups if name.startswith(asked)] if choice.axis == "torch" else [asked] * (asked in groups)
    )
    if not found:
        raise unknown_name("commit" if choice.axis == "torch" else "torch version", asked, groups)
    if len(found) > 1:
        raise ParameterError(
            f"--commit {asked} begins {len(found)} commits ({', '.join(sorted(found))}); give more of it"
        )
    return found[0]


def _check_positions(sets: Sequence[ResultSet], axis: str) -> None:
    seen: dict[str, ResultSet] = {}
    for one in sets:
        other = seen.setdefault(_position(one, axis), one)
        if other is not one:
            raise ParameterError(
                f"{other.environment} and {one.environment} are both {_position(one, axis)}; "
                "keep one of the two, or read them from separate folders"
            )


def _named(series: Sequence[MetricSeries], choice: HistoryChoice) -> list[MetricSeries]:
    if not series:
        raise RecordError("the results hold no benchmark of a case (eager.*, compiled.*); run those of benchmarks/")
    for kind, globs in (("case", choice.cases), ("metric", choice.metrics)):
        known = {getattr(one, kind) for one in series}
        for glob in globs:
            if not any(fnmatchcase(name, glob) for name in known):
                raise unknown_name(kind, glob, known)
    return [
        item
        for item in series
        if any(fnmatchcase(item.case, glob) for glob in choice.cases)
        and any(fnmatchcase(item.metric, glob) for glob in choice.metrics)
    ]


def _case(
    name: str,
    series: Sequence[MetricSeries],
    positions: Sequence[str],
    changes: Iterable[ChangePoint],
    turned: Iterable[StatusChange],
) -> CaseHistory:
    own = tuple(item for item in series if item.case == name)
    places = sorted({(one.mode, one.size) for one in own}, key=lambda place: (place[0] != "eager", place))
    order = {position: number for number, position in enumerate(positions)}
    return CaseHistory(
        case=name,
        tables=tuple(_table(mode, size, own, positions) for mode, size in places),
        series=own,
        changes=tuple(sorted((c for c in changes if c.case == name), key=lambda c: (order[c.at], c.key))),
        status_changes=tuple(sorted((c for c in turned if c.case == name), key=lambda c: (order[c.at], c.key))),
    )


def _table(mode: str, size: str, series: Sequence[MetricSeries], positions: Sequence[str]) -> FixTable:
    catalogue = [fix.id for fix in FIXES]
    own = [item for item in series if (item.mode, item.size) == (mode, size)]
    fixes = sorted({one.fix for one in own}, key=lambda fix: (_rank(fix, catalogue), fix))
    cells = {
        (fix, position): _cell({one.metric: one.points[number] for one in own if one.fix == fix})
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
    return FixCell(
        status=status_at(points.get("status")),
        drift=values.get("drift"),
        ratio=values.get("latency_ratio"),
        ratio_interval=ratio.interval if ratio is not None else None,
        peak_bytes=values.get("peak_bytes"),
        stored_bytes=values.get("stored_bytes"),
        values=values,
    )


def _used(known: Iterable[UpstreamChange], changes: Iterable[ChangePoint | StatusChange]) -> tuple[UpstreamChange, ...]:
    used = {explanation.id for change in changes for explanation in change.explained_by}
    return tuple(one for one in known if one.id in used)


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
    other = sorted({one.metric for one in series if one.kind == "other" and one.measured})
    if other:
        notes.append(f"{', '.join(other)}: shown, not judged; their noise is not in these files")
    anew = sorted({f"{one.case}/{one.metric}" for one in series if len(one.runs) > 1})
    if anew:
        notes.append(f"defined anew within the range, so not compared across it: {', '.join(anew)}")
    not_finite = sorted(
        {f"{one.case}/{one.fix}/{one.metric}" for one in series for point in one.points if _is_broken(point)}
    )
    if not_finite:
        notes.append(f"not finite, so left out of series: {', '.join(not_finite)}")
    return [*notes, *_sessions(series), *_too_few(series)]


def _sessions(series: Sequence[MetricSeries]) -> list[str]:
    """Say what the noise of latencies holds."""
    judged = [item for item in series if item.metric in PAIRED and item.noise is not None and len(item.points) > 1]
    turned = [all(in_turn([p for p in run if p.samples]) for run in one.runs) for one in judged]
    notes = []
    if not all(turned):
        which = "" if not any(turned) else f" of {', '.join(_cases_of(judged, turned, False))}"
        notes.append(
            f"latencies{which}: each version or commit was measured in one session, and what differs from one session "
            "to the next is not in the noise between its processes, so a step is called only where its interval lies "
            f"beyond {_margins(SESSION_MARGIN)}, chosen after smaller steps did not come back when torch versions were "
            "measured in turn, as torch-sweep now does"
        )
    if any(turned):
        notes.append(
            f"latencies of {', '.join(_cases_of(judged, turned, True))}: versions were measured in turn, so the "
            f"noise holds what sessions differ by; a step is called where its interval lies beyond "
            f"{_margins(TURN_MARGIN)}, a judgement and no calibration"
        )
    return notes


def _cases_of(series: Sequence[MetricSeries], turned: Sequence[bool], wanted: bool) -> list[str]:
    return sorted({one.case for one, is_turned in zip(series, turned, strict=True) if is_turned == wanted})


def _margins(margins: Mapping[str, float]) -> str:
    if len(set(margins.values())) == 1:
        return f"{100 * max(margins.values()):g} %"
    return " and ".join(f"{100 * margin:g} % ({metric})" for metric, margin in margins.items())


def _too_few(series: Sequence[MetricSeries]) -> list[str]:
    """Name the cases where a paired change has little or no chance to be called."""
    notes = []
    for name in dict.fromkeys(item.case for item in series):
        found = reach(one for one in series if one.case == name)
        if found is None or not (found.none or found.unsure):
            continue
        told = f"too few versions or processes to call any paired change in {name}"
        if found.none:
            notes.append(f"{told}: p is {found.smallest:.2g} or more, {FALSE_SHARE:g} at most would be called")
        else:
            notes.append(
                f"{told} without luck: one series' step, however large, has p of about {found.clear:.2g}, times "
                f"{found.tested} series tested together, and {FALSE_SHARE:g} at most is called"
            )
    return notes


def _is_broken(point: SeriesPoint) -> bool:
    return point.value is not None and not math.isfinite(point.value)
