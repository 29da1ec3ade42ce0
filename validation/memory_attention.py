"""Attention calls whose peak allocation is known from their shapes, and the ledgers of torch's kernels on the CPU.

Conventions: as in :mod:`validation.memory_calls`. Each maker returns call, inputs and ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from precision_eval.cases.systems import case_by_id
from precision_eval.cases.systems.attention import SHAPES
from precision_eval.fixes.catalog import fix_by_id

Ledger = tuple[int, ...]


def ones(device: str, dtype: str, *shape: int) -> torch.Tensor:
    """Return ones, written and not only reserved, so that tools that watch the process see them."""
    return torch.ones(shape, dtype=getattr(torch, dtype), device=device)


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    return getattr(torch, dtype).itemsize


def _mask_ledger(mask_numel: int, item: int) -> Ledger:
    """A boolean mask is turned into a floating one, by way of two numbers."""
    return (item, item, mask_numel * item, -item, -item) if mask_numel else ()


def fused_scratch_bytes(query: tuple[int, ...], keys: int, *, item: int, threads: int) -> tuple[int, int, int]:
    """Scratch of the CPU's fused attention, block by block."""
    batch, heads, queries, width = query
    split = 256 if queries >= 768 else 64 if queries >= 192 else 32
    rows, columns = min(split, queries), min(512, keys)
    tile = threads * (rows * columns + 2 * rows + rows * width) * 4
    return batch * heads * queries * 4, tile, threads * rows * columns * item if item == 2 else 0


def flash_ledger(query: tuple[int, ...], keys: int, item: int, *, mask_numel: int, threads: int) -> Ledger:
    """Ledger of the CPU's fused attention."""
    scratch = fused_scratch_bytes(query, keys, item=item, threads=threads)
    freed = (-sum(scratch), -mask_numel * item)
    return (*_mask_ledger(mask_numel, item), prod(query) * item, *scratch, *freed)


def _attention(
    device: str, dtype: str, heads: int, cache_heads: int, queries: int, keys: int, width: int, masked: bool
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    q, k = ones(device, dtype, 2, heads, queries, width), ones(device, dtype, 2, cache_heads, keys, width)
    mask = ones(device, "bool", 1, 1, queries, keys) if masked else None

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads != cache_heads)

    return attend, (q, k, k)


def flash(device: str, dtype: str, queries: int, keys: int, masked: bool, threads: int) -> Any:
    """Fused attention of four heads on two cached ones."""
    call, inputs = _attention(device, dtype, 4, 2, queries, keys, 32, masked)
    mask = queries * keys * masked
    return call, inputs, flash_ledger((2, 4, queries, 32), keys, item_bytes(dtype), mask_numel=mask, threads=threads)


def math(device: str, dtype: str, cache_heads: int, queries: int, keys: int, masked: bool) -> Any:
    """Plain attention: both operands scaled, two score tensors, and a check for rows without any key."""
    attend, inputs = _attention(device, dtype, 4, cache_heads, queries, keys, 16, masked)

    def call(*operands: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return attend(*operands)

    item = item_bytes(dtype)
    mask, query = queries * keys * masked, 8 * queries * 16 * item
    key, scores, rows = 8 * keys * 16 * item, 8 * queries * keys, 8 * queries
    number = (8,) if dtype == "float64" else (8, item)
    repeated = (key, key) if cache_heads != 4 else ()
    scaled = (*number, query, -sum(number), *repeated, *number, key, -sum(number))
    checked = (scores, rows, item, -item, -rows, -scores)
    core = (scores * item, -key, scores * item, *checked, -scores * item, query, *(-b for b in repeated), -query)
    return call, inputs, (*_mask_ledger(mask, item), *scaled, *core, -scores * item, -mask * item)


def fixed_cache(device: str, case: str, size: str, fix: str) -> Any:
    """A fix on an attention case: the casted copies, then the fused kernel in the dtype agreed on."""
    built, shape = case_by_id(case).build(size, device=device, seed=0), SHAPES[size]
    applied = fix_by_id(fix).applied(built.model)

    def call(*inputs: torch.Tensor) -> Any:
        with applied.agreeing():
            return applied(*inputs)

    query, item = tuple(built.inputs[0].shape), 4 if fix == "kv_to_query" else 2
    cache = shape.batch * shape.cache_heads * shape.slots * shape.head_dim
    copies = (4 * cache, 4 * cache) if fix == "kv_to_query" else (2 * prod(query),)
    mask = query[2] * shape.slots
    kernel = flash_ledger(query, shape.slots, item, mask_numel=mask, threads=1)
    return call, built.inputs, (*copies, *kernel, -sum(copies))
