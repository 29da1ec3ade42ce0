"""How contenders stand: to each other on one axis, to the limits, and on the trade-off front of all axes.

Conventions: differences are natural logarithms, first over second; below 0 the first is better (less time, drift,
memory). A difference is *called* only where its interval at the error rate :data:`PAIR_ERROR` lies beyond what counts
as none; it is *same* where the values are equal, or an interval lies within what counts as none; else *unclear*. One
*dominates* another where it is better by a called difference on at least one axis and better or the same on all; an
axis that is unclear prevents it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import bytes_of
from precision_eval.results.model import ONE_INPUT, SAME_MEMORY, SAME_TIME, Group, MissingMeasureError, Row
from precision_eval.stats.paired import ERROR_RATE
from precision_eval.stats.robust import student_location
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA, student_quantile

AXES: tuple[str, ...] = ("time", "drift", "memory")

# Two-sided rate at which two equal contenders may differ by a call. It is per pair, so that one more contender changes
# nothing between the others.
PAIR_ERROR = ERROR_RATE

Relation = Literal["better", "worse", "same", "unclear"]


@dataclass(frozen=True)
class Difference:
    """First over second, in the logarithm."""

    log: float
    half: float
    same: bool = False

    @property
    def relation(self) -> Relation:
        """What the first is, against the second."""
        if self.log < -self.half:
            return "better"
        if self.log > self.half:
            return "worse"
        return "same" if self.same else "unclear"


def difference(group: Group, axis: str, first: Row, second: Row, *, doubting: bool = True) -> Difference | None:
    """Compare two contenders on one axis; not `doubting`, as if their times were beyond doubt."""
    ours, theirs = first.estimate(axis), second.estimate(axis)
    if ours is None or theirs is None:
        return None
    if first.fix == second.fix:
        return Difference(0.0, 0.0, True)
    if axis == "time":
        return _of_times(group, first, second, doubting=doubting)
    if ours.value == theirs.value:
        return Difference(0.0, 0.0, True)
    if min(ours.value, theirs.value) <= 0.0:
        return Difference(math.copysign(math.inf, ours.value - theirs.value), 0.0)
    log = ours.log - theirs.log
    if axis == "memory":
        return Difference(log, math.log1p(SAME_MEMORY), abs(log) <= math.log1p(SAME_MEMORY))
    if not (first.paired_drift and second.paired_drift):
        return Difference(log, math.log1p(ONE_INPUT))
    if 1 < len(first.drift_logs) == len(second.drift_logs):  # on the same inputs
        log, error, degrees = _mean_of([a - b for a, b in zip(first.drift_logs, second.drift_logs, strict=True)])
        return Difference(log, student_quantile(PAIR_ERROR, degrees) * error)
    error = math.hypot(ours.standard_error, theirs.standard_error)
    return Difference(log, student_quantile(PAIR_ERROR, min(ours.degrees, theirs.degrees)) * error)


def leaders(group: Group, axis: str) -> tuple[Row, ...]:
    """Return the curing fix with the smallest figure on an axis, then those that no other is called better than.

    None is named by times that are not trusted.
    """
    if axis == "time" and group.noise_floor_off:
        return ()
    rows = sorted((row for row in group.curing if row.estimate(axis) is not None), key=lambda row: _value(row, axis))
    return tuple(row for row in rows if not any(_is_behind(group, axis, row, other) for other in rows))


def _is_behind(group: Group, axis: str, row: Row, other: Row) -> bool:
    """Say whether another row of a smaller figure is ahead by a called difference."""
    apart = difference(group, axis, row, other)
    return apart is not None and _value(other, axis) < _value(row, axis) and apart.relation == "worse"


def _value(row: Row, axis: str) -> float:
    figure = row.estimate(axis)
    return math.inf if figure is None else figure.value


def bounds(group: Group, axis: str, contender: Row) -> tuple[float, float] | None:
    """Return the least and the most that a figure may be, for holding it to a limit."""
    figure = contender.estimate(axis)
    if figure is None:
        return None
    if figure.degrees <= 0.0:
        return figure.low, figure.high
    half = student_quantile(PAIR_ERROR, figure.degrees) * figure.standard_error
    half += group.reach_of(contender) if axis == "time" else 0.0
    return figure.value * math.exp(-half), figure.value * math.exp(half)


def _of_times(group: Group, first: Row, second: Row, *, doubting: bool) -> Difference:
    log, error, degrees = _paired(group, first, second) or _unpaired(first, second)
    reach = math.log1p(SAME_TIME)
    same = abs(log) + student_quantile(EQUIVALENCE_ALPHA, degrees) * error <= reach
    half = group.reach_of(first, second, doubting=doubting) + student_quantile(PAIR_ERROR, degrees) * error
    return Difference(log, half, same)


def _paired(group: Group, first: Row, second: Row) -> tuple[float, float, float] | None:
    """Difference of log-times, its standard error and degrees of freedom, from what was timed together."""
    size = max(len(first.time_logs), len(second.time_logs))
    ours, theirs = ((0.0,) * size if row.fix == group.baseline else row.time_logs for row in (first, second))
    if size < 2 or first.session != second.session or len(ours) != len(theirs):
        return None
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    if max(first.processes, second.processes) > 1:
        return _mean_of(each)
    location = student_location(each)
    return location.estimate, location.standard_error, size - 1.0


def _mean_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, its standard error, and degrees of freedom."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1.0


def _unpaired(first: Row, second: Row) -> tuple[float, float, float]:
    assert first.time is not None
    assert second.time is not None
    error = math.hypot(first.time.standard_error, second.time.standard_error)
    degrees = [time.degrees for time in (first.time, second.time) if time.degrees > 0.0]
    return first.time.log - second.time.log, error, min(degrees, default=1.0)


State = Literal["meets", "fails", "doubtful"]

REFERENCE = "full_float32"  # of a ratio of memory

FLAGS = {"time": "--min-speed", "drift": "--max-drift", "memory": "--max-memory"}


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What a fix must keep; None leaves an axis free.

    Attributes
    ----------
    max_drift : float or None
        Relative error to float64.
    max_memory_bytes : int or None
        Storage and peak together.
    max_memory_ratio : float or None
        The same as a ratio to ``full_float32``'s; not together with `max_memory_bytes`.
    min_speed : float or None
        Ratio to the baseline; above 1 is faster.
    """

    max_drift: float | None = None
    max_memory_bytes: int | None = None
    max_memory_ratio: float | None = None
    min_speed: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_drift", "max_memory_bytes", "max_memory_ratio", "min_speed"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ParameterError(f"{name} is {value}; expected a finite number above 0")
        if self.max_memory_bytes is not None and self.max_memory_ratio is not None:
            raise ParameterError("memory is limited in bytes and as a ratio; give one of the two")

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that are limited."""
        limited = {
            "time": self.min_speed,
            "drift": self.max_drift,
            "memory": self.max_memory_bytes or self.max_memory_ratio,
        }
        return tuple(axis for axis in AXES if limited[axis] is not None)

    def limit(self, group: Group, axis: str) -> float | None:
        """Return the largest figure allowed on an axis of a group; None where it is free.

        A MissingMeasureError where memory is limited by a ratio, and ``full_float32`` has none or does not run there.
        """
        if axis == "time":
            return None if self.min_speed is None else 1.0 / self.min_speed
        if axis == "drift":
            return self.max_drift
        if self.max_memory_ratio is None:
            return None if self.max_memory_bytes is None else float(self.max_memory_bytes)
        own = next((row for row in group.rows if row.fix == REFERENCE), None)
        if own is not None and own.status != "passed":
            raise MissingMeasureError(
                f"{group.title}: memory as a ratio needs that of {REFERENCE}, which is {own.status} here; give a size: "
                "--max-memory 2GiB"
            )
        reference = None if own is None else own.memory_bytes
        if reference is None:
            command = f"{group.command('memory')} --fix {REFERENCE}"
            raise MissingMeasureError(
                f"{group.title}: memory as a ratio needs that of {REFERENCE}, which is not measured; add it: {command}"
            )
        return self.max_memory_ratio * reference


def state_of(group: Group, axis: str, limit: float, contender: Row) -> State:
    """Say whether a contender keeps a limit on one axis."""
    ends = bounds(group, axis, contender)
    if ends is None:
        return "fails"
    low, high = ends
    if high <= limit:
        return "meets"
    return "fails" if low > limit else "doubtful"


def parse_memory(text: str) -> dict[str, int | float]:
    if ratio := re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*[xX×]\s*", text):
        return {"max_memory_ratio": float(ratio[1])}
    size = bytes_of(text)
    if size is None:
        raise ParameterError(
            f"--max-memory '{text}' is no size; write a number and a unit, such as 2GiB, or a ratio such as 0.6x"
        )
    return {"max_memory_bytes": size}


def constraints_of(
    *, max_drift: float | None = None, max_memory: str | int | None = None, min_speed: float | None = None
) -> Constraints:
    """Return limits; memory is a size or a ratio as text, or bytes."""
    memory: Mapping[str, Any] = {"max_memory_bytes": max_memory}
    if isinstance(max_memory, str):
        memory = parse_memory(max_memory)
    return Constraints(max_drift=max_drift, min_speed=min_speed, **memory)


@dataclass(frozen=True, kw_only=True)
class Standing:
    fix: str
    standing: Literal["front", "perhaps", "dominated"]
    by: str | None = None


def axes_of(contenders: Sequence[Row]) -> tuple[str, ...]:
    """Return the axes that every contender has a figure for."""
    return tuple(
        axis for axis in AXES if contenders and all(contender.estimate(axis) is not None for contender in contenders)
    )


def standings(group: Group, contenders: Sequence[Row]) -> tuple[Standing, ...]:
    axes = axes_of(contenders)
    if not axes:
        return ()
    return tuple(_standing(group, axes, contender, contenders) for contender in contenders)


def point_front(points: Sequence[tuple[float, ...]]) -> tuple[int, ...]:
    """Return the points that no other beats, by their values alone."""
    kept = [
        index
        for index, point in enumerate(points)
        if not any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)
    ]
    return tuple(sorted(kept, key=lambda index: points[index]))


def value_front(group: Group) -> tuple[Row, ...]:
    """Return the curing fixes that no other beats on both time and drift by their values alone, fastest first."""
    if group.noise_floor_off:
        return ()
    rows = [(row.time.value, row.drift.value, row) for row in group.curing if row.time and row.drift]
    return tuple(rows[index][2] for index in point_front([row[:2] for row in rows]))


def dominates(group: Group, axes: Sequence[str], first: Row, second: Row) -> bool:
    """Say whether the first is better on some axis, by a call, and better or the same on all."""
    relations = [_relation(group, axis, first, second) for axis in axes]
    return "better" in relations and all(relation in ("better", "same") for relation in relations)


def _standing(group: Group, axes: Sequence[str], row: Row, contenders: Sequence[Row]) -> Standing:
    sure = True
    for other in contenders:
        if other.fix == row.fix:
            continue
        if dominates(group, axes, other, row):
            return Standing(fix=row.fix, standing="dominated", by=other.fix)
        sure = sure and any(_relation(group, axis, other, row) == "worse" for axis in axes)
    return Standing(fix=row.fix, standing="front" if sure else "perhaps")


def _relation(group: Group, axis: str, first: Row, second: Row) -> Relation:
    apart = difference(group, axis, first, second)
    assert apart is not None  # axes_of asked for it
    return apart.relation
