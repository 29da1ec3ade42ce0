"""The moderated t: hand-computed values, scipy as the independent implementation, and the error rates it promises."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from precision_eval.core.errors import ParameterError
from precision_eval.stats.families import paired_tests
from precision_eval.stats.moderated import (
    Prior,
    fit_prior,
    holm_levels,
    moderated_variances,
    trigamma_inverse,
    upper_quantile,
    upper_tail,
)


@pytest.mark.parametrize("x", [0.01, 0.3, 1.0, 7.5, 400.0])
def test_trigamma_inverse_inverts(x):
    assert trigamma_inverse(float(special.polygamma(1, x))) == pytest.approx(x, rel=1e-8)


@pytest.mark.parametrize("value", [1e8, 1e-8])
def test_trigamma_inverse_in_its_limits(value):
    assert float(special.polygamma(1, trigamma_inverse(value))) == pytest.approx(value, rel=1e-3)


def test_a_variance_is_pulled_by_hand():
    # (4 · 0.01 + 4 · 0.04) / 8 = 0.025, (4 · 0.01 + 2 · 0.01) / 6 = 0.01; both together have 6 degrees
    variances, degrees = moderated_variances([0.04, 0.01], [4, 2], Prior(4.0, 0.01))
    assert variances == pytest.approx([0.025, 0.01])
    assert degrees == pytest.approx([6.0, 6.0])


def test_no_prior_leaves_variances_and_an_infinite_one_replaces_them():
    assert moderated_variances([0.04, 0.01], [4, 2], Prior(0.0, 0.7))[0] == pytest.approx([0.04, 0.01])
    variances, degrees = moderated_variances([0.04, 0.01], [4, 2], Prior(math.inf, 0.02))
    assert variances == pytest.approx([0.02, 0.02])
    assert degrees == pytest.approx([6.0, 6.0])


def test_equal_variances_give_an_infinite_prior():
    prior = fit_prior([0.04] * 8, [5] * 8)
    assert math.isinf(prior.degrees)
    # the mean of log χ²₅/5 is ψ(5/2) − log(5/2), so s₀² lies above what was seen
    assert prior.variance == pytest.approx(0.04 * math.exp(math.log(2.5) - special.digamma(2.5)))


def test_the_prior_agrees_with_the_moments_solved_another_way():
    rng = np.random.default_rng(4)
    degrees = rng.integers(2, 12, 60).astype(float)
    variances = 0.03 * rng.chisquare(degrees) / degrees * 5.0 / rng.chisquare(5.0, 60)
    e = np.log(variances) - special.digamma(degrees / 2) + np.log(degrees / 2)
    wanted = e.var(ddof=1) - special.polygamma(1, degrees / 2).mean()
    d0 = optimize.brentq(lambda d: float(special.polygamma(1, d / 2)) - wanted, 1e-3, 1e4)
    found = fit_prior(variances, degrees)
    assert found.degrees == pytest.approx(d0, rel=1e-6)
    assert found.variance == pytest.approx(math.exp(e.mean() + special.digamma(d0 / 2) - math.log(d0 / 2)), rel=1e-6)


def test_without_a_prior_it_is_scipys_t_test():
    rng = np.random.default_rng(1)
    base, head = np.exp(rng.normal(0.0, 0.01, 5)), np.exp(rng.normal(0.015, 0.01, 8))
    tests, prior = paired_tests({"one": (base, head)}, margin=0.0)
    one = tests["one"]
    known = stats.ttest_ind(np.log(head), np.log(base), alternative="greater")
    assert prior.degrees == 0.0
    assert one.degrees == known.df
    assert one.estimate / one.standard_error == pytest.approx(known.statistic)
    assert upper_tail(one.estimate, one.standard_error, one.degrees) == pytest.approx(known.pvalue)


def test_a_moderated_t_by_hand():
    # two cells of n = m = 2: pooled variances 0.0004 and 0.0016 (each side's two logs lie ±0.02 or ±0.04 apart)
    cells = {
        "a": (np.exp([0.0, 0.02 * math.sqrt(2)]), np.exp([0.1, 0.1 + 0.02 * math.sqrt(2)])),
        "b": (np.exp([0.0, 0.04 * math.sqrt(2)]), np.exp([0.0, 0.04 * math.sqrt(2)])),
    }
    tests, prior = paired_tests(cells, margin=0.0)
    # e differs by log 4: variance (log 4)²/2 = 0.961 < ψ′(1) = 1.645, so d₀ = ∞ and df is at most 2 + 2;
    # s₀² = exp(mean log s² − ψ(1)) = 0.0008 · e^0.5772 = 0.0014248
    assert math.isinf(prior.degrees)
    assert prior.variance == pytest.approx(0.0008 * math.exp(np.euler_gamma))
    assert tests["a"].degrees == 4.0
    assert tests["a"].estimate == pytest.approx(0.1)
    assert tests["a"].standard_error == pytest.approx(math.sqrt(0.0008 * math.exp(np.euler_gamma)))


def test_upper_tail_and_quantile_are_each_others_inverse_and_scipys():
    assert upper_quantile(0.01, 7.0) == pytest.approx(stats.t.isf(0.01, 7.0))
    assert upper_tail(stats.t.isf(0.003, 7.0) * 0.2, 0.2, 7.0) == pytest.approx(0.003)
    assert [upper_tail(x, 0.0, 3.0) for x in (-1.0, 0.0, 1.0)] == [1.0, 0.5, 0.0]


def test_holm_by_hand_and_against_adjusted_p_values():
    # 0.0005 ≤ 0.01/4, 0.004 > 0.01/3: the others are at 0.01/3 too, though 0.0045 ≤ 0.01/2
    assert holm_levels([0.0045, 0.0005, 0.004, 0.9], 0.01) == (
        (False, pytest.approx(0.01 / 3)),
        (True, 0.0025),
        (False, pytest.approx(0.01 / 3)),
        (False, pytest.approx(0.01 / 3)),
    )
    for seed in range(30):
        p = np.random.default_rng(seed).beta(0.2, 1.0, 12)
        order = np.argsort(p)
        adjusted = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))[np.argsort(order)]
        assert [rejected for rejected, _ in holm_levels(p.tolist(), 0.05)] == (adjusted <= 0.05).tolist()


@pytest.mark.parametrize(("variances", "degrees"), [([-1.0], [3]), ([1.0, 2.0], [3]), ([math.nan], [3]), ([1.0], [0])])
def test_bad_variances_are_refused(variances, degrees):
    with pytest.raises(ParameterError, match="varianc"):
        fit_prior(variances, degrees)
