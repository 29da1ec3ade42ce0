import json
import subprocess
from pathlib import Path

import pytest

from precision_eval.cli import torch_sweep
from precision_eval.cli.torch_sweep import Request, plan_sweep, run_sweep, torch_sweep_command
from precision_eval.errors import ParameterError, RecordError
from precision_eval.versions import sweep_plan
from precision_eval.versions.environments import EnvironmentBuildError, Note
from precision_eval.versions.sweep_plan import (
    DiskSpaceError,
    check_room,
    choose_versions,
    configuration_for,
    expected_bytes,
    missing_benchmarks,
    read_benchmarks,
    read_configuration,
    read_durations,
    runs,
    select_benchmarks,
    selection,
)

ROOT = Path(__file__).resolve().parents[3]
KNOWN = ("2.6.0", "2.7.0", "2.7.1", "2.10.0")
COLUMNS = ["result", "params", "version", "started_at"]


def test_versions_are_ordered_as_numbers_and_named_once():
    assert choose_versions(["2.10.0", "2.6.0", "2.6.0"], KNOWN) == ("2.6.0", "2.10.0")
    assert choose_versions([], KNOWN) == KNOWN
    assert choose_versions(["2.7"], KNOWN) == ("2.7.1",)
    assert choose_versions(["2.99.0"], KNOWN) == ("2.99.0",)  # whether it exists, the index knows


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("two", "'two' is no torch version"),
        ("2.8.0+cpu", "is no torch version"),
        (">=2.8", "is no torch version"),
        ("2.5.1", "older than 2.6"),
        ("2.9", r"no patch of torch 2.9 is configured; name one, such as 2.9.0"),
    ],
)
def test_what_is_no_version_is_named(asked, message):
    with pytest.raises(ParameterError, match=message):
        choose_versions([asked], KNOWN)


def test_the_projects_configuration_covers_every_minor_version():
    found = read_configuration(ROOT / "asv.versions.json")
    assert [sweep_plan.numbers(version)[:2] for version in found.versions] == [(2, minor) for minor in range(6, 16)]
    plain = json.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8"))
    for key in ("benchmark_dir", "launch_method", "project", "version"):
        assert found.raw[key] == plain[key], key
    assert set(sweep_plan.SLIM_BYTES) == set(found.versions)


def test_a_run_is_given_one_version_and_absolute_places(tmp_path):
    found = read_configuration(ROOT / "asv.versions.json")
    made = configuration_for(found, "2.8.0", python="3.12", base=tmp_path / "e", results=tmp_path / "r")
    assert made["matrix"] == {"req": {"torch": ["2.8.0"]}}
    assert made["pythons"] == ["3.12"]
    places = ("repo", "benchmark_dir", "env_dir", "results_dir", "html_dir")
    assert all(Path(made[key]).is_absolute() for key in places)
    assert (Path(made["benchmark_dir"]) / "__init__.py").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "run in a checkout of the project"),
        ("{", "is no asv configuration"),
        ("[]", "is no asv configuration"),
        ('{"matrix": {"req": {"torch": ["2.6.0"]}}, "repo": "."}', "lacks benchmark_dir, env_dir"),
    ],
)
def test_a_bad_configuration_is_named(tmp_path, content, message):
    path = tmp_path / "asv.versions.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ParameterError, match=message):
        read_configuration(path)


def test_disk_counts_what_is_shared_once():
    first = expected_bytes("2.6.0", "slim", shared=True, first=True)
    assert first - expected_bytes("2.6.0", "slim", shared=True, first=False) == sweep_plan.OTHER_BYTES
    assert expected_bytes("2.6.0", "slim", shared=False, first=False) == first
    assert expected_bytes("2.99.0", "slim", shared=True, first=False) == sweep_plan.LARGEST_BYTES["slim"]
    assert expected_bytes("2.6.0", "cuda", shared=True, first=False) == sweep_plan.LARGEST_BYTES["cuda"]
    assert max(sweep_plan.SLIM_BYTES.values()) <= sweep_plan.LARGEST_BYTES["slim"]


def test_a_sweep_that_does_not_fit_is_refused_with_the_remedy(tmp_path):
    needed, reserve = [2_000_000_000, 3_000_000_000], sweep_plan.RESERVE_BYTES
    assert check_room(needed, free=5_000_000_000 + reserve, where=tmp_path, keep=True) == 5_000_000_000 + reserve
    with pytest.raises(
        DiskSpaceError,
        match=r"2 environments need 6\.0 GB, 5\.9 GB are free at .*remove-environments \(4\.0 GB at a time",
    ):
        check_room(needed, free=5_900_000_000, where=tmp_path, keep=True)
    assert check_room(needed, free=5_900_000_000, where=tmp_path, keep=False) == 4_000_000_000
    with pytest.raises(DiskSpaceError, match=r"name fewer --versions, or another disk with --environments"):
        check_room(needed, free=3_900_000_000, where=tmp_path, keep=False)
    assert check_room([], free=0, where=tmp_path, keep=True) == 0


BENCHMARKS = {"eager.a.time_call": "1", "eager.a.track_status": "2", "eager.b.track_status": "3"}


def write_results(path, results):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: [result, [], version, 0] for name, (result, version) in results.items()}
    path.write_text(json.dumps({"result_columns": COLUMNS, "results": rows, "version": 2}))


@pytest.mark.parametrize(
    ("results", "missing"),
    [
        ({}, ["eager.a.time_call", "eager.a.track_status", "eager.b.track_status"]),
        ({"eager.a.time_call": ([None, 1.0], "1"), "eager.a.track_status": ([2, 1], "2")}, ["eager.b.track_status"]),
        # measured, but by another definition; failed in every case; never run
        ({"eager.a.time_call": ([1.0], "0"), "eager.b.track_status": ([1], "3")}, None),
        ({"eager.a.time_call": ([None, None], "1"), "eager.b.track_status": ([1], "3")}, None),
        ({"eager.a.time_call": (None, "1"), "eager.b.track_status": ([1], "3")}, None),
        # not applicable is a result
        ({name: ([float("nan")], version) for name, version in BENCHMARKS.items()}, []),
    ],
)
def test_what_is_missing(tmp_path, results, missing):
    path = tmp_path / "vm" / "a.json"
    write_results(path, results)
    expected = ["eager.a.time_call", "eager.a.track_status"] if missing is None else missing
    assert list(missing_benchmarks(BENCHMARKS, [path])) == expected


def test_a_torn_result_file_counts_as_none(tmp_path):
    (tmp_path / "a.json").write_text('{"results": {')
    assert missing_benchmarks(BENCHMARKS, [tmp_path / "a.json"]) == tuple(sorted(BENCHMARKS))


def test_classes_share_a_run_as_far_as_their_time_is_known():
    a, b, c = ("e.a.time", "e.a.track"), ("e.b.track",), ("e.c.track",)
    names = (*a, *b, *c)
    most = sweep_plan.RUN_S
    assert runs(names, {}) == (a, b, c)
    assert runs(names, dict.fromkeys(names, 1.0)) == ((*a, *b, *c),)
    assert runs(names, {"e.a.time": most / 2, "e.a.track": 0.0, "e.b.track": most / 2, "e.c.track": 1.0}) == (
        (*a, *b),
        c,
    )
    assert runs(names, {"e.a.time": 2 * most, "e.a.track": 0.0, "e.b.track": 1.0}) == (a, b, c)
    assert runs(names, {"e.a.time": 1.0, "e.b.track": 1.0, "e.c.track": 1.0}) == (a, (*b, *c))
    assert runs((), {}) == ()


def test_durations_are_the_longest_seen(tmp_path):
    for machine, seconds in (("one", 3.0), ("two", 5.0)):
        path = tmp_path / machine / "0-torch-py3.11-torch2.8.0.json"
        path.parent.mkdir()
        rows = {"e.a.time": [[1.0], [], "v", 0, seconds], "e.b.time": [[1.0]], "e.c.time": None}
        path.write_text(json.dumps({"result_columns": [*COLUMNS, "duration"], "results": rows}))
    (tmp_path / "one" / "1-torch-py3.11-torch2.9.1.json").write_text("torn")
    assert read_durations(tmp_path) == {"e.a.time": 5.0}


def test_a_run_measures_what_it_names_and_nothing_else():
    pattern = selection(["eager.a.time_call"])
    matching = [name for name in (*BENCHMARKS, "eager.a.time_call_2", "eagerXa.time_call") if select(pattern, name)]
    assert matching == ["eager.a.time_call"]
    assert select(pattern, "eager.a.time_call('bfloat16', 'dia')")


def select(pattern, name):
    import re

    return re.search(pattern, name) is not None


def test_patterns_are_checked():
    assert set(select_benchmarks(BENCHMARKS, ["status", "nothing"])) == {"eager.a.track_status", "eager.b.track_status"}
    with pytest.raises(ParameterError, match=r"--bench '\(' is no regular expression"):
        select_benchmarks(BENCHMARKS, ["("])
    with pytest.raises(ParameterError, match="--bench voice finds none of 3 benchmarks"):
        select_benchmarks(BENCHMARKS, ["voice"])


def test_asvs_list_of_benchmarks_is_read(tmp_path):
    assert read_benchmarks(tmp_path) is None
    (tmp_path / "benchmarks.json").write_text(json.dumps({"a.b.c": {"version": "7"}, "version": 2}))
    assert read_benchmarks(tmp_path) == {"a.b.c": "7"}
    (tmp_path / "benchmarks.json").write_text('{"a": {}}')
    with pytest.raises(RecordError, match="no list of asv's benchmarks"):
        read_benchmarks(tmp_path)


class FakeMachine:
    """Environments and an asv that only write down what they are asked."""

    def __init__(self, tmp_path, monkeypatch):
        self.ran, self.installed, self.refused, self.failing = [], [], {}, set()
        self.stop_at = None
        self.request = Request(
            config=ROOT / "asv.versions.json",
            versions=("2.6.0", "2.8.0", "2.10.0"),
            results=tmp_path / "results",
            environments=tmp_path / "environments",
            torch_build="slim",
        )
        monkeypatch.setattr(torch_sweep, "build_environment", self.build)
        monkeypatch.setattr(torch_sweep, "_asv", self.asv)
        monkeypatch.setattr(torch_sweep, "_commit", lambda root, revision: "c" * 40)
        monkeypatch.setattr(torch_sweep, "build_for_here", lambda asked, installer: "slim")
        monkeypatch.setattr(torch_sweep, "read_note", lambda environment: None)

    def build(self, environment, **options):
        if environment.version in self.refused:
            raise EnvironmentBuildError(self.refused[environment.version])
        self.installed.append(environment.version)
        environment.folder.mkdir(parents=True, exist_ok=True)
        return Note(
            version=environment.version,
            python="3.11.7",
            torch_version=f"{environment.version}+cu1",
            numpy="2",
            blas="mkl",
            build="slim",
            cuda="1",
            stand_ins=(),
            installed_by="uv",
            bytes=10,
            seconds=1.0,
        )

    def asv(self, sweep, path, pattern):
        version = json.loads(path.read_text())["matrix"]["req"]["torch"][0]
        if pattern == torch_sweep.DISCOVER:
            listed = {name: {"version": one} for name, one in BENCHMARKS.items()}
            sweep.results.mkdir(parents=True, exist_ok=True)
            (sweep.results / "benchmarks.json").write_text(json.dumps({**listed, "version": 2}))
            return 0, ""
        names = [name for name in BENCHMARKS if select(pattern, name)]
        group = names[0].rpartition(".")[0]
        if (version, group) == self.stop_at:
            self.stop_at = None
            raise KeyboardInterrupt
        self.ran.append((version, group))
        file = sweep.results / "vm" / f"{'c' * 8}-torch-py{sweep.python}-torch{version}.json"
        old = json.loads(file.read_text())["results"] if file.exists() else {}
        new = {name: ([None if name in self.failing else 1.0], BENCHMARKS[name]) for name in names}
        write_results(file, {**{name: (row[0], row[2]) for name, row in old.items()}, **new})
        return (2 if self.failing & set(names) else 0), ""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return FakeMachine(tmp_path, monkeypatch)


def ignore(text):
    pass


def test_a_sweep_measures_every_class_in_every_version(machine):
    tally = run_sweep(plan_sweep(machine.request), ignore)
    assert tally.finished == ["2.6.0", "2.8.0", "2.10.0"]
    assert tally.exit_code == 0
    assert machine.ran == [(version, group) for version in tally.finished for group in ("eager.a", "eager.b")]
    lines = (machine.request.results / "environments.jsonl").read_text().splitlines()
    assert [json.loads(line)["torch_version"] for line in lines] == ["2.6.0+cu1", "2.8.0+cu1", "2.10.0+cu1"]


def test_an_interrupted_sweep_goes_on_where_it_was(machine, capsys):
    machine.stop_at = ("2.8.0", "eager.b")
    with pytest.raises(SystemExit) as stopped:
        torch_sweep_command(machine.request)
    assert stopped.value.code == 130
    assert "same command goes on" in capsys.readouterr().out
    before = list(machine.ran)
    assert before == [("2.6.0", "eager.a"), ("2.6.0", "eager.b"), ("2.8.0", "eager.a")]
    machine.installed.clear()
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 0
    assert machine.ran[len(before) :] == [("2.8.0", "eager.b"), ("2.10.0", "eager.a"), ("2.10.0", "eager.b")]
    assert machine.installed == ["2.8.0", "2.10.0"]  # what is complete is not even installed


def test_a_finished_sweep_does_nothing(machine):
    run_sweep(plan_sweep(machine.request), ignore)
    machine.ran.clear()
    machine.installed.clear()
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 0
    assert machine.ran == machine.installed == []


def test_a_version_that_cannot_be_installed_does_not_stop_the_others(machine, capsys):
    machine.refused["2.8.0"] = "torch 2.8.0 has no wheel for Python 3.99"
    with pytest.raises(SystemExit) as ended:
        torch_sweep_command(machine.request)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err == "precision-eval: torch 2.8.0 has no wheel for Python 3.99\n"
    assert "2 of 3 torch versions measured" in shown.out
    assert {version for version, _ in machine.ran} == {"2.6.0", "2.10.0"}


def test_a_benchmark_that_fails_is_named_and_tried_again(machine):
    machine.failing = {"eager.b.track_status"}
    tally = run_sweep(plan_sweep(machine.request), ignore)
    assert tally.exit_code == 1
    assert "eager.b.track_status" in tally.incomplete["2.6.0"]
    machine.failing = set()
    machine.ran.clear()
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 0
    assert machine.ran == [(version, "eager.b") for version in ("2.6.0", "2.8.0", "2.10.0")]


def test_removed_environments_are_gone_and_their_results_stay(machine, monkeypatch):
    request = Request(**{**vars(machine.request), "keep": False})
    assert run_sweep(plan_sweep(request), ignore).exit_code == 0
    assert not list(machine.request.environments.glob("torch*"))
    assert len(list((machine.request.results / "vm").iterdir())) == 3


def test_the_plan_states_the_disk_and_refuses_before_anything_starts(machine, monkeypatch, capsys):
    from collections import namedtuple

    usage = namedtuple("Usage", "free")
    monkeypatch.setattr(torch_sweep.shutil, "disk_usage", lambda place: usage(3_000_000_000))
    with pytest.raises(DiskSpaceError, match=r"3 environments need .* GB, 3\.0 GB are free"):
        torch_sweep_command(machine.request)
    assert machine.installed == []
    monkeypatch.setattr(torch_sweep.shutil, "disk_usage", lambda place: usage(30_000_000_000))
    torch_sweep_command(Request(**{**vars(machine.request), "plan_only": True}))
    assert "Needs at most" in capsys.readouterr().out
    assert machine.installed == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": ("1.13",)}, "older than 2.6"),
        ({"bench": ("(",)}, "no regular expression"),
        ({"attributes": ("rounds",)}, "give each as name=value"),
        ({"results": ROOT / "README.md"}, "is a file; give a folder"),
        ({"config": Path("nowhere.json")}, "run in a checkout"),
    ],
)
def test_bad_input_ends_before_anything_starts(machine, change, message):
    with pytest.raises(ParameterError, match=message):
        plan_sweep(Request(**{**vars(machine.request), **change}))


def test_a_commit_that_does_not_exist_is_named(tmp_path):
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with pytest.raises(ParameterError, match="--commit nowhere is no commit"):
        torch_sweep._commit(tmp_path, "nowhere")
