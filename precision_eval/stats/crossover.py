"""The length at which a ratio crosses 1, with an interval, from ratios at a few lengths.

Conventions: the logarithm of a ratio is known at each length with a standard error and degrees of freedom; between
neighbouring lengths it is a straight line over the logarithm of the length. Two questions are answered in turn.

*Does it cross?* The sign at a length is *decided* where its simultaneous interval (Bonferroni over the lengths)
excludes 0. Each change between one decided sign and the next brackets a crossing. Crossings that come in pairs between
neighbouring lengths leave no trace and are not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.stats import student_quantile
from precision_eval.stats.intervals import checked_confidence

Outcome = Literal["none", "one", "several", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A log-ratio at one length."""

    length: int
    log_ratio: float
    standard_error: float
    degrees: float


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """One crossing."""

    length: float
    low: float
    high: float
    rising: bool
    between: tuple[int, int]
    jump: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """What a series of ratios says about crossing 1."""

    outcome: Outcome
    sign: int
    crossings: tuple[Crossing, ...]
    undecided_lengths: tuple[int, ...]
    lengths: tuple[int, ...]
    confidence: float


def point_of(length: int, *, ratio: float, low: float, high: float, confidence: float, degrees: float) -> Point:
    """Turn a ratio with its two-sided Student interval into a point."""
    if not (0.0 < low <= high < math.inf and 0.0 < ratio < math.inf and 0.0 < confidence < 1.0):
        raise ParameterError(
            f"ratio {ratio} [{low}, {high}] at {confidence}; expected finite numbers above 0, a confidence in (0, 1)"
        )
    half = (math.log(high) - math.log(low)) / 2.0
    error = half / student_quantile(1.0 - confidence, degrees)
    return Point(length=length, log_ratio=math.log(ratio), standard_error=error, degrees=degrees)


def find_crossover(
    points: Sequence[Point], *, seed: int, confidence: float = 0.95, resamples: int = 10_000
) -> Crossover:
    """Find where a ratio crosses 1."""
    ordered = _checked(points, confidence)
    signs = _decided_signs(ordered, confidence)
    decided = [index for index, sign in enumerate(signs) if sign]
    brackets = [(a, b) for a, b in pairwise(decided) if signs[a] != signs[b]]
    rng = np.random.default_rng(seed)
    crossings = tuple(
        _located(ordered[a : b + 1], signs[b], rng, confidence=confidence, resamples=resamples) for a, b in brackets
    )
    loose = tuple(
        point.length
        for index, (point, sign) in enumerate(zip(ordered, signs, strict=True))
        if not sign and not any(a < index < b for a, b in brackets)
    )
    outcome: Outcome = "undecided" if loose or not decided else "none"
    if crossings:
        outcome = "one" if len(crossings) == 1 else "several"
    return Crossover(
        outcome=outcome,
        sign=signs[decided[0]] if decided and not crossings else 0,
        crossings=crossings,
        undecided_lengths=loose,
        lengths=tuple(point.length for point in ordered),
        confidence=confidence,
    )


def crossing_of(
    log_lengths: NDArray[np.float64], log_ratios: NDArray[np.float64], weights: NDArray[np.float64], *, rising: bool
) -> NDArray[np.float64]:
    """Where each series crosses 0, after it has been made monotone."""
    n = log_lengths.size
    fitted = isotonic(log_ratios if rising else -log_ratios, weights)  # (n_series, n), rising
    below, above = (fitted < 0.0).sum(axis=1), (fitted > 0.0).sum(axis=1)
    left, right = np.clip(below - 1, 0, n - 1), np.clip(n - above, 0, n - 1)  # last below 0, first above 0
    rows = np.arange(len(fitted))
    from_y, to_y = fitted[rows, left], fitted[rows, right]
    step = np.where(to_y > from_y, to_y - from_y, 1.0)
    between = log_lengths[left] - from_y / step * (log_lengths[right] - log_lengths[left])
    flat = (log_lengths[np.clip(left + 1, 0, n - 1)] + log_lengths[np.clip(right - 1, 0, n - 1)]) / 2.0
    found = np.where(right == left + 1, between, flat)
    found = np.where(below == 0, log_lengths[0], found)
    return np.asarray(np.where(above == 0, log_lengths[-1], found))


def isotonic(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Nearest series that never falls, in weighted least squares, for many series at once."""
    if values.shape[1] < 2 or bool(np.all(np.diff(values, axis=1) >= 0.0)):
        return values
    n = values.shape[1]
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values * weights, axis=1)], axis=1)
    weight_sums = np.concatenate([[0.0], np.cumsum(weights)])
    best = np.full(values.shape, -np.inf)
    for a in range(n):
        means = (sums[:, a + 1 :] - sums[:, a : a + 1]) / (weight_sums[a + 1 :] - weight_sums[a])  # b = a … n−1
        least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]  # over b ≥ i, for i = a … n−1
        best[:, a:] = np.maximum(best[:, a:], least)
    return best


def _checked(points: Sequence[Point], confidence: float) -> list[Point]:
    """Return the points in order of length, after a look at their values."""
    if not points or len({point.length for point in points}) < len(points):
        raise ParameterError(f"{len(points)} points; expected at least one, each length once")
    checked_confidence(confidence)
    for point in points:
        fine = math.isfinite(point.log_ratio) and 0.0 <= point.standard_error < math.inf
        if not fine or point.length < 1 or point.degrees < 1.0:
            raise ParameterError(f"{point}: expected a length ≥ 1, finite values, error ≥ 0 and degrees ≥ 1")
    return sorted(points, key=lambda point: point.length)


def _decided_signs(points: Sequence[Point], confidence: float) -> list[int]:
    """1 or −1 where the simultaneous interval excludes 0, else 0."""
    error = (1.0 - confidence) / len(points)
    signs = []
    for point in points:
        reach = student_quantile(error, point.degrees) * point.standard_error
        signs.append(int(np.sign(point.log_ratio)) if abs(point.log_ratio) > reach else 0)
    return signs


def _located(
    points: Sequence[Point], sign_after: int, rng: np.random.Generator, *, confidence: float, resamples: int
) -> Crossing:
    """Locate the crossing in a bracket."""
    x = np.log([point.length for point in points])
    y = np.array([[point.log_ratio for point in points]])  # (1, n)
    errors = np.array([point.standard_error for point in points])
    floor = 1e-6 * float(errors.max()) or 1.0  # a point without error gets nearly all of the weight
    weights = np.maximum(errors, floor) ** -2.0
    draws = y + errors * rng.standard_t([point.degrees for point in points], size=(resamples, len(points)))
    rising = sign_after > 0
    estimate = float(crossing_of(x, y, weights, rising=rising)[0])
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(crossing_of(x, draws, weights, rising=rising), [tail, 1.0 - tail])
    return Crossing(
        length=math.exp(estimate),
        low=math.exp(float(low)),
        high=math.exp(float(high)),
        rising=rising,
        between=(points[0].length, points[-1].length),
    )
