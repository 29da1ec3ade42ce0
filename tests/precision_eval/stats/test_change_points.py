"""Detection of steps: one computed by hand, identities, exhaustive searches, and a fixed factor that must fail."""

import itertools
import math

import numpy as np
import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.stats import change_points as detection
from precision_eval.stats.change_points import best_partition, detect, no_change_p_value, reachable_p_values
from precision_eval.stats.robust import locations, padded, pair_scale


def noisy(means, *, processes=3, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return [mean + scale * rng.standard_normal(processes) for mean in means]


def sum_of_squares(values, weights, cuts):
    pieces = itertools.pairwise((0, *cuts, len(values)))
    return sum(
        float(np.sum(weights[a:b] * (values[a:b] - np.average(values[a:b], weights=weights[a:b])) ** 2))
        for a, b in pieces
    )


def test_a_step_worked_out_by_hand():
    """Levels 0 and 1, three versions each of (level − 0.1, level, level + 0.1): size 1 and a known interval."""
    rows = [np.array([level - 0.1, level, level + 0.1]) for level in (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)]
    found = detect(rows, level=0.05, seed=1)
    (step,) = found.steps
    assert (step.index, step.size) == (3, pytest.approx(1.0))
    assert found.levels == (pytest.approx(0.0), pytest.approx(1.0))
    # pairs of a version differ by 0.1, 0.1, 0.2: robust spread 1.0483 · 0.1, none cut, so √(mean(d²)/2) = 0.1
    scale = math.sqrt((0.1**2 + 0.1**2 + 0.2**2) / 6.0) / math.sqrt(detection_cut())
    assert float(pair_scale(padded(rows)[None])[0]) == pytest.approx(scale)
    # 9 samples on each side; the largest of five correlated contrasts has its 95 % quantile between 2 and 4 spreads
    assert 2.0 < step.half_width / (scale * math.sqrt(2.0 / 9.0)) < 4.0
    # the smallest p-value that 9999 deals can give, at four fifths of the level
    assert step.p_value == pytest.approx(1.0 / 10_000 / 0.8)


def detection_cut():
    """E[min(Z², 9)], by summing the normal density."""
    z = np.linspace(-12.0, 12.0, 2_400_001)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return float(np.sum(np.minimum(z**2, 9.0) * density) * (z[1] - z[0]))


def test_the_same_samples_everywhere_are_no_change():
    rows = [np.array([0.1, 0.2, 0.3])] * 8
    assert no_change_p_value(rows, seed=1) == 1.0
    assert detect(rows, level=0.05, seed=1).steps == ()
    constant = [np.zeros(3)] * 8
    assert no_change_p_value(constant, seed=1) == 1.0
    assert detect(constant, level=0.05, seed=1).steps == ()
    assert no_change_p_value([np.array([1.0, 2.0])], seed=1) == 1.0


def test_scale_shift_sign_and_order_do_not_matter():
    rows = noisy([0, 0, 0, 4, 4, 4, 4, 0, 0, 0], seed=3)
    found = detect(rows, level=0.05, seed=1)
    assert [step.index for step in found.steps] == [3, 7]
    for change in (lambda row: 1e-3 * row, lambda row: row + 7.0, lambda row: -row):
        other = detect([change(row) for row in rows], level=0.05, seed=1)
        assert [step.index for step in other.steps] == [3, 7]
        assert [step.p_value for step in other.steps] == [step.p_value for step in found.steps]
    scaled = detect([1e-3 * row for row in rows], level=0.05, seed=1)
    assert [step.size for step in scaled.steps] == pytest.approx([1e-3 * step.size for step in found.steps])
    backwards = detect(rows[::-1], level=0.05, seed=1)
    assert [len(rows) - step.index for step in backwards.steps] == [7, 3]


@pytest.mark.parametrize("seed", range(2))
def test_the_best_partition_is_that_of_an_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    n = 8
    values, weights = rng.normal(size=n) + 2.0 * (np.arange(n) >= 5), rng.integers(1, 6, n).astype(float)
    for steps in range(n):
        found = best_partition(values, weights, steps)
        options = itertools.combinations(range(1, n), steps)
        least = min(sum_of_squares(values, weights, cuts) for cuts in options)
        assert len(found) == steps
        assert sum_of_squares(values, weights, found) == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize("seed", [1])
def test_the_p_value_is_that_of_all_permutations(seed):
    """Four versions of two samples: 8!/(2!)⁴ = 2520 ways to deal them, each looked at by plain code."""
    rows = noisy([0, 0, 1.5, 1.5], processes=2, seed=seed)
    flat = np.concatenate(rows)
    values = []
    for order in set(itertools.permutations((0, 0, 1, 1, 2, 2, 3, 3))):
        versions = [flat[[i for i, v in enumerate(order) if v == version]] for version in range(4)]
        values.append(plain_statistics(versions))
    noise_floor = np.array(values)
    step, bump = plain_statistics(rows)
    p_step, p_bump = (np.mean(noise_floor[:, k] >= one - 1e-12) for k, one in enumerate((step, bump)))
    exact = min(1.0, p_step / 0.8, p_bump / 0.2)
    found = detection._test(detection._table(rows, math.nan), (), np.random.default_rng(1), 9999)[0]
    assert found == pytest.approx(exact, abs=0.025)


def plain_statistics(versions):
    """Largest step and bump contrast of four versions of two samples; a pair's mean is its Huber location."""
    differences = np.array([abs(a - b) for a, b in versions])
    robust = 1.0483 * np.median(differences)
    limit = 3.0 * math.sqrt(2.0) * robust
    scale = math.sqrt(np.mean(np.minimum(differences, limit) ** 2) / (2.0 * detection_cut_value))
    means = np.array([huber(pair, scale) for pair in versions])
    steps = [abs(means[k:].mean() - means[:k].mean()) / math.sqrt(1 / (2 * k) + 1 / (2 * (4 - k))) for k in (1, 2, 3)]
    bumps = []
    for inside in ([1], [2], [1, 2]):
        outside = [v for v in range(4) if v not in inside]
        error = math.sqrt(1 / (2 * len(inside)) + 1 / (2 * len(outside)))
        bumps.append(abs(means[inside].mean() - means[outside].mean()) / error)
    return max(steps) / scale, max(bumps) / scale


detection_cut_value = detection_cut()


def huber(pair, scale):
    middle = float(np.median(pair))
    for _ in range(4):
        weight = np.minimum(1.0, 1.5 * scale / np.maximum(np.abs(pair - middle), 1e-300))
        middle = float(np.sum(weight * pair) / np.sum(weight))
    return middle


@pytest.mark.parametrize("of_its_own", [False, True])
def test_the_level_holds_without_a_prior_and_about_with_one_from_the_same_samples(of_its_own):
    """At 10 %, more than 24 of 120 series without a step come with a probability of 0.04 %."""
    rejected = 0
    for seed in range(120):
        rows = noisy([0.0] * 5, seed=500 + seed)
        table = detection._table(rows, float(pair_scale(padded(rows)[None])[0]) if of_its_own else math.nan)
        rejected += detection._test(table, (), np.random.default_rng(seed), 199)[0] <= 0.1
    assert 1 <= rejected <= 24


@pytest.mark.parametrize(
    ("counts", "clear", "smallest"),
    [
        ((3, 3), 2 / 20, 2 / 20),  # low first or high first
        # behind the first version, or turned round behind the second; two versions on one side in either order
        ((3, 3, 3), 2 / 84 / 0.8, 2 * 2 / 1680 / 0.8),
        ((2, 2, 2), 2 / 15 / 0.8, 2 * 2 / 90 / 0.8),
        ((2, 2, 2, 2), 2 / 70 / 0.8, 2 * 2 * 2 / 2520 / 0.8),
        ((3, 4, 3), 2 / 120 / 0.8, 2 / 4200 / 0.8),
        ((1, 4, 1), 1 / 15 / 0.2, 2 / 30 / 0.8),  # the bump: a step behind one sample has 2/6
        ((1, 10, 1), 1 / 66 / 0.2, 2 / 132 / 0.8),
        ((2, 3, 2), 2 / 21 / 0.8, 2 / 210 / 0.8),
        ((3,), 1.0, 1.0),
    ],
)
def test_how_small_a_p_value_can_be_by_hand(counts, clear, smallest):
    assert reachable_p_values(counts) == (pytest.approx(smallest), pytest.approx(clear))


@pytest.mark.parametrize(("counts", "border"), [((3, 3), 1), ((3, 3, 3), 1), ((2, 2, 2, 2), 2), ((3, 4, 3), 2)])
def test_a_step_without_noise_comes_to_just_that(counts, border):
    for size in (0.01, 100.0):
        rows = [np.full(n, size * (k >= border)) for k, n in enumerate(counts)]
        found = no_change_p_value(rows, seed=1)
        wanted = reachable_p_values(counts)[1]
        assert found == pytest.approx(wanted, abs=4 * math.sqrt(wanted / 499) if wanted > 0.1 else 0.006)


def test_an_outlying_process_is_no_step():
    """One process that ran at half speed for a reason of its own, among three of its version."""
    rows = noisy([0.0] * 10, seed=7)
    rows[9][0] += 40.0
    assert detect(rows, level=0.05, seed=1).steps == ()


def test_a_location_gives_way_to_no_single_sample():
    values = np.array([[[0.0, 0.1, 50.0], [1.0, np.nan, np.nan]]])
    found = locations(values, np.array([0.1]))
    assert found[0, 0] < 0.2
    assert found[0, 1] == 1.0


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ParameterError, match="some without samples"):
        detect([np.array([1.0]), np.array([])], level=0.05, seed=1)
    with pytest.raises(ParameterError, match="NaN or infinity"):
        detect([np.array([1.0]), np.array([math.inf])], level=0.05, seed=1)
    with pytest.raises(ParameterError, match="3 steps in 3 values; expected 0 to 2"):
        best_partition(np.zeros(3), np.ones(3), 3)
