"""What asv costs: each command on a checkout of its own, kept as it ends, and nothing kept of one that fails."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from precision_eval.core import environment
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.files import TrialFile
from validation import cost, frame
from validation.cost import EXPERIMENT


class FakeAsv:
    """An asv that writes one result per run and counts the checkouts that it is run in."""

    def __init__(self, monkeypatch):
        self.ran, self.places, self.failing = [], set(), None
        self.commit = "c" * 40
        monkeypatch.setattr(cost, "_git", self.git)
        monkeypatch.setattr(cost, "subprocess", SimpleNamespace(run=self.run))
        monkeypatch.setattr(environment, "collect", lambda device: {"package": {"git_commit": "x", "assets": {}}})

    def git(self, *words):
        if "clone" in words:
            Path(words[-1]).mkdir()
        return self.commit

    def run(self, words, cwd, env, check):
        assert env["PIP_NO_COMPILE"] == "1"
        assert "PYTHONDONTWRITEBYTECODE" not in env
        self.places.add(cwd)
        self.ran.append(words[3:])
        results = cwd / ".asv" / "results" / "vm"
        results.mkdir(parents=True, exist_ok=True)
        (cwd / ".asv" / "env").mkdir(exist_ok=True)
        (results / "machine.json").write_text("{}")
        (results / "c-env.json").write_text(json.dumps({"results": {"a": [], "b": []}}))
        return SimpleNamespace(returncode=int(words[3:] == self.failing))


@pytest.fixture
def asv(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return FakeAsv(monkeypatch)


def measured(out, **settings):
    options = EXPERIMENT.options(settings, out=out)
    frame.run(EXPERIMENT, options, progress=lambda *step: None)
    return EXPERIMENT.summary(TrialFile(out / "cost.jsonl").read(), options)["runs"]


def test_each_command_has_a_checkout_of_its_own(asv, tmp_path):
    runs = measured(tmp_path)
    assert [one["command"] for one in runs] == [f"asv {' '.join(words)}" for words in cost.TIMED]
    assert [one["target_s"] for one in runs] == [600.0, 120.0]
    assert {one["benchmarks"] for one in runs} == {2}
    assert {one["environment"]["package"]["git_commit"] for one in runs} == {"c" * 40}
    assert len(asv.places) == 2
    assert [words[0] for words in asv.ran] == ["machine", "run", "run"] * 2
    assert not any(place.exists() for place in asv.places)
    assert {figure.met for figure in EXPERIMENT.figures({"runs": runs})} == {True}


def test_it_goes_on_where_it_was_and_measures_another_commit_anew(asv, tmp_path):
    asv.failing = ["run", "--quick", "--show-stderr"]
    with pytest.raises(PrecisionEvalError, match="asv run --quick --show-stderr failed"):
        measured(tmp_path)
    asv.failing = None
    asv.ran.clear()
    assert len(measured(tmp_path)) == 2
    assert [words[-1] for words in asv.ran] == ["--yes", "track_torch_version", "--show-stderr"]
    assert "--quick" in asv.ran[-1]
    assert len(measured(tmp_path)) == 2
    assert len(asv.ran) == 3
    asv.commit = "d" * 40
    assert len(measured(tmp_path)) == 2
    assert len(asv.ran) == 9
