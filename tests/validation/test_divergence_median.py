"""Median survival: hand values, identities, scipy, planted faults."""

import math

import numpy as np
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from precision_eval.stats import kaplan_meier, wilson_interval
from validation.divergence.analysis import MedianSurvival, median_survival

UNITS = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=6, max_size=40)


def arrays(units) -> tuple[np.ndarray, np.ndarray]:
    return np.array([time for time, _ in units], float), np.array([seen for _, seen in units])


def censored(time, observed) -> scipy.stats.CensoredData:
    return scipy.stats.CensoredData(uncensored=time[observed], right=time[~observed])


class TestMedian:
    def test_hand(self):
        # 4 of 8 lost after the fourth event: the median is that event; Wilson's interval of 4/8 holds one half from
        # 7/8 (low 0.529 > 0.5, so not yet) … 6/8 (low 0.409) to 2/8 (high 0.591) … 1/8 (high 0.471 < 0.5)
        found = median_survival(kaplan_meier([1, 2, 3, 4, 5, 6, 7, 8], [True] * 8))
        assert found == MedianSurvival(median=4.0, low=2.0, high=7.0)
        assert wilson_interval(7 / 8, 8)[0] > 0.5 > wilson_interval(6 / 8, 8)[0]
        assert wilson_interval(2 / 8, 8)[1] > 0.5 > wilson_interval(1 / 8, 8)[1]

    @given(st.lists(st.integers(1, 1000), min_size=1, max_size=60))
    def test_without_censoring_it_is_the_lower_sample_median(self, times):
        found = median_survival(kaplan_meier(times, [True] * len(times)))
        assert found.median == sorted(times)[math.ceil(len(times) / 2) - 1]

    @given(UNITS)
    def test_scipy_inverted_on_a_grid(self, units):
        time, observed = arrays(units)
        found = median_survival(kaplan_meier(time, observed))
        grid = np.unique(time[observed])
        below = grid[scipy.stats.ecdf(censored(time, observed)).sf.evaluate(grid) <= 0.5 + 1e-12] if grid.size else ()
        assert found.median == (below[0] if len(below) else None)
