"""The load during a measurement, and how busy other processes really kept the machine.

*Quiet* adds nothing. *Bursty* runs one competitor per core that this process may use, so that the measured process
cannot escape to a free one. A competitor alternates bursts of work over 8 MiB of memory with pauses until its parent is
gone. How busy others are is counted in cores: 1.0 is one core used fully by anybody but the measured process, time
stolen by a hypervisor included.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import BrokenBarrierError
from typing import Any

from precision_eval.core.environment import usable_cores
from precision_eval.core.errors import UnsupportedError, unknown_name
from precision_eval.core.workers import context_of

LOADS = ("quiet", "bursty")
BUSY_S = (0.001, 0.040)
PAUSE_S = (0.001, 0.060)
_VALUES = 1 << 20  # float64: 8 MiB, more than a core's second-level cache, so a burst also displaces what lay there
_START_S = 120.0


@contextmanager
def under_load(load: str, *, seed: int) -> Iterator[tuple[Any, ...]]:
    """Keep a load running while the block runs; yield its processes."""
    if load not in LOADS:
        raise unknown_name("load", load, LOADS)
    cores, context = usable_cores() if load == "bursty" else 0, context_of("spawn")
    ready = context.Barrier(cores + 1)
    competitors = tuple(
        context.Process(target=compete, args=(seed * 1000 + core, os.getpid(), ready), daemon=True)
        for core in range(cores)
    )
    try:
        for competitor in competitors:
            competitor.start()
        ready.wait(_START_S)
        yield competitors
    except BrokenBarrierError as error:
        raise UnsupportedError(
            f"a competitor did not start within {_START_S:g} s; see its message above; without load there are no trials"
        ) from error
    finally:
        for competitor in competitors:
            if competitor.pid is not None:
                competitor.kill()
                competitor.join()


class Bystanders:
    """What other processes take of the machine from the making of this object on."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()
        self._own_s = time.process_time()
        self._busy_s = _machine_busy_s()

    def cores(self) -> float:
        """Return the mean number of cores in use by others since the start; ≥ 0, resolution 10 ms per core."""
        wall_s = max(time.perf_counter() - self._start_s, 1e-9)
        others_s = (_machine_busy_s() - self._busy_s) - (time.process_time() - self._own_s)
        return max(0.0, others_s / wall_s)


def _machine_busy_s() -> float:
    """Return processor seconds spent since boot, all cores, guests counted once."""
    import psutil

    times = psutil.cpu_times()._asdict()
    return float(sum(seconds for state, seconds in times.items() if state not in _NOT_BUSY))


_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guests are inside user and nice


def compete(seed: int, parent: int, ready: Any) -> None:
    """Burst and pause while `parent` is this process's parent; return within one burst and pause of its end."""
    import numpy as np

    rng = random.Random(seed)
    array = np.ones(_VALUES)
    ready.wait(_START_S)
    while os.getppid() == parent:
        end = time.perf_counter() + rng.uniform(*BUSY_S)
        while time.perf_counter() < end:
            array += 1.0
        time.sleep(rng.uniform(*PAUSE_S))
