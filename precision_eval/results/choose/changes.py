"""What would change the choice: the smallest move of a limit, or of a measured figure, that leads elsewhere.

Conventions: limits are moved to every place where a contender begins or ceases to keep them, so the first one that
leads to another fix is the smallest move there is. Figures are moved one at a time, as point estimates: the stated
value is where the two are level, and from there on they tie at best. A move has a size, the factor between now and then
(at least 1); a limit that was not given has none and comes last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from precision_eval.results.choose.comparing import AXES, bounds
from precision_eval.results.choose.policies import value_of
from precision_eval.results.choose.settling import Settled, settle
from precision_eval.results.model import Group, Row


@dataclass(frozen=True, kw_only=True)
class Change:
    """A move that changes the choice."""

    kind: Literal["limit", "figure"]
    axis: str
    fix: str | None
    now: float | None
    then: float
    factor: float | None
    leads_to: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def changes_of(
    policy: str, group: Group, able: Sequence[Row], limits: Mapping[str, float | None], settled: Settled
) -> tuple[Change, ...]:
    """Return what would change a choice, the smallest move first."""
    found = [
        *_moved_limits(policy, group, able, limits, settled),
        *_moved_figures(policy, able, settled),
        *_worse_figures(policy, group, able, limits, settled),
    ]
    order = {axis: place for place, axis in enumerate(AXES)}
    return tuple(
        sorted(found, key=lambda one: (math.inf if one.factor is None else one.factor, order[one.axis], one.fix or ""))
    )


def _moved_limits(
    policy: str, group: Group, able: Sequence[Row], limits: Mapping[str, float | None], settled: Settled
) -> Iterator[Change]:
    for axis in AXES:
        ends = [found for one in able if (found := bounds(group, axis, one)) is not None]
        if len(ends) < len(able):
            continue
        now = limits.get(axis)
        places = sorted({end for pair in ends for end in pair})
        below = [place for place in reversed(places) if now is None or place <= now]
        above = [place for place in places if now is not None and place > now]
        for tried, moved in (
            (below, [math.nextafter(place, 0.0) for place in below]),
            (above, above),
        ):
            for place, limit in zip(tried, moved, strict=True):
                fix = settle(policy, group, able, {**limits, axis: limit}).fix if limit > 0.0 else None
                if fix != settled.fix:
                    yield Change(
                        kind="limit", axis=axis, fix=None, now=now, then=place, factor=_factor(now, place), leads_to=fix
                    )
                    break


def _moved_figures(policy: str, able: Sequence[Row], settled: Settled) -> Iterator[Change]:
    """For each other that keeps the limits and does not tie: the figure with which it would be level."""
    if settled.fix is None:
        return
    leader = next(one for one in able if one.fix == settled.fix)
    axis = "drift" if policy == "quality" else "time"
    for one in able:
        estimate = one.estimate(axis)
        if one.fix in settled.tied or settled.excess[one.fix] > 1.0 or estimate is None:
            continue
        gap = value_of(policy, one) - value_of(policy, leader)
        if not 0.0 < gap < math.log(1e9):  # a figure that must shrink to nothing is no change worth naming
            continue
        yield Change(
            kind="figure",
            axis=axis,
            fix=one.fix,
            now=estimate.value,
            then=estimate.value * math.exp(-gap),
            factor=math.exp(gap),
            leads_to=one.fix,
        )


def _worse_figures(
    policy: str, group: Group, able: Sequence[Row], limits: Mapping[str, float | None], settled: Settled
) -> Iterator[Change]:
    """How much worse the chosen fix may come out before it no longer surely keeps a limit."""
    if settled.fix is None or not settled.surely:
        return
    leader = next(one for one in able if one.fix == settled.fix)
    others = [one for one in able if one.fix != settled.fix]
    without = settle(policy, group, others, limits).fix
    for axis, limit in limits.items():
        estimate, ends = leader.estimate(axis), bounds(group, axis, leader)
        if limit is None or estimate is None or ends is None or not 0.0 < ends[1] <= limit:
            continue
        yield Change(
            kind="figure",
            axis=axis,
            fix=settled.fix,
            now=estimate.value,
            then=estimate.value * limit / ends[1],
            factor=limit / ends[1],
            leads_to=without,
        )


def _factor(now: float | None, then: float) -> float | None:
    return None if now is None or not then > 0.0 else max(now / then, then / now)
