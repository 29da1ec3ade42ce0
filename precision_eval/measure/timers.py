"""Clocks for short calls: how one block of calls becomes seconds per call.

Conventions: a timer is called as ``timer(call, n)`` and returns, per clock, the samples of n calls, in seconds,
in order. Nothing but the call runs between the two readings of a wall-clock sample. Garbage collection is
off while blocks are timed. No torch is imported here unless a device timer is made.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.errors import ParameterError, UnsupportedError

Cache = Literal["warm", "cold"]

# Rounds of many short calls are counted (preemptions, page faults, threads) once in so many, others always.
COUNTED_EVERY = 4

# Blocks of so few calls read the processor time around each call; it costs a system call, so others read it once.
CPU_PER_CALL_UP_TO = 8

# Seconds of each call of a block, by clock.
Samples = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Blocks:
    """Several blocks of one candidate, in order; counters are of those that were counted alone."""

    times_s: Mapping[str, NDArray[np.float64]]
    preemptions: NDArray[np.int64]
    waits: NDArray[np.int64]
    other_threads: NDArray[np.float64]
    page_faults: NDArray[np.float64]  # per call; NaN where nothing counts them


def blocks_of(readings: Sequence[Samples]) -> Blocks:
    """Take the median over each block's samples, of a timer that counts nothing."""
    nothing = np.zeros(len(readings), dtype=np.int64)
    medians = {clock: np.array([float(np.median(read[clock])) for read in readings]) for clock in readings[0]}
    return Blocks(medians, nothing, nothing, np.zeros(len(readings)), np.full(len(readings), np.nan))


class Timer(Protocol):
    """What every timer offers."""

    @property
    def clocks(self) -> tuple[str, ...]:
        """Names of the clocks, as recorded; the first is the one to rest on where nothing speaks against it."""

    def __call__(self, call: Callable[[], object], calls: int) -> Samples: ...


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


class RawBlock(NamedTuple):
    """What the host's clocks read around one block of calls; usage is None where nothing was counted."""

    wall_ns: list[int]
    cpu_ns: list[int] | None
    process_ns: int
    thread_ns: int = 0
    before: Any = None  # resource.struct_rusage
    after: Any = None


class HostTimer:
    """Times on the host with the wall clock and the processor time of this process."""

    clocks: tuple[str, ...] = ("wall", "cpu")

    def __init__(self, *, cpu_per_call: bool = True, in_pairs: bool = False) -> None:
        self.cpu_per_call = cpu_per_call
        self.in_pairs = in_pairs

    def __call__(self, call: Callable[[], object], calls: int) -> Samples:
        with collector_off():
            raw = [self.raw(call, calls)]
        return {clock: samples_s[0] for clock, samples_s in self._samples_s(raw).items()}

    def raw(self, call: Callable[[], object], calls: int) -> RawBlock:
        """Time `calls` calls, with counts, and return what was read; evaluating it takes longer than reading."""
        before, thread_ns = resource.getrusage(resource.RUSAGE_SELF), time.thread_time_ns()
        raw = self.raw_times(call, calls)
        thread_ns = time.thread_time_ns() - thread_ns
        return raw._replace(thread_ns=thread_ns, before=before, after=resource.getrusage(resource.RUSAGE_SELF))

    def raw_times(self, call: Callable[[], object], calls: int) -> RawBlock:
        """Time `calls` calls and count nothing: two system calls a block in place of six."""
        start_ns = time.process_time_ns()
        if self.cpu_per_call and calls <= CPU_PER_CALL_UP_TO:
            wall_ns, cpu_ns = _both(call, calls)
        else:
            wall_ns, cpu_ns = _wall(call, calls), None
        return RawBlock(wall_ns, cpu_ns, time.process_time_ns() - start_ns)

    def blocks(self, raw: Sequence[RawBlock]) -> Blocks:
        """Evaluate blocks of one candidate, all with the same number of calls."""
        counted = [block for block in raw if block.after is not None]
        process_ns = np.array([block.process_ns for block in counted], dtype=np.float64)
        thread_ns = np.array([block.thread_ns for block in counted], dtype=np.float64)
        return Blocks(
            {clock: np.median(samples_s, axis=1) for clock, samples_s in self._samples_s(raw).items()},
            np.array([block.after.ru_nivcsw - block.before.ru_nivcsw for block in counted]),
            np.array([block.after.ru_nvcsw - block.before.ru_nvcsw for block in counted]),
            np.where(process_ns > 0.0, np.maximum(0.0, 1.0 - thread_ns / np.maximum(process_ns, 1.0)), 0.0),
            np.array([(block.after.ru_minflt - block.before.ru_minflt) / len(block.wall_ns) for block in counted]),
        )

    def _samples_s(self, raw: Sequence[RawBlock]) -> dict[str, NDArray[np.float64]]:
        """Seconds per call on each clock, (blocks, calls); (blocks, 1) where a block was read as a whole.

        Where calls are taken in pairs, the mean of each two calls that follow each other is one sample.
        """
        samples_s = {"wall": np.array([block.wall_ns for block in raw], dtype=np.float64) * 1e-9}
        if raw[0].cpu_ns is None:
            samples_s["cpu"] = np.array([[block.process_ns / len(block.wall_ns)] for block in raw]) * 1e-9
        else:
            samples_s["cpu"] = np.array([block.cpu_ns for block in raw], dtype=np.float64) * 1e-9 - cpu_reading_s()
        return {clock: _pair_means(of_clock) for clock, of_clock in samples_s.items()} if self.in_pairs else samples_s


def _pair_means(samples_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of each two calls that follow each other; of a block read as a whole, as it is."""
    return samples_s if samples_s.shape[1] == 1 else (samples_s[:, 1:] + samples_s[:, :-1]) / 2.0


@cache
def cpu_reading_s() -> float:
    """Processor time that one pair of readings takes by itself, in seconds: some 0.6 µs, as it is a system call."""
    with collector_off():
        return float(np.median(_both(lambda: None, 300)[1])) * 1e-9


def _wall(call: Callable[[], object], calls: int) -> list[int]:
    """Nanoseconds of each call. Of groups of calls it took 2 % less, and intervals were half as wide again."""
    now, samples = time.perf_counter_ns, [0] * calls  # a list that grows does so between two calls
    for index in range(calls):
        start_ns = now()
        call()
        samples[index] = now() - start_ns
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


# Cycles for which the device waits, per call and at most, while the host queues a block of graphs: 20 µs and 10 ms at
# 2 GHz. A replay takes the host some 10 µs with its two events.
_HELD_CYCLES, _MOST_HELD_CYCLES = 40_000, 20_000_000
_HELD_CYCLES_COMPILED = 200_000  # 100 µs: guards and the compiler's own replay; not seen on a card


def check_cuda(device: str) -> None:
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError(f"device {device} is not there: this torch sees no CUDA device")


class CudaTimer:
    """Times on the device's own timeline with CUDA events, synchronising once per block.

    Of a graph's replays the host queues a block while the device waits, so that no time of the host is between them;
    so it does of compiled calls that replay `compiled_graphs` of their own.
    """

    def __init__(self, device: str, *, cache: Cache, graph: bool = False, compiled_graphs: bool = False) -> None:
        import torch

        if cache not in ("warm", "cold"):
            raise ParameterError(f"cache is {cache!r}; expected 'warm' or 'cold'")
        check_cuda(device)
        kind = "graph-" if graph else "tree-" if compiled_graphs else ""  # the compiler keeps its graphs in a tree
        self.clocks: tuple[str, ...] = (f"cuda-{kind}{cache}",)
        self.times_launches = not kind
        self._held_cycles = _HELD_CYCLES_COMPILED if compiled_graphs else _HELD_CYCLES
        self._cuda: Any = torch.cuda
        self._device = torch.device(device)
        self._flush: Any = None
        if cache == "cold":
            l2_bytes = int(torch.cuda.get_device_properties(self._device).L2_cache_size)
            self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=self._device)

    def __call__(self, call: Callable[[], object], calls: int) -> Samples:
        with self._cuda.device(self._device), collector_off():
            starts = [self._cuda.Event(enable_timing=True) for _ in range(calls)]
            ends = [self._cuda.Event(enable_timing=True) for _ in range(calls)]
            self._cuda.synchronize(self._device)
            if not self.times_launches:  # else the gaps between short replays are the host's
                self._cuda._sleep(min(_MOST_HELD_CYCLES, calls * self._held_cycles))
            for start, end in zip(starts, ends, strict=True):
                if self._flush is not None:
                    self._flush.zero_()
                start.record()
                call()
                end.record()
            self._cuda.synchronize(self._device)
        samples = np.array([start.elapsed_time(end) * 1e-3 for start, end in zip(starts, ends, strict=True)])
        return {self.clocks[0]: samples}

    def launching_share(self, call: Callable[[], object], calls: int) -> float:
        with self._cuda.device(self._device):
            return launching_share(call, lambda: self._cuda.synchronize(self._device), calls)


def launching_share(call: Callable[[], object], synchronize: Callable[[], object], calls: int) -> float:
    """Share of the time of some calls in a row that the host takes to launch them, in (0, 1].

    Near 1 the device waits for the host, and a time between two events on the device is the host's.
    """
    call()
    synchronize()
    with collector_off():
        start_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        launched_ns = time.perf_counter_ns()
        synchronize()
        return (launched_ns - start_ns) / (time.perf_counter_ns() - start_ns)


class SynchronizedTimer:
    """Wall clock around each call and a wait for the device, for devices without comparable events (MPS)."""

    def __init__(self, synchronize: Callable[[], object]) -> None:
        self.clocks: tuple[str, ...] = ("wall-synchronized",)
        self._synchronize = synchronize

    def __call__(self, call: Callable[[], object], calls: int) -> Samples:
        synchronize = self._synchronize

        def call_and_wait() -> None:
            call()
            synchronize()

        synchronize()
        with collector_off():
            samples_ns = _wall(call_and_wait, calls)
        return {self.clocks[0]: np.asarray(samples_ns, dtype=np.float64) * 1e-9}


class LaunchedTimer(SynchronizedTimer):
    """Wall clock of calls launched from Python, each to the end of its work on a CUDA device."""

    def __init__(self, device: str) -> None:
        import torch

        check_cuda(device)
        super().__init__(partial(torch.cuda.synchronize, device))
        self.clocks = ("launched",)
        self.times_launches = True

    def launching_share(self, call: Callable[[], object], calls: int) -> float:
        return launching_share(call, self._synchronize, calls)


def timer_for(device: str, *, cache: Cache = "warm") -> Timer:
    if device == "cpu":
        return HostTimer()
    if device.split(":")[0] == "cuda":
        return CudaTimer(device, cache=cache)
    if device == "mps":
        import torch

        return SynchronizedTimer(torch.mps.synchronize)
    raise ParameterError(f"no timer for device '{device}'; expected cpu, cuda, cuda:i or mps")
