"""Clocks for short calls: how one block of calls becomes seconds per call.

Conventions: a timer is called as ``timer(call, n)`` and returns n samples in seconds, in order. Nothing but the call
runs between two readings. Garbage collection is off while a block is timed. No torch is imported here unless a device
timer is made.

Contents
--------
:func:`wall_timer`, :func:`cpu_timer`, :class:`CudaTimer` (``cache="warm"`` or ``"cold"``), :func:`timer_for`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from precision_eval.errors import ParameterError, UnsupportedError

Cache = Literal["warm", "cold"]


class Timer(Protocol):
    """What every clock offers."""

    @property
    def clock(self) -> str:
        """Name of the clock, as recorded."""

    def __call__(self, call: Callable[[], object], calls: int) -> NDArray[np.float64]:
        """Time `calls` calls, one sample each, in seconds."""


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
    """Times on the host with one of Python's nanosecond clocks.

    Parameters
    ----------
    clock : {"wall", "cpu"}
        ``"wall"`` is :func:`time.perf_counter_ns`; ``"cpu"`` is :func:`time.process_time_ns`, which does not count what
        other processes take, but counts every thread of this one, so it compares candidates of equal thread number.
    """

    _CLOCKS: dict[str, Callable[[], int]] = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}  # noqa: RUF012

    def __init__(self, clock: Literal["wall", "cpu"] = "wall") -> None:
        if clock not in self._CLOCKS:
            raise ParameterError(f"clock is {clock!r}; expected 'wall' or 'cpu'")
        self.clock: str = clock

    def __call__(self, call: Callable[[], object], calls: int) -> NDArray[np.float64]:
        """Time `calls` calls, one sample each, in seconds."""
        now = self._CLOCKS[self.clock]
        stamps_ns = np.empty((calls, 2), dtype=np.int64)
        with collector_off():
            for index in range(calls):
                start_ns = now()
                call()
                stamps_ns[index] = start_ns, now()
        return np.asarray((stamps_ns[:, 1] - stamps_ns[:, 0]) * 1e-9)


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
        self.clock: str = f"cuda-{cache}"
        self._cuda: Any = torch.cuda
        self._device = torch.device(device)
        self._flush: Any = None
        if cache == "cold":
            l2_bytes = int(torch.cuda.get_device_properties(self._device).L2_cache_size)
            self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=self._device)

    def __call__(self, call: Callable[[], object], calls: int) -> NDArray[np.float64]:
        """Time `calls` calls, one sample each, in seconds."""
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
        return np.array([start.elapsed_time(end) * 1e-3 for start, end in zip(starts, ends, strict=True)])


class SynchronizedTimer(HostTimer):
    """Wall clock around each call and a wait for the device, for devices without comparable events (MPS).

    Parameters
    ----------
    synchronize : callable
        Waits until the device has finished what it was given.
    """

    def __init__(self, synchronize: Callable[[], object]) -> None:
        super().__init__("wall")
        self.clock = "wall-synchronized"
        self._synchronize = synchronize

    def __call__(self, call: Callable[[], object], calls: int) -> NDArray[np.float64]:
        """Time `calls` calls, one sample each, in seconds."""
        wall, synchronize = HostTimer("wall"), self._synchronize

        def finished() -> None:
            call()
            synchronize()

        synchronize()
        return wall(finished, calls)


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
        return HostTimer("wall")
    if device.split(":")[0] == "cuda":
        return CudaTimer(device, cache=cache)
    if device == "mps":
        import torch

        return SynchronizedTimer(torch.mps.synchronize)
    raise ParameterError(f"no timer for device '{device}'; expected cpu, cuda, cuda:i or mps")
