"""Survival of streams: the fraction that has not yet left the reference's path, with intervals.

Conventions: a stream is *lost* at its event (first divergent step); a stream still on the path when observation ends is
*censored* there. Times are in whatever unit the caller uses (steps, seconds). The curve is right-continuous: the value
at an event time already counts that event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.stats.intervals import checked_values, normal_quantile, wilson_interval

Method = Literal["wilson", "greenwood"]


@dataclass(frozen=True)
class Survival:
    """A survival curve at its event times, preceded by the point (0, 1)."""

    time: tuple[float, ...]
    fraction: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    at_risk: tuple[int, ...]
    confidence: float

    def sampled(self, times: ArrayLike) -> dict[str, list[float]]:
        """Return the curve at given times, as ``{"time_s", "fraction", "low", "high"}`` for a record."""
        grid = checked_values("times", times)
        if grid.min() < 0.0:
            raise ParameterError(f"times reach {grid.min()}; a survival curve begins at 0")
        index = np.searchsorted(np.asarray(self.time), grid, side="right") - 1
        pick = {"fraction": self.fraction, "low": self.low, "high": self.high}
        return {"time_s": grid.tolist(), **{key: np.asarray(curve)[index].tolist() for key, curve in pick.items()}}


def kaplan_meier(
    time: ArrayLike, observed: ArrayLike, *, confidence: float = 0.95, method: Method = "wilson"
) -> Survival:
    """Kaplan–Meier estimate of a survival curve."""
    times, events = _checked_units(time, observed)
    event_times = np.unique(times[events])
    lost = np.array([np.count_nonzero(events & (times == time)) for time in event_times])
    at_risk = times.size - np.searchsorted(np.sort(times), event_times)
    fractions = _survival_at(event_times, times, events)
    with np.errstate(divide="ignore"):
        greenwood = np.cumsum(lost / (at_risk * (at_risk - lost)))
    points = [
        (0.0, 1.0, times.size, 0.0),
        *zip(event_times.tolist(), fractions.tolist(), at_risk.tolist(), greenwood.tolist(), strict=True),
    ]  # time, fraction, at risk, Greenwood's sum
    effective = _effective_numbers(points)
    bounds = [
        _interval(S, G, n, confidence=confidence, method=method)
        for (_, S, _, G), n in zip(points, effective, strict=True)
    ]
    return Survival(
        time=tuple(point[0] for point in points),
        fraction=tuple(point[1] for point in points),
        low=tuple(low for low, _ in bounds),
        high=tuple(high for _, high in bounds),
        at_risk=tuple(point[2] for point in points),
        confidence=confidence,
    )


def _survival_at(at: NDArray[np.float64], times: NDArray[np.float64], events: NDArray[np.bool_]) -> NDArray[np.float64]:
    from scipy.stats import ecdf

    if not at.size:
        return at
    return np.asarray(ecdf(_censored(times, events)).sf.evaluate(at))


def _checked_units(time: ArrayLike, observed: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return times and events as arrays, or say what is wrong with them."""
    times = checked_values("time", time)
    events = np.asarray(observed, dtype=bool)
    if events.shape != times.shape:
        raise ParameterError(f"time has {times.size} entries and observed {events.size}; one each per unit is expected")
    if times.min() <= 0.0:
        raise ParameterError(f"the earliest time is {times.min()}; survival times are above 0 (count steps from 1)")
    return times, events


def _effective_numbers(points: Sequence[tuple[float, float, int, float]]) -> list[float]:
    """Number of uncensored units that each step of the curve is worth: ``S(1−S)/var``, carried on to fraction 0."""
    numbers: list[float] = []
    for _, fraction, at_risk, greenwood in points:
        if 0.0 < fraction < 1.0:
            # var = S²·G, so S(1−S)/var = (1−S)/(S·G); without censoring this is the number of units
            numbers.append((1.0 - fraction) / (fraction * greenwood))
        elif fraction == 0.0 and len(numbers) > 1:
            numbers.append(numbers[-1])
        else:  # nothing lost yet, or all at once: those who were under observation
            numbers.append(float(at_risk))
    return numbers


def _interval(
    fraction: float, greenwood: float, effective: float, *, confidence: float, method: Method
) -> tuple[float, float]:
    """Pointwise interval at one step of the curve."""
    if method == "wilson":
        return wilson_interval(fraction, effective, confidence=confidence)
    if method != "greenwood":
        raise ParameterError(f"method is {method!r}; expected 'wilson' or 'greenwood'")
    if not 0.0 < fraction < 1.0:
        return fraction, fraction
    spread = normal_quantile(confidence) * math.sqrt(greenwood) / abs(math.log(fraction))
    return fraction ** math.exp(spread), fraction ** math.exp(-spread)


@dataclass(frozen=True)
class MedianSurvival:
    """Time at which half are lost, with its interval, in the unit of the curve."""

    median: float | None
    low: float | None
    high: float | None
    confidence: float


def median_survival(curve: Survival) -> MedianSurvival:
    """Median of a survival curve, with the interval of Brookmeyer and Crowley."""

    def first(bound: Sequence[float], *, strictly: bool = False) -> float | None:
        # a hair's breadth of rounding must not decide whether a product of fractions equals one half
        limit = 0.5 - 1e-12 if strictly else 0.5 + 1e-12
        return next((t for t, value in zip(curve.time, bound, strict=True) if value <= limit), None)

    return MedianSurvival(first(curve.fraction), first(curve.low), first(curve.high, strictly=True), curve.confidence)


def _censored(times: NDArray[np.float64], events: NDArray[np.bool_]) -> Any:
    from scipy.stats import CensoredData

    return CensoredData(uncensored=times[events], right=times[~events])
