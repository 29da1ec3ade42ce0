"""The frame: it runs what is missing, reports from trials alone, keeps what others found and says what is wrong."""

import json
from dataclasses import replace

import pytest

from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError, UnknownNameError
from precision_eval.core.files import TrialFile, claimed
from validation import frame
from validation.__main__ import main
from validation.frame import Experiment, Figure, Options, Trial
from validation.report import stored_markdown


def fake(*, stop_at=None, **more):
    """An experiment of three trials, stopped once before one of them."""
    stops = [stop_at]

    def run(trials, options):
        for key, number, _ in trials:
            if number == stops[0]:
                stops.clear()
                stops.append(None)
                raise KeyboardInterrupt
            yield {"key": key, "size": options.size}

    def figures(lines):
        count = f"{len(lines)} trials"
        return [Figure("n", count, "3", len(lines) == 3, {"asv": "2 | 4"}), Figure("seen", count)]

    trials = [Trial(str(number), number, 10.0) for number in range(3)]
    return Experiment(
        name="memory", title="a fake", trials=lambda options: trials, run=run, figures=figures,
        settings={"sets": (2, 20), "names": (("a", "b"), ("a",)), "on": (False, True), "out_of": ("", "")}, **more,
    )  # fmt: skip


@pytest.fixture
def use(monkeypatch):
    return lambda experiment: monkeypatch.setattr(frame, "experiment_by_name", lambda name: experiment)


def test_stopped_and_resumed(use, tmp_path, capsys):
    use(fake(stop_at=2))
    command = ["memory", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 130
    assert "the same command goes on from there" in " ".join(capsys.readouterr().out.split())
    main(command)
    assert [trial["key"] for trial in TrialFile(tmp_path / "memory.jsonl").read()] == ["0", "1", "2"]
    (figure, _) = json.loads((tmp_path / "figures.json").read_text())["memory"]
    assert (figure["found"], figure["met"]) == ("3 trials", True)
    assert "| n | 3 | 3 trials | yes | asv: 2 \\| 4 |" in (tmp_path / "report.md").read_text()


def test_one_experiment_at_a_time_measures_into_a_folder(use, tmp_path):
    use(fake())
    with claimed(tmp_path), pytest.raises(RecordError, match="another run is under way"):
        main(["memory", "--out", str(tmp_path)])
    assert TrialFile(tmp_path / "memory.jsonl").read() == []


@pytest.mark.parametrize(("limit_s", "begun"), [(5.0, 0), (10.5, 3), (float("inf"), 3)])
def test_no_trial_begins_that_the_limit_does_not_hold(tmp_path, limit_s, begun):
    told = []
    frame.run(fake(), Options(out=tmp_path), limit_s=limit_s, progress=lambda *step: told.append(step))
    assert [done for done, _, _ in told] == list(range(begun + 1))


def test_report_keeps_what_others_found(use, tmp_path):
    use(fake())
    (tmp_path / "figures.json").write_text(json.dumps({"latency": [], "memory": []}))
    TrialFile(tmp_path / "memory.jsonl").append({"key": "a"})
    main(["memory", "--report", "--out", str(tmp_path)])
    assert list(json.loads((tmp_path / "figures.json").read_text())) == ["latency", "memory"]
    written = stored_markdown("memory", tmp_path / "figures.json")
    assert "| n | 3 | **1 trials** |" in written


def test_settings_are_of_the_size_and_take_the_type_of_their_default(tmp_path):
    assert fake().options({}, out=tmp_path, size="full")["sets"] == 20
    options = fake().options({"sets": "7", "names": "x,y", "on": "true", "out_of": "z"}, out=tmp_path)
    assert options.settings == {"sets": 7, "names": ("x", "y"), "on": True, "out_of": "z"}
    with pytest.raises(ParameterError, match="sets is 'many'; expected a number such as 2"):
        fake().options({"sets": "many"}, out=tmp_path)
    with pytest.raises(UnknownNameError, match="setting of memory 'set'; did you mean sets"):
        fake().options({"set": "1"}, out=tmp_path)
    with pytest.raises(ParameterError, match="for one experiment at a time"):
        main(["memory", "overhead", "--set", "sets=3", "--out", str(tmp_path)])


def test_a_summary_is_stored_and_read_where_no_trials_are(tmp_path):
    experiment = fake(summary=lambda lines, options: {"count": len(lines)}, stored="s.json")
    experiment = replace(experiment, figures=lambda content: [Figure("count", str(content["count"]))])
    frame.run(experiment, Options(out=tmp_path), progress=lambda *step: None)
    options = Options(out=tmp_path, report=True)
    assert frame.report(experiment, options)[0][0].found == "3"
    (tmp_path / "memory.jsonl").unlink()
    assert frame.report(experiment, options)[0][0].found == "3"
    (tmp_path / "s.json").write_text('{"other": 1}')
    with pytest.raises(RecordError, match=r"s\.json does not hold .*give another file or --out with trials of memory"):
        frame.report(experiment, options)
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(RecordError, match=r"s\.json is damaged"):
        frame.report(experiment, options)


def test_an_empty_folder_has_nothing_to_report(use, tmp_path):
    use(fake())
    with pytest.raises(PrecisionEvalError, match="holds no trials of memory; run without --report"):
        main(["memory", "--report", "--out", str(tmp_path)])
