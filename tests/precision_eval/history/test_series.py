"""Series and their noise, against values worked out by hand and against a plain loop."""

import itertools
import math

import numpy as np
import pytest

from precision_eval.history.series import build_series, padded, pair_scale
from precision_eval.results.asv import read_results
from precision_eval.stats import student_quantile

RATIO = "eager.dia_decode.track_latency_ratio"
CELL = ("kv_to_query", "tiny")


def series_of(folder):
    sets = read_results(folder)
    return {one.key: one for one in build_series(sets, [s.torch_version for s in sets])}


def test_noise_and_interval_by_hand(tmp_path, write, run_type):
    """Two processes per version, each 1 % off its neighbour: |ln a − ln b| is the same everywhere."""
    gap = 0.01
    values = {v: [2.0 * math.exp(-gap / 2), 2.0 * math.exp(gap / 2)] for v in ("2.6.0", "2.7.0", "2.8.0", "2.9.0")}
    write(tmp_path, [run_type(torch=v, values={RATIO: {CELL: samples}}) for v, samples in values.items()])
    (one,) = series_of(tmp_path).values()
    assert one.noise.prior_scale is None
    assert one.noise.degrees_of_freedom == 4
    # all differences equal: none is cut at 3 robust spreads, so the spread is gap/√2, over the correction for the cut
    assert one.noise.scale == pytest.approx(gap / math.sqrt(2.0) / math.sqrt(cut_moment(3.0)), rel=1e-6)
    half = student_quantile(0.05, 4) * one.noise.scale / math.sqrt(2.0)
    for point in one.points:
        assert point.value == pytest.approx(2.0)
        assert point.interval == pytest.approx((2.0 * math.exp(-half), 2.0 * math.exp(half)))


def cut_moment(limit):
    z = np.linspace(-10.0, 10.0, 2_000_001)
    return float(np.sum(np.minimum(z**2, limit**2) * np.exp(-0.5 * z**2)) * (z[1] - z[0]) / math.sqrt(2.0 * math.pi))


def test_the_spread_is_that_of_a_plain_loop_and_scales():
    rng = np.random.default_rng(4)
    rows = [rng.normal(k, 0.3, n) for k, n in enumerate((3, 5, 1, 2, 4, 3))]
    differences = [abs(a - b) for row in rows for a, b in itertools.combinations(row, 2)]
    robust = 1.0483 * float(np.median(differences))
    limit = 3.0 * math.sqrt(2.0) * robust
    expected = math.sqrt(np.mean([min(d, limit) ** 2 for d in differences]) / (2.0 * cut_moment(3.0)))
    assert float(pair_scale(padded(rows)[None])[0]) == pytest.approx(expected, rel=1e-6)
    assert float(pair_scale(padded([7.0 * row + 3.0 for row in rows])[None])[0]) == pytest.approx(7.0 * expected)


def test_the_spread_is_right_on_normal_noise_and_hardly_moved_by_outliers():
    rng = np.random.default_rng(0)
    tables = rng.normal(0.0, 0.02, (400, 10, 3))
    assert float(np.sqrt(np.mean(pair_scale(tables) ** 2))) == pytest.approx(0.02, rel=0.03)
    tables[:, 0, 0] += 1.0
    assert float(np.median(pair_scale(tables))) < 0.02 * 1.5
    plain = float(np.median(np.sqrt(tables.var(axis=2, ddof=1).mean(axis=1))))
    assert plain > 0.02 * 5.0, "the plain pooled spread must be what the outlier spoils, else this test says nothing"


def test_other_fixes_lend_their_noise(tmp_path, write, run_type):
    rng = np.random.default_rng(1)
    scales = {"query_to_half": 0.01, "kv_to_query": 0.01, "bfloat16": 0.04}
    versions = ("2.6.0", "2.7.0", "2.8.0")
    for version in versions:
        cells = {(fix, "tiny"): list(np.exp(rng.normal(0.0, s, 3))) for fix, s in scales.items()}
        cells["full_float32", "tiny"] = [1.0, 1.0, 1.0]
        write(tmp_path, [run_type(torch=version, values={RATIO: cells})])
    found = {one.fix: one.noise for one in series_of(tmp_path).values()}
    peers = [found[fix].own_scale for fix in scales]
    for fix in scales:
        noise = found[fix]
        assert noise.prior_scale == pytest.approx(float(np.median(peers)))
        expected = (6.0 * noise.own_scale**2 + 5.0 * noise.prior_scale**2) / 11.0
        assert noise.scale == pytest.approx(math.sqrt(expected))
        assert noise.degrees_of_freedom == 11
    assert found["full_float32"].scale == 0.0
