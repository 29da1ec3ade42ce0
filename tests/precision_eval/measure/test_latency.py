"""Paired latency: interleaving, blocks, budget, doubts; a clock that we drive makes the figures exact."""

from __future__ import annotations

import contextlib
import gc
import itertools

import numpy as np
import pytest

from precision_eval.errors import ParameterError, UnsupportedError
from precision_eval.measure.latency import Candidate, collect_blocks, paired_latency
from precision_eval.measure.timers import CudaTimer, HostTimer, timer_for


class FakeTimer:
    """A clock on which each candidate's call lasts what it returns, times a slow machine-wide drift."""

    clock = "fake"

    def __init__(self, drift_per_call: float = 0.0) -> None:
        self.drift_per_call = drift_per_call
        self.calls = 0
        self.blocks: list[tuple[float, int]] = []

    def __call__(self, call, calls):
        samples = []
        for _ in range(calls):
            self.calls += 1
            samples.append(call() * (1.0 + self.drift_per_call * self.calls))
        self.blocks.append((samples[0], calls))
        return np.array(samples)


def candidates(**seconds):
    return {name: Candidate(lambda value=value: value) for name, value in seconds.items()}


def test_exact_on_a_driven_clock():
    found = paired_latency(
        candidates(base=1e-3, twice=2e-3), baseline="base", budget_s=1e-6, margin=0.002, seed=0, timer=FakeTimer()
    )
    assert found["twice"].ratio == pytest.approx(2.0)
    assert found["twice"].verdict == "worse"
    assert (found["twice"].blocks, found["twice"].calls_per_block) == (12, 3)  # 3 calls of 2 ms fill 5 ms
    assert found["base"].calls_per_block == 5
    assert (found["base"].ratio, found["base"].verdict) == (1.0, "equivalent")
    assert found["twice"].clock == "fake"


def test_drift_of_the_machine_cancels():
    timer = FakeTimer(drift_per_call=1e-3)  # 60 % slower by the end
    found = paired_latency(
        candidates(base=6e-3, more=6.6e-3),
        baseline="base",
        budget_s=1e-6,
        margin=0.01,
        seed=1,
        timer=timer,
        min_rounds=40,
    )
    assert found["more"].ratio == pytest.approx(1.1, rel=2e-3)
    assert max(found["more"].block_median_s) > 1.1 * min(found["more"].block_median_s)


def test_order_is_random_and_complete():
    samples = collect_blocks(candidates(a=1.0, b=1.0, c=1.0), budget_s=1e-9, seed=0, timer=FakeTimer(), min_rounds=60)
    assert all(sorted(order) == ["a", "b", "c"] for order in samples.order)
    assert set(samples.order) == set(itertools.permutations("abc"))
    again = collect_blocks(candidates(a=1.0, b=1.0, c=1.0), budget_s=1e-9, seed=0, timer=FakeTimer(), min_rounds=60)
    assert again.order == samples.order


def test_nothing_is_dropped():
    values = itertools.chain([1.0, 1.0], itertools.repeat(1.0, 4), [1e3], itertools.repeat(1.0))
    samples = collect_blocks({"a": Candidate(lambda: next(values))}, budget_s=1e-9, seed=0, timer=FakeTimer())
    assert len(samples.median_s["a"]) == 12
    assert max(samples.median_s["a"]) == 1e3


def test_block_context_surrounds_each_block_and_is_not_timed():
    entered = []

    @contextlib.contextmanager
    def block():
        entered.append("in")
        yield
        entered.append("out")

    def call():
        assert entered[-1] == "in"
        return 1.0

    timer = FakeTimer()
    collect_blocks({"a": Candidate(call, block)}, budget_s=1e-9, seed=0, timer=timer)
    assert entered == ["in", "out"] * len(timer.blocks)


def test_least_rounds_over_budget_is_a_doubt():
    def slow():
        deadline = HostTimer("wall")
        return deadline(lambda: sum(range(20_000)), 1)

    found = paired_latency({"base": Candidate(slow)}, baseline="base", budget_s=1e-4, margin=0.5, seed=0)
    assert found["base"].blocks == 12
    assert "over budget: 12 rounds took" in found["base"].doubts[0]


def test_null_that_is_off_is_a_doubt():
    found = paired_latency(
        candidates(base=6e-3, other=6e-3),
        baseline="base",
        budget_s=1e-9,
        margin=0.002,
        seed=0,
        timer=FakeTimer(),
        twin=Candidate(lambda: 6.6e-3),
    )
    assert any("the null is off" in doubt for doubt in found["other"].doubts)
    assert found["base"].ratio == pytest.approx(1.1)


def test_real_clock_tells_twice_the_work():
    found = paired_latency(
        {"one": Candidate(lambda: sum(range(3_000))), "two": Candidate(lambda: sum(range(6_000)))},
        baseline="one",
        budget_s=0.3,
        margin=0.002,
        seed=0,
    )
    assert 1.5 < found["two"].ratio < 2.5
    assert found["two"].verdict == "worse"


@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_host_timer(clock):
    states = []
    samples = HostTimer(clock)(lambda: states.append(gc.isenabled()), 7)
    assert samples.shape == (7,)
    assert (samples >= 0).all()
    assert not any(states)
    assert gc.isenabled()


def test_error_names_the_candidate():
    def fail():
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom") as caught:
        collect_blocks({"bad": Candidate(fail)}, budget_s=1.0, seed=0)
    assert "'bad'" in caught.value.__notes__[0]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"baseline": "c", "budget_s": 1.0}, "baseline 'c' is not a candidate; candidates: a"),
        ({"baseline": "a", "budget_s": 0.0}, "budget_s is 0"),
        ({"baseline": "a", "budget_s": float("nan")}, "budget_s is nan"),
    ],
)
def test_bad_parameters(kwargs, match):
    with pytest.raises(ParameterError, match=match):
        paired_latency(candidates(a=1.0), margin=0.002, seed=0, timer=FakeTimer(), **kwargs)


def test_timers_by_device():
    import torch

    assert timer_for("cpu").clock == "wall"
    with pytest.raises(ParameterError, match="no timer for device 'tpu'"):
        timer_for("tpu")
    with pytest.raises(ParameterError, match="clock is 'sun'"):
        HostTimer("sun")
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match="sees no CUDA device"):
            CudaTimer("cuda:0", cache="warm")


@pytest.mark.cuda
@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_cuda_timer(cache):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    small, large = torch.zeros(10, device="cuda"), torch.zeros(100_000_000, device="cuda")
    timer = CudaTimer("cuda:0", cache=cache)
    timer(large.zero_, 3)
    assert timer.clock == f"cuda-{cache}"
    assert np.median(timer(large.zero_, 9)) > 3 * np.median(timer(small.zero_, 9))
