"""From values per window to the summary of a long file.

Conventions: values are one per 1 s window, NaN where undefined (digital silence, samples that are not finite); times
are starts of windows in seconds. ``p95`` is the value that 95 % of the windows are no worse than and ``worst`` the
worst one, so both depend on whether higher or lower is better. The slope is Theil and Sen's, per minute, with the 95
% interval of Sen; it takes windows as independent, so with a strong course of its own in the signal the interval is
too narrow. Thirds are the first and last ``n // 3`` windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from audio_metrics.errors import AudioParameterError

Direction = Literal["lower", "higher"]

DIVERGED_MCD_DB = 9.0
DIVERGED_SNR_DB = 3.0
DIVERGED_ACTIVE_FRACTION = 0.25

CONFIDENCE = 0.95
# Longer series are averaged over equal groups of windows first: the number of pairs grows with the square.
MAX_SLOPE_POINTS = 300


@dataclass(frozen=True)
class Series:
    """Values over time.

    Attributes
    ----------
    time_s : np.ndarray, shape (n_windows,)
        Starts of the windows.
    value : np.ndarray, shape (n_windows,)
        NaN where undefined.
    """

    time_s: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One metric over a long file.

    Attributes
    ----------
    whole_file : float
        The metric of the whole file: of a metric per frame the mean over frames, of SNR, SI-SDR and spectral
        convergence from the sums of the whole file.
    mean : float
        `whole_file` for a metric per frame; otherwise the mean over windows.
    median, p95, worst : float
        Over windows.
    slope_per_min, slope_low, slope_high : float
        Per minute, and its 95 % interval.
    first_third, last_third : float
        Means over windows.
    n_windows, n_undefined, n_infinite : int
        Windows, and how many of them have no value or an infinite one (a bit-equal window has an SNR of ``inf``).
    n_failed : int
        Windows without a value because a sample in them is not finite. They count as infinitely bad in `median`,
        `p95` and `worst`; means over them are NaN.
    series : Series
    active : Summary or None
        The same over active frames only, where the metric is one per frame.
    """

    whole_file: float
    mean: float
    median: float
    p95: float
    worst: float
    slope_per_min: float
    slope_low: float
    slope_high: float
    first_third: float
    last_third: float
    n_windows: int
    n_undefined: int
    n_infinite: int
    n_failed: int
    series: Series
    active: Summary | None = None


def summarise(
    series: Series,
    *,
    direction: Direction,
    whole_file: float,
    mean: float | None = None,
    active: Summary | None = None,
    failed: np.ndarray | None = None,
) -> Summary:
    """Summarise a series; windows that are `failed`, shape (n_windows,) of bool, have no value and are the worst."""
    failed = np.zeros(len(series.value), bool) if failed is None else failed
    series = Series(series.time_s, np.where(failed, np.nan, series.value))
    defined = np.sort(series.value[~np.isnan(series.value)])
    infinitely_bad = np.full(np.count_nonzero(failed), np.inf if direction == "lower" else -np.inf)
    from_best = np.concatenate([defined if direction == "lower" else defined[::-1], infinitely_bad])
    third = len(series.value) // 3
    slope, low, high = theil_sen(series.time_s / 60.0, series.value)
    return Summary(
        whole_file=whole_file,
        mean=_mean(series.value, failed) if mean is None else mean,
        median=quantile_from_best(from_best, 0.5),
        p95=quantile_from_best(from_best, 0.95),
        worst=quantile_from_best(from_best, 1.0),
        slope_per_min=slope,
        slope_low=low,
        slope_high=high,
        first_third=_mean(series.value[:third], failed[:third]),
        last_third=_mean(series.value[len(series.value) - third :], failed[len(series.value) - third :]),
        n_windows=len(series.value),
        n_undefined=len(series.value) - len(defined),
        n_infinite=int(np.count_nonzero(np.isinf(defined))),
        n_failed=len(infinitely_bad),
        series=series,
        active=active,
    )


def _mean(values: np.ndarray, failed: np.ndarray) -> float:
    defined = values[~np.isnan(values)]
    if len(defined) == 0 or failed.any():
        return float("nan")
    with np.errstate(invalid="ignore"):  # inf and -inf together have no mean
        return float(np.mean(defined))


def quantile_from_best(from_best: np.ndarray, fraction: float) -> float:
    """Linear quantile; unlike numpy's it has a value between two equal infinities."""
    if len(from_best) == 0:
        return float("nan")
    position = fraction * (len(from_best) - 1)
    index = min(int(position), len(from_best) - 1)
    part = position - index
    value = float(from_best[index])
    if part > 0.0 and from_best[index + 1] != from_best[index]:
        value = (1.0 - part) * value + part * float(from_best[index + 1])
    return value


def theil_sen(x: np.ndarray, y: np.ndarray, *, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Median of the slopes of all pairs of points, with Sen's interval.

    Parameters
    ----------
    x, y : np.ndarray, shape (n,)
        x rising; points whose y is not finite are left out.
    confidence : float

    Returns
    -------
    slope, low, high : float
        NaN for fewer than 3 points. Over more than 300 points, of means over equal groups of neighbours.

    Raises
    ------
    AudioParameterError
        Not two arrays of numbers of one length, or a confidence outside 0 to 1.

    References
    ----------
    .. [1] P. Sen, "Estimates of the regression coefficient based on Kendall's tau", J. Am. Stat. Assoc. 63, 1968.
    """
    from scipy.stats import theilslopes

    for name, values in (("x", x), ("y", y)):
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "fiu":
            raise AudioParameterError(f"{name} is {values!r:.60}; expected a numpy array of numbers, shape (n,)")
    if len(x) != len(y):
        raise AudioParameterError(f"lengths differ: x {len(x)}, y {len(y)}; expected a y for each x")
    if not 0.0 < confidence < 1.0:
        raise AudioParameterError(f"confidence is {confidence!r}; expected a fraction between 0 and 1")
    finite = np.isfinite(y)
    x, y = _grouped(x[finite]), _grouped(y[finite])
    if len(y) < 3:
        return float("nan"), float("nan"), float("nan")
    fit = theilslopes(y, x, confidence)
    return float(fit.slope), float(fit.low_slope), float(fit.high_slope)


def _grouped(values: np.ndarray) -> np.ndarray:
    size = -(-len(values) // MAX_SLOPE_POINTS)
    if size <= 1:
        return values
    return np.asarray(values[: len(values) // size * size].reshape(-1, size).mean(axis=1))


def diverged(mcd_db: np.ndarray, snr_db: np.ndarray, active_fraction: np.ndarray) -> np.ndarray:
    """Whether a half-second window is another sound than its reference, shape (n_halves,) of bool; NaN never is."""
    return np.asarray(
        (mcd_db > DIVERGED_MCD_DB) & (snr_db < DIVERGED_SNR_DB) & (active_fraction >= DIVERGED_ACTIVE_FRACTION)
    )


def distance_ratio(value: float, null: float) -> float:
    """A distance as a multiple of its null; inf over a null of 0, NaN for 0/0."""
    if null == 0.0:
        return float("nan") if value == 0.0 or np.isnan(value) else float("inf")
    return value / null
