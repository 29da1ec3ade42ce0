"""Which format a device computes in natively, and how much memory it has: published GPUs, and this machine.

Memory is in bytes, 1 GB = 10⁹, and at most what torch reports as a card's capacity. *Native*: arithmetic in the format.
*Emulated*: stored in it, computed in another.
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
    """A device by name; `compute` is the capability of a GPU of NVIDIA's, None of another device."""

    name: str
    memory_bytes: int
    compute: tuple[int, int] | None = None

    def formats(self) -> dict[str, Support]:
        if self.compute is not None:
            return {dtype: cuda_support(dtype, self.compute) for dtype in _FORMATS}
        return {dtype: support(self.name, dtype) for dtype in _FORMATS}

    def attends_plainly(self, dtype: str, *, shares_heads: bool, has_mask: bool) -> bool:
        """Whether torch finds no fused kernel on a GPU, and writes scores to memory, or repeated keys.

        The memory-efficient kernel takes no keys that heads share; the flash kernel takes half formats on capability 8
        and above, and no mask; cuDNN's comes before plain products on capability 9 and 10, where torch has cuDNN 9.15.1
        or later, as its builds of 2.11 have.
        """
        if self.compute is None or not shares_heads:
            return False
        if dtype not in ("float16", "bfloat16") or self.compute < (8, 0):
            return True
        return has_mask and self.compute[0] not in (9, 10)

    @property
    def library_bytes(self) -> int:
        """Workspace that torch gives cuBLAS at the first product, and keeps (``CUBLAS_WORKSPACE_CONFIG``)."""
        if self.compute is None:
            return 0
        return 4096 * 8 * 1024 if self.compute >= (9, 0) else 4096 * 2 * 1024 + 16 * 8 * 1024

    def best_format(self) -> str:
        """Choose bfloat16 where native, else float16 where native at full rate, else float32."""
        formats = self.formats()
        if formats["bfloat16"].kind == "native":
            return "bfloat16"
        is_fast = formats["float16"].kind == "native" and "rate" not in formats["float16"].reason
        return "float16" if is_fast else "float32"


# Compute capabilities: developer.nvidia.com/cuda-gpus; memory: datasheets, less where torch reports less: 14.56 GiB of
# a T4's 16 GB, 22.2 GiB of an A10G's 24 GB.
DEVICES: tuple[Device, ...] = (
    Device(name="t4", compute=(7, 5), memory_bytes=15 * GB),
    Device(name="a10g", compute=(8, 6), memory_bytes=23 * GB),
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
        properties = torch.cuda.get_device_properties(torch.device(name))
        compute = (properties.major, properties.minor)
        return Device(name=name, memory_bytes=properties.total_memory, compute=compute)
    raise UnsupportedError(f"torch sees no '{name}' here; name a published device instead, such as t4")
