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
from precision_eval.measure.candidates import bits_checksum, check_candidate, check_resolvable, same_bits
from precision_eval.measure.graphs import CudaDevice, capture_candidate
from precision_eval.measure.latency import compare_latency
from precision_eval.measure.timers import CudaTimer, HostTimer, timer_for


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
        judged(lambda: torch.ones(3), graph=True)
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match=r"^device cuda:0 is not there: this torch sees no CUDA device$"):
            CudaTimer("cuda:0", cache="warm")
        with pytest.raises(UnsupportedError, match=r"^device cuda:0 is not there: this torch sees no CUDA device$"):
            judged(lambda: torch.ones(3), graph=True, device="cuda:0")


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
    graph = capture_candidate("double", Candidate(lambda: x * 2), CudaDevice("cuda"))
    assert torch.equal(graph.candidate.call(), x * 2)
    x.add_(1)
    assert torch.equal(graph.candidate.call(), torch.full_like(x, 4.0))
    assert graph.doubts == ()


@pytest.mark.cuda
def test_a_call_that_reads_a_value_back_is_timed_by_its_kernels_and_the_next_is_captured():
    x = torch.rand(2048, 2048, device="cuda")
    calls = {"plain": lambda: x @ x, "reads": lambda: (x @ x) * float(x[0, 0].item()), "again": lambda: x @ x}
    ratios = compare_latency(calls, baseline="plain", budget_s=2.0, device="cuda", graph=True)
    assert ratios["again"].clock == "cuda-graph-warm"
    assert ratios["reads"].clock == "cuda-kernels"
    assert any(
        "capture refused at tests/precision_eval/measure/test_candidates.py" in d for d in ratios["reads"].doubts
    )


@pytest.mark.cuda
def test_checking_large_inputs_takes_no_copy_to_the_host():
    large = torch.rand(1 << 28, device="cuda")
    check_candidate("warm", Candidate(lambda: large[:10] * 2))
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    check_candidate("large", Candidate(lambda: large[:10] * 2))
    assert time.perf_counter() - start_s < 0.2  # a copy of 1 GiB to pageable memory and its CRC32 take longer


class TestBitsOfATensor:
    """A checksum on the tensor's device: an integer sum of its bits, weighted by position."""

    def test_by_hand(self):
        values = torch.tensor([3, -2, 7], dtype=torch.int32)
        assert bits_checksum(values) == 1 * 3 + 3 * -2 + 5 * 7
        assert bits_checksum(torch.tensor([1.0])) == 0x3F800000
        assert bits_checksum(torch.zeros(0)) == 0

    @pytest.mark.parametrize(
        "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool, torch.int8]
    )
    def test_slices_add_up_and_any_change_or_swap_is_seen(self, dtype):
        values = (torch.arange(35) % 7 > 3).to(dtype).reshape(5, 7)
        whole = bits_checksum(values)
        assert bits_checksum(values, slice_bytes=32) == whole
        assert bits_checksum(values.t().contiguous().t()) == whole
        flipped = values.clone()
        flipped[2, 3] = 1 - int(values[2, 3].real)
        assert bits_checksum(flipped) != whole
        assert bits_checksum(values.flip(1)) != whole

    def test_large_bits_wrap_around(self):
        values = torch.full((1000,), torch.iinfo(torch.int64).max)
        assert isinstance(bits_checksum(values), int)

    def test_a_zero_of_another_sign_is_another_bit_and_nan_is_itself(self):
        assert bits_checksum(torch.tensor(0.0)) != bits_checksum(torch.tensor(-0.0))
        assert same_bits(torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]))
        assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))

    def test_a_tensor_on_cuda_is_summed_there(self, monkeypatch):
        class Elsewhere(torch.Tensor):
            is_cuda = True

            def cpu(self):
                raise AssertionError("copied to the host")

        x = torch.ones(3).as_subclass(Elsewhere)
        check_candidate("kept", Candidate(functools.partial(lambda x: np.ones(1), x)))
        with pytest.raises(CandidateError, match="changes its input: argument 0"):
            check_candidate("changed", Candidate(functools.partial(lambda x: (x.add_(1), np.ones(1))[1], x)))


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
