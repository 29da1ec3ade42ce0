"""The parts of the judge of numeric error: spacing, expected sizes, statistics and ranges."""

import json
import math
from importlib import resources

import numpy as np
import pytest
import torch

from precision_eval.core.errors import IntegrityError
from precision_eval.core.formats import format_by_name, ulp
from precision_eval.measure.assess.pooled import DTYPES, pool, spacing
from precision_eval.measure.assess.rule import FILE, covariates, parse, thresholds_for
from precision_eval.measure.assess.sizes import errors_of
from precision_eval.measure.assess.statistics import GAIN_MARGIN, STATISTICS, measured

NAMES = [statistic.name for statistic in STATISTICS]


def shipped():
    text = resources.files("precision_eval.measure.assess").joinpath(FILE).read_text(encoding="utf-8")
    return json.loads(text)


def draw(seed=0, shape=(2, 3, 16, 8)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def taken(candidate, reference, yardstick):
    return errors_of(pool(candidate, reference, yardstick))


@pytest.mark.parametrize("name", DTYPES)
def test_spacing_is_the_ulp(name):
    powers = 2.0 ** torch.arange(-160, 130, dtype=torch.float64)
    x = torch.cat([powers, -1.4 * powers, 1.999 * powers, torch.zeros(1, dtype=torch.float64)])
    torch.testing.assert_close(spacing(x, format_by_name(name)), ulp(x, name), rtol=0, atol=0)


def test_gain_and_its_error_over_clusters_against_numpy():
    reference, eps = draw(3), 2.0**-10
    candidate, plain = (reference * (1 + 3 * eps)).half(), (reference + 1e-3 * draw(4)).half()
    errors = taken(candidate, reference, plain)
    found = measured(errors)
    z, w = errors.z[0].double().numpy(), errors.z_reference[0].double().numpy()
    gain = (z * w).sum() / (w * w).sum()
    by_row = (z * w).sum(-1) - gain * (w * w).sum(-1)
    standard_error = np.sqrt((by_row**2).sum()) / (w * w).sum()
    assert found.gain == pytest.approx(gain, rel=1e-4)
    assert found.gain == pytest.approx(3 * eps, rel=0.05)
    assert found.gain_standard_error == pytest.approx(standard_error, rel=1e-3)
    expected = gain / math.hypot(standard_error, GAIN_MARGIN * eps)
    assert found.found["gain"] == pytest.approx(expected, rel=1e-3)


def test_a_factor_per_row_shows_in_row_gain_alone():
    shape = (1, 4, 64, 32)
    reference, noise = draw(5, shape), 2e-4 * draw(6, shape)
    plain = (reference + 2e-4 * draw(8, shape)).float()
    factor = 1 + 2e-3 * draw(7, (1, 4, 64, 1))
    honest = measured(taken((reference + noise).float(), reference, plain)).found
    faulty = measured(taken((reference * factor + noise).float(), reference, plain)).found
    assert honest["row_gain"] == pytest.approx(1.0, abs=0.2)
    assert faulty["row_gain"] > 4
    assert faulty["row_gain_eps"] == pytest.approx(2e-3 * 2**23, rel=0.2)
    assert faulty["gain"] < 4


def test_signs_grids_and_flushes_by_hand():
    reference = torch.tensor([[1.1, -1.3, 1.7, -1.9]], dtype=torch.float64)
    rounded = reference.half()
    inward = torch.where(rounded.double().abs() > reference.abs(), torch.nextafter(rounded, 0 * rounded), rounded)
    found = measured(taken(inward, reference, rounded)).found
    expected = float((reference - inward.double()).mul(reference.sign() * 2**10).mean())
    assert found["toward_zero"] == pytest.approx(expected, rel=1e-5)
    assert found["away_from_zero"] == -found["toward_zero"]
    assert measured(taken(reference.bfloat16().half(), reference, rounded)).found["coarse"] == pytest.approx(4 / 12)
    tiny = torch.tensor([[1.0, 3e-5, -3e-5, 5e-6, 1e-5]], dtype=torch.float64)
    kept = tiny.half()
    gone = torch.where(kept.abs() < 2.0**-14, 0.0, kept)
    assert measured(taken(gone, tiny, kept)).found["flushed"] == 4.0
    assert measured(taken(kept, tiny, kept)).found["flushed"] == 0.0


def test_score_and_limit_say_the_same():
    reference = draw(11, (1, 4, 64, 32))
    of = measured(taken((reference + 1e-3 * draw(12, reference.shape)).half(), reference, reference.half()))
    for dtype in DTYPES:
        thresholds = thresholds_for(dtype, of.rows, 32)
        scores = thresholds.scores(of)
        for statistic in STATISTICS:
            crossed = of.found[statistic.name] > thresholds.limit_of(statistic, of)
            assert crossed == (scores[statistic.name] > thresholds.limit), statistic.name
            names = {"level": 4, "shape": 4, "fixed": 0}
            assert len(covariates(statistic, of)) == names[statistic.kind]


def test_the_shipped_file_fits_the_statistics_and_says_how_it_was_made():
    content = shipped()
    tables = parse(content)
    assert set(tables) == {f"{dtype}/{size}" for dtype in DTYPES for size in ("few", "many")}
    for key, thresholds in tables.items():
        assert list(thresholds.ranges) == NAMES
        assert thresholds.limit > 0
        assert content["thresholds"][key]["honest"] > 1000
        assert all(r.scale > 0 for r in thresholds.ranges.values())
    assert content["seeds"][0] >= 10_000
    assert content["false_alarms"] <= 0.005


def test_a_file_of_other_statistics_is_refused():
    content = shipped()
    del content["thresholds"]["float16/many"]["ranges"]["gain"]
    with pytest.raises(IntegrityError, match=r"do not agree for float16/many \(gain\)"):
        parse(content)
