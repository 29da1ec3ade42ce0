"""The family of paired t-tests: scipy as the independent implementation, and the error rates that it promises."""

import math

import numpy as np
import pytest
from scipy import stats

from precision_eval.core.errors import ParameterError
from precision_eval.stats.families import decide_all, holm_levels, paired_test, upper_quantile, upper_tail

ERRORS = {"error": 0.005, "clear_error": 0.0125}


def family(values, *, margin):
    return {cell: paired_test(logs, alarm=margin, clear=margin) for cell, logs in enumerate(values)}


def verdicts(values, *, margin):
    return [decision.verdict for decision in decide_all(family(values, margin=margin), **ERRORS).values()]


def test_it_is_scipys_t_test():
    logs = np.random.default_rng(1).normal(0.015, 0.01, 8)
    test = paired_test(logs, alarm=0.005, clear=0.01)
    other = stats.ttest_1samp(logs, math.log1p(0.005), alternative="greater")
    assert upper_tail(test.estimate - test.alarm, test.standard_error, test.degrees) == pytest.approx(other.pvalue)
    decision = decide_all({0: test}, **ERRORS)[0]
    interval = other.confidence_interval(1 - ERRORS["clear_error"])
    assert decision.low == pytest.approx(interval.low)


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


@pytest.mark.parametrize("draw", ["normal", "heavy tails"])
def test_changes_of_the_margin_itself_make_a_family_red_at_its_error(draw):
    """The worst of what counts as none. Holm's level is 0.5 %; of 4,000 families 33 or more have p < 0.5 %."""
    rng = np.random.default_rng(5)
    shape = (4000, 10, 5)
    scatter = rng.standard_normal(shape) if draw == "normal" else rng.standard_t(3, shape)
    logs = math.log1p(0.005) + 0.003 * scatter
    assert stats.binom.sf(32, 4000, 0.005) < 0.005
    t = (logs.mean(-1) - math.log1p(0.005)) / (logs.std(-1, ddof=1) / math.sqrt(5))
    red = (t.max(-1) > upper_quantile(0.0005, 4)).sum()  # Holm's first step: any red cell of a family
    assert red <= 32
    for family_logs in logs[:20]:
        is_red = "regression" in verdicts(family_logs, margin=0.005)
        assert is_red == bool(
            (paired_t(family_logs) > upper_quantile(0.0005, 4)).any()
        )  # the package's answer is the one that is counted


def paired_t(logs):
    return (logs.mean(-1) - math.log1p(0.005)) / (logs.std(-1, ddof=1) / math.sqrt(logs.shape[-1]))


def test_a_sure_change_inside_the_margin_is_no_regression():
    logs = np.random.default_rng(3).normal(0.008, 0.0002, (10, 5))
    assert set(verdicts(logs, margin=0.0)) == {"regression"}
    assert set(verdicts(logs, margin=0.01)) == {"no worse"}


def test_one_changed_cell_among_many_is_found_and_named():
    logs = np.random.default_rng(6).normal(0.0, 0.003, (100, 10))
    logs[17] += math.log(1.03)
    assert [cell for cell, one in enumerate(verdicts(logs, margin=0.01)) if one == "regression"] == [17]


def test_the_detectable_change_is_found_in_about_80_percent():
    """σ is estimated from 40 values, to 11 %: the share lies between 63 and 92 % at twice that."""
    rng = np.random.default_rng(8)
    detectable = decide_all(family(rng.normal(0.0, 0.003, (1, 40)), margin=0.01), **ERRORS)[0].detectable
    repeated = [verdicts(rng.normal(detectable, 0.003, (1, 40)), margin=0.01) for _ in range(200)]
    assert 126 < repeated.count(["regression"]) < 185


def test_noise_within_processes_counts_where_they_agree_by_chance():
    assert paired_test([0.01, 0.01], alarm=0.0, clear=0.0, least_variance=0.02).standard_error == pytest.approx(0.1)
    for values in ([0.1], [0.1, math.nan]):
        with pytest.raises(ParameterError, match="expected two or more finite values"):
            paired_test(values, alarm=0.0, clear=0.0)
