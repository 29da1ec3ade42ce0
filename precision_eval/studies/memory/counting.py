"""Counts what a call allocates while it runs on fake tensors, which have shapes and dtypes but no memory.

All sizes are bytes. ``peak_bytes`` counts the tensors that operations return, which is the same on every machine. What
a kernel takes for itself while it runs depends on the processor and on the libraries that torch was built with, so it
is not copied here from any of them: it is given as an upper bound, ``scratch_bytes``.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from precision_eval.core.formats import short

UNPLANNABLE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What fake tensors raise where a call depends on values, or uses an operation without a fake kernel."""

_CASTS = ("_to_copy",)
_LOOKUPS = ("embedding", "gather", "index", "index_copy", "index_copy_", "index_put", "index_put_", "index_select")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product", "linear")
_MULTIPLICATIONS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear")
_WRITES = ("index_copy", "index_copy_", "index_put", "index_put_")
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_NORMS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm")
_TILE_BYTES = 1 << 20
"""Per thread: the blocks in which products and fused attention are computed."""
_FLOAT32_BYTES = 4


@contextmanager
def fake_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """Make every tensor of a block fake, on the CPU; tensors of two modes do not mix."""
    # Module.to exchanges the parameters of fake modules, which fails while views of them are known; it has nothing to
    # do here, as everything is on the CPU already.
    with mode, patch.object(nn.Module, "to", lambda module, *args, **kwargs: module), torch.no_grad():
        yield


# Whether attention of so formatted operands is plain products: dtype, whether heads share keys, whether it has a mask.
AttendsPlainly = Callable[[str, bool, bool], bool]


class AllocationCounter(TorchDispatchMode):
    def __init__(self, attends_plainly: AttendsPlainly = lambda dtype, shares_heads, has_mask: False) -> None:
        super().__init__()
        self.attends_plainly = attends_plainly
        self.multiplies = False
        self.level_bytes = 0
        self.peak_bytes = 0
        self.peak_with_scratch_bytes = 0
        self.casts_at_peak_bytes = 0
        self._casts_bytes = 0

    @property
    def scratch_bytes(self) -> int:
        """How far the kernels' own memory may raise the peak, at most."""
        return self.peak_with_scratch_bytes - self.peak_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        inputs, name = leaf_tensors((args, kwargs)), func.overloadpacket.__name__
        check_agreement(name, inputs)
        if name == _ATTENTION and self._is_plain(inputs, kwargs or {}):
            return self._attend(args, dict(kwargs or {}))
        output = func(*args, **(kwargs or {}))
        outputs = leaf_tensors(output)
        known = {tensor.untyped_storage()._cdata for tensor in inputs}
        created = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in outputs}
        self.multiplies = self.multiplies or name in _MULTIPLICATIONS
        for storage in (storage for key, storage in created.items() if key not in known):
            self._count(storage, cast=name in _CASTS)
        if self.level_bytes > self.peak_bytes:
            self.peak_bytes, self.casts_at_peak_bytes = self.level_bytes, self._casts_bytes
        is_view = created.keys() <= known and not func._schema.is_mutable
        scratch = 0 if is_view else scratch_bound_bytes(name, inputs, outputs)
        self.peak_with_scratch_bytes = max(self.peak_with_scratch_bytes, self.level_bytes + scratch)
        return output

    def _is_plain(self, inputs: list[torch.Tensor], kwargs: Mapping[str, Any]) -> bool:
        query, key = inputs[:2]
        has_mask = kwargs.get("attn_mask") is not None
        return self.attends_plainly(short(query.dtype), key.shape[1] < query.shape[1], has_mask)

    def _attend(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Attend by plain products, each of them counted."""
        query, key, value, *rest = args
        shared = key.shape[1] < query.shape[1]
        with self:
            return torch.ops.aten._scaled_dot_product_attention_math.default.decompose(
                query, key, value, kwargs.pop("attn_mask", None), *rest, enable_gqa=shared, **kwargs
            )

    def _count(self, storage: torch.UntypedStorage, *, cast: bool) -> None:
        size = storage.nbytes()
        self.level_bytes += size
        self._casts_bytes += size * cast
        weakref.finalize(storage, self._release, size, cast)

    def _release(self, size: int, cast: bool) -> None:
        self.level_bytes -= size
        self._casts_bytes -= size * cast


def leaf_tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def check_agreement(name: str, inputs: list[torch.Tensor]) -> None:
    """Raise where the real kernel refuses operands of unlike dtypes: a fake one does not look at them."""
    if name.startswith(_NORMS):
        x, *parameters = (short(tensor.dtype) for tensor in inputs)
        if unlike := [dtype for dtype in parameters if dtype not in (x, "float32")]:  # float32 is kept for half inputs
            raise RuntimeError(f"{name}: {x} meets {unlike[0]}")
    if not name.startswith((*_PRODUCTS, *_WRITES)):
        return
    dtypes = dict.fromkeys(short(x.dtype) for x in inputs if x.is_floating_point())
    if len(dtypes) > 1:
        raise RuntimeError(f"{name}: {' meets '.join(dtypes)}")


def scratch_bound_bytes(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    """Bound what a kernel may take for itself: repacked operands, a float32 accumulator, promoted copies.

    A product may repack each operand in its own dtype, and accumulate in float32. Any other operation may promote its
    operands to float32 or to the widest dtype among them; a lookup leaves its table alone.
    """
    accumulator = sum(_FLOAT32_BYTES * tensor.numel() for tensor in outputs if tensor.is_floating_point())
    if name.startswith(_PRODUCTS):
        packed = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
        return packed + accumulator + torch.get_num_threads() * _TILE_BYTES
    operands = inputs[1:] if name in _LOOKUPS else inputs
    widest = max((tensor.element_size() for tensor in operands), default=0)
    return accumulator + max(widest, _FLOAT32_BYTES) * sum(tensor.numel() for tensor in operands)


def counted_call(call: Callable[..., Any], inputs: tuple[Any, ...], counter: AllocationCounter) -> AllocationCounter:
    """Count one call on fake tensors; to be used inside :func:`fake_tensors`."""
    with counter:
        output = call(*inputs)
    del output
    return counter


def stored_bytes(model: nn.Module, *, kind: Callable[[str, torch.Tensor], str]) -> Counter[str]:
    """Add up a model's parameters and buffers by kind, each storage once."""
    seen: dict[int, tuple[str, int]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        storage = tensor.untyped_storage()
        seen.setdefault(storage._cdata, (kind(name, tensor), storage.nbytes()))
    total: Counter[str] = Counter()
    for name, size in seen.values():
        total[name] += size
    return total
