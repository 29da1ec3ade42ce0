"""Clocks for short calls: how one block of calls becomes seconds per call.

Conventions: a timer is called as ``timer(call, n)`` and returns a :class:`Reading`: per clock the samples of n calls,
in seconds, in order. Nothing but the call runs between the two readings of a wall-clock sample. Garbage collection is
off while a block is timed. No torch is imported here unless a device timer is made.

On the host two clocks run side by side. The *wall* clock is what a user waits for; where another process takes the
processor away in the middle of a call, it says nothing about the call. The *cpu* clock (processor time of this process)
is silent meanwhile. Which one a figure rests on is decided from the samples, see
:func:`precision_eval.measure.blocks.judged_clock`.

Contents
--------
:class:`Reading`, :class:`HostTimer`, :func:`cpu_reading_s`, :class:`CudaTimer` (``cache="warm"`` or ``"cold"``),
:class:`SynchronizedTimer`, :func:`timer_for`, :func:`graph_replay`.
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

from precision_eval.errors import ParameterError, UnsupportedError

Cache = Literal["warm", "cold"]

CPU_PER_CALL_UP_TO = 8
"""Blocks of so few calls read the processor time around each call; it costs a system call, so others read it once."""


@dataclass(frozen=True)
class Reading:
    """One block.

    Attributes
    ----------
    samples_s : mapping of str to np.ndarray
        Per clock, seconds per call; one sample per call, or a single mean over the block.
    preemptions : int
        How often the system took the processor away in this block; 0 where the clock cannot tell.
    waits : int
        How often the process gave the processor up by itself: it slept, or waited for a lock, a device or a page.
    other_threads_fraction : float
        Share of the block's processor time that threads other than the calling one took.
    """

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
    """Times on the host with the wall clock and, beside it, the processor time of this process.

    The processor time counts every thread of the process, so it compares candidates of equal thread number only.

    Parameters
    ----------
    clocks : tuple of {"wall", "cpu"}
        Clocks to report, the preferred one first.
    cpu_per_call : bool
        Read the processor time around each call where a block holds few of them; otherwise once per block.
    """

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
    """Processor time that one pair of readings takes by itself, in seconds: some 0.6 µs, as it is a system call.

    Measured once per process, on an empty call, and taken off every sample of the processor clock.
    """
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
    """Times on the device's own timeline with CUDA events, synchronising once per block.

    Parameters
    ----------
    device : str
        ``"cuda"`` or ``"cuda:i"``.
    cache : {"warm", "cold"}
        ``"warm"`` leaves the L2 cache as the previous call left it; ``"cold"`` overwrites a buffer of twice its size
        before each call, outside the timed region, so that weights and caches come from memory as in a long model.

    Raises
    ------
    UnsupportedError
        There is no such CUDA device.
    """

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
    """Wall clock around each call and a wait for the device, for devices without comparable events (MPS).

    Parameters
    ----------
    synchronize : callable
        Waits until the device has finished what it was given.
    """

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
    """Return the timer that suits a device.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:i"`` or ``"mps"``.
    cache : {"warm", "cold"}
        State of the L2 cache before each call; CUDA only.

    Returns
    -------
    Timer
    """
    if device == "cpu":
        return HostTimer()
    if device.split(":")[0] == "cuda":
        return CudaTimer(device, cache=cache)
    if device == "mps":
        import torch

        return SynchronizedTimer(torch.mps.synchronize)
    raise ParameterError(f"no timer for device '{device}'; expected cpu, cuda, cuda:i or mps")


def graph_replay(call: Callable[[], object], *, device: str, warm_up: int = 3) -> Callable[[], object]:
    """Capture a call as a CUDA graph, so that small kernels are timed without the host's launch cost between them.

    Parameters
    ----------
    call : callable
        Runs on `device` only, with the same tensors every time; it must not synchronise.
    device : str
        A CUDA device.
    warm_up : int
        Calls on a side stream before the capture.

    Returns
    -------
    callable
        Replays the graph and returns what the captured call returned.

    Raises
    ------
    UnsupportedError
        The device is not CUDA, or the call cannot be captured.
    """
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
