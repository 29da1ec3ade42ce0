"""Who else used the device of a timed cell: what the system counts before and after, said as doubts of the record.

Conventions: nothing is looked at while a cell is timed, which would disturb it. Of a CPU, the cores that this process
may use count: what other processes and the host took of them, and how often a control group held it up. Of an NVIDIA
GPU, ``nvidia-smi -q -x`` is read. What a system does not tell is no doubt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from precision_eval.core.environment import output_of, usable_cores
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import percent

ISOLATIONS = ("warn", "error")
_OTHERS, _STOLEN = 0.05, 0.02  # shares of the cores' time
_LEAST_S = 1.0  # the system counts in hundredths of a second: of less time they say nothing
_SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap")
_REASONS = ("clocks_event_reason_", "clocks_throttle_reason_")  # the latter before driver 535
_THROTTLED = ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat")


class IsolationError(ParameterError):
    """A timed cell was not alone on its device, and that was not to be."""


@dataclass(frozen=True)
class CpuUse:
    """Seconds that cores were busy, that the host stole, and that were this process's; how often it was throttled."""

    at_s: float
    busy_s: float
    stolen_s: float
    own_s: float
    throttled: int


@contextmanager
def watched(device: str, isolation: str | None) -> Iterator[list[str]]:
    """Yield a list that holds the doubts in the end; raise :class:`IsolationError` where there are some and may not.

    Without an `isolation` nothing is looked at.
    """
    doubts: list[str] = []
    if isolation is None:
        yield doubts
        return
    gpu, before = device.startswith("cuda"), cpu_use()
    known = gpu_doubts(_nvidia_smi(device), os.getpid()) if gpu else []
    yield doubts
    doubts += cpu_doubts(before, cpu_use(), usable_cores())
    if gpu:
        doubts += dict.fromkeys([*known, *gpu_doubts(_nvidia_smi(device), os.getpid())])
    if doubts and isolation == "error":
        raise IsolationError(
            f"{'; '.join(doubts)}; free the device, or give --set isolation=warn to keep it as a doubt"
        )


def cpu_use(stat: str | None = None, cgroup: str | None = None) -> CpuUse | None:
    """Return what was used until now; None where the system does not tell."""
    try:
        stat = Path("/proc/stat").read_text() if stat is None else stat
        mine, tick_s = os.sched_getaffinity(0), 1.0 / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None
    busy = stolen = 0
    for line in stat.splitlines():
        name, *counts = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in mine:
            user, nice, system, _, _, irq, soft, *rest = map(int, counts)
            busy, stolen = busy + user + nice + system + irq + soft, stolen + (rest[0] if rest else 0)
    return CpuUse(time.monotonic(), busy * tick_s, stolen * tick_s, sum(os.times()[:4]), _throttled(cgroup))


def _throttled(cgroup: str | None) -> int:
    if cgroup is None:
        cgroup = next((Path(path).read_text() for path in _THROTTLED if os.access(path, os.R_OK)), "")
    return next((int(line.split()[1]) for line in cgroup.splitlines() if line.startswith("nr_throttled ")), 0)


def cpu_doubts(before: CpuUse | None, after: CpuUse | None, cores: int) -> list[str]:
    """Say what others took of the cores between two looks."""
    if before is None or after is None or after.at_s - before.at_s < _LEAST_S:
        return []
    whole_s, doubts = cores * (after.at_s - before.at_s), []
    others = (after.busy_s - before.busy_s - (after.own_s - before.own_s)) / whole_s
    if others > _OTHERS:
        doubts.append(f"shared cores: other processes took {percent(others, decimals=0)} of the time of {cores} cores")
    if (stolen := (after.stolen_s - before.stolen_s) / whole_s) > _STOLEN:
        doubts.append(f"shared cores: the host took {percent(stolen, decimals=0)} of the time of {cores} cores")
    if (times := after.throttled - before.throttled) > 0:
        doubts.append(f"shared cores: the control group's limit of processor time held it up {times} times")
    return doubts


def _nvidia_smi(device: str) -> str:
    """Return what nvidia-smi says of a GPU, by its place among those that are visible; nothing where it is missing."""
    index = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = visible[index] if index < len(visible) and visible[index] else str(index)
    return output_of(["nvidia-smi", "-q", "-x", "-i", number]) or ""


def gpu_doubts(report: str, own: int) -> list[str]:
    """Say what an XML report of nvidia-smi on one GPU holds against a timing by process `own`."""
    try:
        gpu = ElementTree.fromstring(report).find("gpu") if report else None  # noqa: S314 - of the driver's own tool
    except ElementTree.ParseError:
        return ["shared GPU: nvidia-smi's report could not be read"]
    if gpu is None:
        return []
    others = [
        f"{process.findtext('pid')} ({Path(process.findtext('process_name') or 'unknown').name})"
        for process in gpu.iterfind("processes/process_info")
        if "C" in (process.findtext("type") or "") and process.findtext("pid") != str(own)
    ]
    tags = {item.tag: (item.text or "").strip() for item in gpu.iter()}
    slowed = [name for name in _SLOWED if any(tags.get(prefix + name) == "Active" for prefix in _REASONS)]
    errors = [tag for tag in gpu.iterfind("ecc_errors/volatile/*") if (tag.text or "").strip().isdecimal()]
    bad = sum(int(tag.text or 0) for tag in errors if "uncorrectable" in tag.tag)
    doubts = [f"shared GPU: other processes compute on it: {', '.join(others)}"] if others else []
    if slowed:
        clock, most = (gpu.findtext(f"{name}/sm_clock", "unknown") for name in ("clocks", "max_clocks"))
        doubts.append(f"slowed GPU: {', '.join(slowed)}; its clock is {clock} of {most}")
    if tags.get("current_mig") == "Enabled":
        doubts.append("shared GPU: it is divided (MIG), and its memory's bandwidth may be others' too")
    return doubts + ([f"faulty GPU: {bad} errors of its memory that could not be corrected"] if bad else [])
