"""Memory of one call: what is allocated above the level before it, and what the model keeps in storage.

All figures are bytes. CPU: the running sum of the allocator's own events, as asked for and not rounded, so it is exact
and repeatable. Not among them, and seen only in the process's peak resident set: what a kernel takes from the system
itself (oneDNN's scratch, a compiled loop's stack), numpy's arrays, and what another Python thread allocates. CUDA: the
caching allocator's peak statistics, each tensor rounded up to 512 bytes.
"""

from __future__ import annotations

import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precision_eval.fixes.storage import storage_bytes
from precision_eval.trace.observer import profiled


@dataclass(frozen=True)
class Memory:
    allocated_peak_bytes: int
    storage_bytes: int
    rss_peak_bytes: int
    reserved_peak_bytes: int | None  # with these two, a GPU's: all that the process holds there
    allocated_before_bytes: int | None


def peak_rss_bytes() -> int:
    """Highest resident set of this process so far, in bytes; the system never lowers it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024  # macOS counts bytes


def call_memory(call: Callable[..., Any], inputs: tuple[Any, ...], *, model: nn.Module, device: str) -> Memory:
    """Measure the memory of one call, after one that warms up. Never while timing."""
    call(*inputs)  # compiles, and fills whatever is filled once
    if torch.device(device).type == "cuda":
        allocated, reserved, before = cuda_peak_bytes(call, inputs, torch.device(device))
        return Memory(allocated, storage_bytes(model), peak_rss_bytes(), reserved, before)
    return Memory(cpu_allocated_peak_bytes(call, inputs), storage_bytes(model), peak_rss_bytes(), None, None)


def cpu_allocated_peak_bytes(call: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    """Highest level of the CPU allocator during a call, above the level before it."""
    return max(accumulate(profiled(call, inputs, memory=True).cpu_allocations, initial=0))


def cuda_peak_bytes(call: Callable[..., Any], inputs: tuple[Any, ...], device: torch.device) -> tuple[int, int, int]:
    """Return what a call allocates at its peak, what CUDA's caching allocator has reserved then, and the level before.

    Unused memory is handed back to the driver before.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    output = call(*inputs)
    torch.cuda.synchronize(device)
    peaks = torch.cuda.max_memory_allocated(device) - before, torch.cuda.max_memory_reserved(device)
    del output
    return *peaks, before
