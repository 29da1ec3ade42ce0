"""A sweep over torch versions, on environments and an asv that only write down what they are asked."""

import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError
from precision_eval.history.tracking import PROCESS_VARIABLE
from precision_eval.results.asv import read_visits
from tools.torch_versions import sweep as torch_sweep
from tools.torch_versions.environments import EnvironmentBuildError, Note
from tools.torch_versions.sweep import (
    DiskSpaceError,
    choose_versions,
    plan_sweep,
    read_configuration,
    read_durations,
    run_sweep,
    runs,
    selection,
    torch_sweep_command,
)
from tools.torch_versions.sweep_notes import cost_kept, cost_table, shared_bytes

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ["result", "params", "version", "started_at", "samples"]
BENCHMARKS = {"eager.a.time_call": "1", "eager.a.track_status": "2", "eager.b.track_status": "3"}
LATENCY = "eager.b.track_latency_ratio"
KNOWN = ("2.6.0", "2.7.0", "2.7.1", "2.10.0")
ALL = ["2.6.0", "2.8.0", "2.10.0"]


def write_results(path, results, build="slim"):
    """Write a result file: benchmark to result, definition and, where there are any, samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: [result, [], version, 0, *samples] for name, (result, version, *samples) in results.items()}
    variables = {"TORCH_BUILD": build} if build else {}
    path.write_text(json.dumps({"result_columns": COLUMNS, "results": rows, "env_vars": variables, "version": 2}))


class FakeMachine:
    """Environments and an asv that only write down what they are asked."""

    def __init__(self, tmp_path, monkeypatch):
        self.folder, self.benchmarks, self.notes, self.built = tmp_path, BENCHMARKS, {}, "slim"
        self.ran, self.turns, self.installed, self.refused, self.failing = [], [], [], {}, set()
        self.stop_at = None
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".asv-machine.json").write_text('{"vm": {}, "version": 1}')
        self.results = tmp_path / "results"
        places = {"results": self.results, "environments": tmp_path / "environments"}
        self.options = {"versions": ALL, "torch_build": "slim", **places}
        monkeypatch.setattr(torch_sweep, "build_environment", self.build)
        monkeypatch.setattr(torch_sweep, "_asv", self.asv)
        monkeypatch.setattr(torch_sweep, "_commit", lambda root, revision: "c" * 40)
        monkeypatch.setattr(torch_sweep, "build_for_here", lambda asked: "slim")
        monkeypatch.setattr(torch_sweep, "read_note", lambda environment: self.notes.get(environment.version))

    def plan(self, **options):
        return plan_sweep(ROOT / "asv.versions.json", **(self.options | options))

    def run(self, say=lambda text: None, **options):
        return run_sweep(self.plan(**options), say)

    def build(self, environment, **options):
        if environment.version in self.refused:
            raise EnvironmentBuildError(self.refused[environment.version])
        self.installed.append(environment.version)
        environment.folder.mkdir(parents=True, exist_ok=True)
        torch = {"version": environment.version, "torch_version": f"{environment.version}+cu1", "cuda": "1"}
        made = {"python": "3.11.7", "numpy": "2", "blas": "mkl", "installed_by": "uv", "bytes": 10, "seconds": 1.0}
        return Note(**torch, **made, build=self.built, stubs=())

    def asv(self, sweep, version, pattern, turn=0):
        """Write results down; a latency has a sample per process: one in a round, three without."""
        if pattern == torch_sweep.DISCOVER:
            listed = {name: {"version": one} for name, one in self.benchmarks.items()}
            sweep.results.mkdir(parents=True, exist_ok=True)
            (sweep.results / "benchmarks.json").write_text(json.dumps({**listed, "version": 2}))
            return 0, ""
        names = [name for name in self.benchmarks if re.search(pattern, name)]
        group = names[0].rpartition(".")[0]
        if self.stop_at in ((version, group), (version, turn)):
            self.stop_at = None
            raise KeyboardInterrupt
        self.ran.append((version, group))
        self.turns += [(version, turn, name) for name in names]
        file = sweep.file(version)
        old = json.loads(file.read_text())["results"] if file.exists() else {}
        results = {name: (row[0], *row[2:3], *row[4:]) for name, row in old.items()}
        for name in names:
            failed, earlier = name in self.failing, (old.get(name) or [None] * 5)[4:]
            taken = ([float(turn)] if turn else [9.0] * 3) if "latency" in name and not failed else None
            before = earlier[0][0] if taken and turn > 1 and earlier and earlier[0] and earlier[0][0] else []
            results[name] = ([None if failed else 1.0], self.benchmarks[name], [taken and before + taken])
        write_results(file, results, build=self.built)
        return (2 if self.failing & set(names) else 0), ""

    def samples(self):
        """The samples of the latency in each version, each kind once."""
        contents = (json.loads(path.read_text())["results"] for path in (self.results / "vm").iterdir())
        return {tuple(rows[LATENCY][4][0]) for rows in contents}

    def visits(self):
        return [(version, turn) for version, turn, name in self.turns if name == LATENCY]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return FakeMachine(tmp_path, monkeypatch)


@pytest.fixture
def timed(machine):
    """The machine, with a benchmark that is measured in rounds."""
    machine.benchmarks = {"eager.a.track_status": "1", "eager.b.track_drift": "1", LATENCY: "1"}
    return machine


def test_a_sweep_measures_every_class_in_every_version(machine):
    tally = machine.run()
    assert (tally.finished, tally.exit_code) == (ALL, 0)
    assert machine.ran == [(version, group) for version in ALL for group in ("eager.a", "eager.b")]
    lines = (machine.results / "environments.jsonl").read_text().splitlines()
    assert [json.loads(line)["torch_version"] for line in lines] == ["2.6.0+cu1", "2.8.0+cu1", "2.10.0+cu1"]
    other = machine.run(machine="other")  # is not taken for measured
    assert other.exit_code == 0
    assert len(machine.ran) == 12
    assert {path.name for path in machine.results.iterdir() if path.is_dir()} == {"vm", "other"}


def test_an_interrupted_sweep_goes_on_where_it_was_and_says_what_it_took(machine, capsys):
    machine.stop_at = ("2.8.0", "eager.b")
    with pytest.raises(SystemExit) as stopped:
        torch_sweep_command(machine.plan())
    assert stopped.value.code == 130
    assert "same command goes on" in capsys.readouterr().out
    before = list(machine.ran)
    assert before == [("2.6.0", "eager.a"), ("2.6.0", "eager.b"), ("2.8.0", "eager.a")]
    machine.installed.clear()
    assert machine.run().exit_code == 0
    assert machine.ran[len(before) :] == [("2.8.0", "eager.b"), ("2.10.0", "eager.a"), ("2.10.0", "eager.b")]
    assert machine.installed == ["2.8.0", "2.10.0"]  # what is complete is not even installed
    costs = [json.loads(line) for line in (machine.results / "costs.jsonl").read_text().splitlines()]
    found = [(one["version"], one["finished"], one["bytes"], one["commit"]) for one in costs]
    expected = [("2.6.0", True), ("2.8.0", False), ("2.8.0", True), ("2.10.0", True)]
    assert found == [(*one, 10, "c" * 40) for one in expected]


def test_a_version_that_cannot_be_installed_does_not_stop_the_others(machine, capsys):
    machine.refused["2.8.0"] = "torch 2.8.0 has no wheel for Python 3.99"
    with pytest.raises(SystemExit) as ended:
        torch_sweep_command(machine.plan())
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err == "precision-eval: torch 2.8.0 has no wheel for Python 3.99\n"
    assert "2 of 3 torch versions measured" in shown.out
    assert {version for version, _ in machine.ran} == {"2.6.0", "2.10.0"}


def test_results_of_another_build_are_refused(machine, monkeypatch):
    machine.run()
    machine.ran.clear()
    write_results(machine.plan().file("2.8.0"), {}, build=None)
    with pytest.raises(ParameterError, match="without saying with which build of torch and slim is asked for"):
        machine.plan().check_build("2.8.0", "slim")
    monkeypatch.setattr(torch_sweep, "build_for_here", lambda asked: "cuda")
    with pytest.raises(
        ParameterError, match=r"torch2\.6\.0\.json was .* slim .* cuda is asked .*, or --torch-build slim"
    ):
        torch_sweep_command(machine.plan())
    assert machine.ran == []


def test_a_build_that_comes_instead_is_not_mixed_in(machine):
    machine.stop_at = ("2.6.0", "eager.b")
    with pytest.raises(KeyboardInterrupt):
        machine.run()
    machine.built = "cpu"
    tally = machine.run()
    assert "build slim of torch and cpu is asked for" in tally.not_installed["2.6.0"]
    assert tally.finished == ["2.8.0", "2.10.0"]


def test_a_benchmark_that_fails_is_named_and_tried_again(machine):
    machine.failing = {"eager.b.track_status"}
    tally = machine.run()
    assert tally.exit_code == 1
    assert "eager.b.track_status" in tally.incomplete["2.6.0"]
    machine.failing = set()
    machine.ran.clear()
    assert machine.run().exit_code == 0
    assert machine.ran == [(version, "eager.b") for version in ALL]


def test_the_plan_states_the_disk_and_refuses_before_anything_starts(machine, monkeypatch, capsys):
    free = SimpleNamespace(free=3_000_000_000)
    monkeypatch.setattr(torch_sweep.shutil, "disk_usage", lambda place: free)
    words = r"3 environments need .* GB, 3\.0 GB are free at .*remove-environments \(3\.4 GB at a time\), name fewer"
    with pytest.raises(DiskSpaceError, match=words):
        torch_sweep_command(machine.plan())
    with pytest.raises(DiskSpaceError, match=r"free at .*; name fewer --versions, or another disk"):
        torch_sweep_command(machine.plan(keep=False))
    free.free = 30_000_000_000
    torch_sweep_command(machine.plan(), plan_only=True)
    assert "Needs at most" in capsys.readouterr().out
    assert machine.installed == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": ["two"]}, "'two' is no torch version"),
        ({"versions": ["2.8.0+cpu"]}, "is no torch version"),
        ({"versions": ["1.13"]}, "older than 2.6"),
        ({"versions": ["2.99"]}, r"no patch of torch 2\.99 is configured; name one, such as 2\.99\.0"),
        ({"bench": ["("]}, "no regular expression"),
        ({"attributes": ["rounds"]}, "give each as name=value"),
        ({"results": ROOT / "README.md"}, "is a file; give a folder"),
        ({"rounds": 2, "keep": False}, "give --keep-environments, or --rounds 1"),
    ],
)
def test_bad_input_ends_before_anything_starts(machine, change, message):
    with pytest.raises(ParameterError, match=message):
        machine.plan(**change)


def test_versions_are_ordered_as_numbers_and_named_once():
    assert choose_versions(["2.10.0", "2.6.0", "2.6.0"], KNOWN) == ("2.6.0", "2.10.0")
    assert choose_versions([], KNOWN) == KNOWN
    assert choose_versions(["2.7"], KNOWN) == ("2.7.1",)
    assert choose_versions(["2.99.0"], KNOWN) == ("2.99.0",)  # whether it exists, the index knows


def test_the_projects_configuration_covers_every_minor_version():
    found, versions = read_configuration(ROOT / "asv.versions.json")
    assert [version.rpartition(".")[0] for version in versions] == [f"2.{minor}" for minor in range(6, 16)]
    plain = json.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8"))
    for key in ("launch_method", "project", "version"):
        assert found[key] == plain[key], key


PLACES = '"repo": ".", "benchmark_dir": "b", "env_dir": "e", "results_dir": "r", "html_dir": "h"'


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", '{"matrix": {"req": {"torch": ["2.6.0"]}}, "repo": "."}',
        *(f'{{"matrix": {{"req": {{"torch": {one}}}}}, {PLACES}}}' for one in ("[2.8]", '"2.13.0"', "[]")),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_named(tmp_path, content):
    path = tmp_path / "asv.versions.json"
    with pytest.raises(ParameterError, match="run in a checkout of the project"):
        read_configuration(path)
    path.write_text(content)
    with pytest.raises(RecordError, match=r"asv\.versions\.json (does not hold|is damaged)"):
        read_configuration(path)


@pytest.mark.parametrize(
    ("results", "missing"),
    [
        ({}, None),
        ({"eager.a.time_call": ([None, 1.0], "1"), "eager.a.track_status": ([2, 1], "2")}, ["eager.b.track_status"]),
        # measured, but by another definition; failed in every case; never run
        ({"eager.a.time_call": ([1.0], "0")}, None),
        ({"eager.a.time_call": ([None, None], "1")}, None),
        ({"eager.a.time_call": (None, "1")}, None),
        # not applicable is a result
        ({name: ([float("nan")], version) for name, version in BENCHMARKS.items()}, []),
    ],
)
def test_what_is_missing(machine, results, missing):
    assert machine.plan().missing("2.6.0") is None
    machine.asv(machine.plan(), "2.6.0", torch_sweep.DISCOVER)
    write_results(machine.plan().file("2.6.0"), results)
    assert list(machine.plan().missing("2.6.0")) == (sorted(BENCHMARKS) if missing is None else missing)
    assert machine.plan(bench=["time"]).benchmarks() == {"eager.a.time_call": "1"}
    with pytest.raises(ParameterError, match="--bench nothing finds none of 3 benchmarks"):
        machine.plan(bench=["nothing"]).benchmarks()


@pytest.mark.parametrize(
    "content",
    [
        *('{"results": {', "[]", "7", '{"result_columns": ["result"], "results": []}', ""),
        '{"result_columns": ["result"], "results": {"eager.a.time_call": 5}}',
        '{"result_columns": 5, "results": {"a": []}}',
        '{"result_columns": ["result"], "results": {}, "env_vars": [1]}',
    ],
)
def test_a_damaged_result_file_counts_as_none(machine, content):
    machine.asv(machine.plan(), "2.6.0", torch_sweep.DISCOVER)
    path = machine.plan().file("2.6.0")
    write_results(path, {})
    path.write_text(content)
    assert machine.plan().missing("2.6.0") == tuple(sorted(BENCHMARKS))
    assert read_durations(machine.results) == {}
    machine.plan().check_build("2.6.0", "slim")
    (machine.results / "benchmarks.json").write_text('{"a": {}}')
    with pytest.raises(RecordError, match="remove it, asv writes its list of benchmarks anew"):
        machine.plan().benchmarks()


def test_classes_share_a_run_as_far_as_their_time_is_known():
    a, b, c = ["e.a.time", "e.a.track"], ["e.b.track"], ["e.c.track"]
    names, most = (*a, *b, *c), torch_sweep.RUN_S
    assert runs(names, {}) == [a, b, c]
    assert runs(names, dict.fromkeys(names, 1.0)) == [[*a, *b, *c]]
    seconds = {"e.a.time": most / 2, "e.a.track": 0.0, "e.b.track": most / 2, "e.c.track": 1.0}
    assert runs(names, seconds) == [[*a, *b], c]
    assert runs(names, {"e.a.time": 2 * most, "e.a.track": 0.0, "e.b.track": 1.0}) == [a, b, c]
    assert runs((), {}) == []
    pattern = selection(["eager.a.time_call"])
    others = ("eager.a.time_call_2", "eagerXa.time_call", "eager.a.time_call('bfloat16', 'dia')", *BENCHMARKS)
    assert [name for name in others if re.search(pattern, name)] == [others[2], "eager.a.time_call"]


def test_durations_are_the_longest_seen(tmp_path):
    for machine, seconds in (("one", 3.0), ("two", 5.0)):
        path = tmp_path / machine / "0-torch-py3.11-torch2.8.0.json"
        path.parent.mkdir()
        rows = {"e.a.time": [[1.0], [], "v", 0, None, seconds], "e.b.time": [[1.0]], "e.c.time": None}
        path.write_text(json.dumps({"result_columns": [*COLUMNS, "duration"], "results": rows}))
    assert read_durations(tmp_path) == {"e.a.time": 5.0}


class TestRounds:
    def test_versions_are_visited_in_turn_after_everything_else(self, timed):
        said = []
        assert (timed.run(said.append).finished, timed.run().exit_code) == (ALL, 0)
        back = ALL[::-1]
        assert timed.visits() == [(one, n) for n, order in enumerate((ALL, back, ALL), start=1) for one in order]
        assert all(turn == 0 for _, turn, name in timed.turns if name != LATENCY)
        assert [turn for _, turn, _ in timed.turns] == sorted(turn for _, turn, _ in timed.turns)
        assert timed.samples() == {(1.0, 2.0, 3.0)}
        assert "round 2 of 3: torch 2.10.0, latencies: 1" in said
        visits = read_visits(timed.results)
        assert [(one.environment.rpartition("torch")[2], one.round) for one in visits] == timed.visits()
        assert [one.at_s for one in visits] == sorted(one.at_s for one in visits)
        timed.ran.clear()
        assert timed.run().finished == ALL
        assert timed.ran == []

    def test_a_sweep_that_was_stopped_goes_on_in_its_round(self, timed):
        timed.stop_at = ("2.8.0", 2)
        with pytest.raises(KeyboardInterrupt):
            timed.run()
        before = timed.visits()
        assert before[-1] == ("2.10.0", 2)
        assert timed.run().exit_code == 0
        assert timed.visits()[len(before) : len(before) + 2] == [("2.8.0", 2), ("2.6.0", 2)]
        assert timed.samples() == {(1.0, 2.0, 3.0)}

    def test_a_latency_that_fails_is_named_costs_no_sample_and_is_not_tried_in_every_round(self, timed):
        timed.run(rounds=2)
        timed.failing = {LATENCY}
        tally = timed.run(rounds=4)
        assert tally.exit_code == 1
        assert f"latencies failed: {LATENCY}" in tally.incomplete["2.8.0"]
        assert [turn for _, turn in timed.visits()[6:]] == [3, 3, 3]
        assert timed.samples() == {(1.0, 2.0)}  # asv itself drops a failed case's samples
        timed.failing = set()
        assert timed.run(rounds=4).exit_code == 0
        assert timed.samples() == {(1.0, 2.0, 3.0, 4.0)}

    def test_what_one_session_measured_is_left_alone(self, timed):
        timed.run(rounds=1)
        assert timed.samples() == {(9.0, 9.0, 9.0)}
        assert timed.run(rounds=4).finished == ALL
        assert timed.samples() == {(9.0, 9.0, 9.0)}
        file = timed.plan().file("2.6.0")
        shutil.copy(file, timed.folder / "kept")
        assert timed.plan(rounds=4).lacking("2.6.0") == {}
        timed.benchmarks = timed.benchmarks | {LATENCY: "2"}  # of another definition, it is measured anew
        timed.asv(timed.plan(), "2.6.0", torch_sweep.DISCOVER)
        assert timed.plan(rounds=4).lacking("2.6.0") == {LATENCY: 0}

    @pytest.mark.parametrize(("turn", "appends", "process"), [(0, False, None), (1, False, "0"), (3, True, "2")])
    def test_asv_is_told_the_process_and_to_keep_earlier_samples(self, tmp_path, monkeypatch, turn, appends, process):
        asked, asv = [], torch_sweep._asv
        sweep = FakeMachine(tmp_path, monkeypatch).plan()
        monkeypatch.delenv(PROCESS_VARIABLE, raising=False)
        monkeypatch.setattr(torch_sweep, "_logged", lambda *given: asked.append(given) or (0, ""))
        asv(sweep, "2.8.0", "x", turn)
        asv(replace(sweep, machine="new"), "2.8.0", "x", turn)
        (_, environ, *words), (_, _, noted, *_), _ = asked
        assert ("--append-samples" in words) == appends
        assert environ.get(PROCESS_VARIABLE) == process
        assert words[-2:] == ["--machine", "vm"]
        assert noted == "machine"
        written = json.loads((sweep.base / "asv-torch2.8.0.json").read_text())
        assert written["matrix"]["req"] == {"torch": ["2.8.0"]}
        assert written["results_dir"] == str(sweep.results)


ASV = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
pathlib.Path("started").write_text(str(child.pid))
time.sleep(60)
"""


def test_a_stopped_sweep_leaves_no_asv_behind(tmp_path):
    (tmp_path / "asv.py").write_text(ASV)
    started = tmp_path / "started"

    def stop():
        while not (started.exists() and started.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    place = SimpleNamespace(base=tmp_path, log=tmp_path / "asv.log")
    with pytest.raises(KeyboardInterrupt):
        torch_sweep._logged(place, {**os.environ, "PYTHONPATH": str(tmp_path)}, "run")
    child, deadline_s = int(started.read_text()), time.monotonic() + 30  # killed, it is gone once it gets a core
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_only_names_outside_make_a_file_shared(tmp_path):
    cache, environment = tmp_path / "cache", tmp_path / "environment"
    cache.mkdir()
    (environment / "deep").mkdir(parents=True)
    for name, size in {"own": 50_000, "cached": 90_000, "twice": 30_000}.items():
        (environment / name).write_bytes(os.urandom(size))
    os.link(environment / "twice", environment / "deep" / "twice")  # two names, both inside
    assert shared_bytes(environment) == 0
    os.link(environment / "cached", cache / "cached")
    os.link(environment / "cached", environment / "deep" / "cached")  # counted once
    assert shared_bytes(environment) == (environment / "cached").stat().st_blocks * 512 >= 90_000
    assert shared_bytes(tmp_path / "none") == 0


def test_costs_are_of_measured_versions_in_their_order(tmp_path):
    assert cost_table(tmp_path) is None
    (tmp_path / "vm").mkdir()
    row = {"result_columns": ["result", "duration"], "results": {"a": [[1], 60.0]}, "durations": {"setup": 30.0}}
    for version in ("2.10.0", "2.9.1"):
        (tmp_path / "vm" / f"c-torch-py3.11-torch{version}.json").write_text(json.dumps(row))
    notes = [{"version": one, "seconds": 1.0, "bytes": 2e9, "build": "cpu"} for one in ("2.10.0", "2.9.1", "2.6.0")]
    (tmp_path / "environments.jsonl").write_text("".join(json.dumps(one) + "\n" for one in notes))
    table = cost_table(tmp_path)
    assert table.columns == ("torch", "environment made in", "on disk", "benchmarks", "their time")
    assert table.rows[0] == ("2.9.1, cpu", "1 s", "2.00 GB", "1", "1.5 min")
    assert [row[0] for row in table.rows] == ["2.9.1, cpu", "2.10.0, cpu"]
    for _ in range(2):
        with cost_kept(tmp_path, version="2.9.1", commit="c", folder=tmp_path / "none", on_disk=7):
            pass
    assert cost_table(tmp_path).rows[0][3:] == ("0.00 GB", "1", "1.5 min", "0.0 min")
    (tmp_path / "environments.jsonl").write_text('{"version": "2.9.1"}\n')
    with pytest.raises(PrecisionEvalError, match=r"mend it or costs\.jsonl, or remove both"):
        cost_table(tmp_path)
