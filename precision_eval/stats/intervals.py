"""Point estimates with intervals: bootstrapped means, proportions.

Conventions: arrays are float64 inside; an interval is two-sided; a seed is required wherever a draw is made, and the
same seed and data give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.errors import ParameterError

# Of the interval around a ratio.
CONFIDENCE = 0.95

_CHUNK_VALUES = 4_000_000  # resampled values held at once: 32 MB of float64


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided interval, in the unit of the data."""

    estimate: float
    low: float
    high: float


def check_values(name: str, values: ArrayLike, *, min_size: int = 1) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ParameterError(f"{name} has {array.ndim} dimensions; expected 1")
    if array.size < min_size:
        raise ParameterError(f"{name} holds {array.size} values; at least {min_size} are needed")
    if not np.isfinite(array).all():
        raise ParameterError(
            f"{name} holds {int((~np.isfinite(array)).sum())} values that are not finite; remove the cause"
        )
    return array


def resample(n: int, *, seed: int, resamples: int, chunk: int) -> Iterator[NDArray[np.int64]]:
    """Yield indices of resamples of n values, (resamples, n), in parts of up to so many values."""
    rng, rows = np.random.default_rng(seed), max(1, chunk // n)
    for start in range(0, resamples, rows):
        yield rng.integers(n, size=(min(rows, resamples - start), n))


def bootstrap_interval(values: ArrayLike, *, seed: int, resamples: int = 2000) -> Interval:
    """95 % percentile bootstrap interval of the mean of independent values."""
    sample = check_values("values", values)
    draws = resample(sample.size, seed=seed, resamples=resamples, chunk=_CHUNK_VALUES)
    means = np.concatenate([sample[indices].mean(axis=1) for indices in draws])
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(sample.mean()), float(low), float(high))


def wilson_interval(fraction: float, n: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion, 95 %."""
    if not 0.0 <= fraction <= 1.0 or not n > 0:
        raise ParameterError(f"fraction is {fraction} of n = {n}; expected a fraction in [0, 1] of more than 0 trials")
    z2 = NormalDist().inv_cdf(0.975) ** 2
    centre = (fraction + z2 / (2.0 * n)) / (1.0 + z2 / n)
    half = np.sqrt(z2 * (fraction * (1.0 - fraction) / n + z2 / (4.0 * n * n))) / (1.0 + z2 / n)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))
