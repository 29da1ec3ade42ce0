"""Statistics: hand values, identities, scipy as the independent implementation, planted faults, properties."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from precision_eval.core.errors import ParameterError
from precision_eval.stats.doubts import kendall_trend, series_doubts
from precision_eval.stats.intervals import bootstrap_interval, wilson_interval
from precision_eval.stats.sequential import decide, student_quantile
from precision_eval.stats.survival import kaplan_meier


class TestBootstrap:
    def test_repeatable_and_seeded(self):
        values = np.random.default_rng(1).normal(size=30)
        assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
        assert bootstrap_interval(values, seed=3).low != bootstrap_interval(values, seed=4).low

    def test_scipy(self):
        values = np.random.default_rng(2).normal(size=40)
        ours = bootstrap_interval(values, seed=0, resamples=8000)
        theirs = scipy.stats.bootstrap(
            (values,), np.mean, method="percentile", rng=0, n_resamples=8000
        ).confidence_interval
        width = theirs.high - theirs.low
        assert ours.low == pytest.approx(theirs.low, abs=0.05 * width)
        assert ours.high == pytest.approx(theirs.high, abs=0.05 * width)

    @pytest.mark.parametrize(
        ("values", "match"), [([], "0 values"), ([1.0, math.nan], "not finite"), ([[1.0]], "2 dim")]
    )
    def test_bad_values(self, values, match):
        with pytest.raises(ParameterError, match=match):
            bootstrap_interval(values, seed=0)


class TestWilson:
    def test_hand(self):
        # z² = 3.8415: centre of 0 of 10 is z²/2n/(1+z²/n), half the same, so high = (z²/n)/(1+z²/n)
        assert wilson_interval(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)

    @given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
    def test_scipy(self, trial):
        hits, n = trial
        expected = scipy.stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson_interval(hits / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


class TestDoubts:
    def test_kendall_hand(self):
        tau, z = kendall_trend([1.0, 2.0, 3.0, 4.0])
        assert tau == 1.0
        assert z == pytest.approx(6 / math.sqrt(4 * 3 * 13 / 18))

    def test_kendall_of_a_long_series_with_ties(self):
        """The halves of a long series are counted apart; the score is that of all pairs."""
        series = np.random.default_rng(0).integers(0, 40, 333) + np.arange(333) // 30
        score = sum(np.sign(series[i + 1 :] - series[i]).sum() for i in range(333))
        assert kendall_trend(series)[0] == pytest.approx(score / (333 * 332 / 2))

    @given(st.lists(st.floats(-5, 5), min_size=3, max_size=30, unique=True))
    def test_kendall_scipy(self, values):
        assert kendall_trend(values)[0] == pytest.approx(scipy.stats.kendalltau(range(len(values)), values).statistic)

    def test_quiet_series_has_none(self):
        alarms = [
            series_doubts(np.random.default_rng(seed).normal(scale=0.01, size=30), margin=0.002) for seed in range(200)
        ]
        assert sum(bool(found) for found in alarms) <= 2

    def test_planted(self):
        rng = np.random.default_rng(0)
        noise = rng.normal(scale=0.002, size=40)
        assert "drifts: +" in series_doubts(noise + np.linspace(0, 0.03, 40), margin=0.002)[0]
        assert "too few blocks: 5" in series_doubts(noise[:5], margin=0.002)[0]


class TestSurvival:
    def test_hand(self):
        # five streams: lost at 1, 3, 3; two censored at 4
        curve = kaplan_meier([1, 3, 3, 4, 4], [True, True, True, False, False])
        assert curve.time == (0.0, 1.0, 3.0)
        assert curve.fraction == pytest.approx((1.0, 0.8, 0.4))

    def test_effective_number_is_carried_to_the_end(self):
        # ten units: 5 lost at 1, 3 censored at 2, the last 2 lost at 3 and 4
        curve = kaplan_meier([1] * 5 + [2] * 3 + [3, 4], [True] * 5 + [False] * 3 + [True] * 2)
        fraction, greenwood = 0.25, 5 / (10 * 5) + 1 / (2 * 1)
        effective = (1 - fraction) / (fraction * greenwood)  # 5
        assert curve.fraction == pytest.approx((1.0, 0.5, 0.25, 0.0))
        assert curve.high[-1] == pytest.approx(wilson_interval(0.0, effective)[1])

    @given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
    def test_without_censoring_every_point_is_wilson_on_all(self, times):
        curve = kaplan_meier(times, [True] * len(times))
        for fraction, low, high in zip(curve.fraction, curve.low, curve.high, strict=True):
            assert (low, high) == pytest.approx(wilson_interval(fraction, len(times)), abs=1e-9)

    @given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=2, max_size=40))
    def test_scipy(self, units):
        time, observed = np.array([t for t, _ in units], float), np.array([o for _, o in units])
        data = scipy.stats.CensoredData(uncensored=time[observed], right=time[~observed])
        theirs = scipy.stats.ecdf(data).sf
        curve = kaplan_meier(time, observed)
        assert curve.fraction == pytest.approx(theirs.evaluate(np.array(curve.time)), abs=1e-12)

    def test_bad(self):
        with pytest.raises(ParameterError, match="above 0"):
            kaplan_meier([0.0], [True])
        with pytest.raises(ParameterError, match="one each per unit"):
            kaplan_meier([1.0], [True, False])


def test_where_no_error_is_left_nothing_is_beyond_the_quantile():
    assert student_quantile(0.0, 11.0) == math.inf
    assert student_quantile(1e-300, 11.0) == math.inf
    assert student_quantile(0.05, 1e9) == pytest.approx(1.959964, rel=1e-6)
    assert decide(0.5, 0.01, margin=0.002, direction_t=student_quantile(0.0, 11.0), equivalence_t=2.0) == "undecided"
