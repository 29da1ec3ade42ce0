"""Who else used the device of a timed cell, as doubts of its record.

Nothing is looked at while a cell is timed, which would disturb it. Of the CPU, the processor time of other processes is
what the machine was busy less what this process used; of an NVIDIA GPU, ``nvidia-smi`` names the processes on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from precision_eval.core.environment import output_of
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import percent

ISOLATIONS = ("warn", "error")
_OTHERS = 0.05  # share of the cores' time
_LEAST_S = 1.0  # the system counts in hundredths of a second: of less time they say nothing
_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guests are inside user and nice


class IsolationError(ParameterError):
    """Others used the device of a timed cell, under ``isolation=error``."""


class CpuUse(NamedTuple):
    """Seconds: a clock, what all cores were busy, and what this process and its children used."""

    at_s: float
    busy_s: float
    own_s: float


@contextmanager
def watch_device(device: str, isolation: str | None) -> Iterator[list[str]]:
    """Yield a list that holds the doubts in the end; with ``isolation="error"`` raise :class:`IsolationError` on any.

    Where `isolation` is None, nothing is watched.
    """
    doubts: list[str] = []
    if isolation is None:
        yield doubts
        return
    before = cpu_use()
    yield doubts
    doubts += cpu_doubts(before, cpu_use(), os.cpu_count() or 1)
    if device.startswith("cuda"):
        doubts += gpu_doubts(_gpu_processes(device), os.getpid())
    if doubts and isolation == "error":
        raise IsolationError(
            f"{'; '.join(doubts)}; free the device, or give --set isolation=warn to keep it as a doubt"
        )


def cpu_use() -> CpuUse:
    import psutil

    busy_s = sum(seconds for state, seconds in psutil.cpu_times()._asdict().items() if state not in _NOT_BUSY)
    return CpuUse(time.monotonic(), busy_s, sum(os.times()[:4]))


def cpu_doubts(before: CpuUse, after: CpuUse, cores: int) -> list[str]:
    """Say what others took of the cores between two looks, the host of a virtual machine included."""
    spent_s = after.at_s - before.at_s
    if spent_s < _LEAST_S:
        return []
    others = (after.busy_s - before.busy_s - (after.own_s - before.own_s)) / (cores * spent_s)
    if others <= _OTHERS:
        return []
    return [f"shared cores: others took {percent(others, decimals=0)} of the time of {cores} cores"]


def _gpu_processes(device: str) -> str:
    """Return the processes that compute on a GPU, as lines ``pid, name``; empty without nvidia-smi."""
    index = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpu = visible[index] if index < len(visible) and visible[index] else str(index)
    query = "--query-compute-apps=pid,process_name"
    return output_of(["nvidia-smi", query, "--format=csv,noheader", "-i", gpu]) or ""


def gpu_doubts(processes: str, pid: int) -> list[str]:
    """Say which other processes compute on a GPU."""
    others = [line.strip() for line in processes.splitlines() if line.strip() and line.split(",")[0] != str(pid)]
    return [f"shared GPU: other processes compute on it: {'; '.join(others)}"] if others else []
