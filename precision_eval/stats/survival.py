"""Survival of streams: the fraction that has not yet left the reference's path, with intervals.

Conventions: a stream is *lost* at its event (first divergent step); a stream still on the path when observation ends is
*censored* there. Times are in whatever unit the caller uses (steps, seconds). The curve is right-continuous: the value
at an event time already counts that event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.stats.intervals import check_values, wilson_interval


@dataclass(frozen=True)
class Survival:
    """A survival curve at its event times, preceded by the point (0, 1), with pointwise 95 % intervals (Wilson's)."""

    time: tuple[float, ...]
    fraction: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def sampled(self, times: ArrayLike) -> dict[str, list[float]]:
        """Return the curve at given times, as ``{"time_s", "fraction", "low", "high"}`` for a record."""
        grid = check_values("times", times)
        if grid.min() < 0.0:
            raise ParameterError(f"times reach {grid.min()}; a survival curve begins at 0")
        index = np.searchsorted(np.asarray(self.time), grid, side="right") - 1
        pick = {"fraction": self.fraction, "low": self.low, "high": self.high}
        return {"time_s": grid.tolist(), **{key: np.asarray(curve)[index].tolist() for key, curve in pick.items()}}


def kaplan_meier(time: ArrayLike, observed: ArrayLike) -> Survival:
    times, events = _checked_units(time, observed)
    event_times = np.unique(times[events])
    lost = np.array([np.count_nonzero(events & (times == time)) for time in event_times])
    at_risk = times.size - np.searchsorted(np.sort(times), event_times)
    fractions = _survival_at(event_times, times, events)
    with np.errstate(divide="ignore"):
        greenwood = np.cumsum(lost / (at_risk * (at_risk - lost)))
    points = [
        (1.0, times.size, 0.0),
        *zip(fractions.tolist(), at_risk.tolist(), greenwood.tolist(), strict=True),
    ]  # fraction, at risk, Greenwood's sum
    effective = _effective_numbers(points)
    bounds = [wilson_interval(fraction, n) for (fraction, _, _), n in zip(points, effective, strict=True)]
    return Survival(
        time=(0.0, *event_times.tolist()),
        fraction=tuple(fraction for fraction, _, _ in points),
        low=tuple(low for low, _ in bounds),
        high=tuple(high for _, high in bounds),
    )


def _survival_at(at: NDArray[np.float64], times: NDArray[np.float64], events: NDArray[np.bool_]) -> NDArray[np.float64]:
    from scipy.stats import CensoredData, ecdf

    if not at.size:
        return at
    units = CensoredData(uncensored=times[events], right=times[~events])
    return np.asarray(ecdf(units).sf.evaluate(at))


def _checked_units(time: ArrayLike, observed: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    times = check_values("time", time)
    events = np.asarray(observed, dtype=bool)
    if events.shape != times.shape:
        raise ParameterError(f"time has {times.size} entries and observed {events.size}; one each per unit is expected")
    if times.min() <= 0.0:
        raise ParameterError(f"the earliest time is {times.min()}; survival times are above 0 (count steps from 1)")
    return times, events


def _effective_numbers(points: Sequence[tuple[float, int, float]]) -> list[float]:
    """Number of uncensored units that each step of the curve is worth: ``S(1−S)/var``, carried on to fraction 0."""
    numbers: list[float] = []
    for fraction, at_risk, greenwood in points:
        if 0.0 < fraction < 1.0:
            # var = S²·G, so S(1−S)/var = (1−S)/(S·G); without censoring this is the number of units
            numbers.append((1.0 - fraction) / (fraction * greenwood))
        elif fraction == 0.0 and len(numbers) > 1:
            numbers.append(numbers[-1])
        else:  # nothing lost yet, or all at once: those who were under observation
            numbers.append(float(at_risk))
    return numbers
