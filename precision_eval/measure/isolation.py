"""Who else used the device of a timed cell, as doubts of its record.

Nothing is looked at while a cell is timed, which would disturb it. Of the CPU, the processor time of other processes is
what the machine was busy less what this process used; of an NVIDIA GPU, ``nvidia-smi`` names the processes on it, and
NVML, where a module for it is installed, or ``nvidia-smi`` tells clocks, power, temperature and what slows it down.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from precision_eval.core.environment import output_of
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import join, percent

ISOLATIONS = ("warn", "error")
_OTHERS = 0.05  # share of the cores' time
_LEAST_S = 1.0  # the system counts in hundredths of a second: of less time they say nothing
# Bits of NVML's clock event reasons that hold a clock below what the work would reach.
_THROTTLES = {
    0x04: "its power limit",
    0x08: "hardware",
    0x20: "its temperature",
    0x40: "its temperature, in hardware",
    0x80: "a power brake",
}
# The processes that compute on a GPU, as lines ``pid, name``.
_PROCESSES = ("nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader", "-i")
_NAMES_OF_REASONS = ("Event", "Throttle")  # since driver 535, and before
_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guests are inside user and nice


class IsolationError(ParameterError):
    """Others used the device of a timed cell, under ``isolation=error``."""


class CpuUse(NamedTuple):
    """Seconds: a clock, what all cores were busy, and what this process and its children used."""

    at_s: float
    busy_s: float
    own_s: float


class GpuState(NamedTuple):
    """What an NVIDIA GPU says of itself; None where it does not."""

    sm_mhz: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    slowed_by: tuple[str, ...]


@dataclass
class Watched:
    """What was seen of a device: doubts, and the GPU's state before and after."""

    doubts: list[str] = field(default_factory=list)
    gpu: dict[str, dict[str, Any]] = field(default_factory=dict)


@contextmanager
def watch_device(device: str, isolation: str | None) -> Iterator[Watched]:
    """Yield what is complete in the end; with ``isolation="error"`` raise :class:`IsolationError` on any doubt.

    Where `isolation` is None, nothing is watched.
    """
    watched = Watched()
    if isolation is None:
        yield watched
        return
    gpu, card = _names_of(device) if device.startswith("cuda") else (None, None)
    states = {"before": gpu_state(card)}
    before = cpu_use()
    yield watched
    watched.doubts += cpu_doubts(before, cpu_use(), os.cpu_count() or 1)
    states["after"] = gpu_state(card)
    watched.gpu = {when: state._asdict() for when, state in states.items() if state is not None}
    if gpu is not None and card is not None:
        watched.doubts += gpu_doubts(output_of([*_PROCESSES, gpu]) or "" if gpu == card else "", os.getpid())
        watched.doubts += throttling_doubts(states["after"], gpu)
    if watched.doubts and isolation == "error":
        raise IsolationError(
            f"{'; '.join(watched.doubts)}; free the device, or give --set isolation=warn to keep it as a doubt"
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


def _names_of(device: str) -> tuple[str, str]:
    """Return what NVIDIA's tools call a device, and the card it is on, which has the clocks of its slices (MIG)."""
    gpu = _gpu_of(device)
    number, card = gpu.partition("-")[2], gpu
    for line in (output_of(["nvidia-smi", "-L"]) or "").splitlines():  # each card, and below it its slices
        uuid = re.search(r"UUID: ([\w-]+)", line)
        if uuid is not None and not uuid[1].startswith("MIG-"):
            card = uuid[1]
        elif uuid is not None and number and uuid[1].endswith(number):  # CUDA gives the number without its prefix
            return uuid[1], card
    return gpu, gpu


def _gpu_of(device: str) -> str:
    """Return the UUID of a device where torch knows it, as NVIDIA's tools may count in another order."""
    index = int(device.partition(":")[2] or 0)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and index < torch.cuda.device_count():
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if uuid is not None:
            return f"GPU-{uuid}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[index] if index < len(visible) and visible[index] else str(index)


def gpu_state(gpu: str | None) -> GpuState | None:
    """Read a GPU's clocks, power and temperature, and what slows it: by NVML, else ``nvidia-smi``, else not at all."""
    return None if gpu is None else _state_by_nvml(gpu) or _state_by_smi(gpu)


def _state_by_nvml(gpu: str) -> GpuState | None:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no module, or a library or a driver that fails in its own way
        return None
    try:
        by_name = nvml.nvmlDeviceGetHandleByUUID if gpu.startswith("GPU-") else nvml.nvmlDeviceGetHandleByIndex
        handle = by_name(gpu if gpu.startswith("GPU-") else int(gpu))

        def value(name: str, *arguments: Any, scale: float = 1.0) -> float | None:
            try:
                return float(getattr(nvml, name)(handle, *arguments)) * scale
            except (AttributeError, nvml.NVMLError):  # this library, or this GPU, does not tell
                return None

        both = (value(f"nvmlDeviceGetCurrentClocks{name}Reasons") for name in _NAMES_OF_REASONS)
        reasons = next((mask for mask in both if mask is not None), 0.0)
        return GpuState(
            value("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            value("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            value("nvmlDeviceGetPowerUsage", scale=1e-3),
            value("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            _slowed_by(int(reasons)),
        )
    except (ValueError, nvml.NVMLError):
        return None
    finally:
        nvml.nvmlShutdown()


def _state_by_smi(gpu: str) -> GpuState | None:
    for name in _NAMES_OF_REASONS:  # one that a driver does not know fails the whole query
        fields = f"clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_{name.lower()}_reasons.active"
        line = output_of(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", gpu]) or ""
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(fields.split(",")):
            break
    else:
        return None
    sm_mhz, memory_mhz, power_w, temperature_c = (
        float(part) if re.fullmatch(r"\d+(\.\d+)?", part) else None for part in parts[:-1]
    )
    reasons = int(parts[-1], 16) if re.fullmatch(r"0x[0-9a-fA-F]+", parts[-1]) else 0
    return GpuState(sm_mhz, memory_mhz, power_w, temperature_c, _slowed_by(reasons))


def _slowed_by(reasons: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _THROTTLES.items() if reasons & bit)


def throttling_doubts(state: GpuState | None, gpu: str) -> list[str]:
    """Say what slows a GPU down as the timing ends, while its clocks are still those of the work."""
    mhz = None if state is None else state.sm_mhz
    if state is not None and state.slowed_by:
        clock = "" if mhz is None else f", at {mhz:.0f} MHz"
        return [f"throttled GPU: slowed by {join(state.slowed_by)} as the timing ended{clock}"]
    if mhz is None:
        return [f"unread clocks: neither NVML nor nvidia-smi gives those of {gpu}, so throttling would not be seen"]
    return []


def gpu_doubts(processes: str, pid: int) -> list[str]:
    """Say which other processes compute on a GPU."""
    others = [line.strip() for line in processes.splitlines() if line.strip() and line.split(",")[0] != str(pid)]
    return [f"shared GPU: other processes compute on it: {'; '.join(others)}"] if others else []
