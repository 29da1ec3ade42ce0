"""Calls whose peak allocation is known from their shapes alone.

A *ledger* lists what a call takes from the allocator (+) and gives back (−), in bytes and in order, worked out on paper
from shapes and dtypes; its highest running sum is the prediction. The CPU allocator asks the system for memory aligned
to 64 bytes and accounts the size as asked, so nothing is rounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from precision_eval.cases.systems import case_by_id
from precision_eval.cases.systems.attention import SHAPES
from precision_eval.fixes.catalog import fix_by_id

_DTYPES = ("bool", "uint8", "float16", "bfloat16", "float32", "float64", "complex64")
_FLOATS = ("float16", "float32", "float64")
_SIZES = (1, 1000, 65_537, 1 << 22)

Ledger = tuple[int, ...]
Made = tuple[Callable[..., Any], tuple[Any, ...], Ledger]  # call, inputs and ledger


@dataclass(frozen=True, kw_only=True)
class KnownCall:
    key: str
    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    ledger: Ledger
    threads: int = 1

    @property
    def predicted_bytes(self) -> int:
        return peak_of(self.ledger)


@dataclass(frozen=True)
class Family:
    """Calls of one kind over a grid of arguments; with a *kernel*, what it takes for itself is in the ledger."""

    make: Callable[..., Made]
    grid: tuple[tuple[Any, ...], ...]
    kernel: bool = False


def peak_of(ledger: Iterable[int]) -> int:
    return max(accumulate(ledger, initial=0))


def ones(dtype: str, *shape: int) -> Tensor:
    """Return ones, written and not only reserved, so that tools that watch the process see them."""
    return torch.ones(shape, dtype=getattr(torch, dtype))


def item_bytes(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def _on(copies: int, call: Callable[..., Any], ledger: Callable[[int, int], Ledger]) -> Callable[..., Made]:
    """Make a maker: `call` takes so many tensors of n elements, and the ledger follows from n and their bytes m."""

    def make(dtype: str, n: int) -> Made:
        return call, tuple(ones(dtype, n) for _ in range(copies)), ledger(n, n * item_bytes(dtype))

    return make


def _single(dtype: str, n: int) -> Made:
    return lambda: ones(dtype, n), (), (n * item_bytes(dtype),)


def _chain(x: Tensor) -> Tensor:
    first = x.clone()
    second = first.clone()
    del first
    return second.clone()


def _views(dtype: str, n: int) -> Made:
    x = ones(dtype, 2 * n)
    return lambda x: [x.view(2, n).T[n // 2 :], x.unsqueeze(0).expand(3, -1), *x.chunk(2)], (x,), ()


def _cast(dtype: str, to: str, n: int) -> Made:
    ledger = () if dtype == to else (n * item_bytes(to),)
    return lambda x: x.to(getattr(torch, to)), (ones(dtype, n),), ledger


def _linear(dtype: str, rows: int, width: int, bias: bool) -> Made:
    x, weight = ones(dtype, 2, rows, width), ones(dtype, 3 * width, width)
    b = ones(dtype, 3 * width) if bias else None
    return F.linear, (x, weight, b), (2 * rows * 3 * width * item_bytes(dtype),)


def _softmax(dtype: str, rows: int, width: int) -> Made:
    m = rows * width * item_bytes(dtype)
    return lambda x: x.softmax(-1), (ones(dtype, rows, width),), (m,)


def _layer_norm(dtype: str, rows: int, width: int) -> Made:
    m, row = rows * width * item_bytes(dtype), rows * item_bytes(dtype)
    return lambda x: F.layer_norm(x, (width,)), (ones(dtype, rows, width),), (m, row, row, -row, -row)


def _written_out(dtype: str, queries: int, keys: int) -> Made:
    q, k = ones(dtype, 2, 4, queries, 32), ones(dtype, 2, 4, keys, 32)
    scores, out = 8 * queries * keys * item_bytes(dtype), q.numel() * item_bytes(dtype)
    return lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (q, k, k), (scores, scores, -scores, out, -scores)


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
    scratch = fused_scratch_bytes(query, keys, item=item, threads=threads)
    freed = (-sum(scratch), -mask_numel * item)
    return (*_mask_ledger(mask_numel, item), prod(query) * item, *scratch, *freed)


def _attention(
    dtype: str, heads: int, cache_heads: int, queries: int, keys: int, width: int, masked: bool
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    q, k = ones(dtype, 2, heads, queries, width), ones(dtype, 2, cache_heads, keys, width)
    mask = ones("bool", 1, 1, queries, keys) if masked else None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads != cache_heads)

    return attend, (q, k, k)


def flash(dtype: str, queries: int, keys: int, masked: bool, threads: int) -> Made:
    call, inputs = _attention(dtype, 4, 2, queries, keys, 32, masked)
    mask = queries * keys * masked
    return call, inputs, flash_ledger((2, 4, queries, 32), keys, item_bytes(dtype), mask_numel=mask, threads=threads)


def fixed_cache(case: str, size: str, fix: str) -> Made:
    """A fix on an attention case: the casted copies, then the fused kernel in the dtype agreed on."""
    built, shape = case_by_id(case).build(size, device="cpu", seed=0), SHAPES[size]
    applied = fix_by_id(fix).applied(built.model)

    def call(*inputs: Tensor) -> Any:
        with applied.agreeing():
            return applied(*inputs)

    query, item = tuple(built.inputs[0].shape), 4 if fix == "kv_to_query" else 2
    cache = shape.batch * shape.cache_heads * shape.slots * shape.head_dim
    copies = (4 * cache, 4 * cache) if fix == "kv_to_query" else (2 * prod(query),)
    mask = query[2] * shape.slots
    kernel = flash_ledger(query, shape.slots, item, mask_numel=mask, threads=1)
    return call, built.inputs, (*copies, *kernel, -sum(copies))


_PLAIN = tuple(product(_DTYPES, _SIZES))
_FLOAT = tuple(product(_FLOATS, _SIZES))
_ROWS = ((1, 7), (64, 64), (300, 1024))
_HALVES = ("float16", "bfloat16", "float32")
_FEW = ((1, 64), (64, 600))
_FUSED = (*_FEW, (200, 600), (800, 900))


def _over(dtypes: Iterable[str], rows: Iterable[tuple[int, ...]], *more: Iterable[Any]) -> tuple[tuple[Any, ...], ...]:
    """Every dtype with every row of sizes and every further argument."""
    return tuple((dtype, *row, *rest) for dtype, row, *rest in product(dtypes, rows, *more))


_WIDE = ("float32", "float64")
_CACHES = (
    *product(("attention-decode", "attention-prefill"), SHAPES, ("kv_to_query",)),
    *product(("attention-decode",), SHAPES, ("query_to_half",)),
)

# Every family, elementary ones first.
FAMILIES: dict[str, Family] = {
    "single": Family(_single, _PLAIN),
    "chain": Family(_on(1, _chain, lambda n, m: (m, m, -m, m, -m)), _PLAIN),
    "sum-of-three": Family(_on(3, lambda a, b, c: a + b + c, lambda n, m: (m, m, -m)), _FLOAT),
    "in-place": Family(_on(2, lambda a, b: a.add_(b).mul_(b).neg_().copy_(b), lambda n, m: ()), _FLOAT),
    "views": Family(_views, _FLOAT),
    "cast": Family(_cast, tuple(product((*_FLOATS, "bfloat16"), (*_FLOATS, "bfloat16"), (1000, 1 << 20)))),
    "round-trip": Family(
        _on(1, lambda x: x.double().to(x.dtype), lambda n, m: (8 * n, m, -8 * n)), tuple(product(_HALVES, _SIZES))
    ),
    "several-outputs": Family(_on(1, lambda x: (x.clone(), {"other": x.clone()}), lambda n, m: (m, m)), _FLOAT),
    "concatenated": Family(_on(1, lambda x: torch.cat([x, x, x]), lambda n, m: (3 * m,)), _FLOAT),
    # the comparison is a byte each
    "chosen": Family(_on(2, lambda a, b: torch.where(a > b, a, b), lambda n, m: (n, m, -n)), _FLOAT),
    "linear": Family(_linear, _over(_WIDE, _ROWS, (False, True)), kernel=True),
    "softmax": Family(_softmax, _over(_FLOATS, _ROWS), kernel=True),
    "layer-norm": Family(_layer_norm, _over(_FLOATS, _ROWS), kernel=True),
    "attention-written-out": Family(_written_out, _over(_WIDE, ((1, 64), (64, 512))), kernel=True),
    "attention-fused": Family(flash, _over(_HALVES, _FUSED, (False, True), (1, 2)), kernel=True),
    "cache-under-fix": Family(fixed_cache, _CACHES, kernel=True),
}


def all_keys() -> tuple[str, ...]:
    return tuple(json.dumps([name, *arguments]) for name, family in FAMILIES.items() for arguments in family.grid)


def family_of(key: str) -> str:
    return str(json.loads(key)[0])


def build(key: str) -> KnownCall:
    name, *arguments = json.loads(key)
    call, inputs, ledger = FAMILIES[name].make(*arguments)
    threads = int(arguments[-1]) if name == "attention-fused" else 1
    return KnownCall(key=key, call=call, inputs=inputs, ledger=ledger, threads=threads)


def with_more(known: KnownCall, *, fraction: float) -> KnownCall:
    """Plant a regression: the same call with another tensor that lives as long."""
    more = max(1, round(known.predicted_bytes * fraction))

    def call(*inputs: Any) -> Any:
        ballast = torch.ones(more, dtype=torch.uint8)
        found = known.call(*inputs)
        del ballast
        return found

    return replace(known, call=call, ledger=(more, *known.ledger, -more))
