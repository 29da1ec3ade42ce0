"""Location of noisy values that are now and then far off: an M-estimate, its standard error and its bootstrap.

Conventions: values are float64, any unit. The estimate solves Σ ψ((x − m)/s) = 0 with the score of a Student t of 2
degrees of freedom and the scale s = 1.4826 · MAD. A block of calls that was preempted lies ten to a thousand scales
away, where ψ tends to zero: it stays in the data and has next to no say. No value is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.stats.intervals import CONFIDENCE, Interval, check_values, resample

# Degrees of freedom of the score: heavy tails, as bursts of other processes disturb a fifth to a half of the blocks.
DEGREES_OF_FREEDOM = 2.0

_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_CHUNK_VALUES = 100_000  # what a second-level cache holds: half the time of all resamples at once


@dataclass(frozen=True)
class Location:
    """An estimate of location, in the unit of the values."""

    estimate: float
    standard_error: float
    scale: float
    size: int


def student_location(values: ArrayLike) -> Location:
    """Location of a sample by the score of Student's t, with its sandwich standard error."""
    sample = check_values("values", values)
    middle = float(np.median(sample))
    scale = _scale(sample, middle)
    if scale == 0.0:
        return Location(middle, 0.0, 0.0, sample.size)
    for _ in range(100):
        weight = 1.0 / (DEGREES_OF_FREEDOM + ((sample - middle) / scale) ** 2)
        moved = float(np.sum(weight * sample) / np.sum(weight))
        done = abs(moved - middle) <= 1e-9 * scale
        middle = moved
        if done:
            break
    psi, slope = _score((sample - middle) / scale)
    n = sample.size
    error = scale * float(np.sqrt(np.sum(psi**2)) / abs(np.sum(slope))) * np.sqrt(n / max(n - 1, 1))
    return Location(middle, float(error), scale, n)


def one_step_interval(
    values: ArrayLike, *, seed: int, resamples: int = 2000, location: Location | None = None
) -> Interval:
    """Percentile bootstrap interval of :func:`student_location`, one Newton step per resample."""
    sample = check_values("values", values)
    middle = student_location(sample) if location is None else location
    alpha = 1.0 - CONFIDENCE
    if middle.scale == 0.0:
        return Interval(middle.estimate, middle.estimate, middle.estimate)
    psi, slope = _score((sample - middle.estimate) / middle.scale)
    n = sample.size
    draws = resample(n, seed=seed, resamples=resamples, chunk=_CHUNK_VALUES)
    steps = np.concatenate([_newton_steps(psi, slope, indices) for indices in draws])
    # the bootstrap's spread is that of n values about their own mean: √(n/(n−1)) makes up for it
    low, high = middle.estimate + middle.scale * np.sqrt(n / max(n - 1, 1)) * np.quantile(
        steps, [alpha / 2.0, 1.0 - alpha / 2.0]
    )
    return Interval(middle.estimate, float(low), float(high))


def _scale(sample: NDArray[np.float64], middle: float) -> float:
    deviation = np.abs(sample - middle)
    return _MAD_TO_SIGMA * float(np.median(deviation)) or float(np.mean(deviation))


def _score(u: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """ψ(u) and ψ′(u)."""
    below = DEGREES_OF_FREEDOM + u**2
    gain = DEGREES_OF_FREEDOM + 1.0
    return gain * u / below, gain * (DEGREES_OF_FREEDOM - u**2) / below**2


def _newton_steps(
    psi: NDArray[np.float64], slope: NDArray[np.float64], draws: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Σψ/Σψ′ of each resample; the slope of the whole sample stands in where a resample's is less than half of it."""
    whole = float(slope.mean())
    each = slope[draws].mean(axis=1)
    return np.asarray(psi[draws].mean(axis=1) / np.where(each > 0.5 * whole, each, whole))
