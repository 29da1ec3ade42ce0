"""What asv costs: each command on a checkout of its own, kept as it ends, and nothing kept of one that fails."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import validation.cost.__main__ as command
from precision_eval.core import environment
from validation import cost
from validation.versions import session_noise, sessions

ROOT = Path(__file__).resolve().parents[2]


class FakeAsv:
    """An asv that writes one result per run and counts the checkouts that it is run in."""

    def __init__(self, monkeypatch):
        self.ran, self.places, self.failing = [], set(), None
        self.commit = "c" * 40
        monkeypatch.setattr(command, "_git", self.git)
        monkeypatch.setattr(command, "subprocess", SimpleNamespace(run=self.run))
        monkeypatch.setattr(environment, "collect", lambda device: {"package": {"git_commit": "x", "assets": {}}})

    def git(self, *words):
        if "clone" in words:
            Path(words[-1]).mkdir()
        return self.commit

    def run(self, words, cwd, check):
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
    return FakeAsv(monkeypatch)


def test_each_command_has_a_checkout_of_its_own(asv, tmp_path):
    out = tmp_path / "cost.json"
    assert command.main(["--out", str(out)]) == 0
    runs = json.loads(out.read_text())["runs"]
    assert [one["command"] for one in runs] == [
        "asv run --record-samples --show-stderr",
        "asv run --quick --show-stderr",
    ]
    assert [one["target_s"] for one in runs] == [600.0, 120.0]
    assert {one["benchmarks"] for one in runs} == {2}
    assert {one["environment"]["package"]["git_commit"] for one in runs} == {"c" * 40}
    assert len(asv.places) == 2
    assert [words[0] for words in asv.ran] == ["machine", "run", "machine", "run"]
    assert not any(place.exists() for place in asv.places)


def test_it_goes_on_where_it_was_and_measures_another_commit_anew(asv, tmp_path):
    out = tmp_path / "cost.json"
    asv.failing = ["run", "--quick", "--show-stderr"]
    assert command.main(["--out", str(out)]) == 1
    assert len(json.loads(out.read_text())["runs"]) == 1
    asv.failing = None
    asv.ran.clear()
    assert command.main(["--out", str(out)]) == 0
    assert [words[1] for words in asv.ran] == ["--yes", "--quick"]
    assert command.main(["--out", str(out)]) == 0
    assert len(asv.ran) == 2
    asv.commit = "d" * 40
    assert command.main(["--out", str(out)]) == 0
    assert len(asv.ran) == 6
    assert len(json.loads(out.read_text())["runs"]) == 2


def test_a_part_of_the_benchmarks_is_not_judged(asv, tmp_path):
    out = tmp_path / "cost.json"
    assert command.main(["--out", str(out), "--bench", "build"]) == 0
    runs = json.loads(out.read_text())["runs"]
    assert {one["target_s"] for one in runs} == {None}
    assert all(one["command"].endswith(" --bench build") for one in runs)


def test_a_file_that_is_none_of_these_is_named(asv, tmp_path, capsys):
    out = tmp_path / "cost.json"
    out.write_text('{"figures": []}')
    with pytest.raises(SystemExit) as ended:
        command.main(["--out", str(out)])
    assert ended.value.code == 2
    assert "is no file of asv's costs" in capsys.readouterr().err
    assert asv.ran == []


def test_what_is_timed_is_what_the_makefile_runs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target = makefile.split("\nasv:")[1].split("\n\n")[0].splitlines()
    assert target[-1].endswith(f"/asv {' '.join(cost.TIMED[0].words)}")


def test_a_checkout_is_of_the_commit(tmp_path):
    commit = command._git("rev-parse", "HEAD")
    assert subprocess.run(
        ["git", "cat-file", "-t", commit], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip() == "commit"  # fmt: skip


@pytest.mark.parametrize("module", [cost, command, sessions, session_noise])
def test_asv_finds_no_benchmark_in_the_trials(module):
    names = re.compile(r"^(time|timeraw|track|mem|peakmem)_|^(Time|Timeraw|Track|Mem|PeakMem)[A-Z_]")
    assert [name for name in vars(module) if names.match(name)] == []
