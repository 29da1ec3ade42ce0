"""The operations where dtypes meet, and the cast that each of them needs.

At each site one operand is the *activation* (the query, an input, the left factor of a product, what is written to a
cache) and the others are *storage* (key and value, weights, the right factor, the cache). A wrapper casts one to the
other's dtype. It costs no more than the source's own cast would, so dtypes are compared before anything is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]


def _mask_for(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype is torch.bool or mask.dtype is torch.float32 or mask.dtype is dtype:
        return mask
    return mask.to(dtype)


def _sdpa(original: Function, storage: bool) -> Function:
    # rest: dropout_p, is_causal, scale and enable_gqa; to pass on what a call leaves out takes time
    def to_storage(query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **options: Any) -> torch.Tensor:
        dtype = key.dtype
        if query.dtype is not dtype:
            query = query.to(dtype)
        if value.dtype is not dtype:
            value = value.to(dtype)
        if attn_mask is not None and attn_mask.dtype is not torch.bool:
            attn_mask = _mask_for(attn_mask, dtype)
        return original(query, key, value, attn_mask, *rest, **options)

    def to_activation(
        query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **options: Any
    ) -> torch.Tensor:
        dtype = query.dtype
        if key.dtype is not dtype:
            key = key.to(dtype)
        if value.dtype is not dtype:
            value = value.to(dtype)
        if attn_mask is not None and attn_mask.dtype is not torch.bool:
            attn_mask = _mask_for(attn_mask, dtype)
        return original(query, key, value, attn_mask, *rest, **options)

    return to_storage if storage else to_activation


def _linear(original: Function, storage: bool) -> Function:
    def to_storage(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        dtype = weight.dtype
        if input.dtype is not dtype:
            input = input.to(dtype)
        if bias is None:
            return original(input, weight)
        return original(input, weight, bias if bias.dtype is dtype else bias.to(dtype))

    def to_activation(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        dtype = input.dtype
        if weight.dtype is not dtype:
            weight = weight.to(dtype)
        if bias is None:
            return original(input, weight)
        return original(input, weight, bias if bias.dtype is dtype else bias.to(dtype))

    return to_storage if storage else to_activation


def differ(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype is not right.dtype and left.is_floating_point() and right.is_floating_point()


def _matmul(original: Function, storage: bool) -> Function:
    def matmul(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if differ(input, other):
            input, other = (input.to(other.dtype), other) if storage else (input, other.to(input.dtype))
        return original(input, other) if out is None else original(input, other, out=out)

    return matmul


def _mat2(original: Function, storage: bool) -> Function:
    # the rest: out_dtype and out, which not every supported torch has
    def product(input: torch.Tensor, mat2: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        if differ(input, mat2):
            input, mat2 = (input.to(mat2.dtype), mat2) if storage else (input, mat2.to(input.dtype))
        return original(input, mat2, *rest, **options)

    return product


def _norm(original: Function, storage: bool) -> Function:
    # shape: normalized_shape of layer and rms norm, num_groups of group norm; rest: eps and cudnn_enabled
    def norm(
        input: torch.Tensor,
        shape: Any,
        weight: torch.Tensor | None = None,
        bias: Any = None,
        *rest: Any,
        **options: Any,
    ) -> torch.Tensor:
        dtype = weight.dtype if storage and weight is not None else input.dtype
        input = input if input.dtype is dtype else input.to(dtype)
        if weight is not None and weight.dtype is not dtype:
            weight = weight.to(dtype)
        if isinstance(bias, torch.Tensor) and bias.dtype is not dtype:
            bias = bias.to(dtype)
        return original(input, shape, weight, bias, *rest, **options)

    return norm


def _rms_norm(original: Function, storage: bool) -> Function:
    def rms_norm(
        input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        if weight is not None and input.dtype is not weight.dtype:
            input, weight = (input.to(weight.dtype), weight) if storage else (input, weight.to(input.dtype))
        return original(input, normalized_shape, weight, eps)

    return rms_norm


def _index_put(original: Function, _: bool) -> Function:
    def index_put_(self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
        if values.dtype is not self.dtype and differ(values, self):
            values = values.to(self.dtype)
        return original(self, indices, values, accumulate)

    return index_put_


def _index_copy(original: Function, _: bool) -> Function:
    def index_copy_(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if source.dtype is not self.dtype and differ(source, self):
            source = source.to(self.dtype)
        return original(self, dim, index, source)

    return index_copy_


def indexes_with_tensor(index: Any) -> bool:
    """Whether an index holds a tensor, so that assigning through it is an index_put and not a copy."""
    if not isinstance(index, tuple):
        return isinstance(index, (torch.Tensor, list))
    for part in index:  # a loop, since a generator would cost as much as the assignment itself  # noqa: SIM110
        if part.__class__ is not slice and isinstance(part, (torch.Tensor, list)):
            return True
    return False


def _set_item(original: Function, _: bool) -> Function:
    # Assignment to a plain slice casts by itself, in the copy; only one with a tensor index is an index_put.
    # Not named __setitem__: Dynamo refuses to inline a function of that name.
    def assign(self: torch.Tensor, index: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor) and differ(value, self) and indexes_with_tensor(index):
            value = value.to(self.dtype)
        original(self, index, value)

    return assign


@dataclass(frozen=True)
class Site:
    """One public name of an operation where dtypes meet."""

    site: str
    owner: Any
    name: str
    make: Callable[[Function, bool], Function]  # of the original; towards the storage, or the activation
    eager: bool = True


SITES: tuple[Site, ...] = (
    Site("sdpa", F, "scaled_dot_product_attention", _sdpa),
    Site("linear", F, "linear", _linear),
    Site("matmul", torch, "matmul", _matmul),
    Site("matmul", torch, "bmm", _mat2),
    Site("matmul", torch, "mm", _mat2),
    Site("matmul", torch.Tensor, "matmul", _matmul),
    Site("matmul", torch.Tensor, "__matmul__", _matmul),
    Site("matmul", torch.Tensor, "bmm", _mat2),
    Site("matmul", torch.Tensor, "mm", _mat2),
    Site("norm", torch, "layer_norm", _norm),
    Site("norm", torch, "group_norm", _norm),
    Site("norm", torch, "rms_norm", _rms_norm),
    Site("norm", F, "layer_norm", _norm, eager=False),
    Site("norm", F, "group_norm", _norm, eager=False),
    Site("norm", F, "rms_norm", _rms_norm, eager=False),
    Site("cache_write", torch.Tensor, "index_put_", _index_put),
    Site("cache_write", torch.Tensor, "index_copy_", _index_copy),
    Site("cache_write", torch.Tensor, "__setitem__", _set_item),
)


def wrap_site(site: Site, agreement: str, original: Function) -> Function:
    """Make a function that casts as an agreement says and then calls the original; a new one each time."""
    if agreement not in ("activation_to_storage", "storage_to_activation"):
        return original
    return site.make(original, agreement == "activation_to_storage")


_ORIGINAL: dict[Function, Function] = {}


@cache
def site_wrapper(site: Site, agreement: str, original: Function) -> Function:
    """Return the one function of :func:`wrap_site` that is put in the original's place."""
    wrapper = wrap_site(site, agreement, original)
    _ORIGINAL[wrapper] = original
    return wrapper


def original_of(function: Function) -> Function:
    return _ORIGINAL.get(function, function)
