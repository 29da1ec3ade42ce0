"""The moderated t: variances of many small groups, each pulled towards what all of them say.

Conventions: values are natural logarithms. A *cell* has two groups of values, base and head; its variance pools both.
With few processes per side a cell's own variance is a poor guess, and a t test of it has few degrees of freedom; the
cells together tell what variances are common here (a scaled inverse χ² with d₀ degrees of freedom), and each is moved
there by as much as that is informative. d₀ = 0 gives the plain t test, d₀ = ∞ one variance for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.stats.sequential import student_quantile

_SMALLEST = 1e-5
"""Of the median variance: what a variance of zero is taken for, since its logarithm is needed (as limma does)."""


@dataclass(frozen=True)
class Prior:
    """What the cells' variances have in common."""

    degrees: float
    variance: float


def fit_prior(variances: ArrayLike, degrees: ArrayLike) -> Prior:
    """Fit the prior to the cells' variances by the moments of their logarithms."""
    from scipy.special import digamma, polygamma

    s2, d = _checked(variances, degrees)
    middle = float(np.median(s2))
    if s2.size < 2 or s2.max() == 0.0:
        return Prior(0.0, middle)
    s2 = np.maximum(s2, _SMALLEST * (middle or float(s2.max())))
    e = np.log(s2) - digamma(d / 2.0) + np.log(d / 2.0)
    spread = float(np.sum((e - e.mean()) ** 2) / (e.size - 1) - np.mean(polygamma(1, d / 2.0)))
    if spread <= 0.0:
        return Prior(math.inf, math.exp(float(e.mean())))
    half = trigamma_inverse(spread)
    return Prior(2.0 * half, math.exp(float(e.mean()) + float(digamma(half)) - math.log(half)))


def trigamma_inverse(value: float) -> float:
    """Return x > 0 with ψ′(x) = `value`, which lies between 1/x and 1/x + 1/x²."""
    from scipy.optimize import brentq
    from scipy.special import polygamma

    if value < 1e-6:
        return 1.0 / value
    least, most = 1.0 / value, (1.0 + math.sqrt(1.0 + 4.0 * value)) / (2.0 * value)
    return float(brentq(lambda x: polygamma(1, x) - value, least, most, xtol=1e-12 * least))


def moderated_variances(
    variances: ArrayLike, degrees: ArrayLike, prior: Prior
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pull each variance towards the prior's."""
    s2, d = _checked(variances, degrees)
    total = np.minimum(d + prior.degrees, d.sum())
    if math.isinf(prior.degrees):
        return np.full_like(s2, prior.variance), total
    return (prior.degrees * prior.variance + d * s2) / (prior.degrees + d), total


def upper_tail(difference: float, standard_error: float, degrees: float) -> float:
    """Probability that Student's t lies above difference / standard_error; 0, 1/2 or 1 where the error is 0."""
    from scipy.special import stdtr

    if standard_error == 0.0:
        return 0.5 if difference == 0.0 else float(difference < 0.0)
    return float(stdtr(degrees, -difference / standard_error))


def upper_quantile(level: float, degrees: float) -> float:
    """Return t with P(T > t) = `level`, one-sided, for a level below 1/2."""
    return student_quantile(2.0 * level, degrees)


def holm_levels(p_values: Sequence[float], alpha: float) -> tuple[tuple[bool, float], ...]:
    """Holm's step-down: which hypotheses are rejected, and the level at which each was tested."""
    if not 0.0 < alpha < 0.5 or any(not 0.0 <= p <= 1.0 for p in p_values):
        raise ParameterError(f"alpha is {alpha}; expected a fraction in (0, 0.5), and p-values in [0, 1]")
    levels: list[tuple[bool, float]] = [(False, 0.0)] * len(p_values)
    level, going = alpha, True
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if going:
            level = alpha / (len(p_values) - rank)
            going = p_values[index] <= level
        levels[index] = (going, level)
    return tuple(levels)


def _checked(variances: ArrayLike, degrees: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    s2, d = np.asarray(variances, dtype=np.float64), np.asarray(degrees, dtype=np.float64)
    if s2.ndim != 1 or s2.shape != d.shape or not s2.size:
        raise ParameterError(f"variances have shape {s2.shape} and degrees {d.shape}; expected one of each per cell")
    if not (np.isfinite(s2).all() and (s2 >= 0.0).all() and (d >= 1.0).all()):
        raise ParameterError("a variance is negative or not finite, or has less than 1 degree of freedom")
    return s2, d
