"""The pairs of calls, the load, and the trials: their order, and how they run."""

import os
from collections import Counter
from contextlib import contextmanager
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from precision_eval.core.errors import ParameterError, PrecisionEvalError, UnknownNameError
from precision_eval.core.files import TrialFile
from validation import frame, latency
from validation.latency import EXPERIMENT, calls, load, worker
from validation.latency.calls import CALLS, call_by_name, make_pair, units_of
from validation.latency.rivals import TOOLS
from validation.latency.schedule import TrialSpec, schedule


@pytest.fixture
def counted(monkeypatch):
    """Count the units that run, in place of every unit."""
    count = SimpleNamespace(units=0)

    def unit():
        count.units += 1
        return count.units

    for name in calls._UNITS:
        monkeypatch.setitem(calls._UNITS, name, lambda seed: unit)
    return count


@pytest.mark.parametrize("spec", CALLS)
def test_the_slowdown_is_exact_in_units(counted, spec):
    for delta in spec.deltas:
        base, candidate = make_pair(spec, delta, seed=0)
        counted.units = 0
        assert (base(), counted.units) == (spec.units, spec.units)
        last = candidate()
        assert Fraction(counted.units - spec.units, spec.units) == 1 + Fraction(str(delta))
        assert last == counted.units  # the last unit's own result


def test_a_slowdown_that_is_no_whole_number_of_units_is_refused():
    with pytest.raises(ParameterError, match=r"30us with delta 0.005 would need 40.2 units"):
        units_of(call_by_name("30us"), 0.005)
    with pytest.raises(UnknownNameError, match="unknown call '31us'; did you mean 30us"):
        call_by_name("31us")


@pytest.mark.parametrize("spec", CALLS)
def test_identical_calls_are_two_functions_of_one_code_and_tensor(spec):
    base, candidate = make_pair(spec, 0.0, seed=3)
    assert base is not candidate
    assert base.__code__ is candidate.__code__
    assert torch.equal(base(), candidate())
    assert not torch.equal(base(), make_pair(spec, 0.0, seed=4)[0]())


def test_competitors_are_as_many_as_cores_and_end_with_the_block_or_with_their_parent(monkeypatch):
    with load.under_load("bursty", seed=1) as competitors:
        assert [competitor.is_alive() for competitor in competitors] == [True] * load.usable_cores()
    assert not any(competitor.is_alive() for competitor in competitors)
    parents = iter([7, 7, 1])  # killed, it leaves its children to process 1
    monkeypatch.setattr(load.os, "getppid", lambda: next(parents))
    load.compete(1, 7, SimpleNamespace(wait=lambda timeout: None))
    assert next(parents, None) is None


def test_bystanders_are_the_busy_time_that_is_not_our_own(monkeypatch):
    # 2 s of wall clock, in which the machine spent 3 s of processor and this process 1 s: others used 1 core.
    clock = SimpleNamespace(perf_counter=iter([5.0, 7.0]).__next__, process_time=iter([1.0, 2.0]).__next__)
    monkeypatch.setattr(load, "time", clock)
    monkeypatch.setattr(load, "_machine_busy_s", iter([10.0, 13.0]).__next__)
    assert load.Bystanders().cores() == pytest.approx(1.0)


def cell_of(spec):
    return spec.tool, spec.load, spec.delta


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_stopped_anywhere_every_cell_is_about_equally_far(fraction):
    full = schedule(TOOLS, equal=400, slower=120)
    ends = Counter(map(cell_of, full))
    assert len({spec.key for spec in full}) == len(full)
    assert {ends["ours", "quiet", 0.0], ends["asv", "bursty", 0.01]} == {400, 30}
    assert all(spec.delta in call_by_name(spec.call).deltas for spec in full)
    began = Counter(map(cell_of, full[: int(fraction * len(full))]))
    shares = [began[cell] / count for cell, count in ends.items()]
    assert max(shares) - min(shares) < 0.08


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


def test_run_runs_what_is_missing_under_the_right_load(monkeypatch, tmp_path):
    measured, loads = [], []

    @contextmanager
    def fake_worker():
        yield lambda spec: measured.append((loads[-1], spec)) or {"key": spec.key}

    @contextmanager
    def fake_load(name, *, seed):
        loads.append(name)
        yield ()

    monkeypatch.setattr(latency, "measuring_process", fake_worker)
    monkeypatch.setattr(latency, "under_load", fake_load)
    options = EXPERIMENT.options({}, out=tmp_path)
    quick, steps = EXPERIMENT.trials(options), []
    TrialFile(tmp_path / "latency.jsonl").append({"key": quick[5].key})
    frame.run(EXPERIMENT, options, progress=lambda *step: steps.append(step))
    assert {spec.key for _, spec in measured} == {trial.key for trial in quick} - {quick[5].key}
    assert all(under == spec.load for under, spec in measured)
    assert [done for done, _, _ in steps] == list(range(1, len(quick) + 1))
    measured.clear()
    for limit_s in (1.0, float("inf")):  # the shortest trial takes 2 s; with no limit nothing is missing
        frame.run(EXPERIMENT, options, limit_s=limit_s, progress=lambda *step: None)
        assert measured == []
