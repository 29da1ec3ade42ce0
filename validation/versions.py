"""Steps between torch versions: how often one is found at its version, and how often one is reported that is not there.

A trial is a series of sessions of equal code in random order, every sample as it was measured, with a step of a known
factor at one of them or without any. So what differs from one session to the next stays what it was. The rule of
``precision-eval versions``, its detection of steps without the margin, and fixed factors get the same series.
``results/versions/sessions.json`` holds twelve sessions of three cases (AMD EPYC, torch 2.13.0, commit 465f6100).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from precision_eval.core.files import read_json
from precision_eval.history.versions import MARGINS, level_changes
from validation.frame import ROOT, Data, Experiment, Figure, Options, Trial
from validation.report import judged_share, plain_share

VERSIONS = 10
FACTORS = (1.0, 1.5, 2.0)  # 1: no step
OURS = "precision-eval versions"

Rule = Callable[[Sequence[float]], list[int]]


def by_levels(margin: float) -> Rule:
    """Return the rule that reports a step where levels differ by more than a factor."""
    return lambda values: [first for first, _, _ in level_changes(values, margin=margin)]


def by_neighbors(factor: float) -> Rule:
    """Return the rule that reports a step where a value leaves the one before by more than a factor."""

    def rule(values: Sequence[float]) -> list[int]:
        moves = enumerate(pairwise(values), start=1)
        return [at for at, (old, new) in moves if abs(math.log(new / old)) > math.log(factor)]

    return rule


RULES: Mapping[str, Rule] = {
    OURS: by_levels(MARGINS["latency_ratio"]),
    "asv step detection": by_levels(1.0),
    "factor 1.1": by_neighbors(1.1),
    "factor 1.25": by_neighbors(1.25),
}


def _trials(options: Options) -> list[Trial]:
    ratios = read_json(Path(options["sessions"]))["ratios"]
    return [
        Trial(f"{case} {metric} {fix} x{factor:g} {number}", (sessions, factor, number))
        for case, metrics in ratios.items()
        for metric, fixes in metrics.items()
        for fix, sessions in fixes.items()
        if metric != "latency_ratio" or fix != "full_float32"  # a ratio to itself
        for factor in FACTORS
        for number in range(options["orders"])
    ]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    for key, (sessions, factor, number), _ in trials:
        rng = np.random.default_rng([number, *key.encode()])
        chosen = rng.permutation(len(sessions))[:VERSIONS]
        at = int(rng.integers(1, VERSIONS))
        values = [median(sessions[index]) * (factor if place >= at else 1.0) for place, index in enumerate(chosen)]
        reported = {name: rule(values) for name, rule in RULES.items()}
        yield {"key": key, "factor": factor, "at": at, "reported": reported}


def _summary(lines: list[Data], options: Options) -> Data:
    """Return (hits, trials) of each rule, by the factor of the step."""
    return {"shares": {f"{factor:g}": {rule: _share(lines, rule, factor) for rule in RULES} for factor in FACTORS}}


def _figures(content: Data) -> list[Figure]:
    figures = []
    for factor, shares in content["shares"].items():
        equal = factor == "1"
        name = "series of equal code in which a step is reported" if equal else f"step × {factor} found at its version"
        rivals = {rule: plain_share(*share) for rule, share in shares.items() if rule != OURS}
        hits, trials = shares[OURS]
        figures.append(judged_share(name, hits, trials, "≤ 5 %" if equal else "≥ 90 %", rivals=rivals))
    return figures


def _share(lines: Sequence[Mapping[str, Any]], rule: str, factor: float) -> tuple[int, int]:
    """Return (hits, trials): steps at their version, or series with any step where there is none."""
    lines = [line for line in lines if line["factor"] == factor]
    if factor == 1.0:
        return sum(bool(line["reported"][rule]) for line in lines), len(lines)
    return sum(line["at"] in line["reported"][rule] for line in lines), len(lines)


EXPERIMENT = Experiment(
    name="versions",
    title="steps between torch versions: found, and reported where there is none",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={"orders": (5, 100), "sessions": (str(ROOT / "results/versions/sessions.json"),) * 2},
)
