"""Paired ratios, their robust location, looks and processes: hand values, scipy, simulation, planted faults."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_eval.core.errors import ParameterError
from precision_eval.stats.paired import minimum_detectable_effect, paired_log_ratios, paired_ratio, settling_time
from precision_eval.stats.processes import over_processes
from precision_eval.stats.robust import one_step_interval, student_location
from precision_eval.stats.sequential import LOOKS, decide, look_errors, spent, student_quantile

VALUES = st.lists(st.integers(-8000, 8000).map(lambda n: n / 8), min_size=4, max_size=40)
TIMES = st.lists(st.floats(1e-6, 1e2), min_size=4, max_size=30)


def ratio_of(candidate, base, **options):
    return paired_ratio(candidate, base, **({"baseline": "b", "margin": 0.002, "seed": 0, "resamples": 100} | options))


class TestLocation:
    def test_hand(self):
        # symmetric about 3: the score's sum is zero there by symmetry; MAD of (1, 0, 1) is 1
        found = student_location([2.0, 3.0, 4.0])
        assert (found.estimate, found.scale, found.size) == (3.0, 1.4826, 3)
        u = 1 / 1.4826
        psi, slope = 3 * u / (2 + u * u), 3 * (2 - u * u) / (2 + u * u) ** 2
        by_hand = 1.4826 * math.sqrt(2 * psi**2) / (2 * slope + 3 / 2) * math.sqrt(3 / 2)
        assert found.standard_error == pytest.approx(by_hand)

    @given(st.integers(0, 10_000))
    @settings(max_examples=25)
    def test_maximises_students_likelihood(self, seed):
        values = np.random.default_rng(seed).standard_t(3, size=60)
        found = student_location(values)
        best = scipy.optimize.minimize_scalar(
            lambda m: -scipy.stats.t.logpdf((values - m) / found.scale, df=2).sum(),
            bounds=(found.estimate - 0.3 * found.scale, found.estimate + 0.3 * found.scale),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert found.estimate == pytest.approx(best.x, abs=1e-5)

    @given(VALUES, st.integers(-100, 100), st.sampled_from([0.25, 0.5, 2.0, 16.0]))
    def test_moves_and_scales_with_the_data(self, values, shift, factor):
        a, b = student_location(values), student_location(np.array(values) * factor + shift)
        size = max(1.0, *(abs(value) for value in values)) * factor + abs(shift)
        assert b.estimate == pytest.approx(a.estimate * factor + shift, abs=1e-6 * size)

    def test_half_of_the_blocks_disturbed(self):
        rng = np.random.default_rng(0)
        quiet = rng.normal(scale=0.003, size=200)
        disturbed = np.where(np.arange(200) % 5 < 2, rng.normal(scale=2.0, size=200), quiet)
        assert abs(student_location(disturbed).estimate) < 0.001
        assert abs(disturbed.mean()) > 0.01  # the planted fault: a plain mean is carried away
        assert student_location(disturbed).standard_error < 0.1 * scipy.stats.sem(disturbed)


class TestOneStepInterval:
    def test_is_the_full_bootstrap(self):
        values = np.random.default_rng(3).standard_t(3, size=100)
        rng = np.random.default_rng(4)
        full = [student_location(rng.choice(values, size=100)).estimate for _ in range(1500)]
        ours = one_step_interval(values, seed=0)
        assert ours.high - ours.low == pytest.approx(np.diff(np.quantile(full, [0.025, 0.975]))[0], rel=0.1)

    @pytest.mark.parametrize("disturbed", [0.0, 0.4])
    def test_covers_the_truth(self, disturbed):
        rng = np.random.default_rng(5)
        hits = 0
        for seed in range(400):
            noise = rng.normal(scale=0.003, size=60) + (rng.random(60) < disturbed) * rng.normal(scale=0.3, size=60)
            interval = one_step_interval(0.01 + noise, seed=seed, resamples=300)
            hits += interval.low <= 0.01 <= interval.high
        assert 0.92 <= hits / 400 <= 0.975


class TestLooks:
    def test_spent_by_hand(self):
        assert spent(1.0, 0.05) == pytest.approx(0.05)
        assert spent(0.5, 0.05) == pytest.approx(2 * (1 - scipy.stats.norm.cdf(1.959964 * math.sqrt(2))), rel=1e-5)

    @given(st.floats(0.001, 0.4))
    def test_looks_together_spend_all(self, alpha):
        errors = look_errors(alpha)
        assert len(errors) == len(LOOKS)
        assert sum(errors) == pytest.approx(alpha)
        assert all(error >= 0.0 for error in errors)

    @given(st.floats(1e-4, 0.5), st.integers(1, 200))
    def test_student_quantile_is_scipys(self, error, degrees):
        assert student_quantile(error, degrees) == pytest.approx(scipy.stats.t.isf(error / 2, degrees))

    def test_false_alarms_over_all_looks(self):
        """Random walks, no margin: at most the error rate ever crosses; one critical value for all looks fails."""
        rng = np.random.default_rng(0)
        walks = np.cumsum(rng.normal(size=(4000, 100)), axis=1)
        counts = np.round(100 * np.array(LOOKS)).astype(int)
        z = np.abs(walks[:, counts - 1]) / np.sqrt(counts)
        bounds = scipy.stats.norm.isf(np.maximum(look_errors(0.05), 1e-300) / 2)
        assert (z > bounds).any(axis=1).mean() <= 0.055
        assert (z > scipy.stats.norm.isf(0.025)).any(axis=1).mean() > 0.1  # the planted fault

    @pytest.mark.parametrize(
        ("estimate", "error", "expected"),
        [
            (0.0, 0.0005, "equivalent"),
            (0.01, 0.001, "slower"),
            (-0.01, 0.001, "faster"),
            (0.003, 0.001, "undecided"),
            (0.0, 0.002, "undecided"),  # too wide to be called equivalent
            (0.0019, 0.001, "undecided"),
        ],
    )
    def test_decide_by_hand(self, estimate, error, expected):
        assert decide(estimate, error, margin=0.002, direction_t=2.6, equivalence_t=2.0) == expected

    @given(st.floats(-0.1, 0.1), st.floats(0.0, 0.05), st.floats(0.0, 0.02))
    def test_exchange_mirrors(self, estimate, error, margin):
        mirrored = {"faster": "slower", "slower": "faster"}
        there = decide(estimate, error, margin=margin, direction_t=2.6, equivalence_t=2.0)
        back = decide(-estimate, error, margin=margin, direction_t=2.6, equivalence_t=2.0)
        assert back == mirrored.get(there, there)


class TestPairedRatio:
    def test_hand(self):
        found = ratio_of([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
        assert found.ratio == pytest.approx(2.0)
        assert (found.median_s, found.baseline_median_s, found.blocks) == (4.0, 2.0, 3)
        assert found.verdict == "slower"
        assert "too few blocks: 3" in found.doubts[0]
        assert str(found).startswith("slower: 2.0000 × b [2.0000, 2.0000], 3 blocks on the wall clock")

    @given(TIMES)
    def test_identity(self, times):
        found = ratio_of(times, times)
        assert (found.ratio, found.ratio_low, found.ratio_high, found.verdict) == (1.0, 1.0, 1.0, "equivalent")

    @given(TIMES, st.floats(0.1, 10.0))
    def test_scale_invariant(self, times, scale):
        other = [value * (1.0 + 0.01 * (index % 3)) for index, value in enumerate(times)]
        a, b = ratio_of(other, times), ratio_of(np.array(other) * scale, np.array(times) * scale)
        assert a.ratio == pytest.approx(b.ratio)
        assert a.ratio_high == pytest.approx(b.ratio_high, rel=1e-6)

    @given(st.integers(0, 1000))
    @settings(max_examples=20)
    def test_exchange_mirrors(self, seed):
        rng = np.random.default_rng(seed)
        base = np.exp(rng.normal(scale=0.3, size=60))
        candidate = base * np.exp(rng.normal(loc=0.004, scale=0.004, size=60))
        there, back = ratio_of(candidate, base), ratio_of(base, candidate)
        assert there.ratio * back.ratio == pytest.approx(1.0, abs=1e-9)
        assert {there.verdict, back.verdict} in ({"slower", "faster"}, {"undecided"}, {"equivalent"})

    def test_pairing_removes_what_both_share(self):
        rng = np.random.default_rng(0)
        shared = np.exp(rng.normal(scale=0.5, size=40))  # a machine that is now fast, now slow
        base, candidate = shared * np.exp(rng.normal(scale=1e-4, size=40)), 1.01 * shared
        paired = ratio_of(candidate, base)
        assert paired.verdict == "slower"
        assert paired.ratio == pytest.approx(1.01, abs=2e-4)
        assert ratio_of(candidate, rng.permutation(base)).verdict == "undecided"  # the planted fault: rounds mixed up

    def test_minimum_detectable_effect_is_detected(self):
        sigma, n = 0.01, 60
        rng = np.random.default_rng(7)
        effect = math.log1p(
            minimum_detectable_effect(
                1.08 * sigma / math.sqrt(n), margin=0.002, direction_t=student_quantile(0.01, n - 1)
            )
        )
        found = sum(
            ratio_of(np.exp(effect + rng.normal(scale=sigma, size=n)), np.ones(n), resamples=2).verdict == "slower"
            for _ in range(300)
        )
        assert 0.70 <= found / 300 <= 0.92

    def test_settling_time_by_hand(self):
        """±1 % detected after 2 s at a margin of 0.2 %: noise of 4 margins must fall to one, so 16 times as long."""
        assert settling_time(2.0, math.expm1(5 * math.log1p(0.002)), margin=0.002) == pytest.approx(32.0)
        assert settling_time(2.0, 0.01, margin=0.0) is None
        assert settling_time(0.0, 0.01, margin=0.002) is None

    def test_settling_time_is_in_the_result_and_follows_the_noise(self):
        noise = np.random.default_rng(0).normal(size=400)
        quiet, loud = (
            paired_ratio(np.exp(size * noise), np.ones(400), baseline="b", margin=0.002, seed=0, elapsed_s=2.0)
            for size in (0.01, 0.03)
        )
        assert loud.settling_s == pytest.approx(9 * quiet.settling_s, rel=1e-3)
        assert (loud.verdict, "± 0.2 % needs about" in str(loud)) == ("undecided", True)

    def test_minimum_detectable_effect_by_hand(self):
        # t = 2.576 and z = 0.841621 for 80 %, se = 0.001
        assert minimum_detectable_effect(1e-3, margin=0.0, direction_t=2.576) == pytest.approx(
            math.expm1(3.417621e-3), rel=1e-6
        )

    def test_bad(self):
        with pytest.raises(ParameterError, match="3 rounds and baseline_s 2"):
            paired_log_ratios([1.0, 1.0, 1.0], [1.0, 1.0])
        with pytest.raises(ParameterError, match="not above 0 s"):
            paired_log_ratios([1.0, 0.0], [1.0, 1.0])


class TestProcesses:
    def of(self, *logs, noise=1e-5):
        rng = np.random.default_rng(0)
        return [ratio_of(np.exp(log + rng.normal(scale=noise, size=100)), np.ones(100)) for log in logs]

    def test_hand(self):
        found = over_processes(self.of(-0.01, 0.0, 0.01))
        assert math.log(found.ratio) == pytest.approx(0.0, abs=1e-5)
        half = scipy.stats.t.isf(0.025, 2) * 0.01 / math.sqrt(3)
        assert math.log(found.ratio_high) == pytest.approx(half, rel=1e-3)
        assert (found.verdict, found.blocks, len(found.process_ratios)) == ("undecided", 300, 3)

    def test_layout_becomes_uncertainty(self):
        """One process swears to 1 % that two copies of the same code differ; five processes do not."""
        rng = np.random.default_rng(3)
        alarms = one = 0
        for _ in range(100):
            ratios = self.of(*rng.normal(scale=0.02, size=5), noise=1e-3)
            alarms += over_processes(ratios).verdict in ("faster", "slower")
            one += ratios[0].verdict in ("faster", "slower")
        assert one > 80
        assert alarms <= 4

    def test_blocks_count_where_processes_agree_by_chance(self):
        found = over_processes(self.of(0.0, 0.0, 0.0, noise=0.05))
        assert found.ratio_high - found.ratio_low > 0.01

    def test_doubts_are_counted(self):
        first, second = self.of(0.0, 0.0)
        doubtful = replace(first, doubts=("loaded machine: 40 %",))
        assert over_processes([doubtful, second]).doubts == ("in 1 of 2 processes: loaded machine: 40 %",)
