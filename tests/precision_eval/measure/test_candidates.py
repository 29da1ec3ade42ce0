"""What cannot be timed is said by name, and no figure is invented."""

import functools
import gc
import itertools
import time

import numpy as np
import pytest
import torch

from precision_eval.core.errors import CandidateError, ParameterError, UnsupportedError
from precision_eval.measure import timers
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.candidates import check_candidate, check_resolvable
from precision_eval.measure.latency import compare_latency
from precision_eval.measure.timers import CudaTimer, HostTimer, graph_replay, timer_for


def judged(bad, **options):
    return compare_latency({"good": lambda: sum(range(1000)), "bad": bad}, baseline="good", budget_s=0.01, **options)


def raising():
    raise ValueError("boom")


def growing():
    seen = []

    def call():
        seen.append(1)
        return np.zeros(len(seen))

    return call


def mutating_closure():
    x = torch.zeros(3)

    def call():
        x.add_(1)
        return torch.ones(1)

    return call


def mutating_partial():
    return functools.partial(lambda array: array.sort() or array.sum(), np.array([3.0, 1.0, 2.0]))


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (raising, "candidate 'bad' raises: ValueError: boom"),
        (lambda: None, "candidate 'bad' returns nothing"),
        (growing(), "candidate 'bad' is not repeatable"),
        (lambda: torch.rand(4), "candidate 'bad' is not repeatable"),
        (functools.partial(next, itertools.count()), "candidate 'bad' is not repeatable"),
        (mutating_closure(), r"candidate 'bad' changes its input: variable 'x', torch.float32 of shape \(3,\)"),
        (mutating_partial(), r"candidate 'bad' changes its input: argument 0, float64 of shape \(3,\)"),
        (lambda: 1, r"candidate 'bad' runs in .* µs, the wall clock resolves .* µs; repeat the work"),
    ],
)
def test_said_by_name(bad, match):
    with pytest.raises(CandidateError, match=match):
        judged(bad)


@pytest.mark.parametrize(
    "good",
    [
        lambda: [torch.full((3,), torch.nan), {"a": 2.0}, "text"],
        lambda: (torch.ones(2, dtype=torch.bfloat16), np.arange(3)),
        lambda: torch.ones(2, dtype=torch.complex64),
        lambda: object(),
        lambda: np.zeros(0),
    ],
)
def test_repeatable_outputs(good):
    calls = []
    check_candidate("good", Candidate(lambda: (calls.append(0), good())[1]))
    assert len(calls) == 2


def test_last_bits_may_differ_but_no_more():
    steps = itertools.cycle([1.0, 1.0 + 1e-6])
    check_candidate("atomic", Candidate(lambda: np.array([next(steps)])))
    steps = itertools.cycle([1.0, 1.01])
    with pytest.raises(CandidateError, match="not repeatable"):
        check_candidate("off", Candidate(lambda: np.array([next(steps)])))


@pytest.mark.parametrize("calls", [3, 20])
def test_host_timer(calls):
    states = []
    reading = HostTimer()(lambda: states.append(gc.isenabled()), calls)
    assert reading["wall"].shape == (calls,)
    assert reading["cpu"].shape == (3 if calls == 3 else 1,)
    assert (reading["wall"] >= 0).all()
    assert not any(states)
    assert gc.isenabled()


def test_timers_by_device():
    assert timer_for("cpu").clocks == ("wall", "cpu")
    with pytest.raises(ParameterError, match="no timer for device 'tpu'"):
        timer_for("tpu")
    with pytest.raises(UnsupportedError, match="graph replay needs a CUDA device, found cpu"):
        graph_replay(lambda: None, device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match="sees no CUDA device"):
            CudaTimer("cuda:0", cache="warm")


@pytest.mark.cuda
@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_cuda_timer(cache):
    small, large = torch.zeros(10, device="cuda"), torch.zeros(100_000_000, device="cuda")
    timer = CudaTimer("cuda:0", cache=cache)
    timer(large.zero_, 3)
    (clock,) = timer.clocks
    assert clock == f"cuda-{cache}"
    assert np.median(timer(large.zero_, 9)[clock]) > 3 * np.median(timer(small.zero_, 9)[clock])


@pytest.mark.parametrize(("launch_s", "work_s"), [(0.004, 0.001), (0.001, 0.004)])
def test_share_of_launching_by_hand(monkeypatch, launch_s, work_s):
    """A device that works off a queue while the host fills it; time passes only as it says."""
    now = {"host": 0.0, "device": 0.0}

    def call():
        now["host"] += launch_s
        now["device"] = max(now["device"], now["host"]) + work_s

    def synchronize():
        now["host"] = max(now["host"], now["device"])

    monkeypatch.setattr(timers.time, "perf_counter_ns", lambda: now["host"] * 1e9)
    whole_s = launch_s + 9 * max(launch_s, work_s) + work_s
    assert timers.launching_share(call, synchronize, 10) == pytest.approx(10 * launch_s / whole_s)


@pytest.mark.cuda
def test_short_kernels_are_launch_bound_and_a_large_product_is_not():
    small, large = torch.ones(8, device="cuda"), torch.ones(4096, 4096, device="cuda")
    calls = {"small": lambda: (small + 1).exp().sin() * 2, "again": lambda: (small + 2).exp().sin() * 2}
    found = compare_latency(calls, baseline="small", budget_s=0.3, device="cuda")
    assert any(doubt.startswith("launch-bound: the host took") for doubt in found["again"].doubts)
    calls = {"large": lambda: large @ large, "again": lambda: large @ large}
    found = compare_latency(calls, baseline="large", budget_s=0.3, device="cuda")
    assert not any(doubt.startswith("launch-bound") for doubt in found["again"].doubts)


@pytest.mark.cuda
def test_graph_replay():
    x = torch.ones(1000, device="cuda")
    replay = graph_replay(lambda: x * 2, device="cuda")
    assert torch.equal(replay(), x * 2)


class TestWhatTheClockResolves:
    """A long call is settled by two calls; a short one by nine, however long its first one took."""

    def test_two_calls_settle_a_long_one(self):
        made = []
        check_resolvable("long", Candidate(lambda: made.append(time.sleep(0.02))), HostTimer())
        assert len(made) == 2

    def test_a_slow_first_call_hides_no_short_one(self):
        made = []

        def call():
            if not made:
                time.sleep(0.05)
            made.append(1)

        with pytest.raises(CandidateError, match="repeat the work inside the call"):
            check_resolvable("short", Candidate(call), HostTimer())
        assert len(made) == 11
