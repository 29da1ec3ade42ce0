"""Questions to re-runs, and how often two re-runs give one answer.

Conventions: shares are over all pairs of re-runs of a case, averaged over the questions and cases; their interval comes
from redrawing the re-runs of each case. *Resampled* re-runs are made of the processes of all re-runs of a case, drawn
with replacement and combined as a run combines them. The rival takes the best point estimate among those whose point
estimates keep the limits; it never says tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from precision_eval.core.records import Record
from precision_eval.results.choose import POLICIES, Choice, Constraints, Group, choose_from, groups_of
from precision_eval.results.choose.policies import value_of
from precision_eval.stats import student_quantile
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA, decide

TARGET = 0.95
_MARGIN = 0.002


@dataclass(frozen=True)
class Said:
    """What one re-run says to one question."""

    fix: str | None
    named: frozenset[str]
    within_noise: bool
    may_be_none: bool = False


def said(choice: Choice) -> Said:
    """Condense a choice."""
    named = frozenset((*choice.tied, *choice.contested))
    return Said(choice.fix, named, choice.outcome == "tie", may_be_none=not choice.surely)


def outcome_of(first: Said, second: Said) -> str:
    """Compare two answers."""
    if first.fix == second.fix:
        return "same"
    for one, other in ((first, second), (second, first)):
        if one.within_noise and (one.may_be_none if other.fix is None else other.fix in one.named):
            return "tie"
    return "differs"


def group_of(exact: Sequence[Mapping[str, Any]], run: Sequence[Mapping[str, Any]]) -> Group:
    """Return the group that drift and memory of a case make with the times of one re-run."""
    (group,) = groups_of(Record(**record) for record in (*exact, *run))
    return group


def questions_of(groups: Sequence[Group]) -> list[tuple[str, str, Constraints]]:
    """Return (policy, name, limits): every policy without limits and with each kind of limit."""
    limits = {
        "no limit": Constraints(),
        "max drift 1e-3": Constraints(max_drift=1e-3),
        "max drift 1e-5": Constraints(max_drift=1e-5),
        "max memory 0.75x": Constraints(max_memory_ratio=0.75),
        "min speed 1": Constraints(min_speed=1.0),
        "min speed in the noise": Constraints(min_speed=_speed_in_the_noise(groups)),
    }
    return [(policy, name, limit) for policy, (name, limit) in product(POLICIES, limits.items())]


def answers(group: Group, questions: Sequence[tuple[str, str, Constraints]]) -> list[Said]:
    """Ask one re-run every question."""
    return [said(choose_from(group, limits, policy=policy)) for policy, _, limits in questions]


def rival_answers(group: Group, questions: Sequence[tuple[str, str, Constraints]]) -> list[Said]:
    """Ask the rival: point estimates alone."""
    found = []
    for policy, _, limits in questions:
        bounds = {axis: limits.limit(group, axis) for axis in limits.axes}
        able = [
            row
            for row in group.curing
            if row.time is not None
            and row.drift is not None
            and all(
                (estimate := row.estimate(axis)) is not None and limit is not None and estimate.value <= limit
                for axis, limit in bounds.items()
            )
        ]
        best = min(able, key=lambda row: value_of(policy, row), default=None)
        fix = None if best is None else best.fix
        found.append(Said(fix, frozenset(() if fix is None else (fix,)), False))
    return found


def resampled(runs: Sequence[Sequence[Mapping[str, Any]]], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Make one re-run of the processes of several, drawn with replacement; the same processes for every fix."""
    size = len(runs)
    by_fix = [{record["fix"]: record for record in run} for run in runs]
    counts = [len(record["data"]["process_ratios"]) for record in runs[0] if record["status"] == "passed"]
    drawn = [(rng.integers(size), rng.integers(min(counts))) for _ in range(min(counts))]
    made = []
    for fix, record in by_fix[0].items():
        if any(found[fix]["status"] != "passed" for found in by_fix):
            made.append(dict(record))
            continue
        logs = np.log([by_fix[run][fix]["data"]["process_ratios"][process] for run, process in drawn])
        made.append({**record, "data": {**record["data"], **_combined(logs, candidates=len(counts))}})
    return made


def shares(
    cases: Sequence[Sequence[Sequence[Said]]], *, rng: np.random.Generator, resamples: int = 300
) -> dict[str, tuple[float, float, float]]:
    """Return the shares of pairs that agree, that are the same, and of answers that are ties, with 95 % intervals."""
    estimate = _shares(cases)
    draws = [
        _shares([[case[index] for index in _with_pairs(rng, len(case))] for case in cases]) for _ in range(resamples)
    ]
    ends = {name: np.quantile([draw[name] for draw in draws], [0.025, 0.975]) for name in estimate}
    return {name: (value, float(ends[name][0]), float(ends[name][1])) for name, value in estimate.items()}


def _shares(cases: Sequence[Sequence[Sequence[Said]]]) -> dict[str, float]:
    agree, same, ties = [], [], []
    for case in cases:
        for question in zip(*case, strict=True):
            found = [outcome_of(*pair) for pair in combinations(question, 2)]
            agree.append(np.mean([one != "differs" for one in found]))
            same.append(np.mean([one == "same" for one in found]))
            ties.append(np.mean([one.within_noise for one in question]))
    return {"agree": float(np.mean(agree)), "same": float(np.mean(same)), "ties": float(np.mean(ties))}


def _with_pairs(rng: np.random.Generator, size: int) -> list[int]:
    """Draw indices with replacement, not all of them the same: such a draw has no pair of different re-runs."""
    while True:
        drawn = [int(index) for index in rng.integers(size, size=size)]
        if len(set(drawn)) > 1:
            return list(dict.fromkeys(drawn))  # a re-run agrees with itself, which says nothing


def _speed_in_the_noise(groups: Sequence[Group]) -> float:
    """Return the median speed of the fix, other than the baseline, whose median time is nearest to the baseline's."""
    logs: dict[str, list[float]] = {}
    for group in groups:
        for row in group.curing:
            if row.time is not None and row.fix != group.baseline:
                logs.setdefault(row.fix, []).append(row.time.log)
    nearest = min((float(np.median(found)) for found in logs.values()), key=abs)
    return math.exp(-nearest)


def _combined(logs: np.ndarray, *, candidates: int) -> dict[str, Any]:
    """Combine the log-ratios of processes as a run does, from their spread alone."""
    n = logs.size
    middle, error = float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(n)
    half = student_quantile(0.05, n - 1) * error
    verdict = decide(
        middle,
        error,
        margin=_MARGIN,
        direction_t=student_quantile(0.01 / candidates, n - 1),
        equivalence_t=student_quantile(EQUIVALENCE_ALPHA, n - 1),
    )
    return {
        "ratio": math.exp(middle),
        "ratio_low": math.exp(middle - half),
        "ratio_high": math.exp(middle + half),
        "verdict": verdict,
        "process_ratios": [math.exp(one) for one in logs],
        "doubts": [],
    }


Ask = Callable[[Group, Sequence[tuple[str, str, Constraints]]], list[Said]]


def asked(case: Mapping[str, Any], ask: Ask, *, made: Sequence[Sequence[Mapping[str, Any]]] | None = None) -> list:
    """Ask every re-run of a case, or every one of those made from it, all questions."""
    real = [group_of(case["exact"], run) for run in case["runs"]]
    questions = questions_of(real)
    groups = real if made is None else [group_of(case["exact"], run) for run in made]
    return [ask(group, questions) for group in groups]
