"""Trials of steps between versions: rules on series by hand, and the figures of a few lines."""

import json

import pytest

from validation.versions import EXPERIMENT, OURS, RULES


@pytest.mark.parametrize(("name", "expected"), [(OURS, [3]), ("factor 1.1", [3, 4]), ("factor 1.25", [3])])
def test_rules_on_a_series_by_hand(name, expected):
    assert RULES[name]([1.0, 1.05, 1.0, 1.8, 1.6]) == expected


def test_trials_draw_steps_and_figures_count_them(tmp_path):
    sessions = {"case/tiny": {"latency_ratio": {"autocast": [[1.0 + 0.001 * k] for k in range(12)]}}}
    (tmp_path / "sessions.json").write_text(json.dumps({"ratios": sessions}))
    options = EXPERIMENT.options({"sessions": str(tmp_path / "sessions.json"), "orders": "4"}, out=tmp_path)
    lines = list(EXPERIMENT.run(iter(EXPERIMENT.trials(options)), options))
    equal, half, double = EXPERIMENT.figures(EXPERIMENT.summary(lines, options))
    assert (equal.found.endswith("0 of 4"), equal.met) == (True, True)
    assert (half.found.endswith("4 of 4"), half.met, double.met) == (True, True, True)
    assert double.rivals["factor 1.1"] == "100.0 %, 4 of 4"
