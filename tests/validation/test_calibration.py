"""The calibration of the judge of numeric error: its fit, its seeds, and that it writes what the judge reads."""

import json

import numpy as np
import pytest

from precision_eval.measure.assess.rule import parse
from precision_eval.measure.assess.statistics import STATISTICS
from validation.faults import calibration


@pytest.fixture(scope="module")
def found():
    """Two pools of one family, with four honest variations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "FAMILIES", ("gaussian",))
        patch.setattr(calibration, "DTYPES", calibration.DTYPES[:1])
        patch.setattr(calibration, "HONEST", calibration.HONEST[::13])
        return calibration.samples(2 * calibration.POOL)


def test_quantile_regression_finds_the_quantile_of_a_quadratic():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 20_000)
    t = 2.0 + x - 0.5 * x**2 + rng.exponential(0.3, 20_000)
    held = calibration.fit(x[:, None], t)
    exact = 2.0 + 0.3 * np.log(50.0)  # 98 % of exponential noise lie below scale · ln 50
    assert held.centre([0.0]) == pytest.approx(exact, abs=0.08)
    assert held.centre([0.5]) == pytest.approx(exact + 0.375, abs=0.08)
    above = t > [held.centre([one]) for one in x]
    assert above.mean() == pytest.approx(0.02, abs=0.004)
    assert 0.3 < held.scale < 0.8  # the mean excess is 0.3; a long tail may raise it


def test_what_is_written_is_what_the_judge_reads(found):
    content = json.loads(json.dumps(calibration.calibrate(found)))
    tables = parse(content)
    assert set(tables) == {one.key for one in found}
    for one in found[::40]:
        held = tables[one.key]
        scores = held.scores(one.measured)
        for statistic in STATISTICS:
            by_array = calibration._score(*calibration._column(statistic, [one]), held.ranges[statistic.name])
            assert scores[statistic.name] == pytest.approx(float(by_array[0]), rel=1e-6, abs=1e-6)
