"""Searches the mixed policies of a target, led by its map, on one half of the units.

Conventions: a *point* is a policy that was really run: its drift on the even units and its time as a ratio to the
uniform narrow format. The path begins with everything narrow. At each step the map foretells, for every role that is
not held yet, what holding it as well would leave of the drift; one path takes the role that leaves least, the other the
one that gains most per time that it cost when held alone. Every policy on both paths is run, and so are those that hold
only what turns no matrix product wide, and caches kept narrow beside float32 arithmetic.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from precision_eval.core.cells import failure_of
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.stats import PairedRatio, bootstrap_interval
from precision_eval.studies.sensitivity.mapping import Mapped
from precision_eval.studies.sensitivity.policies import MixedPolicy, put_on
from precision_eval.studies.sensitivity.subjects import MapSubject
from precision_eval.studies.sensitivity.targets import BEATS, Progress, target_by_id

EQUAL_SPEED = 0.05
"""Relative difference in time up to which two are as fast as each other."""
EQUAL_DRIFT = 0.1
"""Relative difference in drift up to which two are as exact as each other."""
BITS_PER_DOUBLING = 13.0
"""Bits of drift that a factor 2 in time is worth, as in the house's balanced policy."""
STEPS = 6
CHOOSING, PROVING = slice(None, None, 2), slice(1, None, 2)
"""Units that policies are chosen on, and those that they are proved on."""
WITHOUT_PRODUCTS = ("residual", "norm", "stem", "positions")
"""Roles whose holding turns no matrix product wide; they are also held together, one more at a time."""
LEAST_COST = 0.005
"""Cost of holding a role is not told from less than this."""


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
        return {**asdict(self), "id": self.policy.id}


class _Search:
    """One target's search."""

    def __init__(self, mapped: Mapped, *, budget_s: float, seed: int) -> None:
        self.mapped = mapped
        self.budget_s = budget_s
        self.seed = seed
        self.base = MixedPolicy(format=mapped.tape.format)
        self.sites = mapped.tape.sites
        self.points: dict[object, PolicyRun] = {}

    def foretell(self, policy: MixedPolicy) -> float:
        return float(self.mapped.drift(policy.foretold(self.sites))[CHOOSING].mean())

    def run(self, policy: MixedPolicy) -> PolicyRun:
        """Really run a policy, once for its drift and then against the uniform format for its time."""
        name = (policy.format, frozenset(policy.held), policy.cache, policy.in_blocks)  # in whatever order it holds
        if name not in self.points:
            subject = self.mapped.subject
            applied = put_on(subject, policy)
            with applied.agreeing():
                drift = float(subject.drift(applied(), self.mapped.reference)[CHOOSING].mean())
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
        base, other = (put_on(self.mapped.subject, each) for each in (self.base, policy))
        ratios = compare_latency(
            {"base": Candidate(base, base.agreeing), "other": Candidate(other, other.agreeing)},
            baseline="base",
            budget_s=self.budget_s,
            seed=self.seed,
            margin=EQUAL_SPEED / 2.0,
            check=False,
            min_rounds=5,
        )
        return ratios["other"].ratio

    def path(self, costs: dict[str, float] | None) -> list[MixedPolicy]:
        """Hold one role after the other; by gain alone, or by gain per cost."""
        policy, left = self.base, list(dict.fromkeys(site.role for site in self.sites))
        now = self.foretell(policy)
        policies: list[MixedPolicy] = []
        while left and len(policies) < STEPS:
            after = {role: self.foretell(policy.holding(role)) for role in left}
            worth = {role: math.log(now / max(drift, 1e-300)) for role, drift in after.items()}
            role = max(left, key=lambda name: worth[name] / (1.0 if costs is None else costs[name]))
            left.remove(role)
            policy, now = policy.holding(role), after[role]
            policies.append(policy)
        return policies


def search(
    mapped: Mapped,
    *,
    budget_s: float = 0.3,
    seed: int = 0,
    progress: Progress = lambda done, total, what: None,
) -> list[PolicyRun]:
    """Run the policies that the map leads to."""
    state = _Search(mapped, budget_s=budget_s, seed=seed)
    roles = list(dict.fromkeys(site.role for site in state.sites))
    singles = [state.base.holding(role) for role in roles]
    wide = MixedPolicy(format="float32")
    plain = [state.base, wide]
    if "cache" in roles:
        formats = ("float16", "bfloat16")
        loops = (
            (False, True) if mapped.subject.rows(mapped.reference).shape[1] == 1 else (False,)
        )  # blocks are for decode
        plain += [MixedPolicy(format="float32", cache=name, in_blocks=blocks) for name in formats for blocks in loops]
    cheap = [role for role in WITHOUT_PRODUCTS if role in roles]
    plain += [MixedPolicy(format=state.base.format, held=tuple(cheap[:count])) for count in range(2, len(cheap) + 1)]
    total = len(plain) + len(singles) + STEPS
    for done, policy in enumerate([*plain, *singles]):
        progress(done, total, f"{mapped.target}: {policy.id}")
        state.run(policy)
    costs = {
        role: max(LEAST_COST, state.run(policy).time_ratio - 1.0) for role, policy in zip(roles, singles, strict=True)
    }
    both = [*state.path(None), *state.path(costs)]
    for done, policy in enumerate(both):
        progress(done + len(singles), len(both) + len(singles), f"{mapped.target}: {policy.id}")
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
    policies: dict[str, MixedPolicy] = {}
    for rule, point in chosen.items():
        if point is not None and point.policy not in policies.values():
            policies[rule] = point.policy
    return policies


def _balance(point: PolicyRun) -> float:
    return math.log2(point.time_ratio) + math.log2(max(point.drift, 1e-300)) / BITS_PER_DOUBLING


UNIFORM = ("full_float32", "bfloat16", "float16", "autocast", "query_to_half", "kv_to_query")
"""The uniform fixes; those of a compiler or of one project alone are none."""
SEED = 31
UNBOUNDED = 1e9
"""Stands for a bound that the blocks do not give, as strict JSON has no infinity."""
CONTROL = "control: float32 in blocks"
"""The policy's own loop on a float32 cache: what of its speed is the loop's and not the format's."""
IN_BLOCKS = MixedPolicy(format="float32", in_blocks=True)


@dataclass(frozen=True, kw_only=True)
class Versus:
    """A policy against one fix; ratios are policy over fix, below 1 is better."""

    fix: str
    status: str
    message: str = ""
    fix_drift: float | None = None
    drift_ratio: float | None = None
    drift_low: float | None = None
    drift_high: float | None = None
    time_ratio: float | None = None
    time_low: float | None = None
    time_high: float | None = None
    fix_median_s: float | None = None
    doubts: tuple[str, ...] = ()
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A policy against all uniform fixes."""

    target: str
    size: str
    rule: str
    policy: MixedPolicy
    units: int
    drift: float
    processes: int
    median_s: float
    versus: tuple[Versus, ...]

    @property
    def beats_all(self) -> bool:
        """Whether the policy beats every uniform fix; controls do not count."""
        return all(versus.outcome in BEATS for versus in self.versus if versus.fix != CONTROL)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "policy_id": self.policy.id, "beats_all": self.beats_all}


def outcome_of(drift: tuple[float, float], time_s: tuple[float, float]) -> str:
    """Decide by intervals."""
    lower, no_more = drift[1] < 1.0, drift[1] <= 1.0 + EQUAL_DRIFT
    higher = drift[0] > 1.0
    faster, no_slower = time_s[1] < 1.0, time_s[1] <= 1.0 + EQUAL_SPEED
    slower = time_s[0] > 1.0
    if lower and faster:
        return "better in both"
    if lower and no_slower:
        return "lower drift at equal speed"
    if faster and no_more:
        return "faster at equal drift"
    if faster and higher:
        return "faster, more drift"
    if slower and lower:
        return "slower, less drift"
    return "worse" if slower and higher else "undecided"


@dataclass(frozen=True)
class _Fix:
    """A uniform fix on a subject: its drift, or why there is none."""

    id: str
    status: str
    message: str
    drift: np.ndarray | None


def _tried(subject: MapSubject, reference: torch.Tensor, fix: str) -> _Fix:
    """Run a fix on a copy of the model."""
    try:
        with fix_by_id(fix).applied(copy.deepcopy(subject.model)) as call:
            output = call(*call.prepare(subject.inputs))
    except Exception as error:  # noqa: BLE001 - whatever a model raises under a fix is that fix's result
        outcome = failure_of(fix, error)
        return _Fix(fix, outcome.status, outcome.reason or "", None)
    drift = subject.drift(output, reference)[PROVING]
    if not np.isfinite(drift).all():
        return _Fix(fix, "non_finite", "an output value is NaN or infinite", None)
    return _Fix(fix, "passed", "", drift)


def contest(
    target: str,
    policies: dict[str, MixedPolicy],
    *,
    size: str,
    seed: int,
    processes: int = 6,
    budget_s: float = 1.5,
    fixes: Sequence[str] = UNIFORM,
    progress: Progress = lambda done, total, what: None,
) -> list[Contest]:
    """Hold policies against every uniform fix of a target; `budget_s` is of one policy and process."""
    subject = target_by_id(target).build(size, seed=seed)
    reference = subject.reference()
    tried = [_tried(subject, reference, fix) for fix in fixes]
    if any(policy.in_blocks for policy in policies.values()):
        with put_on(subject, IN_BLOCKS).agreeing() as control:
            tried.append(_Fix(CONTROL, "passed", "", subject.drift(control(), reference)[PROVING]))
    cured = tuple(fix.id for fix in tried if fix.drift is not None)
    contests = []
    for index, (rule, policy) in enumerate(policies.items()):
        progress(index, len(policies), f"{target}: timing {policy.id}")
        with put_on(subject, policy).agreeing() as applied:
            drift = subject.drift(applied(), reference)[PROVING]
        ratios = compare_latency(
            partial(_candidates, target, policy, cured, size=size, seed=seed),
            baseline="policy",
            budget_s=processes * budget_s,
            processes=processes,
            margin=EQUAL_SPEED,
            seed=seed,
            check=False,
            min_rounds=8,
        )
        contests.append(_contest(target, size, rule, policy, drift, tried, ratios, processes))
    progress(len(policies), len(policies), f"{target}: timed")
    return contests


def _candidates(
    target: str, policy: MixedPolicy, fixes: Sequence[str], *, size: str, seed: int
) -> dict[str, Candidate]:
    """Return the policy and the fixes, each on a model of its own."""
    torch.set_num_threads(1)
    subject = target_by_id(target).build(size, seed=seed)
    policies = {"policy": policy} | ({CONTROL: IN_BLOCKS} if CONTROL in fixes else {})
    applied = {name: put_on(subject, policy) for name, policy in policies.items()}
    ready = {name: Candidate(one, one.agreeing) for name, one in applied.items()}
    return ready | {fix: _candidate(subject, fix) for fix in fixes if fix != CONTROL}


_HELD = ExitStack()
"""Holds what fixes store for as long as the process that times them lives."""


def _candidate(subject: MapSubject, fix: str) -> Candidate:
    applied = fix_by_id(fix).applied(copy.deepcopy(subject.model))
    _HELD.enter_context(applied.stored())
    return Candidate(partial(applied, *applied.prepare(subject.inputs)), applied.agreeing)


def _contest(
    target: str,
    size: str,
    rule: str,
    policy: MixedPolicy,
    drift: np.ndarray,
    tried: Sequence[_Fix],
    ratios: dict[str, PairedRatio],
    processes: int,
) -> Contest:
    return Contest(
        target=target,
        size=size,
        rule=rule,
        policy=policy,
        units=drift.size,
        drift=float(drift.mean()),
        processes=processes,
        median_s=float(np.median([ratio.baseline_median_s for ratio in ratios.values()])),
        versus=tuple(_versus(fix, drift, ratios.get(fix.id)) for fix in tried),
    )


def _inverse(ratio: float) -> float:
    """Return 1 / ratio, at most :data:`UNBOUNDED`: few noisy blocks may leave a bound at 0."""
    return min(1.0 / ratio, UNBOUNDED) if ratio > 0.0 else UNBOUNDED


def _versus(fix: _Fix, drift: np.ndarray, ratio: PairedRatio | None) -> Versus:
    if fix.drift is None or ratio is None:
        return Versus(fix=fix.id, status=fix.status, message=fix.message, outcome="no cure")
    logs = np.log(drift / fix.drift)
    interval = bootstrap_interval(logs, seed=SEED)
    drift_low, drift_high = math.exp(interval.low), math.exp(interval.high)
    time_low, time_high = 0.0, UNBOUNDED
    if ratio.verdict_low <= ratio.ratio <= ratio.verdict_high:  # else too few blocks for an interval: empty, or NaN
        time_low, time_high = _inverse(ratio.verdict_high), _inverse(ratio.verdict_low)
    return Versus(
        fix=fix.id,
        status=fix.status,
        fix_drift=float(fix.drift.mean()),
        drift_ratio=math.exp(interval.estimate),
        drift_low=drift_low,
        drift_high=drift_high,
        time_ratio=_inverse(ratio.ratio),
        time_low=time_low,
        time_high=time_high,
        fix_median_s=ratio.median_s,
        doubts=ratio.doubts,
        outcome=outcome_of((drift_low, drift_high), (time_low, time_high)),
    )
