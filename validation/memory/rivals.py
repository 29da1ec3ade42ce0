"""What other tools read for the memory of a call, by the tool's own code, in a fresh process where that matters.

All in bytes; a tool that is not installed reads ``None``. The call is built from its key, so that it can run in a
worker that has done nothing else. In the tool's favor, the process's own share is taken off a figure, as no user could.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch

from precision_eval.trace.observer import profilers_lines_held_back
from validation.memory.calls import KnownCall, build, with_more


def _asv(known: KnownCall) -> int | None:
    """Return asv's ``peakmem``: the process's peak resident set, less what it was just before."""
    try:
        benchmark = importlib.import_module("asv_runner.benchmarks.peakmem").PeakMemBenchmark
    except ImportError:
        return None
    empty = benchmark("peakmem_nothing", lambda: None, [])
    full = benchmark("peakmem_call", lambda: known.call(*known.inputs), [])
    before: int = empty.run()
    return int(full.run()) - before


def _torch_profiler(known: KnownCall) -> int | None:
    """Return the sum of the column *Self CPU Mem* in the table of torch's profiler, the output held until its end."""
    from torch.profiler import ProfilerActivity, profile

    with profilers_lines_held_back(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        output = known.call(*known.inputs)
    del output
    return int(sum(row.self_cpu_memory_usage for row in profiler.key_averages()))


RIVALS: dict[str, Callable[[KnownCall], int | None]] = {"asv peakmem": _asv, "torch.profiler table": _torch_profiler}
# The figure of these does not depend on what the process did before; starting the profiler anew takes seconds.
ANY_PROCESS = ("torch.profiler table",)
# What a fork server imports, so that a worker starts in no time.
PRELOAD = ("torch", "torch._dynamo", "validation.memory.rivals", "asv_runner.benchmarks.peakmem")


def rival_bytes(rival: str, key: str, *, more: float = 0.0) -> int | None:
    known = build(key)
    if more:
        known = with_more(known, fraction=more)
    torch.set_num_threads(known.threads)
    torch.ones(1000).clone().sum()  # a forked process copies pages at its first operation, whichever it is
    with torch.no_grad():
        return RIVALS[rival](known)
