"""Clocks for short calls: how one block of calls becomes seconds per call.

Conventions: a timer is called as ``timer(call, n)`` and returns a :class:`Reading`: per clock the samples of n calls,
in seconds, in order. Nothing but the call runs between the two readings of a wall-clock sample. Garbage collection is
off while a block is timed. No torch is imported here unless a device timer is made.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.errors import ParameterError, UnsupportedError

Cache = Literal["warm", "cold"]

CPU_PER_CALL_UP_TO = 8
"""Blocks of so few calls read the processor time around each call; it costs a system call, so others read it once."""


@dataclass(frozen=True)
class Reading:
    """One block."""

    samples_s: Mapping[str, NDArray[np.float64]]
    preemptions: int = 0
    waits: int = 0
    other_threads_fraction: float = 0.0


class Timer(Protocol):
    """What every timer offers."""

    @property
    def clocks(self) -> tuple[str, ...]:
        """Names of the clocks, as recorded; the first is the one to rest on where nothing speaks against it."""

    def __call__(self, call: Callable[[], object], calls: int) -> Reading:
        """Time `calls` calls."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector from running inside a block; restore its state after it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class HostTimer:
    """Times on the host with the wall clock and, beside it, the processor time of this process."""

    def __init__(self, clocks: tuple[str, ...] = ("wall", "cpu"), *, cpu_per_call: bool = True) -> None:
        if not clocks or not set(clocks) <= {"wall", "cpu"}:
            raise ParameterError(f"clocks are {clocks!r}; expected 'wall', 'cpu' or both")
        self.clocks = clocks
        self.cpu_per_call = cpu_per_call

    def __call__(self, call: Callable[[], object], calls: int) -> Reading:
        """Time `calls` calls."""
        per_call = self.cpu_per_call and calls <= CPU_PER_CALL_UP_TO
        with collector_off():
            before, thread_ns = resource.getrusage(resource.RUSAGE_SELF), time.thread_time_ns()
            start_ns = time.process_time_ns()
            wall_ns, cpu_ns = _both(call, calls) if per_call else (_wall(call, calls), None)
            total_ns = time.process_time_ns() - start_ns
            thread_ns = time.thread_time_ns() - thread_ns
            after = resource.getrusage(resource.RUSAGE_SELF)
        if cpu_ns is None:
            cpu = np.array([total_ns / calls * 1e-9])
        else:
            cpu = np.asarray(cpu_ns, dtype=np.float64) * 1e-9 - cpu_reading_s()
        found = {"wall": np.asarray(wall_ns, dtype=np.float64) * 1e-9, "cpu": cpu}
        return Reading(
            samples_s={clock: found[clock] for clock in self.clocks},
            preemptions=after.ru_nivcsw - before.ru_nivcsw,
            waits=after.ru_nvcsw - before.ru_nvcsw,
            other_threads_fraction=max(0.0, 1.0 - thread_ns / total_ns) if total_ns else 0.0,
        )


@cache
def cpu_reading_s() -> float:
    """Processor time that one pair of readings takes by itself, in seconds: some 0.6 µs, as it is a system call."""
    with collector_off():
        return float(np.median(_both(lambda: None, 300)[1])) * 1e-9


def _wall(call: Callable[[], object], calls: int) -> list[int]:
    now = time.perf_counter_ns
    samples = []
    for _ in range(calls):
        start_ns = now()
        call()
        samples.append(now() - start_ns)
    return samples


def _both(call: Callable[[], object], calls: int) -> tuple[list[int], list[int]]:
    """Processor time around wall time, so that reading the former does not count in the latter."""
    now, spent = time.perf_counter_ns, time.process_time_ns
    wall, cpu = [], []
    for _ in range(calls):
        cpu_start_ns = spent()
        start_ns = now()
        call()
        wall.append(now() - start_ns)
        cpu.append(spent() - cpu_start_ns)
    return wall, cpu


class CudaTimer:
    """Times on the device's own timeline with CUDA events, synchronising once per block."""

    def __init__(self, device: str, *, cache: Cache) -> None:
        import torch

        if cache not in ("warm", "cold"):
            raise ParameterError(f"cache is {cache!r}; expected 'warm' or 'cold'")
        if not torch.cuda.is_available():
            raise UnsupportedError(f"device {device} is not there: this torch sees no CUDA device")
        self.clocks: tuple[str, ...] = (f"cuda-{cache}",)
        self._cuda: Any = torch.cuda
        self._device = torch.device(device)
        self._flush: Any = None
        if cache == "cold":
            l2_bytes = int(torch.cuda.get_device_properties(self._device).L2_cache_size)
            self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=self._device)

    def __call__(self, call: Callable[[], object], calls: int) -> Reading:
        """Time `calls` calls."""
        with self._cuda.device(self._device), collector_off():
            starts = [self._cuda.Event(enable_timing=True) for _ in range(calls)]
            ends = [self._cuda.Event(enable_timing=True) for _ in range(calls)]
            self._cuda.synchronize(self._device)
            for start, end in zip(starts, ends, strict=True):
                if self._flush is not None:
                    self._flush.zero_()
                start.record()
                call()
                end.record()
            self._cuda.synchronize(self._device)
        samples = np.array([start.elapsed_time(end) * 1e-3 for start, end in zip(starts, ends, strict=True)])
        return Reading({self.clocks[0]: samples})


class SynchronizedTimer:
    """Wall clock around each call and a wait for the device, for devices without comparable events (MPS)."""

    def __init__(self, synchronize: Callable[[], object]) -> None:
        self.clocks: tuple[str, ...] = ("wall-synchronized",)
        self._synchronize = synchronize

    def __call__(self, call: Callable[[], object], calls: int) -> Reading:
        """Time `calls` calls."""
        synchronize = self._synchronize

        def finished() -> None:
            call()
            synchronize()

        synchronize()
        with collector_off():
            samples_ns = _wall(finished, calls)
        return Reading({self.clocks[0]: np.asarray(samples_ns, dtype=np.float64) * 1e-9})


def timer_for(device: str, *, cache: Cache = "warm") -> Timer:
    """Return the timer that suits a device."""
    if device == "cpu":
        return HostTimer()
    if device.split(":")[0] == "cuda":
        return CudaTimer(device, cache=cache)
    if device == "mps":
        import torch

        return SynchronizedTimer(torch.mps.synchronize)
    raise ParameterError(f"no timer for device '{device}'; expected cpu, cuda, cuda:i or mps")


def graph_replay(call: Callable[[], object], *, device: str, warm_up: int = 3) -> Callable[[], object]:
    """Capture a call as a CUDA graph, so that small kernels are timed without the host's launch cost between them."""
    import torch

    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        raise UnsupportedError(f"graph replay needs a CUDA device, found {device}")
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                output = call()
        except RuntimeError as error:
            raise UnsupportedError(f"the call cannot be captured as a CUDA graph: {error}") from error

    def replay() -> object:
        graph.replay()
        return output

    return replay
