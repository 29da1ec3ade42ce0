"""``prove``: runs what is missing, reports from trials alone, keeps what others found, says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from precision_eval.core.errors import PrecisionEvalError, RecordError, UnknownNameError
from precision_eval.core.json_lines import TrialFile
from validation import prove
from validation.catalog import EXPERIMENTS, Experiment, Figure, experiment_by_name
from validation.tables import figures_markdown, proofs_markdown, short_markdown


class Fake:
    """An experiment of three trials, one of which stops it the first time."""

    def __init__(self):
        self.stop = True

    def run(self, out, *, size, progress):
        file = TrialFile(out / "memory.jsonl")
        for index in range(3):
            if f"{index}" in {trial["key"] for trial in file.read()}:
                continue
            if index == 2 and self.stop:
                self.stop = False
                raise KeyboardInterrupt
            file.append({"key": f"{index}", "size": size})
            progress(index + 1, 3, "x")

    def figures(self, out):
        trials = TrialFile(out / "memory.jsonl").read()
        if not trials:
            return []
        count = f"{len(trials)} trials"
        return [
            Figure(name="n", target="3", found=count, met=len(trials) == 3, rivals={"asv": "2 | 4"}),
            Figure(name="seen", target="", found=count, met=None, rivals={}),
        ]

    def plot(self, out):
        return []


@pytest.fixture
def fake(monkeypatch):
    module = Fake()
    monkeypatch.setattr(Experiment, "load", lambda self: module)
    return module


def request(tmp_path, **options):
    return prove.Request(**({"names": ("memory",), "size": "quick", "out": tmp_path, "report_only": False} | options))


def test_stopped_and_resumed(fake, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        prove.prove_command(request(tmp_path))
    assert stopped.value.code == 130
    assert "the same command goes on from there" in " ".join(capsys.readouterr().out.split())
    prove.prove_command(request(tmp_path))
    assert len(TrialFile(tmp_path / "memory.jsonl").read()) == 3
    (figure, _) = json.loads((tmp_path / "figures.json").read_text())["memory"]
    assert (figure["found"], figure["met"]) == ("3 trials", True)
    assert "| n | 3 | 3 trials | yes | asv: 2 \\| 4 |" in (tmp_path / "report.md").read_text()


def test_report_keeps_what_others_found(fake, tmp_path):
    (tmp_path / "figures.json").write_text(json.dumps({"latency": [], "memory": []}))
    TrialFile(tmp_path / "memory.jsonl").append({"key": "a"})
    prove.prove_command(request(tmp_path, report_only=True))
    assert list(json.loads((tmp_path / "figures.json").read_text())) == ["latency", "memory"]
    readme = proofs_markdown(tmp_path / "figures.json")
    assert "| n | 3 | 1 trials | **no** |" in readme
    assert "seen" not in readme  # no target


def test_a_table_per_set_of_rivals():
    def figure(name, met=True, **rivals):
        return {"name": name, "target": "0", "found": "1 [0, 2]", "met": met, "rivals": rivals}

    text = short_markdown(
        [
            figure("alone"),
            figure("a", asv="33.3 % [6.1, 79.2], 1 of 3", t="5 of 9"),
            figure("b", t="7"),
            figure("c", met=None),
        ]
    )
    assert text.split("\n\n") == [
        "| figure | target | found | met | asv | t |\n|---|---|---|---|---|---|\n"
        "| a | 0 | 1 [0, 2] | yes | 33.3 %, 1 of 3 | 5 of 9 |\n| b | 0 | 1 [0, 2] | yes | – | 7 |",
        "| figure | target | found | met |\n|---|---|---|---|\n| alone | 0 | 1 [0, 2] | yes |",
    ]


def test_nothing_there(fake, tmp_path):
    with pytest.raises(PrecisionEvalError, match="holds no trials of memory; run `precision-eval prove`"):
        prove.prove_command(request(tmp_path, report_only=True))


def test_unknown_name_is_one_line_and_exit_code_2():
    done = subprocess.run(
        [sys.executable, "-m", "precision_eval.cli", "prove", "memry"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "precision-eval: unknown experiment 'memry'; did you mean memory?"


def test_every_experiment_offers_what_it_must():
    for entry in EXPERIMENTS:
        module = entry.load()
        assert all(callable(getattr(module, name)) for name in ("run", "figures", "plot"))
        assert experiment_by_name(entry.name) is entry
    with pytest.raises(UnknownNameError):
        experiment_by_name("nothing")


def test_no_figures_no_trials(tmp_path):
    for entry in EXPERIMENTS:
        assert entry.load().figures(tmp_path) == []


class TestTrialFile:
    def test_round_trip_and_last_of_a_key(self, tmp_path):
        file = TrialFile(tmp_path / "deep" / "x.jsonl")
        file.append({"key": "a", "value": 1})
        file.append({"key": "a", "value": 2})
        assert file.read() == [{"key": "a", "value": 2}]
        assert file.keys() == {"a"}

    def test_torn_line_is_dropped_and_nothing_else(self, tmp_path):
        file = TrialFile(tmp_path / "x.jsonl")
        file.append({"key": "a"})
        with file.path.open("a") as raw:
            raw.write('{"key":"b","va')
        assert file.keys() == {"a"}
        file.append({"key": "c"})
        assert file.keys() == {"a", "c"}

    def test_damage_is_named(self, tmp_path):
        path = tmp_path / "x.jsonl"
        path.write_text('{"key":"a"}\nnonsense\n')
        with pytest.raises(RecordError, match=r"x.jsonl line 2 is no trial"):
            TrialFile(path).read()

    @pytest.mark.parametrize("bad", [{"key": "a", "x": float("nan")}, {"key": "a", "x": object()}])
    def test_strict(self, tmp_path, bad):
        with pytest.raises(RecordError, match="not strict JSON"):
            TrialFile(tmp_path / "x.jsonl").append(bad)

    def test_unwritable(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RecordError, match="cannot write"):
            TrialFile(Path(tmp_path / "file" / "x.jsonl")).append({"key": "a"})


def test_markdown_of_nothing():
    assert figures_markdown([], only_targets=True) == ""
