"""A sweep, on environments and an asv that only write down what they are asked."""

import json
from pathlib import Path

import pytest
from fake_machine import ROOT, FakeMachine

from precision_eval.core.errors import ParameterError
from tools.torch_versions import sweep as torch_sweep
from tools.torch_versions.sweep import Request, plan_sweep, run_sweep, torch_sweep_command
from tools.torch_versions.sweep_plan import DiskSpaceError


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return FakeMachine(tmp_path, monkeypatch)


@pytest.fixture
def keep_notes(machine, monkeypatch):
    """Let environments that were made have the note that a real one has."""
    made, build = machine.notes, machine.build
    monkeypatch.setattr(torch_sweep, "read_note", lambda environment: made.get(environment.version))
    monkeypatch.setattr(
        torch_sweep, "build_environment", lambda one, **options: made.setdefault(one.version, build(one, **options))
    )


def ignore(text):
    pass


def test_a_sweep_measures_every_class_in_every_version(machine):
    tally = run_sweep(plan_sweep(machine.request), ignore)
    assert tally.finished == ["2.6.0", "2.8.0", "2.10.0"]
    assert tally.exit_code == 0
    assert machine.ran == [(version, group) for version in tally.finished for group in ("eager.a", "eager.b")]
    lines = (machine.request.results / "environments.jsonl").read_text().splitlines()
    assert [json.loads(line)["torch_version"] for line in lines] == ["2.6.0+cu1", "2.8.0+cu1", "2.10.0+cu1"]


def test_a_sweep_writes_down_what_each_version_took_also_where_it_was_stopped(machine):
    machine.stop_at = ("2.8.0", "eager.b")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan_sweep(machine.request), ignore)
    run_sweep(plan_sweep(machine.request), ignore)
    lines = (machine.request.results / "costs.jsonl").read_text().splitlines()
    found = [(one["version"], one["finished"], one["bytes"], one["shared_bytes"]) for one in map(json.loads, lines)]
    assert found == [
        ("2.6.0", True, 10, 0),
        ("2.8.0", False, 10, 0),
        ("2.8.0", True, 10, 0),
        ("2.10.0", True, 10, 0),
    ]
    assert {json.loads(line)["commit"] for line in lines} == {"c" * 40}


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


def test_a_version_that_cannot_be_installed_does_not_stop_the_others(machine, capsys):
    machine.refused["2.8.0"] = "torch 2.8.0 has no wheel for Python 3.99"
    with pytest.raises(SystemExit) as ended:
        torch_sweep_command(machine.request)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.err == "precision-eval: torch 2.8.0 has no wheel for Python 3.99\n"
    assert "2 of 3 torch versions measured" in shown.out
    assert {version for version, _ in machine.ran} == {"2.6.0", "2.10.0"}


def test_another_build_is_not_taken_for_measured(machine, monkeypatch):
    run_sweep(plan_sweep(machine.request), ignore)
    machine.ran.clear()
    monkeypatch.setattr(torch_sweep, "build_for_here", lambda asked, installer: "cuda")
    with pytest.raises(ParameterError, match=r"torch2\.6\.0\.json was measured with the build slim .* cuda is asked"):
        torch_sweep_command(machine.request)
    (machine.request.results / "benchmarks.json").unlink()  # asv would merge all the same
    with pytest.raises(ParameterError, match="give another --results, or --torch-build slim"):
        plan_sweep(machine.request).missing("2.6.0")
    assert machine.ran == []


def test_a_build_that_comes_instead_is_not_mixed_in(machine, keep_notes):
    machine.stop_at = ("2.6.0", "eager.b")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan_sweep(machine.request), ignore)
    machine.notes.clear()
    machine.built = "cpu"
    machine.ran.clear()
    tally = run_sweep(plan_sweep(machine.request), ignore)
    assert "build slim of torch and cpu is asked for" in tally.not_installed["2.6.0"]
    assert tally.finished == ["2.8.0", "2.10.0"]
    assert "2.6.0" not in {version for version, _ in machine.ran}


def test_another_machine_is_not_taken_for_measured(machine):
    run_sweep(plan_sweep(machine.request), ignore)
    done = list(machine.ran)
    assert run_sweep(plan_sweep(Request(**{**vars(machine.request), "machine": "other"})), ignore).exit_code == 0
    assert machine.ran == [*done, *done]
    assert {path.name for path in machine.request.results.iterdir() if path.is_dir()} == {"vm", "other"}


def test_a_benchmark_that_fails_is_named_and_tried_again(machine):
    machine.failing = {"eager.b.track_status"}
    tally = run_sweep(plan_sweep(machine.request), ignore)
    assert tally.exit_code == 1
    assert "eager.b.track_status" in tally.incomplete["2.6.0"]
    machine.failing = set()
    machine.ran.clear()
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 0
    assert machine.ran == [(version, "eager.b") for version in ("2.6.0", "2.8.0", "2.10.0")]


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
