"""The rounds of a sweep, on environments and an asv that only write down what they are asked."""

from dataclasses import replace

import pytest
from fake_machine import FakeMachine

from precision_eval.results.asv import read_visits
from precision_eval.studies.tracking.definitions import PROCESS_VARIABLE
from tools.torch_versions import sweep as torch_sweep
from tools.torch_versions.sweep import plan_sweep, run_sweep
from tools.torch_versions.sweep_plan import result_rows

LATENCY = "eager.b.track_latency_ratio"
BENCHMARKS = {"eager.a.track_status": "1", "eager.b.track_drift": "1", LATENCY: "1"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return FakeMachine(tmp_path, monkeypatch, BENCHMARKS)


def ignore(text):
    pass


def turns(machine):
    return [(version, turn) for version, turn, name in machine.turns if name == LATENCY]


def samples(machine):
    """The samples of the latency in each version, each kind once."""
    rows = (result_rows(path)[LATENCY]["samples"] for path in (machine.request.results / "vm").iterdir())
    return {tuple(cases[0]) for cases in rows}


def test_versions_are_visited_in_turn_after_everything_else(machine):
    said = []
    tally = run_sweep(plan_sweep(machine.request), said.append)
    assert (tally.finished, tally.exit_code) == (["2.6.0", "2.8.0", "2.10.0"], 0)
    forth, back = ["2.6.0", "2.8.0", "2.10.0"], ["2.10.0", "2.8.0", "2.6.0"]
    assert turns(machine) == [(one, 1) for one in forth] + [(one, 2) for one in back] + [(one, 3) for one in forth]
    assert all(turn == 0 for _, turn, name in machine.turns if name != LATENCY)
    assert [turn for _, turn, _ in machine.turns] == sorted(turn for _, turn, _ in machine.turns)
    assert samples(machine) == {(1.0, 2.0, 3.0)}
    assert "round 2 of 3: torch 2.10.0, 1 benchmark of latency" in said
    visits = read_visits(machine.request.results)
    assert [(one.environment.rpartition("torch")[2], one.round) for one in visits] == turns(machine)
    assert [one.at_s for one in visits] == sorted(one.at_s for one in visits)
    machine.ran.clear()
    assert run_sweep(plan_sweep(machine.request), ignore).finished == forth
    assert machine.ran == []


def test_a_sweep_that_was_stopped_goes_on_in_its_round(machine):
    machine.stop_at = ("2.8.0", 2)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan_sweep(machine.request), ignore)
    before = turns(machine)
    assert before[-1] == ("2.10.0", 2)
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 0
    assert turns(machine)[len(before) : len(before) + 2] == [("2.8.0", 2), ("2.6.0", 2)]
    assert samples(machine) == {(1.0, 2.0, 3.0)}


def test_more_rounds_add_to_those_that_are_there(machine):
    run_sweep(plan_sweep(replace(machine.request, rounds=2)), ignore)
    run_sweep(plan_sweep(replace(machine.request, rounds=4)), ignore)
    assert samples(machine) == {(1.0, 2.0, 3.0, 4.0)}


def test_a_latency_that_fails_is_named_and_not_tried_in_every_round(machine):
    machine.failing = {LATENCY}
    tally = run_sweep(plan_sweep(machine.request), ignore)
    assert tally.exit_code == 1
    assert f"1 benchmark of latency failed: {LATENCY}" in tally.incomplete["2.8.0"]
    assert turns(machine) == [(version, 1) for version in ("2.6.0", "2.8.0", "2.10.0")]
    machine.failing = set()
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 0
    assert samples(machine) == {(1.0, 2.0, 3.0)}


def test_a_round_that_fails_costs_no_sample_of_the_rounds_before(machine):
    """asv itself drops a failed case's samples."""
    run_sweep(plan_sweep(replace(machine.request, rounds=2)), ignore)
    machine.failing = {LATENCY}
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 1
    assert samples(machine) == {(1.0, 2.0)}
    machine.failing = set()
    assert run_sweep(plan_sweep(machine.request), ignore).exit_code == 0
    assert samples(machine) == {(1.0, 2.0, 3.0)}


@pytest.mark.parametrize(("turn", "appends", "process"), [(0, False, None), (1, False, "0"), (3, True, "2")])
def test_asv_is_told_the_process_and_to_keep_earlier_samples(tmp_path, monkeypatch, turn, appends, process):
    asked = []
    fake = FakeMachine(tmp_path, monkeypatch)
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(PROCESS_VARIABLE, raising=False)
    monkeypatch.setattr(torch_sweep, "build_for_here", lambda asked, installer: "slim")
    monkeypatch.setattr(torch_sweep, "_commit", lambda root, revision: "c" * 40)
    monkeypatch.setattr(torch_sweep, "_logged", lambda *given: asked.append(given) or (0, ""))
    torch_sweep._asv(plan_sweep(fake.request), tmp_path / "asv.json", "x", turn)
    command, environ, _ = asked[0]
    assert ("--append-samples" in command) == appends
    assert environ.get(PROCESS_VARIABLE) == process
    assert command[-2:] == ["--machine", "vm"]
