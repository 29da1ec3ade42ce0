"""The choice of one fix in one group: what to take, what ties with it, and what was left out and why.

Conventions: a fix can be taken only where it passed, has the figures that the policy and the limits need, and surely
keeps every limit; where none surely does, those within noise of a limit are taken into account. The outcome is ``one``
where nothing ties, ``tie`` where something does (or where no fix surely keeps the limits but one may), ``none`` where
no fix keeps them, or none cures the case, ``could not tell`` where it would rest on times of a failed A/A check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from precision_eval.core.errors import RecordError, check_known
from precision_eval.core.formats import format_by_name
from precision_eval.core.formatting import join
from precision_eval.results.choose.comparing import (
    FLAGS,
    Constraints,
    Difference,
    Standing,
    bounds,
    difference,
    standings,
    state_of,
)
from precision_eval.results.model import Group, MissingMeasureError, Row, order_of

Outcome = Literal["one", "tie", "none", "could not tell"]

_NOTHING = Constraints()


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    fix: str
    why: str
    reason: str
    excess: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pick:
    """What a policy takes, under limits where there are any.

    `tied` is what ties with `fix`, itself first, ordered by the axis `tie_break` (``"order"``: by the list), ahead by a
    called difference where `tie_break_called`. `surely`: it keeps the limits beyond noise. `untold`: none is made, as
    it would rest on times although the baseline differs from its own copy.
    """

    fix: str | None = None
    tied: tuple[str, ...] = ()
    tie_break: str = ""
    tie_break_called: bool = False
    surely: bool = True
    untold: bool = False

    @property
    def outcome(self) -> Outcome:
        """Whether one fix is to be taken, it ties with others, or none can be."""
        if self.fix is None:
            return "could not tell" if self.untold else "none"
        return "one" if len(self.tied) == 1 and self.surely else "tie"


@dataclass(frozen=True, kw_only=True)
class Choice(Pick):
    """What to take in one group.

    `runners_up` are the others that may be taken, best first; `left_out` begins with what is nearest to the limits.
    `standings` is the front, over every fix that runs and has the figures.
    """

    group: Group
    policy: str
    constraints: Constraints
    runners_up: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    standings: tuple[Standing, ...] = ()
    doubts: tuple[str, ...] = ()

    def standing_of(self, fix: str) -> Standing | None:
        """Return where a fix stands on the front; None where it has no place there."""
        return next((standing for standing in self.standings if standing.fix == fix), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: the answer, and every figure it rests on."""
        group = self.group
        where = {
            name: getattr(group, name) for name in ("case", "size", "mode", "device", "pins", "threads", "baseline")
        }
        names = ("policy", "outcome", "fix", "tie_break", "tie_break_called", "surely")
        lists = ("tied", "runners_up", "doubts")
        return {
            **where,
            **{name: getattr(self, name) for name in names},
            **{name: list(getattr(self, name)) for name in lists},
            "constraints": asdict(self.constraints),
            "left_out": [vars(out) for out in self.left_out],
            "front": [vars(standing) for standing in self.standings],
            "notes": list(group.notes),
            "fixes": group.fix_dicts(),
        }


def choose_from(group: Group, constraints: Constraints = _NOTHING, *, policy: str = "balanced") -> Choice:
    """Choose a fix."""
    check_policy(policy)
    if group.fault:
        raise RecordError(group.fault)
    if constraints == _NOTHING:
        constraints = Constraints(**dict[str, Any](group.tolerances))
    axes = tuple(dict.fromkeys((*NEEDS[policy], *constraints.axes)))
    failing = tuple(LeftOut(fix=row.fix, why=row.status, reason=row.reason or "") for row in group.failing)
    if not group.curing:
        return Choice(group=group, policy=policy, constraints=constraints, left_out=failing, doubts=group.doubts)
    able = _able(group, axes)
    unmeasured = tuple(
        LeftOut(fix=row.fix, why="not measured", reason="; ".join(row.missing[axis] for axis in _lacks(row, axes)))
        for row in group.curing
        if row not in able
    )
    limits = {axis: limit for axis in constraints.axes if (limit := constraints.limit(group, axis)) is not None}
    untold = group.noise_floor_off and "time" in axes
    if untold:
        limits.pop("time", None)
    beyond = _beyond(group, able, limits)
    keeping = [row for row in able if row.fix not in {out.fix for out in beyond}]
    allowed = keeping or [
        row for row in able if all(state_of(group, *limit, row) != "fails" for limit in limits.items())
    ]
    if untold:
        picked, rest = Pick(untold=bool(allowed)), allowed
    else:
        picked = replace(pick(policy, group, allowed) or Pick(), surely=bool(keeping))
        rest = sorted((row for row in allowed if row.fix not in picked.tied), key=partial(value_of, policy))
    return Choice(
        **vars(picked),
        group=group,
        policy=policy,
        constraints=constraints,
        runners_up=tuple(row.fix for row in rest),
        left_out=(*(out for out in beyond if out.fix not in picked.tied), *unmeasured, *failing),
        standings=standings(group, able),
        doubts=_doubts(group, picked.tied),
    )


def choices_of(group: Group) -> dict[str, Choice | str]:
    """Return what each policy takes without limits, or why it cannot choose."""
    choices: dict[str, Choice | str] = {}
    for policy in POLICIES:
        try:
            choices[policy] = choose_from(group, policy=policy)
        except (MissingMeasureError, RecordError) as lack:
            choices[policy] = str(lack)
    return choices


def _able(group: Group, axes: Sequence[str]) -> tuple[Row, ...]:
    """Return the contenders that have every figure asked for."""
    for axis in axes:
        if all(row.estimate(axis) is None for row in group.curing):
            measure = group.measure_of(axis)
            raise MissingMeasureError(
                f"{group.title}: the choice needs the measure '{measure}', which no fix has here "
                f"({group.curing[0].missing.get(axis, 'not measured')}); add it: {group.command(measure)}"
            )
    able = tuple(row for row in group.curing if not _lacks(row, axes))
    if not able:
        needed = [group.measure_of(axis) for axis in axes]
        raise MissingMeasureError(
            f"{group.title}: no fix has all of {', '.join(needed)}; add them: {group.command(','.join(needed))}"
        )
    return able


def _lacks(row: Row, axes: Sequence[str]) -> list[str]:
    return [axis for axis in axes if row.estimate(axis) is None]


def _beyond(group: Group, able: Sequence[Row], limits: Mapping[str, float]) -> tuple[LeftOut, ...]:
    """Return the contenders that do not surely keep the limits, the nearest first."""
    beyond = []
    for row in able:
        states = {axis: state_of(group, axis, limit, row) for axis, limit in limits.items()}
        unkept = [axis for axis, state in states.items() if state != "meets"]
        if unkept:
            why = "limit" if "fails" in states.values() else "near limit"
            flags = join([FLAGS[axis] for axis in unkept if why != "limit" or states[axis] == "fails"])
            quotients = [ends[1] / limits[axis] for axis in unkept if (ends := bounds(group, axis, row))]
            beyond.append(LeftOut(fix=row.fix, why=why, reason=flags, excess=max(quotients, default=math.inf)))
    return tuple(sorted(beyond, key=lambda out: out.excess))


def _doubts(group: Group, fixes: Sequence[str]) -> tuple[str, ...]:
    own = [f"{fix}: {doubt}" for fix in fixes for doubt in group.row(fix).doubts]
    sound = [f"{fix}: {line}" for fix in fixes if (heard := group.row(fix).sound) is not None and (line := heard.doubt)]
    return (*group.doubts, *sound, *own)


POLICIES: tuple[str, ...] = ("quality", "balanced", "speed")

# Axes without which a policy cannot choose.
NEEDS = {"quality": ("drift",), "balanced": ("time", "drift"), "speed": ("time",)}

# Axes that order what ties, by point estimate; one that a tied fix has no figure for is passed over.
TIE_BREAKS = {
    "quality": ("time", "memory", "drift"),
    "balanced": ("drift", "memory", "time"),
    "speed": ("drift", "memory", "time"),
}

# Bits of the significand that float32 → float16 gives up for half the bytes: 13.
BITS_PER_HALVING = format_by_name("float32").significand_bits - format_by_name("float16").significand_bits

_SMALLEST_DRIFT = format_by_name("float64").eps / 2.0  # below this the reference itself resolves nothing


def check_policy(policy: str) -> str:
    check_known("policy", policy, POLICIES)
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


def preference(policy: str, group: Group, first: Row, second: Row, *, doubting: bool = True) -> Difference:
    """Compare two contenders as a policy does; below 0 the first is preferred."""
    parts = [difference(group, axis, first, second, doubting=doubting) for axis in NEEDS[policy]]
    if policy != "balanced":
        assert parts[0] is not None
        return parts[0]
    time, drift = parts
    assert time is not None
    assert drift is not None
    log = value_of(policy, first) - value_of(policy, second)
    return Difference(log, time.half + drift.half / BITS_PER_HALVING, time.same and drift.same)


def pick(policy: str, group: Group, contenders: Sequence[Row]) -> Pick | None:
    if not contenders:
        return None
    tied = [contender for contender in contenders if not _beaten(policy, group, contender, contenders)]
    if len(tied) == 1:
        return Pick(fix=tied[0].fix, tied=(tied[0].fix,))
    axes = [axis for axis in TIE_BREAKS[policy] if all(row.estimate(axis) is not None for row in tied)]
    if group.noise_floor_off:
        axes = [axis for axis in axes if axis != "time"]
    # a doubt makes a tie, and never an order: what only a doubt keeps level comes after what the figures do
    level = [row for row in tied if not _beaten(policy, group, row, tied, doubting=False)]
    ordered = sorted(tied, key=lambda row: (row not in level, *_tie_key(axes, row)))
    axis, called = _broken_by(axes, group, ordered[: len(level)]) if len(level) > 1 else ("time", False)
    return Pick(fix=ordered[0].fix, tied=tuple(row.fix for row in ordered), tie_break=axis, tie_break_called=called)


def _beaten(policy: str, group: Group, row: Row, contenders: Sequence[Row], *, doubting: bool = True) -> bool:
    """Say whether any other is ahead by a called difference; only one of a smaller value can be."""
    own = value_of(policy, row)
    return any(
        value_of(policy, other) < own and preference(policy, group, row, other, doubting=doubting).relation == "worse"
        for other in contenders
    )


def _tie_key(axes: Sequence[str], contender: Row) -> tuple[float | int | str, ...]:
    figures = [contender.estimate(axis) for axis in axes]
    return (*(math.inf if figure is None else figure.value for figure in figures), *order_of(contender.fix))


def _broken_by(axes: Sequence[str], group: Group, ordered: Sequence[Row]) -> tuple[str, bool]:
    """Return the first axis on which the leader differs from any other, and whether it is ahead of all by a call."""
    leader, others = ordered[0], ordered[1:]
    for axis in axes:
        differences = [difference(group, axis, leader, other) for other in others]
        if any(apart is not None and apart.log != 0.0 for apart in differences):
            return axis, all(apart is not None and apart.relation == "better" for apart in differences)
    return "order", False
