"""Numeric formats: their constants, the size of a ULP, what a cast does to every value, and what a device supports.

Conventions: formats are binary floating point, IEEE 754 or bfloat16, named as torch names them. A ULP is the distance
between the two neighbouring numbers of the format that enclose x, and the spacing of the subnormals below the smallest
normal number. ``FORMATS`` is plain data; torch is loaded inside the functions.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from precision_eval.core.errors import ParameterError, entry_of

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 22  # elements accounted at a time: 32 MiB in float64


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format."""

    name: str
    bits: int
    significand_bits: int
    max_exponent: int
    min_exponent: int

    @property
    def eps(self) -> float:
        return 2.0 ** (1 - self.significand_bits)

    @property
    def largest(self) -> float:
        return (2.0 - self.eps) * 2.0**self.max_exponent

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number."""
        return 2.0 ** (self.min_exponent + 1 - self.significand_bits)


FORMATS: tuple[Format, ...] = (
    Format(name="float16", bits=16, significand_bits=11, max_exponent=15, min_exponent=-14),
    Format(name="bfloat16", bits=16, significand_bits=8, max_exponent=127, min_exponent=-126),
    Format(name="float32", bits=32, significand_bits=24, max_exponent=127, min_exponent=-126),
    Format(name="float64", bits=64, significand_bits=53, max_exponent=1023, min_exponent=-1022),
)


def format_by_name(name: str) -> Format:
    return entry_of("format", name, FORMATS, by="name")


@cache
def short(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def ulp(x: torch.Tensor, dtype_name: str) -> torch.Tensor:
    """Size of a unit in the last place at x."""
    import torch

    found = format_by_name(dtype_name)
    wide = x.detach().to("cpu", torch.float64)
    exponent = torch.frexp(wide).exponent.long() - 1  # |x| = 1.f × 2**exponent
    exponent = torch.where(wide == 0, found.min_exponent, exponent).clamp(found.min_exponent, found.max_exponent)
    exponent += 1 - found.significand_bits
    normal = (exponent + 1023) << 52  # the bits of 2.0**exponent
    subnormal = torch.ones_like(exponent) << (exponent + 1074).clamp(0, 51)
    size = torch.where(exponent >= -1022, normal, subnormal).view(torch.float64)
    return torch.where(wide.isfinite(), size, torch.nan)


@dataclass(frozen=True)
class CastAccount:
    """What a cast did to each value; the categories exclude each other and sum to ``total``."""

    total: int
    exact: int
    rounded: int
    subnormal: int
    flushed: int
    overflowed: int
    non_finite: int


def cast_account(tensor: torch.Tensor, dtype_name: str) -> CastAccount:
    """Cast a tensor where it lies, and count what that does to its values."""
    import torch

    target = format_by_name(dtype_name)
    if not tensor.is_floating_point():
        raise ParameterError(f"a cast account needs a floating tensor, found {tensor.dtype}; cast it to one first")
    counts = torch.zeros(6, dtype=torch.int64)
    for part in tensor.detach().reshape(-1).split(_CHUNK):
        before = part.to("cpu", torch.float64)
        after = part.to(getattr(torch, dtype_name)).to("cpu", torch.float64)
        finite = before.isfinite()
        exact = finite & (after == before)
        overflowed = finite & after.isinf()
        flushed = finite & ~exact & (after == 0)
        rest = finite & ~exact & ~overflowed & ~flushed
        subnormal = rest & (after.abs() < target.smallest_normal)
        counts += torch.stack([c.sum() for c in (exact, rest & ~subnormal, subnormal, flushed, overflowed, ~finite)])
    return CastAccount(tensor.numel(), *(int(c) for c in counts))


@dataclass(frozen=True)
class Support:
    """How a device computes in a format."""

    kind: Literal["native", "emulated", "absent"]
    reason: str


def support(device: str, dtype_name: str) -> Support:
    """Ask how a device computes in a format."""
    import torch

    format_by_name(dtype_name)
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ParameterError(f"'{device}' is no device that torch knows; try cpu, cuda, cuda:0 or mps") from error
    if kind == "cpu":
        return cpu_support(dtype_name, cpu_flags())
    if kind == "cuda":
        return _cuda_support(device, dtype_name)
    return _probed_support(device, dtype_name)


CPU_FLAGS = {
    "float16": ("avx512_fp16", "amx_fp16", "asimdhp", "FEAT_FP16"),
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16", "FEAT_BF16"),
}
"""Instruction sets of which one suffices to compute matrix products in a format."""


def cpu_support(dtype_name: str, known: Collection[str]) -> Support:
    """Say how a processor with these instruction sets computes in a format."""
    wanted = CPU_FLAGS.get(dtype_name)
    if wanted is None:
        return Support("native", "")
    flags = [flag for flag in wanted if flag in known]
    if flags:
        return Support("native", f"for matrix products ({', '.join(flags)}); most other operations go through float32")
    return Support("emulated", f"the processor has none of {', '.join(wanted)}; computed in float32")


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction-set flags of this machine's processor, as the system names them; empty where it does not say."""
    if platform.system() == "Darwin":
        command = ["sysctl", "hw.optional.arm"]
        listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        pairs = (line.partition(": ") for line in listing.splitlines())
        return frozenset(name.rpartition(".")[2] for name, _, value in pairs if value.strip() == "1")
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    named = (line.partition(":") for line in lines)
    return frozenset(flag for key, _, value in named if key.strip() in ("flags", "Features") for flag in value.split())


def _cuda_support(device: str, dtype_name: str) -> Support:
    import torch

    if not torch.cuda.is_available():
        return Support("absent", "torch sees no CUDA device")
    index = torch.device(device).index
    if index is not None and index >= torch.cuda.device_count():
        return Support("absent", f"torch sees {torch.cuda.device_count()} CUDA devices")
    if torch.version.hip is not None:
        return Support("native", "")
    return cuda_support(dtype_name, torch.cuda.get_device_capability(device))


def cuda_support(dtype_name: str, compute: tuple[int, ...]) -> Support:
    """Say how a CUDA device of a compute capability, such as (7, 5), computes in a format."""
    least = {"bfloat16": (8, 0), "float16": (5, 3)}.get(dtype_name, compute)
    if compute < least:
        given, needed = (".".join(map(str, numbers)) for numbers in (compute, least))
        return Support("emulated", f"compute capability {given} is below {needed}")
    slow = dtype_name == "float16" and compute == (6, 1)
    return Support("native", "but at 1/64 of float32's rate" if slow else "")


def _probed_support(device: str, dtype_name: str) -> Support:
    """Multiply two small matrices; a backend that lacks a format says so there."""
    import torch

    try:
        ones = torch.ones(2, 2, device=device, dtype=getattr(torch, dtype_name))
        total = (ones @ ones).sum().item()
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
        return Support("absent", str(error).splitlines()[0] if str(error) else type(error).__name__)
    return Support("native", "") if total == 8.0 else Support("absent", f"2×2 ones multiplied give {total}, not 8")
