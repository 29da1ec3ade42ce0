"""The operations where dtypes meet, and the cast that each of them needs.

At each site one operand is the *activation* and the others are *storage*:
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]


def _mask_for(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype is torch.bool or mask.dtype is torch.float32 or mask.dtype is dtype:
        return mask
    return mask.to(dtype)


def _sdpa_to_storage(original: Function) -> Function:
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        dtype = key.dtype
        if query.dtype is not dtype:
            query = query.to(dtype)
        if value.dtype is not dtype:
            value = value.to(dtype)
        if attn_mask is not None:
            attn_mask = _mask_for(attn_mask, dtype)
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return scaled_dot_product_attention


def _sdpa_to_activation(original: Function) -> Function:
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        dtype = query.dtype
        if key.dtype is not dtype:
            key = key.to(dtype)
        if value.dtype is not dtype:
            value = value.to(dtype)
        if attn_mask is not None:
            attn_mask = _mask_for(attn_mask, dtype)
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return scaled_dot_product_attention


def _linear_to_storage(original: Function) -> Function:
    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        dtype = weight.dtype
        if input.dtype is not dtype:
            input = input.to(dtype)
        if bias is not None and bias.dtype is not dtype:
            bias = bias.to(dtype)
        return original(input, weight, bias)

    return linear


def _linear_to_activation(original: Function) -> Function:
    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        dtype = input.dtype
        if weight.dtype is not dtype:
            weight = weight.to(dtype)
        if bias is not None and bias.dtype is not dtype:
            bias = bias.to(dtype)
        return original(input, weight, bias)

    return linear


def _differ(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype is not right.dtype and left.is_floating_point() and right.is_floating_point()


def _matmul_to_storage(original: Function) -> Function:
    def matmul(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if input.dtype is not other.dtype and _differ(input, other):
            input = input.to(other.dtype)
        return original(input, other) if out is None else original(input, other, out=out)

    return matmul


def _matmul_to_activation(original: Function) -> Function:
    def matmul(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if input.dtype is not other.dtype and _differ(input, other):
            other = other.to(input.dtype)
        return original(input, other) if out is None else original(input, other, out=out)

    return matmul


def _mat2_to_storage(original: Function) -> Function:
    # the rest: out_dtype and out, which not every supported torch has
    def product(input: torch.Tensor, mat2: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        if input.dtype is not mat2.dtype and _differ(input, mat2):
            input = input.to(mat2.dtype)
        return original(input, mat2, *rest, **options)

    return product


def _mat2_to_activation(original: Function) -> Function:
    def product(input: torch.Tensor, mat2: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        if input.dtype is not mat2.dtype and _differ(input, mat2):
            mat2 = mat2.to(input.dtype)
        return original(input, mat2, *rest, **options)

    return product


def _norm_to_storage(original: Function) -> Function:
    # shape: normalized_shape of layer and rms norm, num_groups of group norm; rest: eps and cudnn_enabled
    def norm(
        input: torch.Tensor,
        shape: Any,
        weight: torch.Tensor | None = None,
        bias: Any = None,
        *rest: Any,
        **options: Any,
    ) -> torch.Tensor:
        if weight is not None and input.dtype is not weight.dtype:
            input = input.to(weight.dtype)
        if isinstance(bias, torch.Tensor) and bias.dtype is not input.dtype:
            bias = bias.to(input.dtype)
        return original(input, shape, weight, bias, *rest, **options)

    return norm


def _norm_to_activation(original: Function) -> Function:
    def norm(
        input: torch.Tensor,
        shape: Any,
        weight: torch.Tensor | None = None,
        bias: Any = None,
        *rest: Any,
        **options: Any,
    ) -> torch.Tensor:
        dtype = input.dtype
        if weight is not None and weight.dtype is not dtype:
            weight = weight.to(dtype)
        if isinstance(bias, torch.Tensor) and bias.dtype is not dtype:
            bias = bias.to(dtype)
        return original(input, shape, weight, bias, *rest, **options)

    return norm


def _rms_norm_to_storage(original: Function) -> Function:
    def rms_norm(
        input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        if weight is not None and input.dtype is not weight.dtype:
            input = input.to(weight.dtype)
        return original(input, normalized_shape, weight, eps)

    return rms_norm


def _rms_norm_to_activation(original: Function) -> Function:
    def rms_norm(
        input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        if weight is not None and weight.dtype is not input.dtype:
            weight = weight.to(input.dtype)
        return original(input, normalized_shape, weight, eps)

    return rms_norm


def _index_put(original: Function) -> Function:
    def index_put_(self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
        if values.dtype is not self.dtype and _differ(values, self):
            values = values.to(self.dtype)
        return original(self, indices, values, accumulate)

    return index_put_


def _index_copy(original: Function) -> Function:
    def index_copy_(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if source.dtype is not self.dtype and _differ(source, self):
            source = source.to(self.dtype)
        return original(self, dim, index, source)

    return index_copy_


def indexes_with_tensor(index: Any) -> bool:
    """Say whether an index holds a tensor, so that assigning through it is an index_put and not a copy."""
    if not isinstance(index, tuple):
        return isinstance(index, (torch.Tensor, list))
    for part in index:  # a loop, since a generator would cost as much as the assignment itself  # noqa: SIM110
        if part.__class__ is not slice and isinstance(part, (torch.Tensor, list)):
            return True
    return False


def _set_item(original: Function) -> Function:
    # Assignment to a plain slice casts by itself, in the copy; only one with a tensor index is an index_put.
    # Not named __setitem__: Dynamo refuses to inline a function of that name.
    def assign(self: torch.Tensor, index: Any, value: Any) -> None:
        if indexes_with_tensor(index) and isinstance(value, torch.Tensor) and _differ(value, self):
            value = value.to(self.dtype)
        original(self, index, value)

    return assign


@dataclass(frozen=True)
class Site:
    """One public name of an operation where dtypes meet."""

    site: str
    owner: Any
    name: str
    to_storage: Callable[[Function], Function]
    to_activation: Callable[[Function], Function]
    eager: bool = True


SITES: tuple[Site, ...] = (
    Site("sdpa", F, "scaled_dot_product_attention", _sdpa_to_storage, _sdpa_to_activation),
    Site("linear", F, "linear", _linear_to_storage, _linear_to_activation),
    Site("matmul", torch, "matmul", _matmul_to_storage, _matmul_to_activation),
    Site("matmul", torch, "bmm", _mat2_to_storage, _mat2_to_activation),
    Site("matmul", torch, "mm", _mat2_to_storage, _mat2_to_activation),
    Site("matmul", torch.Tensor, "matmul", _matmul_to_storage, _matmul_to_activation),
    Site("matmul", torch.Tensor, "__matmul__", _matmul_to_storage, _matmul_to_activation),
    Site("matmul", torch.Tensor, "bmm", _mat2_to_storage, _mat2_to_activation),
    Site("matmul", torch.Tensor, "mm", _mat2_to_storage, _mat2_to_activation),
    Site("norm", torch, "layer_norm", _norm_to_storage, _norm_to_activation),
    Site("norm", torch, "group_norm", _norm_to_storage, _norm_to_activation),
    Site("norm", torch, "rms_norm", _rms_norm_to_storage, _rms_norm_to_activation),
    Site("norm", F, "layer_norm", _norm_to_storage, _norm_to_activation, eager=False),
    Site("norm", F, "group_norm", _norm_to_storage, _norm_to_activation, eager=False),
    Site("norm", F, "rms_norm", _rms_norm_to_storage, _rms_norm_to_activation, eager=False),
    Site("cache_write", torch.Tensor, "index_put_", _index_put, _index_put),
    Site("cache_write", torch.Tensor, "index_copy_", _index_copy, _index_copy),
    Site("cache_write", torch.Tensor, "__setitem__", _set_item, _set_item),
)


def make_agreed(site: Site, agreement: str, original: Function) -> Function:
    """Make a function that casts and then calls the original; a new one each time."""
    if agreement == "activation_to_storage":
        return site.to_storage(original)
    return site.to_activation(original) if agreement == "storage_to_activation" else original


_AGREED: dict[tuple[Site, str, Function], Function] = {}
_ORIGINAL: dict[Function, Function] = {}


def agreed(site: Site, agreement: str, original: Function) -> Function:
    """Make, or find again, the function that casts and then calls the original."""
    key = (site, agreement, original)
    if key not in _AGREED:
        _AGREED[key] = make_agreed(site, agreement, original)
        _ORIGINAL[_AGREED[key]] = original
    return _AGREED[key]


def original_of(function: Function) -> Function:
    """Find what an agreed function calls."""
    return _ORIGINAL.get(function, function)
