import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from audio_metrics.longform import Series, distance_ratio, diverged, quantile_from_best, summarise, theil_sen


def series(values):
    values = np.asarray(values, float)
    return Series(np.arange(len(values), dtype=float), values)


def test_theil_sen_by_hand():
    slope, low, high = theil_sen(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0, 100.0]))
    assert slope == pytest.approx((1.0 + 100.0 / 3.0) / 2.0)  # slopes 1, 1, 1, 100/3, 49.5, 98
    assert (low, high) == (1.0, 98.0)


def test_an_outlier_does_not_move_the_slope():
    y = 0.5 * np.arange(100.0)
    y[40] = 1e6
    assert theil_sen(np.arange(100.0), y)[0] == pytest.approx(0.5)


def test_long_series_are_grouped():
    rng = np.random.default_rng(0)
    x = np.arange(3600) / 60.0
    y = 0.01 * x + rng.standard_normal(3600)
    slope, low, high = theil_sen(x, y)
    theirs = scipy.stats.theilslopes(y, x, 0.95)
    assert low < 0.01 < high
    assert slope == pytest.approx(theirs[0], abs=(theirs[3] - theirs[2]) / 4)
    assert high - low == pytest.approx(theirs[3] - theirs[2], rel=0.2)


@settings(max_examples=100)
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), fraction=st.floats(0, 1))
def test_quantiles_are_numpys(values, fraction):
    expected = np.quantile(values, fraction)
    assert quantile_from_best(np.sort(values), fraction) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_quantiles_of_infinities():
    perfect = np.array([np.inf, np.inf, np.inf, 3.0])
    assert quantile_from_best(perfect, 0.5) == np.inf
    assert quantile_from_best(perfect, 1.0) == 3.0
    assert np.isnan(quantile_from_best(np.array([]), 0.5))


def test_a_summary_by_hand():
    values = [1.0, 2.0, np.nan, 4.0, 5.0, 6.0, 7.0]
    low = summarise(series(values), direction="lower", whole_file=9.0)
    assert (low.mean, low.median, low.worst, low.whole_file) == (pytest.approx(25 / 6), 4.5, 7.0, 9.0)
    assert low.p95 == pytest.approx(6.75)
    assert (low.first_third, low.last_third) == (1.5, 6.5)  # two windows each
    assert (low.n_windows, low.n_undefined, low.n_infinite) == (7, 1, 0)
    assert low.slope_per_min == pytest.approx(60.0)
    high = summarise(series(values), direction="higher", whole_file=9.0, mean=8.0)
    assert (high.mean, high.worst, high.p95) == (8.0, 1.0, pytest.approx(1.25))


def test_divergence_needs_all_three():
    nan = np.nan
    mcd = np.array([10.0, 8.9, 10.0, 10.0, nan, 10.0])
    snr = np.array([0.0, 0.0, 3.1, 0.0, 0.0, nan])
    active = np.array([0.25, 1.0, 1.0, 0.24, 1.0, 1.0])
    np.testing.assert_array_equal(diverged(mcd, snr, active), [True, False, False, False, False, False])


def test_ratios():
    assert distance_ratio(3.0, 4.0) == 0.75
    assert distance_ratio(1.0, 0.0) == np.inf
    assert np.isnan(distance_ratio(0.0, 0.0))
    assert np.isnan(distance_ratio(np.nan, 2.0))
