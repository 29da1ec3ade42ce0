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
def profilers_lines_held_back() -> Iterator[None]:
    """Hold back what the profiler prints to stderr when it starts or stops; pass on everything else afterwards."""
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
    """What one call did."""

    operations: tuple[str, ...]
    cpu_allocations: tuple[int, ...]
    output: Any


def profiled(call: Callable[..., Any], inputs: tuple[Any, ...], *, memory: bool) -> Profiled:
    """Run a call once under the profiler. Never while timing."""
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=memory)
    with profilers_lines_held_back():
        profiler.start()
    try:
        output = call(*inputs)
    finally:
        with profilers_lines_held_back():
            profiler.stop()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    events: list[Any] = sorted(results.events(), key=lambda e: e.start_ns())
    allocations = _own_allocations(results.experimental_event_tree()) if memory else ()
    return Profiled(tuple(e.name() for e in events if e.name() != "[memory]"), allocations, output)


def _own_allocations(tree: list[Any]) -> tuple[int, ...]:
    """Signed sizes of what was asked for and given back since the profiler started, in order of time."""
    events, pending = [], list(tree)
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.name == "[memory]" and event.extra_fields.device.type == "cpu":
            events.append(event)
    sizes: list[int] = []
    given_out: dict[int, int] = {}
    for event in sorted(events, key=lambda e: e.start_time_ns):
        address, size = event.extra_fields.ptr, event.extra_fields.alloc_size
        if size > 0:
            given_out[address] = size
            sizes.append(size)
        elif address in given_out:
            sizes.append(-given_out.pop(address))
    return tuple(sizes)
