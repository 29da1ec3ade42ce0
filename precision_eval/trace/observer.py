"""What every observation of a call is made of: one mode that looks inside operations, one registry of tensors, module
calls, and one call under torch's profiler.

:mod:`.capture` and :mod:`.cast_replay` look inside single operations; :mod:`.dtype_flow` and :mod:`.replay` follow the
calls of torch's Python interface. None changes a result, but for what a replay rounds, and nothing here runs while
timing. The profiler's C++ side prints a line to stderr whenever it starts or stops; those lines are held
back, and everything else that was written meanwhile is passed on.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import autograd, nn
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from precision_eval.fixes.late_dynamo import dispatching_without
from precision_eval.trace.operations import backends_of

V = TypeVar("V")


class TensorMap(Generic[V]):
    """Values by tensor, by identity. Holds no tensor: an entry whose tensor is gone is not found."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], V]] = {}

    def __setitem__(self, tensor: torch.Tensor, value: V) -> None:
        self._entries[id(tensor)] = (weakref.ref(tensor), value)

    def get(self, tensor: torch.Tensor) -> V | None:
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None


@dispatching_without
class InsideOperation(TorchDispatchMode):
    """Looks inside single operations: which kernels attention reached, and what was cast on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: set[str] = set()
        self.cast_to: TensorMap[torch.dtype] = TensorMap()
        self.notes_casts = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten._to_copy.default:
            self.kernels |= backends_of(func)
        elif self.notes_casts:
            self.cast_to[args[0]] = result.dtype
        return result


def backend_name(kernels: set[str] | frozenset[str], *, attention: bool = True) -> str:
    """Name the backend; attention that reached no fused kernel, but a softmax, ran as plain matrix products."""
    fused = "+".join(sorted(kernels - {"softmax"}))
    return fused or ("math" if attention and "softmax" in kernels else "unknown")


@dataclass(eq=False, slots=True)
class ModuleCall:
    module: nn.Module
    path: str


class ModuleCalls:
    """The modules that are being called, the innermost last."""

    def __init__(self, paths: dict[int, str]) -> None:
        self.paths = paths  # by identity
        self.stack: list[ModuleCall] = []

    @property
    def current(self) -> ModuleCall | None:
        return self.stack[-1] if self.stack else None

    def called(self, module: nn.Module) -> ModuleCall:
        path = self.paths.get(id(module))
        return ModuleCall(module, type(module).__name__ if path is None else path)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow every module for the time of a block; any global hook would send each call on torch's longer way."""
        original, stack = nn.Module._call_impl, self.stack

        def followed_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            stack.append(self.called(module))
            try:
                return original(module, *args, **kwargs)
            finally:
                stack.pop()

        nn.Module._call_impl = followed_call  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            nn.Module._call_impl = original  # type: ignore[method-assign]


# The third is of a CUDA build of torch on a machine without a GPU, whenever a profile ends; the last of a call that
# frees what was there before it, such as gradients.
_OWN_LINES = re.compile(rb"USDT:|STAGE:|ERROR:.*gpuGetDeviceCount failed|\[W.*Memory block of unknown size")


@contextmanager
def profilers_lines_held_back() -> Iterator[None]:
    """Hold back what the profiler prints to stderr; pass on everything else afterwards."""
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
                if not _OWN_LINES.match(line):
                    os.write(2, line)


@dataclass(frozen=True)
class Profiled:
    operations: tuple[str, ...]
    cpu_allocations: tuple[int, ...]
    output: Any


@contextmanager
def profiling(**options: Any) -> Iterator[profile]:
    """Run a block under torch's profiler, which says nothing itself."""
    profiler = profile(**options)
    with profilers_lines_held_back(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")  # of several cycles; there is one
        profiler.start()
    try:
        yield profiler
    finally:
        with profilers_lines_held_back():
            profiler.stop()


def profiled(call: Callable[..., Any], inputs: tuple[Any, ...], *, memory: bool) -> Profiled:
    """Run a call once under the profiler, the part of it that imports no compiler. Never while timing."""
    profiler = autograd.profiler.profile(profile_memory=memory)
    with profilers_lines_held_back() if memory else nullcontext():
        with profilers_lines_held_back():
            profiler.__enter__()
        try:
            output = call(*inputs)
        finally:
            with profilers_lines_held_back():
                profiler.__exit__(None, None, None)
    results = profiler.kineto_results
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
