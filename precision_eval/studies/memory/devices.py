"""Which format a device computes in natively, which it only emulates, and so which fix runs there.

Conventions: a :class:`Capability` is plain data, so that a device that is not at hand can be asked about; memory is in
bytes, 1 GB = 10⁹ as in datasheets. *Native*: arithmetic in the format. *Emulated*: stored in it, computed in another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from precision_eval.core.errors import UnsupportedError, entry_of
from precision_eval.core.formats import Support, cpu_support, cuda_support
from precision_eval.fixes.catalog import FIXES

GB = 10**9


@dataclass(frozen=True, kw_only=True)
class Capability:
    """What is known of a device."""

    name: str
    kind: Literal["cuda", "cpu", "mps"]
    compute: tuple[int, ...] = ()
    flags: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    source: str = ""


_TABLE = "developer.nvidia.com/cuda-gpus"
DEVICES: tuple[Capability, ...] = (
    Capability(name="p100", kind="cuda", compute=(6, 0), memory_bytes=16 * GB,
               source=f"{_TABLE}; Tesla P100 datasheet, 16 GB"),
    Capability(name="v100", kind="cuda", compute=(7, 0), memory_bytes=16 * GB,
               source=f"{_TABLE}; V100 datasheet, 16 GB (also sold with 32)"),
    Capability(name="t4", kind="cuda", compute=(7, 5), memory_bytes=16 * GB,
               source=f"{_TABLE}; T4 datasheet, 16 GB; the driver reports 15.84 × 10⁹ bytes"),
    Capability(name="a10g", kind="cuda", compute=(8, 6), memory_bytes=24 * GB,
               source=f"{_TABLE}; A10G datasheet, 24 GB"),
    Capability(name="a100", kind="cuda", compute=(8, 0), memory_bytes=40 * GB,
               source=f"{_TABLE}; A100 datasheet, 40 GB (also sold with 80)"),
    Capability(name="h100", kind="cuda", compute=(9, 0), memory_bytes=80 * GB,
               source=f"{_TABLE}; H100 datasheet, 80 GB"),
    Capability(name="h200", kind="cuda", compute=(9, 0), memory_bytes=141 * GB,
               source=f"{_TABLE}; H200 datasheet, 141 GB"),
)  # fmt: skip


def device_by_name(name: str) -> Capability:
    """Look a published device up."""
    return entry_of("device", name, DEVICES, by="name", also=("auto", "cpu"))


def native(capability: Capability, dtype: str) -> Support:
    """Say how a device computes in a format, from data alone."""
    if capability.kind == "cpu":
        return cpu_support(dtype, capability.flags)
    if capability.kind == "mps":
        if dtype != "bfloat16":
            return Support("native", "")
        return Support("emulated", "from macOS 14 on, and native only on newer chips; ask the device itself")
    return cuda_support(dtype, capability.compute)


@dataclass(frozen=True, kw_only=True)
class FormatChoice:
    """The format to take on a device, and what becomes of each fix there.

    Attributes
    ----------
    device, dtype, fix : str
        ``fix`` is the one that brings everything to ``dtype``.
    reasons : tuple of str
        Why, and what to look out for.
    formats, fixes : dict of str to Support
        Each format; each fix that names a format of its own, autocast among them.
    """

    device: str
    dtype: str
    fix: str
    reasons: tuple[str, ...]
    formats: dict[str, Support]
    fixes: dict[str, Support]


_FIX_OF = {"float16": "float16", "bfloat16": "bfloat16", "float32": "full_float32"}
_EMULATION = (
    "torch.cuda.is_bf16_supported() may still say True, as emulation counts (pytorch #148322): ask with "
    "including_emulation=False. Versions before that refuse autocast in bfloat16 instead (metavoice-src #27)"
)
_RANGE = (
    "float16 ends at 65504: weights and caches made in bfloat16 keep their digits, and overflow where they exceed it"
)


def _reasons(capability: Capability, dtype: str, formats: dict[str, Support]) -> tuple[str, ...]:
    reasons = []
    if dtype == "bfloat16":
        reasons.append("bfloat16 is native and has float32's range")
    elif dtype == "float16":
        reasons += ["float16 is native, bfloat16 is not", _RANGE]
    else:
        reasons.append("no half format is native at full rate: half storage saves memory, and costs time")
    if capability.kind == "cuda" and formats["bfloat16"].kind == "emulated":
        reasons.append(_EMULATION)
    reasons += [
        f"{name}: {supported.kind}, {supported.reason}" for name, supported in formats.items() if supported.reason
    ]
    return tuple(reasons)


def choose_format(capability: Capability) -> FormatChoice:
    """Choose the format for a device: bfloat16 where native, else float16 where native at full rate, else float32."""
    formats = {name: native(capability, name) for name in ("float16", "bfloat16", "float32")}
    slow = "rate" in formats["float16"].reason
    if formats["bfloat16"].kind == "native":
        dtype = "bfloat16"
    elif formats["float16"].kind == "native" and not slow:
        dtype = "float16"
    else:
        dtype = "float32"
    autocast = "bfloat16" if capability.kind == "cpu" else "float16"
    fixes = {fix.id: formats[fix.storage] for fix in FIXES if fix.storage in formats}
    fixes["autocast"] = formats[autocast]
    return FormatChoice(
        device=capability.name,
        dtype=dtype,
        fix=_FIX_OF[dtype],
        reasons=_reasons(capability, dtype, formats),
        formats=formats,
        fixes=fixes,
    )


def capability_here(device: str) -> Capability:
    """Describe a device of this machine; loads torch."""
    import psutil
    import torch

    from precision_eval.core.formats import cpu_flags

    mps = torch.backends.mps.is_available()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    memory = psutil.virtual_memory().total
    if device == "cpu":
        return Capability(name="cpu", kind="cpu", flags=cpu_flags(), memory_bytes=memory, source="this machine")
    if device == "mps" and mps:
        return Capability(name="mps", kind="mps", memory_bytes=memory, source="this machine")
    index = re.fullmatch(r"cuda(?::(\d+))?", device)
    if index and int(index[1] or 0) < torch.cuda.device_count():
        properties = torch.cuda.get_device_properties(torch.device(device))
        return Capability(
            name=properties.name,
            kind="cuda",
            compute=(properties.major, properties.minor),
            memory_bytes=properties.total_memory,
            source="this machine",
        )
    raise UnsupportedError(f"torch sees no '{device}' here; name a published device instead, such as t4")
