"""Doubts about a series of block medians: too few blocks, or a drift.

A doubt is one plain sentence in the record; it never removes the figure. Series are log-ratios, so sizes are relative.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.stats.intervals import check_values

# Fewer paired rounds than this leave a 95 % interval of a trimmed mean too narrow.
MIN_BLOCKS = 12

# Two-sided p of about 0.001: one false alarm in a thousand series.
TREND_Z = 3.3

# Longer series are split in halves, which takes less memory than all pairs at once.
_ALL_PAIRS_UP_TO = 64


def kendall_trend(values: ArrayLike) -> tuple[float, float]:
    """Kendall's tau of a series against its order, and its z under independence."""
    series = check_values("values", values, min_size=2)
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


def series_doubts(log_ratios: ArrayLike, *, margin: float) -> tuple[str, ...]:
    series = check_values("the ratio", log_ratios)
    doubts: list[str] = []
    if series.size < MIN_BLOCKS:
        doubts.append(f"too few blocks: {series.size}, at least {MIN_BLOCKS} are needed")
    if series.size < 4:
        return tuple(doubts)
    third = max(1, series.size // 3)
    moved = float(np.median(series[-third:]) - np.median(series[:third]))
    if abs(kendall_trend(series)[1]) > TREND_Z and abs(moved) > math.log1p(margin):
        doubts.append(f"the ratio drifts: {100 * math.expm1(moved):+.2f} % from the first third of the run to the last")
    return tuple(doubts)
