"""One call under torch's profiler: the operations that ran and what the allocator did, eager or compiled.

The profiler's C++ side prints a line to the process's stderr whenever it starts or stops; those lines are held back
here, and everything else that was written meanwhile is passed on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

_OWN_LINES = (b"USDT:", b"STAGE:")


@contextmanager
def _profilers_lines_held_back() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            for line in held.read().splitlines(keepends=True):
                if not line.startswith(_OWN_LINES):
                    os.write(2, line)


@dataclass(frozen=True)
class Profiled:
    """What one call did.

    Attributes
    ----------
    operations : tuple of str
        Names as the dispatcher has them (``aten::bmm``), in order of start.
    cpu_allocations : tuple of int
        Bytes asked of the CPU allocator (positive) and given back (negative), in order of time.
    output : object
        What the call returned.
    """

    operations: tuple[str, ...]
    cpu_allocations: tuple[int, ...]
    output: Any


def profiled(call: Callable[..., Any], inputs: tuple[Any, ...], *, memory: bool) -> Profiled:
    """Run a call once under the profiler. Never while timing.

    Parameters
    ----------
    call : callable
    inputs : tuple
    memory : bool
        Take the allocator's events too.

    Returns
    -------
    Profiled
    """
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=memory)
    with _profilers_lines_held_back():
        profiler.start()
    try:
        output = call(*inputs)
    finally:
        with _profilers_lines_held_back():
            profiler.stop()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    events: list[Any] = sorted(results.events(), key=lambda e: e.start_ns())
    allocations = tuple(e.nbytes() for e in events if e.name() == "[memory]" and e.device_type().name == "CPU")
    return Profiled(tuple(e.name() for e in events if e.name() != "[memory]"), allocations, output)
