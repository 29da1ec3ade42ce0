"""Where a metric changes with the torch version or the commit: change points with size, interval and significance."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from precision_eval.core.formatting import grouped
from precision_eval.history.series import (
    EXACT,
    LEAST_SEEDS,
    SEEDED,
    Keyed,
    MetricSeries,
    SeedDrift,
    SeedStep,
    SeriesPoint,
    in_turn,
    named,
    seed_step,
    step_of_samples,
)
from precision_eval.history.upstream import UpstreamChange
from precision_eval.results.asv import AsvPoint, Key, status_name
from precision_eval.stats.change_points import detect, no_change_p_value, reachable_p_values

FALSE_SHARE = 0.025
"""Of series reported, those without a change, at most; steps beside their version and further ones come on top."""
SESSION_MARGIN: Mapping[str, float] = {"latency_ratio": 0.25, "latency_to_anchor": 0.25}
"""Paired metric to the relative change that two sessions may show of equal code, where each version had one session.
The noise between processes of one session does not hold it. With 2 % for the ratio, as it was at first, a committed
sweep called ×1.13 and ×0.895; both were measured again, versions in turn, and neither came back. 25 % was chosen after
that: a judgement, no calibration. ``validation/versions/sessions.py`` measures what sessions of equal code differ
by."""

TURN_MARGIN: Mapping[str, float] = {"latency_ratio": 0.02, "latency_to_anchor": 0.10}
"""The same where versions were measured in turn; what a version's own build and layout make on one machine is left.
A judgement, made before any such sweep."""

BASELINE_FIX = "full_float32"
"""Latency ratios are to this fix; where it changes itself, all ratios do."""


@dataclass(frozen=True, kw_only=True)
class ChangePoint(Keyed):
    """A metric that is at another level from some position on: after `before`, and at the latest from `at` on."""

    before: str
    at: str
    old: float
    new: float
    factor: float
    factor_interval: tuple[float, float] | None = None
    p_value: float | None = None
    adjusted_p_value: float | None = None
    with_baseline: bool = False
    explained_by: tuple[UpstreamChange, ...] = ()
    seeds: int = 1


@dataclass(frozen=True, kw_only=True)
class SmallDrift:
    """A drift of one seed that moves beyond ``SEEDED`` and is called no change."""

    key: Key
    before: str
    at: str
    factor: float
    over_seeds: SeedStep | None


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What the paired tests of a case can call, with so many versions and processes."""

    tested: int
    smallest: float
    clear: float

    @property
    def none(self) -> bool:
        """Whether no change can be called, not even one that all series take."""
        return self.smallest > FALSE_SHARE

    @property
    def unsure(self) -> bool:
        """Whether a change of one series, however large, takes luck to be called."""
        return self.clear * self.tested > FALSE_SHARE


@dataclass(frozen=True)
class _Run:
    """Points of one series under one definition of the benchmark, all with samples."""

    series: MetricSeries
    points: tuple[SeriesPoint, ...]

    @property
    def rows(self) -> list[NDArray[np.float64]]:
        return [np.log(np.asarray(point.samples, dtype=np.float64)) for point in self.points]

    @property
    def seed(self) -> int:
        return zlib.crc32("/".join((*self.series.key, self.points[0].benchmark_version)).encode())


def change_points(
    series: Iterable[MetricSeries],
    upstream: Iterable[UpstreamChange] = (),
    *,
    axis: str = "torch",
    margins: Mapping[str, float] = SESSION_MARGIN,
    turn_margins: Mapping[str, float] = TURN_MARGIN,
    seeds: Sequence[SeedDrift] = (),
) -> tuple[ChangePoint, ...]:
    """Find the change points of some series, those of a case together."""
    known, more = (tuple(upstream), tuple(seeds)) if axis == "torch" else ((), ())
    explained: list[ChangePoint] = []
    for members in grouped((item.case, item) for item in series).values():
        changes = [change for member in members if member.kind == "exact" for change in _exact_changes(member, more)]
        changes += _paired_changes(members, margins, turn_margins)
        explained += [_explained(change, changes, known) for change in changes]
    return tuple(explained)


def reach(series: Iterable[MetricSeries]) -> Reach | None:
    """Say whether changes of one case's paired series can be called at all."""
    counts = [tuple(len(point.samples) for point in run.points) for run in _runs(series)]
    if not counts:
        return None
    smallest, clear = zip(*map(reachable_p_values, set(counts)), strict=True)
    return Reach(tested=len(counts), smallest=min(smallest), clear=min(clear))


def drifts_of_one_seed(
    series: Iterable[MetricSeries], changes: Iterable[ChangePoint], seeds: Sequence[SeedDrift] = ()
) -> tuple[SmallDrift, ...]:
    """List the drifts that move between neighbouring positions by more than ``SEEDED`` and are called no change."""
    called = {(change.key, change.at) for change in changes}
    moves = []
    for item in series:
        for old, new in (pair for run in item.runs for pair in pairwise(run) if item.metric == "drift"):
            if min(len(old.samples), len(new.samples)) >= LEAST_SEEDS:
                continue
            factor = _factor(old, new)
            if (item.key, new.position) not in called and factor > 0.0 and abs(math.log(factor)) > math.log(SEEDED):
                step = _over_seeds(item, old, new, seeds)
                moves.append(
                    SmallDrift(key=item.key, before=old.position, at=new.position, factor=factor, over_seeds=step)
                )
    return tuple(moves)


def _factor(old: SeriesPoint, new: SeriesPoint) -> float:
    """Return new over old; infinite from 0, 1 from 0 to 0."""
    before, after = float(old.value or 0.0), float(new.value or 0.0)
    return after / before if before else math.inf if after else 1.0


def _over_seeds(
    series: MetricSeries, old: SeriesPoint, new: SeriesPoint, seeds: Sequence[SeedDrift]
) -> SeedStep | None:
    return step_of_samples(old.samples, new.samples) or seed_step(
        seeds, series.key, before=old.position, at=new.position, benchmark_version=new.benchmark_version
    )


def _exact_changes(series: MetricSeries, seeds: Sequence[SeedDrift]) -> list[ChangePoint]:
    limit = math.log(EXACT[series.metric])
    changes = []
    for run in series.runs:
        level = last = run[0]
        for point in run[1:]:
            factor, step = _factor(level, point), _over_seeds(series, last, point, seeds)
            if step is not None:  # several seeds know better than one, either way
                level = point
                if step.interval[0] > SEEDED or step.interval[1] < 1.0 / SEEDED:
                    change = _change(series, last.position, point.position, step.old, step.new)
                    changes.append(replace(change, factor_interval=step.interval, seeds=step.seeds))
            elif factor <= 0.0 or abs(math.log(factor)) > limit:
                old, new = float(level.value or 0.0), float(point.value or 0.0)
                changes.append(_change(series, last.position, point.position, old, new))
                level = point
            last = point
    return changes


def _change(series: MetricSeries, before: str, at: str, old: float, new: float) -> ChangePoint:
    factor = new / old if old else math.inf
    return ChangePoint(**named(series.key), before=before, at=at, old=old, new=new, factor=factor)


def _runs(series: Iterable[MetricSeries]) -> list[_Run]:
    """Return what is tested of the paired series."""
    return [
        _Run(item, kept)
        for item in series
        if item.kind == "paired" and item.noise is not None
        for run in item.runs
        if len(kept := tuple(point for point in run if point.samples)) > 1
    ]


def _paired_changes(
    series: Sequence[MetricSeries], margins: Mapping[str, float], turn_margins: Mapping[str, float]
) -> list[ChangePoint]:
    """Change points of the paired series of one family."""
    runs = _runs(series)
    if not runs:
        return []
    p_values = [no_change_p_value(run.rows, seed=run.seed, prior=_prior(run)) for run in runs]
    adjusted = [float(value) for value in false_discovery_control(p_values)]
    chosen = [value <= FALSE_SHARE for value in adjusted]
    level = FALSE_SHARE * sum(chosen) / len(runs)
    return [
        change
        for run, value, is_chosen in zip(runs, adjusted, chosen, strict=True)
        if is_chosen
        for change in _steps(run, value, level, turn_margins if in_turn(run.points) else margins)
    ]


def _prior(run: _Run) -> float:
    """Return the spread that the other fixes have; what :attr:`.series.Noise.scale` was drawn towards."""
    noise = run.series.noise
    return math.nan if noise is None or noise.prior_scale is None else noise.prior_scale


def _steps(run: _Run, adjusted: float, level: float, margins: Mapping[str, float]) -> list[ChangePoint]:
    """Return the steps whose interval lies beyond the metric's margin."""
    detection = detect(run.rows, level=level, seed=run.seed, prior=_prior(run))
    changes = []
    for number, step in enumerate(detection.steps):
        if abs(step.size) - step.half_width <= math.log1p(margins.get(run.series.metric, 0.0)):
            continue
        old, new = (math.exp(detection.levels[at]) for at in (number, number + 1))
        change = _change(run.series, run.points[step.first - 1].position, run.points[step.last].position, old, new)
        bounds = (math.exp(step.size - step.half_width), math.exp(step.size + step.half_width))
        changes.append(replace(change, factor_interval=bounds, p_value=step.p_value, adjusted_p_value=adjusted))
    return changes


def _explained(change: ChangePoint, changes: Sequence[ChangePoint], known: tuple[UpstreamChange, ...]) -> ChangePoint:
    with_baseline = change.metric == "latency_ratio" and any(
        other.metric == "latency_to_anchor"
        and other.fix == BASELINE_FIX
        and (other.mode, other.size, other.at) == (change.mode, change.size, change.at)
        for other in changes
    )
    causes = tuple(one for one in known if one.explains(change.key, before=change.before, at=change.at))
    return replace(change, with_baseline=with_baseline, explained_by=causes)


@dataclass(frozen=True, kw_only=True)
class StatusChange(Keyed):
    """A status that is another one from some position on."""

    metric: str = "status"
    before: str
    at: str
    old: str
    new: str
    explained_by: tuple[UpstreamChange, ...]


def status_at(point: SeriesPoint | AsvPoint | None) -> str | None:
    """Return the status of a point of a status series."""
    if point is None or point.state == "absent":
        return None
    if point.state != "measured" or point.value is None:
        return point.state
    return status_name(point.value)


def status_changes(
    series: Iterable[MetricSeries], upstream: Iterable[UpstreamChange], *, axis: str
) -> tuple[StatusChange, ...]:
    """List where the statuses turn over."""
    known = tuple(upstream) if axis == "torch" else ()
    changes = []
    for item in series:
        if item.kind != "status":
            continue
        statuses = ((point, status_at(point)) for point in item.points)
        run = [(point, status) for point, status in statuses if status and status != "not_applicable"]
        for (earlier, old), (later, new) in pairwise(run):
            if old == new or earlier.benchmark_version != later.benchmark_version:
                continue
            before, at = earlier.position, later.position
            causes = tuple(one for one in known if one.explains(item.key, before=before, at=at, statuses=(old, new)))
            changes.append(StatusChange(**named(item.key), before=before, at=at, old=old, new=new, explained_by=causes))
    return tuple(changes)
