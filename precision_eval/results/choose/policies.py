"""What a policy (quality, speed, or a balance of both) takes under given limits.

It is small, so that it can be asked many times: how far a limit can move before the choice changes is found by asking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_eval.core.errors import unknown_name
from precision_eval.core.formats import format_by_name
from precision_eval.results.choose.comparing import Difference, axes_of, bounds, difference, dominates, state_of
from precision_eval.results.model import Group, Row, order_of

POLICIES: tuple[str, ...] = ("quality", "balanced", "speed")

NEEDS = {"quality": ("drift",), "balanced": ("time", "drift"), "speed": ("time",)}
"""Axes without which a policy cannot choose."""

TIE_BREAKS = {
    "quality": ("time", "memory", "drift"),
    "balanced": ("drift", "memory", "time"),
    "speed": ("drift", "memory", "time"),
}
"""Axes that order what ties, by point estimate; one that a tied fix has no figure for is passed over."""

BITS_PER_HALVING = format_by_name("float32").significand_bits - format_by_name("float16").significand_bits
"""Bits of the significand that float32 → float16 gives up for half the bytes: 13."""

_SMALLEST_DRIFT = format_by_name("float64").eps / 2.0  # below this the reference itself resolves nothing


@dataclass(frozen=True, kw_only=True)
class Pick:
    """What a policy takes."""

    fix: str
    tied: tuple[str, ...]
    tie_break: str = ""
    tie_break_called: bool = False


def check_policy(policy: str) -> str:
    """Return a policy that exists."""
    if policy not in POLICIES:
        raise unknown_name("policy", policy, POLICIES)
    return policy


def value_of(policy: str, contender: Row) -> float:
    """Return what a policy minimises, as a natural logarithm."""
    time = math.nan if contender.time is None else contender.time.log
    drift = math.nan if contender.drift is None else math.log(max(contender.drift.value, _SMALLEST_DRIFT))
    if policy == "speed":
        return time
    if policy == "quality":
        return -math.inf if contender.drift is not None and contender.drift.value == 0.0 else drift
    return time + drift / BITS_PER_HALVING


def preference(policy: str, group: Group, first: Row, second: Row) -> Difference:
    """Compare two contenders as a policy does; below 0 the first is preferred."""
    parts = [difference(group, axis, first, second) for axis in NEEDS[policy]]
    if policy != "balanced":
        assert parts[0] is not None
        return parts[0]
    time, drift = parts
    assert time is not None
    assert drift is not None
    log = value_of(policy, first) - value_of(policy, second)
    return Difference(log, time.half + drift.half / BITS_PER_HALVING, time.same and drift.same)


def pick(policy: str, group: Group, contenders: Sequence[Row]) -> Pick | None:
    """Take one of several contenders."""
    if not contenders:
        return None
    best = min(contenders, key=lambda one: (value_of(policy, one), *_tie_key(TIE_BREAKS[policy], one)))
    tied = [contender for contender in contenders if not _beaten(policy, group, contender, contenders)]
    if len(tied) == 1:
        return Pick(fix=best.fix, tied=(best.fix,))
    axes = [axis for axis in TIE_BREAKS[policy] if all(one.estimate(axis) is not None for one in tied)]
    ordered = sorted(tied, key=lambda one: _tie_key(axes, one))
    axis, called = _broken_by(axes, group, ordered)
    return Pick(fix=ordered[0].fix, tied=tuple(one.fix for one in ordered), tie_break=axis, tie_break_called=called)


def _beaten(policy: str, group: Group, one: Row, contenders: Sequence[Row]) -> bool:
    """Say whether any other is ahead by a called difference; only one of a smaller value can be."""
    own = value_of(policy, one)
    return any(
        value_of(policy, other) < own and preference(policy, group, one, other).relation == "worse"
        for other in contenders
    )


def _tie_key(axes: Sequence[str], contender: Row) -> tuple[float | int | str, ...]:
    figures = [contender.estimate(axis) for axis in axes]
    return (*(math.inf if found is None else found.value for found in figures), *order_of(contender.fix))


def _broken_by(axes: Sequence[str], group: Group, ordered: Sequence[Row]) -> tuple[str, bool]:
    """Return the first axis on which the leader differs from any other, and whether it is ahead of all by a call."""
    leader, others = ordered[0], ordered[1:]
    for axis in axes:
        found = [difference(group, axis, leader, other) for other in others]
        if any(one is not None and one.log != 0.0 for one in found):
            return axis, all(one is not None and one.relation == "better" for one in found)
    return "order", False


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What a policy takes under limits."""

    fix: str | None
    tied: tuple[str, ...] = ()
    tie_break: str = ""
    tie_break_called: bool = False
    surely: bool = True
    contested: tuple[str, ...] = ()
    excess: Mapping[str, float] = field(default_factory=dict)


def settle(policy: str, group: Group, able: Sequence[Row], limits: Mapping[str, float | None]) -> Settled:
    """Take a contender."""
    states = {
        one.fix: {state_of(group, axis, one, limit) for axis, limit in limits.items() if limit is not None}
        for one in able
    }
    sure = [one for one in able if states[one.fix] <= {"meets"}]
    doubtful = [one for one in able if "doubtful" in states[one.fix] and "fails" not in states[one.fix]]
    excess = {one.fix: _excess(group, one, limits) for one in able}
    picked = pick(policy, group, sure or doubtful)
    if picked is None:
        return Settled(fix=None, excess=excess)
    contested = tuple(one.fix for one in doubtful if sure and _contests(policy, group, one, sure, doubtful))
    return Settled(
        fix=picked.fix,
        tied=picked.tied,
        tie_break=picked.tie_break,
        tie_break_called=picked.tie_break_called,
        surely=bool(sure),
        contested=contested,
        excess=excess,
    )


def _contests(policy: str, group: Group, one: Row, sure: Sequence[Row], doubtful: Sequence[Row]) -> bool:
    """Say whether a contender within noise of a limit would be preferred or tie, were it to keep the limit."""
    found = pick(policy, group, [*sure, one])
    axes = axes_of([*sure, *doubtful])
    return (
        found is not None
        and one.fix in found.tied
        and not any(other.fix != one.fix and dominates(group, axes, other, one) for other in doubtful)
    )


def _excess(group: Group, one: Row, limits: Mapping[str, float | None]) -> float:
    """Return the largest quotient of what a figure may be and its limit."""
    found = []
    for axis, limit in limits.items():
        ends = bounds(group, axis, one)
        if limit is not None and ends is not None:
            found.append(ends[1] / limit)
    return max(found, default=-math.inf)
