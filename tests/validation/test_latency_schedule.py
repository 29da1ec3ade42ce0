"""The order of the trials, and running them: resumed, limited, by a worker."""

import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from precision_eval.core.errors import PrecisionEvalError, UnknownNameError
from precision_eval.core.files import TrialFile
from validation import frame
from validation.latency import EXPERIMENT, load, schedule, worker
from validation.latency.calls import call_by_name
from validation.latency.schedule import TrialSpec

FULL = schedule.schedule("full")


def cell_of(spec):
    return spec.tool, spec.load, spec.delta


def test_the_full_size_has_the_trials_that_were_promised():
    assert len({spec.key for spec in FULL}) == len(FULL)
    for (tool, where, delta), count in Counter(map(cell_of, FULL)).items():
        aa = 60 if tool != "ours" else 1000 if where == "bursty" else 400
        least = aa if delta == 0 else 120 if tool == "ours" else 30
        assert count >= least
    assert all(spec.delta in call_by_name(spec.call).deltas for spec in FULL)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5])
def test_stopped_anywhere_every_cell_is_about_equally_far(fraction):
    began = Counter(map(cell_of, FULL[: int(fraction * len(FULL))]))
    ends = Counter(map(cell_of, FULL))
    shares = {cell: began[cell] / count for cell, count in ends.items()}
    for ours in (True, False):
        some = [share for cell, share in shares.items() if (cell[0] == "ours") == ours]
        assert max(some) - min(some) < 0.08
    assert min(share for cell, share in shares.items() if cell[0] == "ours") > max(
        share for cell, share in shares.items() if cell[0] != "ours"
    )


def test_a_campaign_may_choose_cells_and_counts_and_goes_on_with_the_same_trials():
    chosen = schedule.Chosen(tools=("asv", "ttest"), loads=("quiet",), deltas=("0", "0.01"), equal=80, slower=30)
    some = schedule.schedule("full", chosen)
    assert Counter(map(cell_of, some)) == {
        (tool, "quiet", delta): 30 if delta else 80 for tool in ("asv", "ttest") for delta in (0.0, 0.01)
    }
    more = {spec.key for spec in schedule.schedule("full", replace(chosen, equal=300, slower=80))}
    assert {spec.key for spec in some} < more
    assert {spec.key for spec in FULL if cell_of(spec) in set(map(cell_of, some))} < more
    with pytest.raises(UnknownNameError, match=r"unknown slowdown .0\.03."):
        schedule.Chosen(deltas=("0.03",))


class Deadly(TrialSpec):
    """A trial that ends the process which looks at its call."""

    def __reduce__(self):
        return os._exit, (3,)


def test_a_worker_that_dies_is_named_with_the_trial():
    spec = Deadly(tool="ours", load="quiet", call="30us", delta=0.0, seed=0)
    with (
        worker.measuring_process() as measure,
        pytest.raises(PrecisionEvalError, match="ended before ours/quiet/30us/0/0 was done"),
    ):
        measure(spec)


@pytest.fixture
def faked(monkeypatch):
    """Replace the load and the worker; record what was measured under which load."""
    measured, loads = [], []

    @contextmanager
    def fake_worker():
        yield lambda spec: measured.append((loads[-1], spec)) or {"key": spec.key}

    @contextmanager
    def fake_load(name, *, seed):
        loads.append(name)
        yield ()

    monkeypatch.setattr(worker, "measuring_process", fake_worker)
    monkeypatch.setattr(load, "under_load", fake_load)
    return measured


def test_run_runs_what_is_missing_under_the_right_load(faked, tmp_path):
    options = EXPERIMENT.options({}, out=tmp_path)
    quick, told = EXPERIMENT.trials(options), []
    TrialFile(tmp_path / "latency.jsonl").append({"key": quick[5].key})
    frame.run(EXPERIMENT, options, progress=lambda *step: told.append(step))
    assert {spec.key for _, spec in faked} == {trial.key for trial in quick} - {quick[5].key}
    assert all(under == spec.load for under, spec in faked)
    assert told[0] == (1, len(quick), "on file")
    assert [done for done, _, _ in told] == list(range(1, len(quick) + 1))
    faked.clear()
    for limit_s in (1.0, float("inf")):  # the shortest trial takes 2 s; with no limit nothing is missing
        frame.run(EXPERIMENT, options, limit_s=limit_s, progress=lambda *step: None)
        assert faked == []


@pytest.mark.slow
def test_two_trials_for_real(tmp_path, monkeypatch):
    shared = {"load": "bursty", "call": "30us", "delta": 0.05, "seed": 0}
    pair = [TrialSpec(tool=tool, **shared) for tool in ("ours", "ttest")]
    monkeypatch.setattr(schedule, "schedule", lambda size, chosen: pair)
    monkeypatch.setitem(schedule.BUDGET_S, "bursty", 0.5)
    frame.run(EXPERIMENT, EXPERIMENT.options({}, out=tmp_path), progress=lambda *step: None)
    lines = TrialFile(tmp_path / "latency.jsonl").read()
    assert [line["key"] for line in lines] == [spec.key for spec in pair]
    assert lines[0]["said"]["ours"] in ("faster", "slower", "equivalent", "undecided")
    assert {"mde", "clock", "blocks", "doubts", "low", "high"} <= set(lines[0])
    assert EXPERIMENT.figures(lines)
    assert all(path.stat().st_size > 0 for path in EXPERIMENT.plots(lines, tmp_path))
