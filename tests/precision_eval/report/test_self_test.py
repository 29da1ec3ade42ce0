"""The self-test on series whose answer is known, what it keeps, and what the report says of it."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from precision_eval.cli.commands import command_named
from precision_eval.core.environment import SELF_TEST_FILE, keep_self_test, read_self_test, self_test_path
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.measure.self_test import KINDS, judged_series, self_test
from precision_eval.report.html.writing import render_html
from precision_eval.report.self_test import self_test_line
from precision_eval.report.text import environment_lines
from precision_eval.results.reading import load_run
from precision_eval.stats import LOOKS, look_errors, student_quantile


def series(shift=0.0, *, n=2000, noise=0.01, wander=0.0):
    rng = np.random.default_rng(1)
    slow = np.repeat(rng.normal(scale=wander, size=n // 50), 50) if wander else 0.0
    one_s = 1e-4 * np.exp(rng.normal(scale=noise, size=n))
    return 1e-4 * np.exp(shift + slow + rng.normal(scale=noise, size=n)), one_s


class TestJudgedSeries:
    def test_prediction_by_hand(self):
        found = judged_series(*series(), elapsed_s=1.8, seed=0)
        error = found["standard_error"]
        assert error == pytest.approx(0.01 * math.sqrt(2 / 2000), rel=0.35)
        quantile = student_quantile(look_errors(0.01, LOOKS)[-1], 1999)
        for budget_s in (1.0, 2.0, 10.0):
            reach = (quantile + NormalDist().inv_cdf(0.95)) * error * math.sqrt(1.8 / (0.9 * budget_s))
            assert found["found"][f"{budget_s:g}"] == pytest.approx(1.002 * math.exp(reach) - 1, rel=1e-3)

    def test_equal_calls_are_covered(self):
        found = judged_series(*series(), elapsed_s=1.8, seed=0)
        assert (found["pieces"], found["alarms"]) == (40, 0)
        assert found["covered"] >= 34

    def test_planted_difference_is_seen_as_alarms_and_lost_coverage(self):
        found = judged_series(*series(0.03), elapsed_s=1.8, seed=0)
        assert found["alarms"] >= 38
        assert found["covered"] <= 1

    def test_planted_wander_between_pieces_widens_the_prediction(self):
        plain, wandering = (judged_series(*series(wander=w), elapsed_s=1.8, seed=0) for w in (0.0, 0.01))
        assert wandering["standard_error"] > 3 * plain["standard_error"]


def test_every_kind_gives_calls_of_their_own_on_the_same_tensors():
    for _, kind in KINDS.values():
        make = kind(0)
        one, other = make(), make()
        assert one is not other
        assert np.array_equal(np.asarray(one()), np.asarray(other()))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command_named("self-test").main(["--seconds", "1"], standalone_mode=False)
    return read_self_test(self_test_path())


def run_folder(synthetic, folder):
    made = synthetic(folder)
    made.add("dia-decode", "cpu", "eager", "full_float32", "latency", made.latency(1.0, "full_float32"))
    return made.write()


def test_kept_for_runs_on_this_machine_alone(kept, synthetic, tmp_path):
    assert set(kept["calls"]) == set(KINDS)
    folder = run_folder(synthetic, tmp_path / "run")
    run = load_run(folder)
    assert self_test_line(run) == ""
    keep_self_test(folder)
    line = self_test_line(run)
    assert line.startswith(f"self-test of {kept['made']}, load average")
    assert line in environment_lines(run)
    assert f"<p><span>{line}</span>.</p>" in render_html(folder)
    (folder / SELF_TEST_FILE).unlink()
    kept["machine"]["cores"] += 1
    self_test_path().write_text(json.dumps(kept), encoding="utf-8")
    keep_self_test(folder)
    assert self_test_line(run) == ""


def test_what_is_no_self_test(synthetic, tmp_path):
    with pytest.raises(ParameterError, match="seconds is 0"):
        self_test(0.0)
    run = load_run(run_folder(synthetic, tmp_path))
    path = run.directory / SELF_TEST_FILE
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(RecordError, match="holds no self-test: it lacks machine"):
        read_self_test(path)
    assert "it lacks machine" in self_test_line(run)
