"""Hazards in closed form, survival from hazards, and the agreement of prediction and observation."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from precision_eval.stats.survival import kaplan_meier
from validation.divergence import analysis
from validation.divergence.analysis import MedianSurvival, agreement, conditions_of, figures, median_survival
from validation.divergence.plan import BIN_STEPS
from validation.divergence.prediction import Prediction, binned, mismatch_probability, step_hazards

PAIRS = arrays(np.float64, (2, 7), elements=st.floats(-8, 8))


def by_definition(logits, others, temperature: float) -> float:
    """``1 − Σ_i 1/Σ_j max(p_j/p_i, q_j/q_i)``, term by term."""
    p, q = (scipy.special.softmax(np.asarray(x) / temperature) for x in (logits, others))
    return 1.0 - sum(1.0 / np.maximum(p / p[i], q / q[i]).sum() for i in range(len(p)))


class TestMismatch:
    def test_hand(self):
        # p = (1/2, 1/2), q = (3/4, 1/4): agree with 1/(1 + 1) + 1/(1 + 3) = 3/4
        assert mismatch_probability([0.0, 0.0], [math.log(3.0), 0.0], temperature=1.0) == pytest.approx(0.25)
        assert mismatch_probability([0.0, 2000.0], [2000.0, 0.0], temperature=1.0) == pytest.approx(1.0)

    @given(PAIRS, st.floats(-5, 5))
    def test_definition_symmetry_bounds_and_shifts(self, pair, shift):
        chance = mismatch_probability(*pair, temperature=0.65)
        assert chance == pytest.approx(by_definition(*pair, 0.65), abs=1e-12)
        assert chance == pytest.approx(mismatch_probability(*pair[::-1], temperature=0.65), abs=1e-12)
        variation = np.abs(np.subtract(*scipy.special.softmax(pair / 0.65, axis=1))).sum() / 2
        assert variation - 1e-12 <= chance <= 2 * variation / (1 + variation) + 1e-12
        assert mismatch_probability(pair[0], pair[0] + shift, temperature=0.65) == pytest.approx(0.0, abs=1e-12)

    def test_a_rounding_is_resolved(self):
        # to first order h = Σ_ij p_i p_j max(d_j − d_i, 0); the formula term by term drowns in the rounding of its 1
        rng = np.random.default_rng(0)
        logits = rng.normal(0, 3, 256)
        others = logits + rng.normal(0, 1e-14, 256)
        error, p = others - logits, scipy.special.softmax(logits)
        first_order = (p[:, None] * p * np.maximum(error[None, :] - error[:, None], 0)).sum()
        assert mismatch_probability(logits, others, temperature=1.0) == pytest.approx(first_order, rel=1e-6)
        assert abs(by_definition(logits, others, 1.0) - first_order) > 0.01 * first_order


def test_step_hazards_and_bins_by_hand():
    hazard = step_hazards(np.full((5, 2, 4), 0.5))  # the prompt still speaks in the delayed codebooks
    assert hazard[:, 0] / math.log(2) == pytest.approx([1, 2, 3, 4, 4])
    per_bin = binned(np.arange(20.0).reshape(10, 2))  # 10 steps of 2 streams: two whole bins
    assert per_bin.tolist() == [[0 + 2 + 4 + 6, 8 + 10 + 12 + 14], [1 + 3 + 5 + 7, 9 + 11 + 13 + 15]]


class TestPrediction:
    def test_medians_by_hand(self):
        unlike, average = Prediction(np.array([[1e-4] * 4, [1.0] * 4])), Prediction(np.array([[0.50005] * 4]))
        assert unlike.median() > 4 * average.median()  # the planted fault: hazards averaged before survival
        assert Prediction(np.full((3, 5), BIN_STEPS * 0.01)).median() == math.ceil(math.log(2) / 0.01)
        assert Prediction(np.zeros((2, 3))).median() is None

    def test_simulated_streams_follow_it(self):
        """Sampling for real, from logits that one side has wrong, is lost as fast as the hazards say."""
        rng = np.random.default_rng(8)
        n_steps, n_streams, K, V = 200, 300, 2, 8
        logits = rng.normal(0, 2, (n_steps, K, V))
        others = logits + rng.normal(0, 0.02, logits.shape)
        noise = rng.gumbel(size=(n_streams, n_steps, K, V))
        differs = (np.argmax(logits + noise, -1) != np.argmax(others + noise, -1)).any(axis=-1)
        lasted = np.where(differs.any(axis=1), differs.argmax(axis=1) + 1, n_steps + 1)

        def hazards_at(temperature):
            mismatch = mismatch_probability(logits, others, temperature=temperature)[:, None]
            return Prediction(binned(-np.log1p(-mismatch).sum(-1)))

        expected = hazards_at(temperature=1.0)
        for step in (20, 60, 120, 200):
            lost = int((lasted <= step).sum())
            chance = 1.0 - float(expected.survival(step))
            assert scipy.stats.binomtest(lost, n_streams, chance).pvalue > 1e-3
        # the planted fault: sampled at another temperature than the hazards are of
        chance = 1.0 - float(hazards_at(temperature=8.0).survival(60))
        assert scipy.stats.binomtest(int((lasted <= 60).sum()), n_streams, chance).pvalue < 1e-3


RATES = {"bfloat16": 0.03, "autocast": 0.025, "float16": 0.004, "query_to_half": 6e-4, "kv_to_query": 4e-4}


def made_lines(*, factor: float = 1.0, n_streams: int = 240, steps: int = 4000) -> list[dict]:
    """Trials of streams whose true hazards are known; `factor` makes the predicted ones wrong."""
    rng = np.random.default_rng(0)
    trials = []
    for fix, rate in (RATES | {"full_float32": 1e-7}).items():
        common = {"size": "full", "group": "float32@T0.65", "fix": fix}
        hazard = np.full((12, 10), BIN_STEPS * rate * factor).tolist()
        trials.append({**common, "kind": "hazards", "hazard": hazard})
        life = rng.geometric(1 - math.exp(-rate), n_streams) - 1
        first = np.where(life < steps, life, -1)
        for chunk, part in reversed(list(enumerate(np.split(first, 2)))):
            trials.append({**common, "kind": "streams", "seed": chunk, "steps": steps, "first": part.tolist()})
    return trials


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(analysis, "RESAMPLES", 200)


class TestAnalysis:
    def test_the_median_and_its_interval_by_hand(self):
        # 4 of 8 lost after the fourth event: the median is that event; Wilson's interval of 4/8 holds one half from
        # 7/8 (low 0.529 > 0.5, so not yet) … 6/8 (low 0.409) to 2/8 (high 0.591) … 1/8 (high 0.471 < 0.5)
        found = median_survival(kaplan_meier([1, 2, 3, 4, 5, 6, 7, 8], [True] * 8))
        assert found == MedianSurvival(median=4.0, low=2.0, high=7.0)
        assert median_survival(kaplan_meier([1, 2, 3], [True, False, False])).median is None

    def test_true_hazards_agree_and_wrong_ones_do_not(self):
        assert agreement(conditions_of(made_lines(factor=3.0))[1])[1] > 2.0
        size, conditions = conditions_of(made_lines())
        correlation, error = agreement(conditions)
        assert size == "full"
        assert correlation > 0.85
        assert error < 1.15
        for condition in conditions:
            if condition.fix in RATES:
                truth = math.log(2) / RATES[condition.fix]
                assert condition.predicted.estimate == pytest.approx(truth, abs=1.0)
                assert condition.median.low <= 1.15 * truth
                assert condition.median.high >= truth / 1.15
        rows = figures(made_lines())
        assert rows[0].met
        assert len(rows) == 1 + len(RATES) + 1 + 2  # float32 is never half lost, and is a row
        assert "not reached" in next(row.found for row in rows if "full_float32" in row.name)
        assert figures([]) == []
