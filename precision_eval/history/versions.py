"""What changed between torch versions or commits: asv's figures as series, and the steps in them.

A series is one metric of one fix over all positions; a *position* is a torch version or the first eight characters of a
commit. Steps are found by asv's own detection of steps on the logarithms and count where they exceed the metric's
margin. A series is cut where its benchmark was defined anew: what is on both sides cannot be compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from precision_eval.core.errors import ParameterError, RecordError, check_known, matching
from precision_eval.core.formatting import grouped
from precision_eval.history.asv_results import AsvPoint, Key, ResultSet, status_name

AXES = ("torch", "commit")
STATUS = "status"
_SHORT_COMMIT = 8

# Factor that a step of a metric must exceed. Bytes repeat up to whole pages. Drift is of few seeds: where nothing but
# rounding's luck changed, eight seeds gave factors of 0.92 to 1.28. Latency: sessions of equal code differ by up to
# 13 %, which the noise between the processes of one session does not show. Captured equal calls were up to 0.5 % apart
# in one session of an H200 (results/h200/trials.jsonl), so two such figures may be 1 % apart; what days and drivers
# add, no card has shown: 5 % is an assumption.
MARGINS: Mapping[str, float] = {
    "drift": 1.5,
    "peak_bytes": 1.01,
    "stored_bytes": 1.01,
    "latency_ratio": 1.25,
    "latency_to_anchor": 1.25,
    "device_ratio": 1.05,
    "launched_ratio": 1.25,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A change of level: `before` is the last position of the old level, `at` the first of the new one."""

    before: str
    at: str
    old: float | str
    new: float | str

    @property
    def factor(self) -> float | None:
        """New over old; None for statuses."""
        if isinstance(self.old, str) or isinstance(self.new, str):
            return None
        return self.new / self.old if self.old else math.inf


@dataclass(frozen=True, kw_only=True)
class VersionSeries:
    """One metric of one fix; a point per position, None where nothing was run."""

    key: Key
    points: tuple[AsvPoint | None, ...]
    steps: tuple[Step, ...]

    @property
    def values(self) -> tuple[float | str | None, ...]:
        """Figure or name of the status at each position; a state such as ``"failed"`` where there is none."""
        return tuple(None if point is None else _value(self.key.metric, point) for point in self.points)


@dataclass(frozen=True, kw_only=True)
class History:
    axis: str
    positions: tuple[str, ...]
    sets: tuple[ResultSet, ...]
    series: tuple[VersionSeries, ...]
    notes: tuple[str, ...]

    @property
    def changed(self) -> tuple[VersionSeries, ...]:
        """The series that hold a step."""
        return tuple(series for series in self.series if series.steps)


def history_of(
    sets: Sequence[ResultSet], *, axis: str = "torch", cases: Sequence[str] = ("*",), metrics: Sequence[str] = ("*",)
) -> History:
    """Return the series of some result sets along an axis, of cases and metrics by globs.

    On the axis of torch versions all sets are of one commit, on that of commits of one torch version: of several, the
    one with the most positions, the newest of equals. The others are named in a note.
    """
    check_known("axis", axis, AXES)
    chosen, notes = _along(sets, axis)
    positions = tuple(_position(result, axis) for result in chosen)
    keys = _matching(sorted({key for result in chosen for key in result.points}), cases, metrics)
    series = tuple(_series(key, [result.points.get(key) for result in chosen], positions) for key in keys)
    return History(axis=axis, positions=positions, sets=tuple(chosen), series=series, notes=(*notes, *_doubts(series)))


def _along(sets: Sequence[ResultSet], axis: str) -> tuple[list[ResultSet], list[str]]:
    fixed = "commit" if axis == "torch" else "torch version"
    groups = grouped((result.commit if axis == "torch" else result.torch_version, result) for result in sets)
    name = max(groups, key=lambda name: (len(groups[name]), max(result.date_ms for result in groups[name]), name))
    chosen = groups.pop(name)
    by_position = grouped((_position(result, axis), result) for result in chosen)
    for position, twins in by_position.items():
        if len(twins) > 1:
            raise ParameterError(
                f"{twins[0].environment} and {twins[1].environment} are both {position}; keep one of the two, or read "
                "them from separate folders"
            )
    others = ", ".join(other[:_SHORT_COMMIT] for other in sorted(groups))
    return chosen, [f"shown is the {fixed} {name[:_SHORT_COMMIT]}; left out: {others}"] if others else []


def _position(result: ResultSet, axis: str) -> str:
    return result.torch_version if axis == "torch" else result.commit[:_SHORT_COMMIT]


def _matching(keys: Sequence[Key], cases: Sequence[str], metrics: Sequence[str]) -> list[Key]:
    if not keys:
        raise RecordError("the results hold no benchmark of a case (eager.*, compiled.*); run those of benchmarks/")
    named = set(matching("case", cases, sorted({key.case for key in keys})))
    metric_names = set(matching("metric", metrics, sorted({key.metric for key in keys})))
    return [key for key in keys if key.case in named and key.metric in metric_names]


def _series(key: Key, points: Sequence[AsvPoint | None], positions: Sequence[str]) -> VersionSeries:
    steps = [step for run in _runs(key.metric, points) for step in _steps(key.metric, run, positions)]
    return VersionSeries(key=key, points=tuple(points), steps=tuple(steps))


def _value(metric: str, point: AsvPoint) -> float | str:
    if point.value is None:
        return point.state
    return status_name(point.value) if metric == STATUS else point.value


def _runs(metric: str, points: Sequence[AsvPoint | None]) -> Iterator[list[tuple[int, float | str]]]:
    """Yield (index, value) of the points that can be compared, cut wherever the benchmark was defined anew."""
    run: list[tuple[int, float | str]] = []
    version = None
    for index, point in enumerate(points):
        if point is None or point.state == "not_applicable" or (metric != STATUS and point.state == "failed"):
            continue
        value = _value(metric, point)
        if isinstance(value, float) and not math.isfinite(value):
            continue
        if version is not None and point.benchmark_version != version:
            yield run
            run = []
        version = point.benchmark_version
        run.append((index, value))
    yield run


def _steps(metric: str, run: Sequence[tuple[int, float | str]], positions: Sequence[str]) -> Iterator[Step]:
    if metric == STATUS:
        for (earlier, old), (later, new) in itertools.pairwise(run):
            if old != new:
                yield Step(before=positions[earlier], at=positions[later], old=old, new=new)
    elif metric in MARGINS:
        indices, values = [index for index, _ in run], [float(value) for _, value in run]
        for first, old, new in level_changes(values, margin=MARGINS[metric]):
            yield Step(before=positions[indices[first - 1]], at=positions[indices[first]], old=old, new=new)


def level_changes(values: Sequence[float], *, margin: float) -> Iterator[tuple[int, float, float]]:
    """Yield (first index of the new level, old level, new level) where levels differ by more than a factor.

    Examples
    --------
    >>> list(level_changes([1.0, 1.0, 1.1, 2.0, 2.0], margin=1.25))
    [(3, 1.0, 2.0)]
    """
    levels = _levels(values)
    for (_, old), (first, new) in _beyond(levels, margin):
        yield first, old, new


def _levels(values: Sequence[float]) -> list[tuple[int, float]]:
    """Return (first index, level) of each stretch of equal level; values of 0, which have no logarithm, are levels."""
    from asv.step_detect import detect_steps

    if any(value <= 0.0 for value in values):
        return list(enumerate(values))
    segments = detect_steps([math.log(value) for value in values])
    return [(first, math.exp(level)) for first, _, level, *_ in segments]


def _beyond(
    levels: Sequence[tuple[int, float]], margin: float
) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    """Yield pairs of levels that differ by more than the margin; in between the first level stays."""
    if not levels:
        return
    current = levels[0]
    for level in levels[1:]:
        low, high = sorted((current[1], level[1]))
        if high > margin * low:
            yield current, level
            current = level


def _doubts(series: Sequence[VersionSeries]) -> list[str]:
    notes = []
    others = sorted({each.key.metric for each in series} - {STATUS, *MARGINS})
    if others:
        notes.append(f"shown and not judged: {', '.join(others)}")
    versions = {each.key: {point.benchmark_version for point in each.points if point} for each in series}
    anew = sorted({f"{key.case}/{key.metric}" for key, of_key in versions.items() if len(of_key) > 1})
    if anew:
        notes.append(f"defined anew within the range, so not compared across it: {', '.join(anew)}")
    return notes
