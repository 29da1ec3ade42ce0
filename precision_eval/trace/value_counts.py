"""What a call's values do to a format's range: near overflow, subnormal, not finite, lost in a cast; imports torch.

Conventions: *near overflow* is finite and beyond half of the largest number. Counted are the values of every result,
not those of views. Results that are not finite though their operands are, are remembered; where a mask is written,
infinity is meant, and −inf in what is computed of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch._C import _functorch as functorch

from precision_eval.core.formats import FORMATS, CastAccount, cast_account, short
from precision_eval.trace.observer import ModuleCall
from precision_eval.trace.provenance import Provenance

# Of the largest number.
NEAR = 0.5

#: Smallest normal number and what is near overflow, per format.
_LIMITS = {getattr(torch, entry.name): (entry.smallest_normal, NEAR * entry.largest) for entry in FORMATS}

Line = tuple[CodeType, int]


@dataclass
class FormatCounts:
    total: int = 0
    near_overflow: int = 0
    subnormal: int = 0
    non_finite: int = 0
    first_near: Provenance | None = None
    first_subnormal: Provenance | None = None


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Take a tensor out of a transform, such as vmap."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def in_float64(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> torch.Tensor | None:
    """Compute an operation of the same values in float64; None where that gives no floating tensor."""

    def widened(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(widened, value)) if type(value) in (tuple, list) else value
        if isinstance(value, torch.Tensor):
            return value.detach().double() if value.is_floating_point() else value
        return torch.float64 if value in (torch.float16, torch.bfloat16) else value

    if func is torch.Tensor.half or func is torch.Tensor.bfloat16:
        func = torch.Tensor.double
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad(), torch._C.DisableTorchFunction():
            result = func(*widened(args), **{name: widened(value) for name, value in (kwargs or {}).items()})
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return result if isinstance(result, torch.Tensor) and result.is_floating_point() else None


def reach_of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> float:
    """Return the largest value that an operation has in float64; NaN where that is not known."""
    result = in_float64(func, args, kwargs)
    return math.nan if result is None or not result.numel() else float(result.abs().max())


def size_of(value: Any) -> float:
    """Return the largest value of a tensor or a number."""
    with torch._C.DisableTorchFunction():
        return float(torch.as_tensor(value).detach().abs().max())


class ValueCounts:
    def __init__(self) -> None:
        self.counts: dict[torch.dtype, FormatCounts] = {}
        self.casts: dict[tuple[CodeType, int, str, str, str], list[CastAccount]] = {}
        self.broken: list[Provenance] = []
        self.computed: Counter[torch.dtype] = Counter()  # values that operations gave, casts left out

    def result(self, tensor: torch.Tensor, record: Provenance, *, masks: bool) -> None:
        tensor = unwrapped(tensor)
        if tensor.device.type == "meta" or tensor.dtype not in _LIMITS:
            return  # float8 is storage: what it lost shows where it is read
        if tensor.layout is not torch.strided:
            tensor = tensor.values() if tensor.layout is not torch.sparse_coo else tensor.coalesce().values()
        if not tensor.numel():
            return
        count = self.counts.setdefault(tensor.dtype, FormatCounts())
        count.total += tensor.numel()
        self.computed[tensor.dtype] += tensor.numel() if record.kind == "op" else 0
        smallest_normal, near_overflow = _LIMITS[tensor.dtype]
        size = tensor.detach().abs()
        least, most = (float(bound) for bound in torch.aminmax(size))
        broken = 0
        if not most <= near_overflow:  # NaN too
            finite = size.isfinite()
            broken = tensor.numel() - int(finite.sum())
            near = int((size > near_overflow).logical_and(finite).sum())
            count.near_overflow += near
            count.non_finite += broken
            if near and count.first_near is None:
                count.first_near = record
        if not least >= smallest_normal:  # zeros too, which are none
            small = int((size < smallest_normal).logical_and(size > 0).sum())
            count.subnormal += small
            if small and count.first_subnormal is None:
                count.first_subnormal = record
        if broken and not masks and any(parent.masks for parent in record.parents):  # NaN fails the comparison too
            masks = bool((unwrapped(tensor) < math.inf).all())
        record.masks = broken > 0 and masks
        record.finite = not broken or masks
        if broken and not masks and all(parent.finite for parent in record.parents):
            self.broken.append(record)

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype, line: Line, call: ModuleCall | None) -> None:
        if dtype not in _LIMITS or tensor.dtype not in _LIMITS:
            return
        key = (*line, call.path if call else "", short(tensor.dtype), short(dtype))
        self.casts.setdefault(key, []).append(cast_account(tensor, short(dtype)))
