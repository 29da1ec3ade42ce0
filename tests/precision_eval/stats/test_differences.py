"""Paired differences: hand-computed values, the family's error rate, and units that did not change."""

import math

import numpy as np
import pytest
from scipy import stats

from precision_eval.core.errors import ParameterError
from precision_eval.stats.differences import FAMILY_ERROR, LEAST_UNITS, PairedDifferences, judge_differences

CHANCE = np.array([1.0, -1.0] * 8)


def judge(values, *, chance=CHANCE, margin=1.0):
    return judge_differences({"it": PairedDifferences(differences=values, chance=chance, margin=margin)})["it"]


def test_one_test_is_scipys_paired_t_test():
    values = np.random.default_rng(1).normal(0.3, 1.0, 16)
    found, expected = judge(values), stats.ttest_1samp(values, 0.0)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    bound = stats.ttest_1samp(values, 0.0, alternative="less").confidence_interval(0.95).high
    assert found.bound == pytest.approx(bound)
    assert found.level == FAMILY_ERROR
    assert (found.units, found.changed) == (16, 16)


def test_detectable_is_found_in_four_of_five_repetitions():
    """Independent of the formula: draws at the stated effect, counted; the formula takes t for its noncentral kin."""
    rng = np.random.default_rng(2)
    stated = np.mean([judge(rng.normal(0.0, 1.0, 16)).detectable for _ in range(200)])
    hits = [judge(rng.normal(stated, 1.0, 16)).verdict == "worse" for _ in range(600)]
    assert 0.72 < np.mean(hits) < 0.9


def test_no_worse_at_the_margin_in_one_of_twenty():
    rng = np.random.default_rng(3)
    called = [judge(rng.normal(1.0, 1.0, 16)).no_worse for _ in range(2000)]
    assert 0.035 < np.mean(called) < 0.065


def test_a_family_without_differences_alarms_at_its_rate():
    """Thirty tests at once; at one in twenty each, nearly every family would hold an alarm."""
    rng = np.random.default_rng(4)

    def alarms(error):
        samples = {
            key: PairedDifferences(differences=rng.normal(size=16), chance=CHANCE, margin=1.0) for key in range(30)
        }
        return any(one.verdict in ("worse", "better") for one in judge_differences(samples, error=error).values())

    assert np.mean([alarms(0.05) for _ in range(400)]) < 0.09


@pytest.mark.parametrize(("shift", "verdict"), [(2.0, "worse"), (-2.0, "better")])
def test_direction(shift, verdict):
    found = judge(np.linspace(-0.1, 0.1, 16) + shift)
    assert (found.verdict, found.no_worse) == (verdict, shift < 0)


def test_worse_by_less_than_the_margin_is_both():
    found = judge(np.linspace(-0.1, 0.1, 16) + 0.5)
    assert (found.verdict, found.no_worse) == ("worse", True)


def test_units_that_kept_the_references_tokens_are_no_proof():
    """None of 16 left; at 95 % up to 1 − 0.05^(1/16) = 17 % of others may, each with the spread of chance, here 1."""
    found = judge(np.zeros(16))
    share = 1.0 - 0.05 ** (1 / 16)
    assert found.bound == pytest.approx(stats.t.ppf(0.95, 15) * math.sqrt(share / 16))
    assert (found.verdict, found.p, found.changed) == ("no worse", 1.0, 0)
    assert judge(np.zeros(16), margin=0.15).verdict == "undecided"
    assert found.detectable > 0.0


def test_needed_units_shrink_what_can_be_said_to_the_margin():
    found = judge(np.linspace(-2.0, 2.0, 16), margin=0.4)
    assert found.verdict == "undecided"
    sd = np.linspace(-2.0, 2.0, 16).std(ddof=1)
    assert found.needed == math.ceil(((stats.t.ppf(0.95, 15) + stats.t.ppf(0.8, 15)) * sd / 0.4) ** 2)


@pytest.mark.parametrize(
    ("values", "margin", "message"),
    [
        (np.zeros(LEAST_UNITS - 1), 1.0, f"at least {LEAST_UNITS} are needed"),
        (np.full(16, np.nan), 1.0, "not finite"),
        (np.zeros(16), 0.0, "expected a difference above 0"),
    ],
)
def test_bad_input(values, margin, message):
    with pytest.raises(ParameterError, match=message):
        judge(values, margin=margin)
