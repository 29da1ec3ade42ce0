"""Whether two series of numbers come in the same order."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float | None:
    """Spearman's, ties at their mean rank; None where one side is all alike, which has no order."""
    from scipy.stats import rankdata

    ranks = [rankdata(side) for side in (first, second)]
    if min(np.ptp(side) for side in ranks) == 0.0:
        return None
    return float(np.corrcoef(*ranks)[0, 1])
