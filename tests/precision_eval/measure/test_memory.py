import copy
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import accumulate

import msgspec
import pytest
import torch
from torch import nn

from precision_eval.cases.systems import case_by_id
from precision_eval.core.figures import MemoryFigures
from precision_eval.fixes import fix_by_id
from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure import memory
from precision_eval.measure.memory import call_memory, cpu_allocated_peak_bytes
from precision_eval.trace.observer import profiled, profilers_lines_held_back

MIB = 1 << 20


def three(size):
    """Peak by hand: a and b live together (2), a goes, c comes (2), then d with both (3 sizes)."""
    a = torch.empty(size, dtype=torch.uint8)
    b = torch.empty(size, dtype=torch.uint8)
    del a
    c = torch.empty(size, dtype=torch.uint8)
    d = torch.empty(size, dtype=torch.uint8)
    del b, c
    return d


@pytest.mark.parametrize("size", [1, 1000, MIB])
def test_tensors_of_known_size(size):
    assert cpu_allocated_peak_bytes(three, (size,)) == 3 * size


def test_what_was_there_before_does_not_count():
    held = [torch.empty(MIB, dtype=torch.uint8)]

    def free_then_take():
        held.clear()
        held.append(torch.empty(MIB // 2, dtype=torch.uint8))

    assert cpu_allocated_peak_bytes(free_then_take, ()) == MIB // 2  # neither counted nor credited


def test_what_ran_under_an_earlier_profiler_does_not_matter():
    """The allocator remembers the size of a block of an earlier profile, and reports it for the next one there."""
    first = profiled(torch.empty, (100_000,), memory=True).output
    address = first.data_ptr()
    del first
    tenants = [torch.empty(n) for n in (99_000, 99_500, 100_000, 99_900)]
    if address not in [tenant.data_ptr() for tenant in tenants]:
        pytest.skip("the system's allocator gave the address to nobody")

    def free_then_take():
        tenants.clear()
        return torch.empty(1000)

    assert cpu_allocated_peak_bytes(free_then_take, ()) == 4000


def test_the_running_sum_is_the_allocators_own():
    """Beside the total that the allocator itself keeps."""
    x = torch.randn(64, 64)

    def call():
        return ((x @ x).softmax(-1) + x.double()).half()

    own = profiled(call, (), memory=True).cpu_allocations
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with profiler:
        call()
    pending, totals = list(profiler.profiler.kineto_results.experimental_event_tree()), []
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.name == "[memory]":
            totals.append((event.extra_fields.total_allocated, event.extra_fields.alloc_size))
    before = min(total - size for total, size in totals if size > 0)
    assert max(total for total, _ in totals) - before == max(accumulate(own, initial=0)) > 0


def test_a_planted_allocation_is_seen():
    x = torch.randn(64, 64)

    def leaner():
        return x + 1

    def fatter():
        return (x.double() + 1).float()

    assert 0 <= cpu_allocated_peak_bytes(leaner, ()) - 64 * 64 * 4 <= 32  # and the scalar, wrapped
    # double copy, its sum, and the result: at most two doubles and a float at once, the copy freed after the sum
    assert cpu_allocated_peak_bytes(fatter, ()) >= 2 * 64 * 64 * 8


def test_casting_the_cache_costs_its_size_in_float32():
    built = case_by_id("attention-decode").build("metavoice", device="cpu", seed=0)
    cache = built.model.key.numel() + built.model.value.numel()
    found = {}
    for fix_id in ("query_to_half", "kv_to_query", "full_float32"):
        model = copy.deepcopy(built.model)
        with fix_by_id(fix_id).applied(model) as call:
            found[fix_id] = call_memory(call, call.prepare(built.inputs), model=model, device="cpu")
    base, cast = found["full_float32"], found["kv_to_query"]
    assert cast.allocated_peak_bytes - base.allocated_peak_bytes == 4 * cache
    assert found["query_to_half"].allocated_peak_bytes < cast.allocated_peak_bytes / 2
    mask = built.model.mask.numel()
    assert base.storage_bytes == 4 * cache + mask
    assert cast.storage_bytes == found["query_to_half"].storage_bytes == 2 * cache + mask
    assert cast.reserved_peak_bytes is None
    assert asdict(cast).keys() > {"allocated_peak_bytes", "storage_bytes", "rss_peak_bytes", "reserved_peak_bytes"}


def test_only_the_profilers_own_lines_are_held_back(capfd):
    def speak():
        torch.ones(2)
        print("from the call", file=sys.stderr, flush=True)

    profiled(speak, (), memory=True)
    assert capfd.readouterr().err.strip() == "from the call"


@pytest.mark.slow
def test_a_call_that_frees_what_was_there_before_prints_nothing():
    code = (
        "import torch; from precision_eval.trace.observer import profiled; held = [torch.ones(1000)]; "
        "profiled(held.clear, (), memory=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # told once a process
    assert not done.stderr


def test_a_cuda_build_without_a_gpu_is_no_error_and_other_errors_are_passed_on(capfd):
    with profilers_lines_held_back():
        os.write(2, b"ERROR:2026-01-01 00:00:00 1:1 DeviceProperties.cpp:50] gpuGetDeviceCount failed with code 35\n")
        os.write(2, b"ERROR: something else\n")
    assert capfd.readouterr().err == "ERROR: something else\n"


class Allocator:
    """CUDA's caching allocator: it hands out what is asked for, and reserves in pieces of 2 MiB."""

    def __init__(self, *, allocated):
        self.allocated, self.given_back = allocated, False
        self.peak = allocated

    def take(self, size):
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return self

    def plant(self, monkeypatch):
        answers = {
            "synchronize": lambda device: None,
            "empty_cache": lambda: setattr(self, "given_back", True),
            "reset_peak_memory_stats": lambda device: setattr(self, "peak", self.allocated),
            "memory_allocated": lambda device: self.allocated,
            "max_memory_allocated": lambda device: self.peak,
            "max_memory_reserved": lambda device: -(-self.peak // (2 * MIB)) * 2 * MIB,
        }
        for name, answer in answers.items():
            assert callable(getattr(torch.cuda, name))
            monkeypatch.setattr(torch.cuda, name, answer)


def test_what_a_step_reserves_is_of_its_own_fix_whatever_the_worker_keeps(monkeypatch):
    model, reserved = nn.Linear(1024, 512, bias=False), []
    assert storage_bytes(model) == 2 * MIB
    for kept in (0, 6 * MIB):
        allocator = Allocator(allocated=2 * MIB + kept)
        allocator.plant(monkeypatch)
        monkeypatch.setattr(memory, "cpu_allocated_peak_bytes", None)
        measured = call_memory(allocator.take, (MIB // 2,), model=model, device="cuda")
        figures = msgspec.convert(asdict(measured), MemoryFigures)
        assert allocator.given_back
        assert (figures.allocated_peak_bytes, figures.reserved_peak_bytes) == (MIB // 2, 4 * MIB + kept)
        reserved.append(figures.reserved_bytes)
    assert reserved == [2 * MIB + 3 * MIB // 2] * 2  # the weights, and a first call's half is among what was there
    assert MemoryFigures(allocated_peak_bytes=1, storage_bytes=1, reserved_peak_bytes=9).reserved_bytes is None


@pytest.mark.cuda
def test_cuda_peaks_of_known_size():
    model = nn.Identity().cuda()

    def take(x):
        return torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"), x

    found = call_memory(take, (torch.ones(1, device="cuda"),), model=model, device="cuda")
    assert found.allocated_peak_bytes == 8 * MIB
    assert found.reserved_peak_bytes >= 8 * MIB
