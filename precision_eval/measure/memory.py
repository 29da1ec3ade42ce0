"""Memory of one call: what is allocated above the level before it, and what the model keeps in storage.

All figures are bytes. CPU: the running sum of the allocator's own events, as asked for and not rounded, so it is exact
and repeatable. Not among them, and seen only in the process's peak resident set: what a kernel takes from the system
itself (oneDNN's scratch, a compiled loop's stack), numpy's arrays, and what another Python thread allocates. CUDA: the
caching allocator's peak statistics, each tensor rounded up to 512 bytes.

What the call gives back of the memory that was there before it is credited on CUDA, whose statistics know the level,
and not on the CPU, where a profiler only knows what was given out under it. A call that replaces a cache by a longer
one reads higher on the CPU, by at most the size of what it replaced.
"""

from __future__ import annotations

import platform
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure.profiling import profiled


@dataclass(frozen=True)
class Memory:
    """Memory of one call.

    Attributes
    ----------
    allocated_peak_bytes : int
        Highest level of allocated memory during the call, above the level before it.
    storage_bytes : int
        Parameters and buffers (weights, KV caches) in the storage dtype in force, each storage once.
    rss_peak_bytes : int
        Highest resident set of this process so far; means something in a worker that ran nothing else.
    reserved_peak_bytes : int or None
        CUDA: highest level that the caching allocator held from the driver during the call. ``None`` on the CPU.
    """

    allocated_peak_bytes: int
    storage_bytes: int
    rss_peak_bytes: int
    reserved_peak_bytes: int | None

    def to_dict(self) -> dict[str, int | None]:
        """Plain data for a record."""
        return asdict(self)


def peak_rss_bytes() -> int:
    """Highest resident set of this process so far, in bytes; the system never lowers it.

    Linux's ``ru_maxrss`` starts at the size of the process that forked this one, so there it is read from ``VmHWM``.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024  # macOS counts bytes


def call_memory(call: Callable[..., Any], inputs: tuple[Any, ...], *, model: nn.Module, device: str) -> Memory:
    """Measure the memory of one call, after one that warms up. Never while timing.

    Parameters
    ----------
    call : callable
        Such as an :class:`~precision_eval.fixes.apply.AppliedFix` in force.
    inputs : tuple
        As prepared; they are part of the level before.
    model : torch.nn.Module
        Whose storage is counted, as it is held now.
    device : str
        ``"cpu"`` or a CUDA device.

    Returns
    -------
    Memory
    """
    call(*inputs)  # compiles, and fills whatever is filled once
    if torch.device(device).type == "cuda":
        allocated, reserved = cuda_peak_bytes(call, inputs, torch.device(device))
    else:
        allocated, reserved = cpu_allocated_peak_bytes(call, inputs), None
    return Memory(allocated, storage_bytes(model), peak_rss_bytes(), reserved)


def cpu_allocated_peak_bytes(call: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    """Highest level of the CPU allocator during a call, above the level before it.

    Parameters
    ----------
    call : callable
    inputs : tuple

    Returns
    -------
    int
        Most bytes alive at once of those that the call itself asked for; the output is included. What it gives back
        of the memory that was there before is not credited, whatever ran under a profiler earlier.
    """
    return max(accumulate(profiled(call, inputs, memory=True).cpu_allocations, initial=0))


def cuda_peak_bytes(call: Callable[..., Any], inputs: tuple[Any, ...], device: torch.device) -> tuple[int, int]:
    """Peaks of CUDA's caching allocator during a call, unused memory handed back to the driver before.

    Parameters
    ----------
    call : callable
    inputs : tuple
    device : torch.device

    Returns
    -------
    allocated : int
        Highest level above the level before, each tensor rounded up to 512 bytes.
    reserved : int
        Highest level held from the driver, in segments of at least 2 MiB; what was held before is part of it.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    output = call(*inputs)
    torch.cuda.synchronize(device)
    peaks = torch.cuda.max_memory_allocated(device) - before, torch.cuda.max_memory_reserved(device)
    del output
    return peaks
