"""The obvious home-made test: time each call on its own, one function after the other, Welch's t-test on the samples.

Conventions: half of the budget each, baseline first, wall clock, one sample per call in seconds. The ratio is of the
means, and its interval is Welch's for the difference, over the baseline's mean.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from validation.timing.calls import Call
from validation.timing.tools import Judged, say

P_BELOW = 0.01


def judge(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Time both, one after the other, and test the difference of the means; there is nothing to seed."""
    return compared(_samples(base, budget_s / 2), _samples(candidate, budget_s / 2))


def _samples(call: Call, seconds: float) -> list[float]:
    """Time call after call until the time is over; at least twice, for a variance."""
    clock = time.perf_counter
    end_s = clock() + seconds
    samples: list[float] = []
    while clock() < end_s or len(samples) < 2:
        start_s = clock()
        call()
        samples.append(clock() - start_s)
    return samples


def compared(base_s: ArrayLike, candidate_s: ArrayLike) -> Judged:
    """Apply Welch's t-test."""
    from scipy import stats

    base, candidate = np.asarray(base_s, dtype=np.float64), np.asarray(candidate_s, dtype=np.float64)
    test: Any = stats.ttest_ind(candidate, base, equal_var=False)
    interval = test.confidence_interval(confidence_level=0.95)
    mean_s = float(base.mean())
    differs = float(test.pvalue) < P_BELOW
    return Judged(
        said={"ttest_0.01": say(slower=differs and test.statistic > 0, faster=differs and test.statistic < 0)},
        ratio=float(candidate.mean()) / mean_s,
        low=1.0 + float(interval.low) / mean_s,
        high=1.0 + float(interval.high) / mean_s,
        base_s=mean_s,
        extra={"samples": int(base.size)},
    )
