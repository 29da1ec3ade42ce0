"""Which format a device computes in natively, and how much memory it has: published GPUs, and this machine.

Memory is in bytes, 1 GB = 10⁹ as in datasheets. *Native*: arithmetic in the format. *Emulated*: stored in it, computed
in another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from precision_eval.core.errors import UnsupportedError, entry_of
from precision_eval.core.formats import Support, cuda_support, support

GB = 10**9
_FORMATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device by name; `compute` is the capability of a published GPU, None where it is of this machine."""

    name: str
    memory_bytes: int
    compute: tuple[int, int] | None = None

    def formats(self) -> dict[str, Support]:
        if self.compute is not None:
            return {dtype: cuda_support(dtype, self.compute) for dtype in _FORMATS}
        return {dtype: support(self.name, dtype) for dtype in _FORMATS}

    def best_format(self) -> str:
        """Choose bfloat16 where native, else float16 where native at full rate, else float32."""
        formats = self.formats()
        if formats["bfloat16"].kind == "native":
            return "bfloat16"
        is_fast = formats["float16"].kind == "native" and "rate" not in formats["float16"].reason
        return "float16" if is_fast else "float32"


# Compute capabilities: developer.nvidia.com/cuda-gpus; memory: datasheets.
DEVICES: tuple[Device, ...] = (
    Device(name="t4", compute=(7, 5), memory_bytes=16 * GB),
    Device(name="a10g", compute=(8, 6), memory_bytes=24 * GB),
    Device(name="a100", compute=(8, 0), memory_bytes=40 * GB),
    Device(name="a100-80gb", compute=(8, 0), memory_bytes=80 * GB),
    Device(name="h100", compute=(9, 0), memory_bytes=80 * GB),
    Device(name="h200", compute=(9, 0), memory_bytes=141 * GB),
)


def device_named(name: str) -> Device:
    """Look up a published device, or describe one of this machine; the latter loads torch."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        return entry_of("device", name, DEVICES, by="name", also=("auto", "cpu", "cuda", "mps"))
    import psutil
    import torch

    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if name == "cpu" or (name == "mps" and has_mps):
        return Device(name=name, memory_bytes=psutil.virtual_memory().total)
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) < torch.cuda.device_count():
        return Device(name=name, memory_bytes=torch.cuda.get_device_properties(torch.device(name)).total_memory)
    raise UnsupportedError(f"torch sees no '{name}' here; name a published device instead, such as t4")
