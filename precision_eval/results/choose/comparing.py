"""Which of two contenders is better on one axis, or that the measurement does not say.

Conventions: differences are natural logarithms, first over second; below 0 the first is better (less time, drift,
memory). A difference is *called* only where its interval at the error rate :data:`PAIR_ERROR` lies beyond what counts
as none; it is *same* where the values are equal, or an interval lies within what counts as none; else *unclear*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from precision_eval.results.model import ONE_INPUT, SAME_MEMORY, SAME_TIME, Group, Row
from precision_eval.stats import EQUIVALENCE_ALPHA, ERROR_RATE, student_location, student_quantile

AXES: tuple[str, ...] = ("time", "drift", "memory")

PAIR_ERROR = ERROR_RATE
"""Two-sided rate at which two equal contenders may be told apart. Per pair, so that one more contender changes nothing
between the others."""

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


def difference(group: Group, axis: str, first: Row, second: Row) -> Difference | None:
    """Compare two contenders on one axis."""
    ours, theirs = first.estimate(axis), second.estimate(axis)
    if ours is None or theirs is None:
        return None
    if first.fix == second.fix:
        return Difference(0.0, 0.0, True)
    if axis == "time":
        return _of_times(group, first, second)
    if ours.value == theirs.value:
        return Difference(0.0, 0.0, True)
    if min(ours.value, theirs.value) <= 0.0:
        return Difference(math.copysign(math.inf, ours.value - theirs.value), 0.0)
    log = ours.log - theirs.log
    if axis == "memory":
        return Difference(log, math.log1p(SAME_MEMORY), abs(log) <= math.log1p(SAME_MEMORY))
    if not (first.paired_drift and second.paired_drift):
        return Difference(log, math.log1p(ONE_INPUT))
    error = math.hypot(ours.standard_error, theirs.standard_error)
    return Difference(log, student_quantile(PAIR_ERROR, min(ours.degrees, theirs.degrees)) * error)


def leaders(group: Group, axis: str) -> tuple[Row, ...]:
    """Return the curing fix with the smallest figure on an axis, then those that no other is called better than."""
    rows = sorted((row for row in group.curing if row.estimate(axis) is not None), key=lambda row: _value(row, axis))
    return tuple(row for row in rows if not any(_is_behind(group, axis, row, other) for other in rows))


def _is_behind(group: Group, axis: str, row: Row, other: Row) -> bool:
    """Say whether another row of a smaller figure is ahead by a called difference."""
    found = difference(group, axis, row, other)
    return found is not None and _value(other, axis) < _value(row, axis) and found.relation == "worse"


def _value(row: Row, axis: str) -> float:
    found = row.estimate(axis)
    return math.inf if found is None else found.value


def bounds(group: Group, axis: str, contender: Row) -> tuple[float, float] | None:
    """Return the least and the most that a figure may be, for holding it to a limit."""
    found = contender.estimate(axis)
    if found is None:
        return None
    if found.degrees <= 0.0:
        return found.low, found.high
    half = student_quantile(PAIR_ERROR, found.degrees) * found.standard_error
    half += group.time_reach if axis == "time" else 0.0
    return found.value * math.exp(-half), found.value * math.exp(half)


def _of_times(group: Group, first: Row, second: Row) -> Difference:
    log, error, degrees = _paired(group, first, second) or _unpaired(first, second)
    reach = math.log1p(SAME_TIME)
    same = abs(log) + student_quantile(EQUIVALENCE_ALPHA, degrees) * error <= reach
    return Difference(log, group.time_reach + student_quantile(PAIR_ERROR, degrees) * error, same)


def _paired(group: Group, first: Row, second: Row) -> tuple[float, float, float] | None:
    """Difference of log-times, its standard error and degrees of freedom, from what was timed together."""
    size = max(len(first.time_logs), len(second.time_logs))
    ours, theirs = ((0.0,) * size if one.fix == group.baseline else one.time_logs for one in (first, second))
    if size < 2 or first.session != second.session or len(ours) != len(theirs):
        return None
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    if max(first.processes, second.processes) > 1:
        middle = math.fsum(each) / size
        variance = math.fsum((one - middle) ** 2 for one in each) / (size - 1)
        return middle, math.sqrt(variance / size), size - 1.0
    found = student_location(each)
    return found.estimate, found.standard_error, size - 1.0


def _unpaired(first: Row, second: Row) -> tuple[float, float, float]:
    assert first.time is not None
    assert second.time is not None
    error = math.hypot(first.time.standard_error, second.time.standard_error)
    degrees = [one.degrees for one in (first.time, second.time) if one.degrees > 0.0]
    return first.time.log - second.time.log, error, min(degrees, default=1.0)
