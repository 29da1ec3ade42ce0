"""Searches the mixed policies of a target, led by its map, on one half of the units.

Conventions: a *point* is a policy that was really run: its drift on the even units and its time as a ratio to the
uniform narrow format. The path begins with everything narrow. At each step the map foretells, for every role that is
not held yet, what holding it as well would leave of the drift; one path takes the role that leaves least, the other the
one that gains most per time that it cost when held alone. Every policy on both paths is run, and so are those that hold
only what turns no matrix product wide, and caches kept narrow beside float32 arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.studies.sensitivity.mapping import Mapped
from precision_eval.studies.sensitivity.policies import MixedPolicy, put_on

EQUAL_SPEED = 0.05
"""Relative difference in time up to which two are as fast as each other."""
EQUAL_DRIFT = 0.1
"""Relative difference in drift up to which two are as exact as each other."""
BITS_PER_DOUBLING = 13.0
"""Bits of drift that a factor 2 in time is worth, as in the house's balanced policy."""
STEPS = 6
WITHOUT_PRODUCTS = ("residual", "norm", "stem", "positions")
"""Roles whose holding turns no matrix product wide; they are also held together, one more at a time."""
LEAST_COST = 0.005
"""Cost of holding a role is not told from less than this."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class PolicyRun:
    """A policy that was run."""

    policy: MixedPolicy
    drift: float
    foretold: float | None
    time_ratio: float
    narrow: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "policy": self.policy.to_dict(), "id": self.policy.id}


def even(values: np.ndarray) -> np.ndarray:
    """Units for choosing."""
    return values[::2]


def odd(values: np.ndarray) -> np.ndarray:
    """Units for proving."""
    return values[1::2]


class _Search:
    """One target's search."""

    def __init__(self, one: Mapped, *, budget_s: float, seed: int) -> None:
        self.one = one
        self.budget_s = budget_s
        self.seed = seed
        self.base = MixedPolicy(format=one.tape.format)
        self.sites = one.tape.sites
        self.points: dict[object, PolicyRun] = {}

    def foretell(self, policy: MixedPolicy) -> float:
        return float(even(self.one.drift(policy.foretold(self.sites))).mean())

    def run(self, policy: MixedPolicy) -> PolicyRun:
        """Really run a policy, once for its drift and then against the uniform format for its time."""
        name = (policy.format, frozenset(policy.held), policy.cache, policy.in_blocks)  # in whatever order it holds
        if name not in self.points:
            subject = self.one.subject
            applied = put_on(subject, policy)
            with applied.agreeing():
                drift = float(even(subject.drift(applied(), self.one.reference)).mean())
            own = policy.format == self.base.format and not policy.cache
            foretold = self.foretell(policy) if own else None
            ratio = 1.0 if policy == self.base else self._time_ratio(policy)
            narrow = len(policy.foretold(self.sites)) if own else sum(site.role == "cache" for site in self.sites)
            narrow = 0 if policy.format == "float32" and not policy.cache else narrow
            self.points[name] = PolicyRun(
                policy=policy, drift=drift, foretold=foretold, time_ratio=ratio, narrow=narrow
            )
        return self.points[name]

    def _time_ratio(self, policy: MixedPolicy) -> float:
        base, other = (put_on(self.one.subject, one) for one in (self.base, policy))
        found = compare_latency(
            {"base": Candidate(base, base.agreeing), "other": Candidate(other, other.agreeing)},
            baseline="base",
            budget_s=self.budget_s,
            seed=self.seed,
            margin=EQUAL_SPEED / 2.0,
            check=False,
            min_rounds=5,
        )
        return found["other"].ratio

    def path(self, costs: dict[str, float] | None) -> list[MixedPolicy]:
        """Hold one role after the other; by gain alone, or by gain per cost."""
        policy, left = self.base, list(dict.fromkeys(site.role for site in self.sites))
        now = self.foretell(policy)
        found: list[MixedPolicy] = []
        while left and len(found) < STEPS:
            after = {role: self.foretell(policy.holding(role)) for role in left}
            worth = {role: math.log(now / max(drift, 1e-300)) for role, drift in after.items()}
            role = max(left, key=lambda name: worth[name] / (1.0 if costs is None else costs[name]))
            left.remove(role)
            policy, now = policy.holding(role), after[role]
            found.append(policy)
        return found


def search(
    one: Mapped,
    *,
    budget_s: float = 0.3,
    seed: int = 0,
    progress: Progress = lambda done, total, what: None,
) -> list[PolicyRun]:
    """Run the policies that the map leads to."""
    state = _Search(one, budget_s=budget_s, seed=seed)
    roles = list(dict.fromkeys(site.role for site in state.sites))
    singles = [state.base.holding(role) for role in roles]
    wide = MixedPolicy(format="float32")
    plain = [state.base, wide]
    if "cache" in roles:
        formats = ("float16", "bfloat16")
        loops = (False, True) if one.subject.rows(one.reference).shape[1] == 1 else (False,)  # blocks are for decode
        plain += [MixedPolicy(format="float32", cache=name, in_blocks=blocks) for name in formats for blocks in loops]
    cheap = [role for role in WITHOUT_PRODUCTS if role in roles]
    plain += [MixedPolicy(format=state.base.format, held=tuple(cheap[:count])) for count in range(2, len(cheap) + 1)]
    total = len(plain) + len(singles) + STEPS
    for done, policy in enumerate([*plain, *singles]):
        progress(done, total, f"{one.target}: {policy.id}")
        state.run(policy)
    costs = {
        role: max(LEAST_COST, state.run(policy).time_ratio - 1.0) for role, policy in zip(roles, singles, strict=True)
    }
    both = [*state.path(None), *state.path(costs)]
    for done, policy in enumerate(both):
        progress(done + len(singles), len(both) + len(singles), f"{one.target}: {policy.id}")
        state.run(policy)
    return list(state.points.values())


def _is_mixed(point: PolicyRun) -> bool:
    """Say whether a policy is neither of the uniform formats, in what it does and not only in name."""
    return point.narrow > 0 and bool(point.policy.held or point.policy.cache)


def finalists(points: Sequence[PolicyRun]) -> dict[str, MixedPolicy]:
    """Choose what goes to the proof, on the points alone."""
    mixed = [point for point in points if _is_mixed(point) and math.isfinite(point.drift)]
    uniform = [point for point in points if not point.policy.held and not point.policy.cache]
    fastest = min(point.time_ratio for point in uniform)
    exact = min(point.drift for point in uniform)
    fast = [point for point in mixed if point.time_ratio <= fastest * (1.0 + EQUAL_SPEED / 2.0)]
    close = [point for point in mixed if point.drift <= exact * (1.0 + EQUAL_DRIFT)]
    chosen = {
        "equal_speed": min(fast, key=lambda point: point.drift, default=None),
        "equal_drift": min(close, key=lambda point: point.time_ratio, default=None),
    }
    if not any(chosen.values()):
        chosen = {"balanced": min(mixed, key=_balance, default=None)}
    found: dict[str, MixedPolicy] = {}
    for rule, point in chosen.items():
        if point is not None and point.policy not in found.values():
            found[rule] = point.policy
    return found


def _balance(point: PolicyRun) -> float:
    return math.log2(point.time_ratio) + math.log2(max(point.drift, 1e-300)) / BITS_PER_DOUBLING
