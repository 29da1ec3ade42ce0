"""Latency over all cells at once: from the processes' paired ratios to verdicts, at one level for the whole gate.

Conventions: a process gives one ratio, of the fix to ``full_float32`` or to the anchor, formed within the process, so
that the machine's state cancels. A cell's change is the mean log-ratio of head's processes minus that of base's; the
processes are the units of replication. A *regression* is a change whose interval lies wholly above +margin, at the
level that Holm's procedure gives the cell at a level of :data:`GATE_ERROR` for all. False regressions are thereby held
to about 1 % a gate where the processes of both sides are draws of one distribution, five or more a side; what the
machine does between the two sides is not in it. With three there are more: ``python -m validation gate`` counts both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from precision_eval.core.errors import ParameterError
from precision_eval.stats.moderated import (
    Prior,
    fit_prior,
    holm_levels,
    moderated_variances,
    upper_quantile,
    upper_tail,
)
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA

GATE_ERROR = 0.01
"""Level of a gate as one test over all its cells: of reporting any regression where there is none. Held about, and from
five processes a side on."""

POWER = 0.8
LEAST_PROCESSES = 2

Verdict = Literal["regression", "improvement", "no worse", "undecided"]
Key = TypeVar("Key", bound=Hashable)

_MEDIAN_CHI2 = 0.4549364231195724  # of one degree of freedom


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """One cell's change, ready to be judged."""

    __test__ = False  # pytest takes the name for a test of its own

    estimate: float
    standard_error: float
    degrees: float
    margin: float


@dataclass(frozen=True, kw_only=True)
class PairedDecision:
    """What was made of a test."""

    verdict: Verdict
    low: float
    high: float
    level: float
    detectable: float


def paired_tests(
    cells: Mapping[Key, tuple[Sequence[float], Sequence[float]]], *, margin: float
) -> tuple[dict[Key, PairedTest], Prior]:
    """Build the moderated tests of one metric."""
    if not cells:
        return {}, Prior(0.0, 0.0)
    logs = {key: tuple(_logs(key, ratios) for ratios in sides) for key, sides in cells.items()}
    degrees = [float(base.size + head.size - 2) for base, head in logs.values()]
    pooled = [
        float(((base - base.mean()) ** 2).sum() + ((head - head.mean()) ** 2).sum()) / (base.size + head.size - 2)
        for base, head in logs.values()
    ]
    prior = fit_prior(pooled, degrees)
    variances, total = moderated_variances(pooled, degrees, prior)
    tests = {
        key: PairedTest(
            estimate=float(head.mean() - base.mean()),
            standard_error=math.sqrt(float(variance) * (1.0 / base.size + 1.0 / head.size)),
            degrees=float(freedom),
            margin=math.log1p(margin),
        )
        for (key, (base, head)), variance, freedom in zip(logs.items(), variances, total, strict=True)
    }
    return tests, prior


def _logs(key: object, ratios: Sequence[float]) -> np.ndarray:
    values = np.asarray(ratios, dtype=np.float64)
    if values.ndim != 1 or values.size < LEAST_PROCESSES:
        raise ParameterError(f"{key} has {values.size} processes; expected {LEAST_PROCESSES} or more")
    if not np.isfinite(values).all() or values.min() <= 0.0:
        raise ParameterError(f"{key} has a latency ratio of {values.min()}; expected finite ratios above 0")
    return np.asarray(np.log(values))


def decide_all(tests: Mapping[Key, PairedTest], *, error: float = GATE_ERROR) -> dict[Key, PairedDecision]:
    """Judge all tests as one family."""
    worse = [upper_tail(one.estimate - one.margin, one.standard_error, one.degrees) for one in tests.values()]
    better = [upper_tail(-one.estimate - one.margin, one.standard_error, one.degrees) for one in tests.values()]
    judged = zip(tests.items(), holm_levels(worse, error), holm_levels(better, error), strict=True)
    return {key: _decision(test, up, down) for (key, test), up, down in judged}


def _decision(test: PairedTest, up: tuple[bool, float], down: tuple[bool, float]) -> PairedDecision:
    """Word one cell's verdict, with the interval that it rests on."""
    above, below = (upper_quantile(level, test.degrees) for _, level in (up, down))
    equivalence = upper_quantile(EQUIVALENCE_ALPHA / 2.0, test.degrees) * test.standard_error
    verdict: Verdict = "undecided"
    if up[0]:
        verdict = "regression"
    elif down[0]:
        verdict = "improvement"
    elif abs(test.estimate) + equivalence <= test.margin:
        verdict = "no worse"
    return PairedDecision(
        verdict=verdict,
        low=test.estimate - above * test.standard_error,
        high=test.estimate + below * test.standard_error,
        level=up[1],
        detectable=test.margin + (above + upper_quantile(1.0 - POWER, test.degrees)) * test.standard_error,
    )


def scatter(tests: Sequence[PairedTest]) -> float:
    """How much more the cells' changes scatter about their median than processes explain: a ratio of spreads."""
    known = [test for test in tests if test.standard_error > 0.0]
    if not known:
        return 1.0
    middle = float(np.median([one.estimate for one in known]))
    squares = [((one.estimate - middle) / one.standard_error) ** 2 for one in known]
    return math.sqrt(float(np.median(squares)) / _MEDIAN_CHI2)
