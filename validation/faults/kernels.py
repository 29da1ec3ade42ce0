"""Attention written once, with every step a choice: how it is stored, in what order, by which approximation.

Arithmetic is float32 (a product of two half numbers is exact there, sums are accumulated in it, as tensor
cores do), and *storing* a step means rounding it to a format and reading it back. ``"wide"`` stores nothing, ``"same"``
stores in the operands' dtype, other names are those of :func:`stored`. So a kernel behaves alike on every CPU.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from precision_eval.core.errors import unknown_name
from validation.faults.families import Operands, in_float64

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One way to compute attention."""

    block: int = 0
    lag: float = 0.0  # by which logits may exceed the maximum before that is moved
    dot_chunk: int = 0
    dot: str = "wide"
    logits: str = "wide"
    scaled: str = "wide"
    exponentials: str = "wide"
    weights: str = "wide"
    total: str = "wide"
    accumulator: str = "wide"
    rescale: str = "wide"
    output: str = "same"
    product: str = "wide"
    scale_at: Literal["logits", "query", "both"] = "logits"
    normalise: Literal["before", "after"] = "after"
    reverse: bool = False
    subtract_maximum: bool = True
    on_logits: Function | None = None
    exp: Function = torch.exp
    reciprocal: Function = torch.reciprocal
    on_result: Function | None = None


PLAIN = Kernel(logits="same", scaled="same", weights="same", normalise="before")
"""Each step stored in the operands' dtype: softmax(q·kᵀ·scale)·v as eager torch computes it."""
FUSED = Kernel()
"""One pass in float32, rounded once at the end."""
FLASH = Kernel(block=32, weights="same")
"""Online softmax over blocks of keys, weights stored in the operands' dtype, float32 accumulator."""

_SMALLEST_NORMAL = {torch.float16: 2.0**-14, torch.bfloat16: 2.0**-126, torch.float32: 2.0**-126}


def kept_bits(x: Tensor, bits: int) -> Tensor:
    """Round float32 to `bits` < 24 significant bits, ties to even, exponent range unchanged; same shape."""
    drop = 24 - bits
    raw = x.view(torch.int32)
    rounded = raw + ((1 << (drop - 1)) - 1) + ((raw >> drop) & 1)
    return torch.where(x.isfinite(), (rounded & -(1 << drop)).view(torch.float32), x)


def _directed(x: Tensor, dtype: torch.dtype, *, up: bool) -> Tensor:
    """Round to the neighbour toward zero, or with `up` toward +∞."""
    if dtype is torch.float32:  # the bits below float32 are not there any more: drop the last one that is
        raw = x.view(torch.int32)
        away = (x > 0).int() if up else 0
        return ((raw + away) & -2).view(torch.float32)
    near = x.to(dtype)
    infinity = torch.full_like(near, math.inf if up else 0.0)
    beyond = near.float() < x if up else near.float().abs() > x.abs()
    return torch.where(beyond, torch.nextafter(near, infinity), near).float()


def _stochastic(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round up or down with a probability given by the distance; the same draw at every call."""
    drop = {torch.float16: 13, torch.bfloat16: 16, torch.float32: 1}[dtype]
    noise = torch.randint(1 << drop, x.shape, generator=torch.Generator().manual_seed(20_261_121), dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -(1 << drop)).view(torch.float32).to(dtype).float()


def _flushed(x: Tensor, dtype: torch.dtype) -> Tensor:
    near = x.to(dtype).float()
    return torch.where(near.abs() < _SMALLEST_NORMAL[dtype], torch.zeros_like(near), near)


def _scaled_to(x: Tensor, largest: float, rounding: Function) -> Tensor:
    """Round with one symmetric scale per head, under which `largest` is the largest value."""
    step = x.abs().amax((-1, -2), keepdim=True) / largest
    return rounding(x / step) * step


def stored(x: Tensor, how: str, dtype: torch.dtype) -> Tensor:
    """Round float32 as if it had been stored and read again."""
    if how not in _STORAGE:
        raise unknown_name("storage", how, _STORAGE)
    return _STORAGE[how](x, dtype)


_STORAGE: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "wide": lambda x, dtype: x,
    "same": lambda x, dtype: x.to(dtype).float(),
    "float16": lambda x, dtype: x.half().float(),
    "bfloat16": lambda x, dtype: x.bfloat16().float(),
    "tf32": lambda x, dtype: kept_bits(x, 11),
    "fp8": lambda x, dtype: _scaled_to(x, 448.0, lambda t: t.to(torch.float8_e4m3fn).float()),
    "fp8_times_256": lambda x, dtype: (x * 256.0).clamp(max=448.0).to(torch.float8_e4m3fn).float() / 256.0,
    "clipped_at_1": lambda x, dtype: x.clamp(max=1.0).to(dtype).float(),
    "int8": lambda x, dtype: _scaled_to(x, 127.0, torch.round),
    "truncated": lambda x, dtype: _directed(x, dtype, up=False),
    "upward": lambda x, dtype: _directed(x, dtype, up=True),
    "stochastic": _stochastic,
    "flushed": _flushed,
    "saturated": lambda x, dtype: x.to(dtype).float().nan_to_num(posinf=torch.finfo(dtype).max),
    "via_bfloat16": lambda x, dtype: x.bfloat16().to(dtype).float(),
    "one_bit_less": lambda x, dtype: kept_bits(x, 10 if dtype is torch.float16 else 7),
    "left_out": lambda x, dtype: torch.ones_like(x),
}


def attend(operands: Operands, kernel: Kernel) -> Tensor:
    """Compute attention as `kernel` says."""
    dtype = operands.dtype
    q, k, v = (stored(t.float(), kernel.product, dtype) for t in (operands.q, operands.k, operands.v))
    q, k, scale = _scaled_operands(q, k, operands.scale, kernel, dtype)
    keys = k.shape[2]
    blocks = list(torch.arange(keys).split(kernel.block or keys))
    rows = (*q.shape[:3], 1)
    maximum, total = torch.full(rows, -math.inf), torch.zeros(rows)
    accumulator = torch.zeros(q.shape)
    for columns in reversed(blocks) if kernel.reverse else blocks:
        at = slice(int(columns[0]), int(columns[-1]) + 1)
        logits = _logits(q, k[:, :, at], scale, kernel, dtype).masked_fill(~operands.mask[:, at], -math.inf)
        highest = logits.amax(-1, keepdim=True)
        newest = torch.where(highest > maximum + kernel.lag, highest, maximum) if kernel.subtract_maximum else maximum
        shift = torch.where(newest.isfinite(), newest, 0.0)
        weights = stored(kernel.exp(logits - shift), kernel.exponentials, dtype)
        fade = stored(kernel.exp(maximum - shift), kernel.rescale, dtype) if kernel.subtract_maximum else 1.0
        total = stored(total * fade + weights.sum(-1, keepdim=True), kernel.total, dtype)
        if kernel.normalise == "before":
            weights = weights * kernel.reciprocal(total)
        weights = stored(weights, kernel.weights, dtype)
        product = stored(weights, kernel.product, dtype) @ v[:, :, at]
        accumulator = stored(accumulator * fade + product, kernel.accumulator, dtype)
        maximum = newest
    result = accumulator if kernel.normalise == "before" else accumulator * kernel.reciprocal(total)
    result = result if kernel.on_result is None else kernel.on_result(result)
    return stored(result, kernel.output, dtype).to(dtype)


def _scaled_operands(
    q: Tensor, k: Tensor, scale: float, kernel: Kernel, dtype: torch.dtype
) -> tuple[Tensor, Tensor, float]:
    """Put the scale on the operands where the kernel wants it there; stored as the scaled logits are."""
    if kernel.scale_at == "logits":
        return q, k, scale
    if kernel.scale_at == "query":
        return stored(q * scale, kernel.scaled, dtype), k, 1.0
    root = math.sqrt(scale)
    return stored(q * root, kernel.scaled, dtype), stored(k * root, kernel.scaled, dtype), 1.0


def _logits(q: Tensor, k: Tensor, scale: float, kernel: Kernel, dtype: torch.dtype) -> Tensor:
    """Scaled logits of one block, (1, H, L, block)."""
    width = q.shape[-1]
    if kernel.dot_chunk:
        logits = torch.zeros(*q.shape[:3], k.shape[2])
        for at in range(0, width, kernel.dot_chunk):
            part = slice(at, at + kernel.dot_chunk)
            logits = stored(logits + q[..., part] @ k[..., part].mT, kernel.dot, dtype)
    else:
        logits = q @ k.mT
    logits = stored(logits, kernel.logits, dtype)
    if scale != 1.0:
        logits = stored(logits * scale, kernel.scaled, dtype)
    return logits if kernel.on_logits is None else kernel.on_logits(logits)


def exact(operands: Operands) -> Tensor:
    """Float64 arithmetic on the stored operands, the reference; shape (1, H, L, D), float64."""
    wide = in_float64(operands)
    logits = (wide.q @ wide.k.mT * wide.scale).masked_fill(~wide.mask, -math.inf)
    return logits.softmax(-1) @ wide.v


def yardstick(operands: Operands) -> Tensor:
    """Plain attention, each step stored in the operands' dtype; shape (1, H, L, D)."""
    return attend(operands, PLAIN)


@contextmanager
def without_mkldnn() -> Iterator[None]:
    """Let torch take its own kernels in place of oneDNN's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a switch for other devices is set along with it
        with torch.backends.mkldnn.flags(enabled=False):
            yield
