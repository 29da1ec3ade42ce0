"""Point estimates with intervals: trimmed means, bootstraps, proportions.

Conventions: arrays are float64 inside; an interval is two-sided; a seed is required wherever a draw is made, and the
same seed and data give the same bits. Nothing is dropped: trimming is a property of the estimator, the raw values stay
with the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.errors import ParameterError

TRIM = 0.2
"""Fraction cut from each end by :func:`trimmed_mean`; resists that share of preempted blocks on either side."""

_CHUNK_VALUES = 4_000_000  # resampled values held at once: 32 MB of float64


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided interval, in the unit of the data."""

    estimate: float
    low: float
    high: float
    confidence: float


def checked_values(
    name: str, values: ArrayLike, *, ndim: tuple[int, ...] = (1,), min_size: int = 1
) -> NDArray[np.float64]:
    """Return `values` as float64, or say what is wrong with them."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in ndim:
        raise ParameterError(f"{name} has {array.ndim} dimensions; expected {' or '.join(map(str, ndim))}")
    if array.size < min_size:
        raise ParameterError(f"{name} holds {array.size} values; at least {min_size} are needed")
    if not np.isfinite(array).all():
        raise ParameterError(
            f"{name} holds {int((~np.isfinite(array)).sum())} values that are not finite; remove the cause"
        )
    return array


def checked_confidence(confidence: float) -> float:
    """Return `confidence` if it lies strictly between 0 and 1."""
    if not 0.0 < confidence < 1.0:
        raise ParameterError(f"confidence is {confidence}; expected a fraction strictly between 0 and 1, such as 0.95")
    return confidence


def normal_quantile(confidence: float) -> float:
    """Return z such that a standard normal lies within ±z with probability `confidence`."""
    return NormalDist().inv_cdf(0.5 + checked_confidence(confidence) / 2.0)


def trimmed_mean(values: ArrayLike, *, axis: int = -1, trim: float = TRIM) -> NDArray[np.float64]:
    """Mean of what is left after `trim` of the values is set aside at each end."""
    if not 0.0 <= trim < 0.5:
        raise ParameterError(f"trim is {trim}; expected a fraction in [0, 0.5)")
    ordered = np.sort(np.moveaxis(np.asarray(values, dtype=np.float64), axis, -1), axis=-1)
    n = ordered.shape[-1]
    cut = int(trim * n)
    return np.asarray(ordered[..., cut : n - cut].mean(axis=-1))


def bootstrap_interval(
    values: ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 2000, trim: float = TRIM
) -> Interval:
    """Percentile bootstrap interval of the trimmed mean of independent values."""
    sample = checked_values("values", values)
    alpha = 1.0 - checked_confidence(confidence)
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK_VALUES // sample.size)
    estimates = np.concatenate(
        [
            trimmed_mean(sample[rng.integers(sample.size, size=(min(rows, resamples - start), sample.size))], trim=trim)
            for start in range(0, resamples, rows)
        ]
    )
    low, high = np.quantile(estimates, [alpha / 2.0, 1.0 - alpha / 2.0])
    return Interval(float(trimmed_mean(sample, trim=trim)), float(low), float(high), confidence)


def block_bootstrap_mean(
    values: ArrayLike, *, block_length: int, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> Interval:
    """Interval of the mean of autocorrelated values, by the circular block bootstrap."""
    rows = np.atleast_2d(checked_values("values", values, ndim=(1, 2)))
    alpha = 1.0 - checked_confidence(confidence)
    n_rows, n_steps = rows.shape
    if not 1 <= block_length <= n_steps:
        raise ParameterError(f"block_length is {block_length}; expected 1 to {n_steps}, the number of steps")
    wrapped = np.concatenate(
        [np.zeros((n_rows, 1)), np.cumsum(np.hstack([rows, rows[:, : block_length - 1]]), axis=1)], axis=1
    )
    block_means = (
        (wrapped[:, block_length:] - wrapped[:, :-block_length]) / block_length
    ).ravel()  # (n_rows · n_steps,)
    draws = max(1, -(-rows.size // block_length))
    rng = np.random.default_rng(seed)
    means = np.array([block_means[rng.integers(block_means.size, size=draws)].mean() for _ in range(resamples)])
    low, high = np.quantile(means, [alpha / 2.0, 1.0 - alpha / 2.0])
    return Interval(float(rows.mean()), float(low), float(high), confidence)


def wilson_interval(fraction: float, n: float, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    if not 0.0 <= fraction <= 1.0 or not n > 0:
        raise ParameterError(f"fraction is {fraction} of n = {n}; expected a fraction in [0, 1] of more than 0 trials")
    z2 = normal_quantile(confidence) ** 2
    centre = (fraction + z2 / (2.0 * n)) / (1.0 + z2 / n)
    half = np.sqrt(z2 * (fraction * (1.0 - fraction) / n + z2 / (4.0 * n * n))) / (1.0 + z2 / n)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))
