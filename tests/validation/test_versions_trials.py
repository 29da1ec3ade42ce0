"""The trials of change points: what they inject, how they score, and that a rule that is wrong scores badly."""

import json
import sys

import numpy as np
import pytest

trials = pytest.importorskip("validation.versions.trials")
rivals = pytest.importorskip("validation.versions.rivals")


def a_table(*, steps, seed=0, size="process"):
    condition = trials.Condition(noise="normal", processes=3, unit=size)
    return trials._table(condition, np.random.default_rng(seed), [], steps=steps)


def test_half_of_the_series_have_a_step_of_the_size_that_is_said():
    table, injected = a_table(steps=True)
    assert len(table) == trials.SERIES
    assert len(injected) == trials.SERIES // 2
    for name, (version, size) in injected.items():
        logs = np.log(np.array(table[name]))
        moved = abs(logs[version:].mean() - logs[:version].mean()) / trials.SCALE
        assert moved == pytest.approx(size, abs=2.5), "means of 3 or more samples lie within 2.5 spreads of their level"
    assert a_table(steps=False)[1] == {}


def test_scores_by_hand():
    """Two tables with a step each, one without: found, missed by one version, and a false report."""
    made = [
        ({"a": [], "b": []}, {"a": (3, 3.0)}),
        ({"a": [], "b": []}, {"a": (5, 6.0)}),
        ({"a": [], "b": []}, {}),
    ]
    answers = iter([{"a": [3], "b": [7]}, {"a": [6], "b": []}, {"a": [], "b": [1]}])
    scores = trials._scored(lambda table: next(answers), made, 2)
    assert scores["recall"] == [1, 2]
    assert scores["recall_near"] == [2, 2]
    assert scores["recall_by_size"] == {"3": [1, 1], "4": [0, 0], "6": [0, 1]}
    assert scores["series_without_step_flagged"] == [1, 2]
    assert scores["false_among_reports"] == [2, 3]
    assert scores["far_among_reports"] == [1, 3]
    assert scores["tables_without_steps_flagged"] == [1, 1]


def test_a_rule_that_always_or_never_reports_scores_so():
    made = [a_table(steps=True, seed=seed) for seed in range(3)]
    silent = trials._scored(lambda table: {name: [] for name in table}, made, 3)
    assert silent["recall"][0] == 0
    assert silent["false_among_reports"] == [0, 0]
    loud = trials._scored(lambda table: {name: list(range(1, 10)) for name in table}, made, 3)
    assert loud["recall"] == [12, 12]
    assert loud["series_without_step_flagged"] == [12, 12]
    assert loud["false_among_reports"][0] == loud["false_among_reports"][1] - 12


def test_ours_finds_large_steps_where_they_are():
    table, injected = a_table(steps=True, seed=4)
    found = rivals.ours(table)
    clear = {name: place for name, place in injected.items() if place[1] == 6.0}
    assert clear
    assert all(found[name] == [version] for name, (version, _) in clear.items())


def test_residuals_are_read_from_records(tmp_path):
    lines = [
        {"data": {"process_ratios": [1.0, 1.1, 1.2, 1.3, 1.4]}},
        {"data": None},
        {"data": {"process_ratios": [1.0]}},
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((residuals, spread),) = trials.real_residuals(path)
    assert float(np.median(residuals)) == pytest.approx(0.0)
    assert np.ptp(residuals) == pytest.approx(np.log(1.4) * np.sqrt(5 / 4))
    assert spread > 0.0


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run the trials with options, on records and rules made up; return the exit code."""
    records = tmp_path / "records.jsonl"
    records.write_text(json.dumps({"data": {"process_ratios": [1.0, 1.1, 1.2, 1.3, 1.4]}}) + "\n")
    asked = []

    def run_condition(condition, **options):
        asked.append(condition.name)
        scores = {"recall": [1, 1], "recall_near": [1, 1], "recall_by_size": {}}
        return {"rule": scores}

    monkeypatch.setattr(trials, "run_condition", run_condition)

    def run(*options):
        asked.clear()
        given = {"--out": tmp_path / "trials.json", "--residuals": records, "--sessions": tmp_path / "none.jsonl"}
        given |= dict(zip(*[iter(options)] * 2, strict=True))
        monkeypatch.setattr(sys, "argv", ["trials", *(str(word) for pair in given.items() for word in pair)])
        try:
            trials.main()
        except SystemExit as ended:
            return ended.code, len(asked)
        return 0, len(asked)

    return run


def test_trials_go_on_and_are_never_overwritten_by_other_settings(tmp_path, command, capsys):
    needing_none = [one for one in trials.CONDITIONS if one.noise != "sessions"]
    assert command("--tables", 3) == (0, len(needing_none))
    assert f"{trials.CONDITIONS[-1].name}: left out" in capsys.readouterr().out
    path = tmp_path / "trials.json"
    content = json.loads(path.read_text())
    content["conditions"].pop(trials.CONDITIONS[0].name)
    path.write_text(json.dumps(content))
    assert command("--tables", 3) == (0, 1)
    whole = path.read_text()
    for other in (("--tables", 4), ("--tables", 3, "--seed", 9)):
        capsys.readouterr()
        assert command(*other) == (2, 0)
        said = capsys.readouterr().err
        assert "holds trials under other settings" in said
        assert said.endswith("give another --out\n")
        assert said.count("\n") == 1
        assert path.read_text() == whole
    path.write_text(whole[:50])
    assert command("--tables", 3) == (2, 0)
    assert "is no file of trials" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), ("{", "is no file of records"), ("{}", "no cell with five processes")],
)
def test_residuals_that_are_none_are_named_in_one_line(tmp_path, command, capsys, content, message):
    path = tmp_path / "other.jsonl"
    if content is not None:
        path.write_text(content)
    assert command("--residuals", path) == (2, 0)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "trials.json").exists()
