"""The trial on four kinds of call: what is planted, one trial as it runs, and what is counted, quiet and loaded."""

import itertools
from types import SimpleNamespace

import pytest

from validation.frame import Options
from validation.latency import kinds


def line(kind="linear", delta=0.0, said="equivalent", *, others=0.0, low=0.999, high=1.001, mde=0.005, elapsed_s=1.0):
    where = {"cpu": "made up", "cores": 2, "others": others, "load_average": 0.1}
    judged = {"said": said, "low": low, "high": high, "mde": mde, "planted": delta, "elapsed_s": elapsed_s}
    return {"kind": kind, "delta": delta, "base_s": 3e-5, **judged, **where}


def test_trials_go_round_the_kinds_with_and_without_a_slowdown():
    trials = kinds._trials(Options(out=None, settings={"trials": 2}))
    assert [trial.spec for trial in trials[:3]] == [("decode", 0.0, 0), ("decode", 0.01, 0), ("linear", 0.0, 0)]
    assert len({trial.key for trial in trials}) == 2 * 2 * len(kinds.KINDS)


@pytest.mark.parametrize("turn_s", [5e-9, 2e-8])
def test_what_is_planted_is_worked_out_from_what_a_turn_lasts(monkeypatch, turn_s):
    """On a clock that a call moves by 0.1 ms, every second one by half as much again, and a turn by its own time."""
    now_s, states = [0.0], itertools.cycle((1e-4, 1.5e-4))

    def call():
        now_s[0] += next(states)
        return 7

    def turns(nothing, count):
        now_s[0] += count * turn_s
        return ()

    monkeypatch.setattr(kinds, "repeat", turns)
    monkeypatch.setattr(kinds, "time", SimpleNamespace(thread_time=lambda: now_s[0]))
    slowed, planted = kinds.slower(call, 0.01)
    assert planted == pytest.approx(0.01, rel=0.01)
    start_s = now_s[0]
    assert [slowed(), slowed()] == [7, 7]
    assert now_s[0] - start_s == pytest.approx(1.01 * 2.5e-4, rel=1e-3)


def test_one_trial(monkeypatch):
    monkeypatch.setattr(kinds, "BUDGET_S", 0.1)
    (found,) = kinds._measured([("python", 0.01, 0)])
    assert found["low"] <= found["ratio"] <= found["high"]
    assert 0.005 < found["planted"] < 0.02
    assert kinds._figures([found])


def test_what_is_counted():
    lines = [
        *[line() for _ in range(19)],
        line(said="slower", low=1.0001, high=1.002),
        *[line(delta=0.01, said="slower") for _ in range(18)],
        line(delta=0.01, said="undecided", mde=0.02),
        line(delta=0.01, said="faster"),
        line("matmul", others=1.5, said="undecided", elapsed_s=2.5),
    ]
    figures = {figure.name.partition(", ")[2]: figure for figure in kinds._figures(lines)}
    told = figures["quiet: equal calls told apart"]
    assert told.found.endswith("1 of 20")
    assert told.met is False
    assert figures["quiet: +1 % found in 2 s"].found.endswith("18 of 20")
    assert figures["quiet: +1 % found in 2 s"].met is False
    assert figures["quiet: 95 % interval holds 1 on equal calls"].met is True
    assert figures["quiet: found where the detectable effect is at most 1 %"].found.endswith("18 of 19")
    assert figures["quiet: wrong in sign"].found.endswith("1 of 20")
    assert figures["loaded: equal calls told apart"].met is None  # too few to tell
    assert figures["loaded: 95th percentile of wall time ÷ budget"].met is False
