"""The trials of change points: what they inject, how they score, and that a rule that is wrong scores badly."""

import json

import numpy as np
import pytest

from validation import versions as trials
from validation.versions import EXPERIMENT, rivals, tables

NORMAL = tables.Condition(noise="normal", processes=3, unit="process")


def a_table(*, steps, seed=0):
    return tables.made_table(NORMAL, np.random.default_rng(seed), [], steps=steps)


def test_half_of_the_series_have_a_step_of_the_size_that_is_said():
    table, injected = a_table(steps=True)
    assert len(table) == tables.SERIES
    assert len(injected) == tables.SERIES // 2
    for name, (version, size) in injected.items():
        logs = np.log(np.array(table[name]))
        moved = abs(logs[version:].mean() - logs[:version].mean()) / tables.SCALE
        assert moved == pytest.approx(size, abs=2.5), "means of 3 or more samples lie within 2.5 spreads of their level"
    assert a_table(steps=False)[1] == {}
    steps = rivals.ours(table)
    clear = {name: version for name, (version, size) in injected.items() if size == 6.0}
    assert clear
    assert all(steps[name] == [range(version, version + 1)] for name, version in clear.items())


def test_scores_by_hand():
    """Three tables with a step each, one without: found, missed by one version, not told from the next, and false."""
    made = [
        ({"a": [], "b": []}, {"a": (3, 3.0)}),
        ({"a": [], "b": []}, {"a": (5, 6.0)}),
        ({"a": [], "b": []}, {"a": (4, 6.0)}),
        ({"a": [], "b": []}, {}),
    ]
    one = {at: range(at, at + 1) for at in range(9)}
    answers = iter(
        [{"a": [one[3]], "b": [one[7]]}, {"a": [one[6]], "b": []}, {"a": [range(4, 6)], "b": []}, {"b": [one[1]]}]
    )
    scores = trials._scored(lambda table: next(answers), made, 3)
    assert scores["recall"] == [1, 3]
    assert scores["recall_by_size"] == {"3": [1, 1], "4": [0, 0], "6": [0, 2]}
    assert scores["series_without_step_flagged"] == [1, 3]
    assert scores["false_among_reports"] == [2, 4]
    assert scores["false_among_exact"] == [2, 3]
    assert scores["tables_without_steps_flagged"] == [1, 1]


def test_residuals_are_read_from_records(tmp_path):
    lines = [
        {"data": {"process_ratios": [1.0, 1.1, 1.2, 1.3, 1.4]}},
        {"data": None},
        {"data": {"process_ratios": [1.0]}},
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((residuals, spread),) = tables.noise_on_record(path)
    assert float(np.median(residuals)) == pytest.approx(0.0)
    assert np.ptp(residuals) == pytest.approx(np.log(1.4) * np.sqrt(5 / 4))
    assert spread > 0.0


def test_a_summary_is_of_the_last_settings(tmp_path):
    scores = trials._scored(lambda table: {"a": [range(1, 2)]}, [({"a": []}, {"a": (1, 3.0)}), ({"a": []}, {})], 2)
    rules = {rivals.OURS: scores, "factor 1.1": scores | {"recall": [0, 1]}}
    lines = [
        {"name": one.name, "settings": {"tables": n}, "condition": {"rules": rules}, "sessions": None}
        for n in (3, 4)
        for one in reversed(tables.CONDITIONS[:2])
    ]
    content = EXPERIMENT.summary(lines, None)
    assert content["settings"] == {"tables": 4}
    assert list(content["conditions"]) == [one.name for one in tables.CONDITIONS[:2]]
    first, second, *_ = EXPERIMENT.figures(content)
    assert (first.found[:6], first.met, first.rivals["factor 1.1"][:5]) == ("100.0 ", True, "0.0 %")
    assert (second.found[:6], second.met) == ("50.0 %", False)


def test_reports_of_a_single_version_that_miss_their_target_are_not_hidden_by_the_others():
    scores = trials._scored(lambda table: {"a": [range(1, 2)]}, [({"a": []}, {"a": (1, 3.0)}), ({"a": []}, {})], 2)
    scores |= {"false_among_reports": [1, 100], "false_among_exact": [1, 19]}
    _, false = EXPERIMENT.figures({"conditions": {"noise": {"rules": {rivals.OURS: scores}}}})
    assert not false.met
    assert (
        "of a single version 5.3 %, 1 of 19; series without a step 100.0 %, 1 of 1; tables without any –" in false.found
    )
