"""What a series of block medians says against itself: too few, drifting, bimodal.

Conventions: a doubt is one plain sentence that ends up in the record beside the figure; it never removes the figure.
Series are log-times or log-ratios, so that sizes are relative.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.stats.intervals import checked_values

MIN_BLOCKS = 12
"""Fewer paired rounds than this leave a 95 % interval of a trimmed mean too narrow."""

TREND_Z = 3.3
"""Two-sided p of about 0.001: one false alarm in a thousand series."""

SPLIT_SHARE = 0.9
"""Share of the variance that two clusters explain: 2/π = 0.64 for a normal, 0.75 for a uniform, 1 for two values."""

_ALL_PAIRS_UP_TO = 64


def kendall_trend(values: ArrayLike) -> tuple[float, float]:
    """Kendall's tau of a series against its order, and its z under independence."""
    series = checked_values("values", values, min_size=2)
    n = series.size
    score = float(_pairs_in_order(series))
    return score / (n * (n - 1) / 2.0), score / math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)


def _pairs_in_order(series: NDArray[np.float64]) -> int:
    """Pairs that rise less pairs that fall: within both halves, and between them by sorting one."""
    if series.size <= _ALL_PAIRS_UP_TO:
        later, earlier = np.tril_indices(series.size, k=-1)
        return int(np.sign(series[later] - series[earlier]).sum())
    first, second = np.array_split(series, 2)
    ordered = np.sort(first)
    below, up_to = (int(np.searchsorted(ordered, second, side).sum()) for side in ("left", "right"))
    return _pairs_in_order(first) + _pairs_in_order(second) + below - (first.size * second.size - up_to)


def two_cluster_split(values: ArrayLike) -> tuple[float, float, float]:
    """Best split of a sample into two clusters on the line (Otsu's criterion)."""
    ordered = np.sort(checked_values("values", values, min_size=2))
    ordered = ordered - ordered.mean()
    n = ordered.size
    total = float(np.sum(ordered**2))
    if total == 0.0:
        return 0.0, 0.0, 0.0
    left = np.arange(1, n)
    left_sum = np.cumsum(ordered)[:-1]  # the right sum is its negative: the values are centred
    between = left_sum**2 * (1.0 / left + 1.0 / (n - left))
    best = int(np.argmax(between))
    distance = float(-left_sum[best] / (n - left[best]) - left_sum[best] / left[best])
    return float(between[best] / total), distance, float(min(left[best], n - left[best]) / n)


def series_doubts(log_ratios: ArrayLike, *, margin: float) -> tuple[str, ...]:
    """Doubts about one series of log-ratios, in the order of measurement."""
    series = checked_values("the ratio", log_ratios)
    doubts: list[str] = []
    if series.size < MIN_BLOCKS:
        doubts.append(f"too few blocks: {series.size}, at least {MIN_BLOCKS} are needed")
    if series.size < 4:
        return tuple(doubts)
    third = max(1, series.size // 3)
    moved = float(np.median(series[-third:]) - np.median(series[:third]))
    if abs(kendall_trend(series)[1]) > TREND_Z and abs(moved) > math.log1p(margin):
        doubts.append(f"the ratio drifts: {100 * math.expm1(moved):+.2f} % from the first third of the run to the last")
    share, distance, minority = two_cluster_split(series)
    if share > SPLIT_SHARE and minority >= 0.2 and distance > math.log1p(margin):
        doubts.append(
            f"the ratio is bimodal: two groups {100 * math.expm1(distance):.2f} % apart, "
            f"{100 * minority:.0f} % in the smaller"
        )
    return tuple(doubts)
