"""Which contender is taken under given limits, without the story around it: small, so that it can be asked
many times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_eval.results.choose.comparing import bounds
from precision_eval.results.choose.constraints import state_of
from precision_eval.results.choose.front import axes_of, dominates
from precision_eval.results.choose.policies import pick
from precision_eval.results.model import Group, Row


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
