"""One-sided t-tests of paired log-ratios, judged together so that a whole family keeps one error.

Conventions: a test's values are natural logarithms of ratios, one per process; above 0 is worse. The margin lies inside
the test: a *regression* is a mean that surely lies above it. Holm's procedure keeps the rate of any false regression in
the family at its error, however the tests depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from precision_eval.core.errors import ParameterError
from precision_eval.stats.sequential import student_quantile

# Of repetitions, the share in which a detectable change would have shown.
POWER = 0.8

FamilyVerdict = Literal["regression", "improvement", "no worse", "undecided"]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """The mean of one cell's log-ratios, and the margins that it is judged by."""

    __test__ = False  # pytest takes the name for a test of its own

    estimate: float
    standard_error: float
    degrees: float
    alarm: float
    clear: float


@dataclass(frozen=True, kw_only=True)
class FamilyDecision:
    """The verdict on a test; its interval and the change it would have found in 80 % of repetitions, as log-ratios."""

    verdict: FamilyVerdict
    low: float
    high: float
    detectable: float


def paired_test(log_ratios: Sequence[float], *, alarm: float, clear: float, least_variance: float = 0.0) -> PairedTest:
    """Build the paired t-test of one cell; `alarm` and `clear` are relative changes."""
    values = np.asarray(log_ratios, dtype=np.float64)
    if values.size < 2 or not np.isfinite(values).all():
        raise ParameterError(f"the log-ratios are {values.tolist()}; expected two or more finite values")
    variance = max(float(values.var(ddof=1)), least_variance)
    return PairedTest(
        estimate=float(values.mean()),
        standard_error=math.sqrt(variance / values.size),
        degrees=values.size - 1.0,
        alarm=math.log1p(alarm),
        clear=math.log1p(clear),
    )


def decide_all(tests: Mapping[Key, PairedTest], *, error: float, clear_error: float) -> dict[Key, FamilyDecision]:
    """Judge all tests as one family: `error` is of any false regression in it, `clear_error` of each *no worse*."""
    worse = [upper_tail(test.estimate - test.alarm, test.standard_error, test.degrees) for test in tests.values()]
    better = [upper_tail(-test.estimate - test.alarm, test.standard_error, test.degrees) for test in tests.values()]
    judged = zip(tests.items(), holm_levels(worse, error), holm_levels(better, error), strict=True)
    return {key: _decision(test, up, down[0], clear_error) for (key, test), up, down in judged}


def _decision(test: PairedTest, worse: tuple[bool, float], better: bool, clear_error: float) -> FamilyDecision:
    reach = upper_quantile(clear_error, test.degrees) * test.standard_error
    verdict: FamilyVerdict = "undecided"
    if worse[0]:
        verdict = "regression"
    elif better:
        verdict = "improvement"
    elif test.estimate + reach <= test.clear:
        verdict = "no worse"
    found_at = upper_quantile(worse[1], test.degrees) + upper_quantile(1.0 - POWER, test.degrees)
    return FamilyDecision(
        verdict=verdict,
        low=test.estimate - reach,
        high=test.estimate + reach,
        detectable=test.alarm + found_at * test.standard_error,
    )


def upper_tail(difference: float, standard_error: float, degrees: float) -> float:
    """Probability that Student's t lies above difference / standard_error; 0, 1/2 or 1 where the error is 0."""
    from scipy.special import stdtr

    if standard_error == 0.0:
        return 0.5 if difference == 0.0 else float(difference < 0.0)
    return float(stdtr(degrees, -difference / standard_error))


def upper_quantile(level: float, degrees: float) -> float:
    """Return t with P(T > t) = `level`, for a level below 1/2."""
    return student_quantile(2.0 * level, degrees)


def holm_levels(p_values: Sequence[float], error: float) -> tuple[tuple[bool, float], ...]:
    """Holm's step-down: which hypotheses are rejected, and the level at which each was tested."""
    if not 0.0 < error < 0.5 or any(not 0.0 <= p <= 1.0 for p in p_values):
        raise ParameterError(f"the error is {error}; expected a fraction in (0, 0.5), and p-values in [0, 1]")
    levels: list[tuple[bool, float]] = [(False, 0.0)] * len(p_values)
    level, rejecting = error, True
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if rejecting:
            level = error / (len(p_values) - rank)
            rejecting = p_values[index] <= level
        levels[index] = (rejecting, level)
    return tuple(levels)
