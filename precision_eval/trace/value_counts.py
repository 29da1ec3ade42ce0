"""What a call's values do to a format's range: near overflow, subnormal, not finite, lost in a cast; imports torch.

Conventions: *near overflow* is finite and beyond half of the largest number. Counted are the values of every result,
not those of views. Results that are not finite though their operands are, are remembered; where a mask is written,
infinity is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType

import torch
from torch._C import _functorch as functorch

from precision_eval.core.formats import FORMATS, CastAccount, cast_account, short
from precision_eval.trace.observer import ModuleCall
from precision_eval.trace.provenance import Provenance

# Of the largest number.
NEAR = 0.5

# Values of small results that are looked at together: a look at each would take longer than a small model's call.
AT_ONCE = 1 << 16

#: Smallest normal number and what is near overflow, per format.
_LIMITS = {getattr(torch, entry.name): (entry.smallest_normal, NEAR * entry.largest) for entry in FORMATS}

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}

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


class ValueCounts:
    def __init__(self) -> None:
        self.counts: dict[torch.dtype, FormatCounts] = {}
        self.casts: dict[tuple[CodeType, int, str, str, str], list[CastAccount]] = {}
        self.broken: list[Provenance] = []
        self._waiting: list[tuple[torch.Tensor, Provenance, bool]] = []
        self._room = AT_ONCE

    def result(self, tensor: torch.Tensor, record: Provenance, *, masks: bool) -> None:
        if functorch.is_functorch_wrapped_tensor(tensor):
            tensor = unwrapped(tensor)  # a transform ends before that
        self._waiting.append((tensor, record, masks))
        self._room -= tensor.numel()
        if self._room < 0:
            self.settle()

    def settle(self) -> None:
        """Count the values of the results that wait: at once, or one by one where any is special."""
        waiting, self._waiting, self._room = self._waiting, [], AT_ONCE
        tensors = [tensor for tensor, _, _ in waiting]
        alike = len(tensors) > 1 and len({tensor.dtype for tensor in tensors}) == 1
        if not (alike and len({tensor.device for tensor in tensors}) == 1 and self._are_plain(tensors)):
            for tensor, record, masks in waiting:
                self._count(tensor, record, masks=masks)

    def _are_plain(self, tensors: list[torch.Tensor]) -> bool:
        """Count values none of which is special, all at once; False, and nothing counted, where one is."""
        with torch.no_grad():
            together = torch._utils._flatten_dense_tensors(
                tensors
            )  # reshape and cat of each takes several times as long
        if together.device.type == "meta" or not together.numel():
            return True
        smallest_normal, near_overflow = _LIMITS[together.dtype]
        least, most = (float(bound) for bound in together.abs_().aminmax())
        if not most <= near_overflow:  # NaN too
            return False
        if least < smallest_normal:  # the least that is no zero, by its bits: comparing halves takes far longer
            bits = together.view(_BITS[together.dtype])
            normal = int(torch.tensor(smallest_normal, dtype=together.dtype).view(bits.dtype))
            if int(bits.sub_(1).bitwise_and_(torch.iinfo(bits.dtype).max).amin()) + 1 < normal:
                return False
        self.counts.setdefault(together.dtype, FormatCounts()).total += together.numel()
        return True

    def _count(self, tensor: torch.Tensor, record: Provenance, *, masks: bool) -> None:
        if tensor.device.type == "meta" or not tensor.numel():
            return
        count = self.counts.setdefault(tensor.dtype, FormatCounts())
        count.total += tensor.numel()
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
        record.finite = not broken or masks
        if broken and not masks and all(parent.finite for parent in record.parents):
            self.broken.append(record)

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype, line: Line, call: ModuleCall | None) -> None:
        key = (*line, call.path if call else "", short(tensor.dtype), short(dtype))
        self.casts.setdefault(key, []).append(cast_account(tensor, short(dtype)))
