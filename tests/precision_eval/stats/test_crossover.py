"""Where a ratio crosses 1: by hand, by identities, against independent implementations, and its coverage."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq, isotonic_regression
from scipy.stats import norm, t

from precision_eval.core.errors import ParameterError
from precision_eval.stats.crossover import Point, crossing_of, find_crossover, isotonic, point_of


def series(values, *, error=0.0, degrees=4.0, first=64):
    """Points at first, 2·first, 4·first, ..."""
    return [
        Point(length=first * 2**k, log_ratio=value, standard_error=error, degrees=degrees)
        for k, value in enumerate(values)
    ]


def found(values, **options):
    return find_crossover(series(values, **options), seed=0)


def interpolated(x, y):
    """The crossing of two-point lines by crossing_of."""
    return crossing_of(np.asarray(x, float), np.array([y], float), np.ones(len(x)), rising=y[-1] > 0)[0]


def check_by_hand(crossing_at):
    """From −1 at 64 to 3 at 256: a quarter of the way in the logarithm, 2^6.5."""
    assert crossing_at([64, 256], [-1.0, 3.0]) == pytest.approx(2**6.5, rel=1e-12)


def test_by_hand():
    check_by_hand(lambda lengths, y: math.exp(interpolated(np.log(lengths), y)))
    (one,) = find_crossover([*series([-1.0]), *series([3.0], first=256)], seed=0).crossings
    assert (one.length, one.low, one.high) == pytest.approx((2**6.5,) * 3, rel=1e-9)
    assert one.rising
    assert one.between == (64, 256)


def test_the_check_by_hand_catches_a_line_over_the_length_itself():
    with pytest.raises(AssertionError):
        check_by_hand(lambda lengths, y: interpolated(lengths, y))


def test_isotonic_by_hand_and_unchanged_where_it_never_falls():
    fitted = isotonic(np.array([[1.0, 3.0, 2.0], [3.0, 2.0, 1.0]]), np.array([1.0, 1.0, 3.0]))
    np.testing.assert_allclose(fitted, [[1.0, 2.25, 2.25], [1.6, 1.6, 1.6]])
    rising = np.array([[-1.0, 0.0, 2.0]])
    assert isotonic(rising, np.ones(3)) is rising


def test_isotonic_and_crossing_against_independent_ones():
    rng = np.random.default_rng(1)
    for n in (2, 3, 5, 8):
        x = np.sort(rng.uniform(4.0, 8.0, n))
        y = np.linspace(-1.0, 1.0, n) + rng.normal(0.0, 0.6, (40, n))
        y[:, 0], y[:, -1] = -2.0, 2.0
        weights = rng.uniform(0.2, 5.0, n)
        ours = crossing_of(x, y, weights, rising=True)
        for row, at in zip(y, ours, strict=True):
            other = isotonic_regression(row, weights=weights).x
            np.testing.assert_allclose(isotonic(row[None], weights)[0], other, atol=1e-12)
            assert at == pytest.approx(brentq(lambda z, x=x, f=other: np.interp(z, x, f), x[0], x[-1]), abs=1e-9)


def fieller(points, confidence):
    """Set of roots of the line through two points that a test at each length does not reject: normal errors."""
    (x0, x1), z = np.log([p.length for p in points]), norm.ppf(0.5 + confidence / 2)

    def score(x, side):
        w = (x - x0) / (x1 - x0)
        mean = (1 - w) * points[0].log_ratio + w * points[1].log_ratio
        return mean - side * z * math.hypot((1 - w) * points[0].standard_error, w * points[1].standard_error)

    return [math.exp(brentq(score, x0, x1, args=(side,))) for side in (-1, 1)]


def test_interval_against_fieller():
    points = [
        Point(length=512, log_ratio=-0.4, standard_error=0.08, degrees=1e6),
        Point(length=1024, log_ratio=0.7, standard_error=0.12, degrees=1e6),
    ]
    for confidence in (0.8, 0.95):
        (one,) = find_crossover(points, seed=3, confidence=confidence, resamples=100_000).crossings
        low, high = fieller(points, confidence)
        width = high - low
        assert one.low == pytest.approx(low, abs=0.02 * width)
        assert one.high == pytest.approx(high, abs=0.02 * width)


def test_identities():
    values = [-0.9, -0.5, -0.3, 0.2, 0.6, 0.5]
    plain = found(values, error=0.03)
    mirrored = found([-value for value in values], error=0.03)
    longer = found(values, error=0.03, first=128)
    shuffled = find_crossover(series(values, error=0.03)[::-1], seed=0)
    assert shuffled == plain
    (one,), (other,), (doubled,) = plain.crossings, mirrored.crossings, longer.crossings
    assert one.rising
    assert not other.rising
    assert other.length == pytest.approx(one.length, rel=1e-12)
    assert (other.low, other.high) == pytest.approx((one.low, one.high), rel=0.02)  # the draws are not mirrored
    assert (doubled.length, doubled.low, doubled.high) == pytest.approx((2 * one.length, 2 * one.low, 2 * one.high))
    assert one.low < one.length < one.high


def test_outcomes():
    none = found([0.5, 0.4, 0.6], error=0.01)
    assert (none.outcome, none.sign, none.crossings, none.undecided_lengths) == ("none", 1, (), ())
    several = found([-0.5, 0.5, 0.4, -0.5], error=0.01)
    assert (several.outcome, several.sign) == ("several", 0)
    assert [one.between for one in several.crossings] == [(64, 128), (256, 512)]
    assert [one.rising for one in several.crossings] == [True, False]
    some = found([-0.5, -0.001, -0.5], error=0.01)
    assert (some.outcome, some.sign, some.undecided_lengths) == ("undecided", -1, (128,))
    nowhere = found([0.001, -0.001], error=0.01)
    assert (nowhere.outcome, nowhere.sign, nowhere.undecided_lengths) == ("undecided", 0, (64, 128))
    loose = found([0.001, -0.5, 0.5], error=0.01)
    assert (loose.outcome, loose.undecided_lengths) == ("one", (64,))
    single = found([0.3], error=0.01)
    assert (single.outcome, single.sign) == ("none", 1)


def test_noise_around_one_is_one_crossing():
    noisy = found([-0.9, -0.02, 0.015, -0.01, 0.02, 0.9], error=0.02)
    assert noisy.outcome == "one"
    (one,) = noisy.crossings
    assert one.between == (64, 2048)
    assert 64 < one.low < one.length < one.high < 2048


def test_signs_hold_together():
    """Six signs at 95 % need a wider interval than one: 2.78 errors at 4 degrees of freedom do not decide."""
    error = 0.01
    reach = t.ppf(1 - 0.05 / 6 / 2, 4) * error
    assert found([reach * 1.01] * 6, error=error).outcome == "none"
    assert found([reach * 0.99] * 6, error=error).outcome == "undecided"
    assert reach > 1.5 * t.ppf(0.975, 4) * error


def test_point_of_undoes_a_student_interval():
    half = t.ppf(0.975, 4) * 0.03
    point = point_of(128, ratio=2.0, low=2.0 / math.exp(half), high=2.0 * math.exp(half), confidence=0.95, degrees=4)
    assert (point.log_ratio, point.standard_error) == pytest.approx((math.log(2.0), 0.03))


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        ([], {}, "0 points; expected at least one"),
        ([*series([1.0]), *series([2.0])], {}, "each length once"),
        (series([math.nan]), {}, "finite values"),
        (series([1.0], error=-1.0), {}, "error ≥ 0"),
        (series([1.0]), {"confidence": 95.0}, "confidence is 95.0"),
    ],
)
def test_bad_input(points, options, message):
    with pytest.raises(ParameterError, match=message):
        find_crossover(points, seed=0, **options)


def covered(*, error_factor=1.0, true_log2=8.3, repetitions=500):
    """Share of simulated sweeps whose interval holds the true crossing, and share that found one crossing.

    Each sweep: lengths 64 to 2048, five processes per length whose log-ratios scatter by 0.12 about a straight line
    over the logarithm of the length that crosses at 2^true_log2.
    """
    rng = np.random.default_rng(11)
    x = np.arange(6, 12)
    hits, ones = 0, 0
    for repetition in range(repetitions):
        processes = 0.35 * (x - true_log2) + rng.normal(0.0, 0.12, (5, x.size))
        errors = error_factor * processes.std(axis=0, ddof=1) / math.sqrt(5)
        points = [
            Point(length=2 ** int(k), log_ratio=float(mean), standard_error=float(error), degrees=4)
            for k, mean, error in zip(x, processes.mean(axis=0), errors, strict=True)
        ]
        result = find_crossover(points, seed=repetition, resamples=1000)
        if result.outcome == "one":
            ones += 1
            hits += result.crossings[0].low <= 2**true_log2 <= result.crossings[0].high
    return hits / ones, ones / repetitions


def check_coverage(share):
    """At least 95 %, less three standard errors of 500 repetitions."""
    assert share >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 500)


@pytest.mark.parametrize("true_log2", [8.3, pytest.param(9.0, marks=pytest.mark.slow)])  # between two lengths, at one
def test_coverage(true_log2):
    share, ones = covered(true_log2=true_log2)
    assert ones > 0.9
    check_coverage(share)


def test_the_check_of_coverage_catches_errors_taken_too_small():
    share, _ = covered(error_factor=0.5)
    with pytest.raises(AssertionError):
        check_coverage(share)
