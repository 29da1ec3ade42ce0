"""Calls whose peak allocation is known from their shapes alone.

Conventions: bytes. A *ledger* lists what a call takes from the allocator (+) and gives back (−), in order, worked out
on paper from shapes and dtypes; its highest running sum is the prediction. The CPU allocator asks the system for memory
aligned to 64 bytes and accounts the size as asked, so nothing is rounded; CUDA's rounds each piece up to 512 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

import torch
from torch.nn import functional as F

from precision_eval.cases.systems.attention import SHAPES
from validation.memory_attention import Ledger, fixed_cache, flash, item_bytes, math, ones

CUDA_GRAIN_BYTES = 512
_DTYPES = ("bool", "uint8", "float16", "bfloat16", "float32", "float64", "complex64")
_FLOATS = ("float16", "float32", "float64")
_SIZES = (1, 1000, 65_537, 1 << 22)


@dataclass(frozen=True, kw_only=True)
class KnownCall:
    """A call and its ledger."""

    key: str
    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    ledger: Ledger
    threads: int = 1

    @property
    def predicted_bytes(self) -> int:
        """Highest running sum of the ledger."""
        return peak_of(self.ledger)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Calls of one kind over a grid of arguments."""

    make: Callable[..., tuple[Callable[..., Any], tuple[Any, ...], Ledger]]
    grid: tuple[tuple[Any, ...], ...]
    kernel: bool = False


def peak_of(ledger: Iterable[int]) -> int:
    """Return the highest running sum; 0 for an empty ledger."""
    return max(accumulate(ledger, initial=0))


def _single(device: str, dtype: str, n: int) -> Any:
    return lambda: ones(device, dtype, n), (), (n * item_bytes(dtype),)


def _kept(device: str, dtype: str, n: int) -> Any:
    sizes = (n, 3, n // 2 + 1, 257)
    return lambda: [ones(device, dtype, m) for m in sizes], (), tuple(m * item_bytes(dtype) for m in sizes)


def _chain(device: str, dtype: str, n: int) -> Any:
    def chain(x: torch.Tensor) -> torch.Tensor:
        first = x.clone()
        second = first.clone()
        del first
        return second.clone()

    m = n * item_bytes(dtype)
    return chain, (ones(device, dtype, n),), (m, m, -m, m, -m)


def _three(device: str, dtype: str, n: int) -> Any:
    def three(x: torch.Tensor) -> torch.Tensor:
        first, second = x.clone(), x.clone()
        del first
        third, fourth = x.clone(), x.clone()
        del second, third
        return fourth

    m = n * item_bytes(dtype)
    return three, (ones(device, dtype, n),), (m, m, -m, m, m, -m, -m)


def _sum_of_three(device: str, dtype: str, n: int) -> Any:
    x, m = ones(device, dtype, n), n * item_bytes(dtype)
    return lambda a, b, c: a + b + c, (x, x, x), (m, m, -m)


def _product_of_sums(device: str, dtype: str, n: int) -> Any:
    x, m = ones(device, dtype, n), n * item_bytes(dtype)
    return lambda a, b: (a + b) * (b + a), (x, x), (m, m, m, -m, -m)


def _in_place(device: str, dtype: str, n: int) -> Any:
    x, y = ones(device, dtype, n), ones(device, dtype, n)
    return lambda a, b: a.add_(b).mul_(b).neg_().copy_(b), (x, y), ()


def _views(device: str, dtype: str, n: int) -> Any:
    return (
        lambda x: [x.view(2, n).T[n // 2 :], x.unsqueeze(0).expand(3, -1), *x.chunk(2)],
        (ones(device, dtype, 2 * n),),
        (),
    )


def _cast(device: str, dtype: str, to: str, n: int) -> Any:
    ledger = () if dtype == to else (n * item_bytes(to),)
    return lambda x: x.to(getattr(torch, to)), (ones(device, dtype, n),), ledger


def _round_trip(device: str, dtype: str, n: int) -> Any:
    ledger = (8 * n, n * item_bytes(dtype), -8 * n)
    return lambda x: x.double().to(x.dtype), (ones(device, dtype, n),), ledger


def _nothing_returned(device: str, dtype: str, n: int) -> Any:
    def lose(x: torch.Tensor) -> None:
        x.clone()

    m = n * item_bytes(dtype)
    return lose, (ones(device, dtype, n),), (m, -m)


def _several_outputs(device: str, dtype: str, n: int) -> Any:
    m = n * item_bytes(dtype)
    return lambda x: (x.clone(), {"other": x.clone()}), (ones(device, dtype, n),), (m, m)


def _concatenated(device: str, dtype: str, n: int) -> Any:
    return lambda x: torch.cat([x, x, x]), (ones(device, dtype, n),), (3 * n * item_bytes(dtype),)


def _chosen(device: str, dtype: str, n: int) -> Any:
    x, m = ones(device, dtype, n), n * item_bytes(dtype)
    return lambda a, b: torch.where(a > b, a, b), (x, x), (n, m, -n)  # the comparison is a byte each


def _scaled(device: str, dtype: str, n: int) -> Any:
    m, item = n * item_bytes(dtype), item_bytes(dtype)
    number = (8,) if dtype == "float64" else (8, item)
    return lambda x: x * 2.0, (ones(device, dtype, n),), (*number, m, *(-b for b in number[::-1]))


def _wide_sum(device: str, dtype: str, n: int) -> Any:
    return lambda x: x.double().sum(), (ones(device, dtype, n),), (8 * n, 8, -8 * n)


def _linear(device: str, dtype: str, rows: int, width: int, bias: bool) -> Any:
    x, weight = ones(device, dtype, 2, rows, width), ones(device, dtype, 3 * width, width)
    b = ones(device, dtype, 3 * width) if bias else None
    return F.linear, (x, weight, b), (2 * rows * 3 * width * item_bytes(dtype),)


def _softmax(device: str, dtype: str, rows: int, width: int) -> Any:
    m = rows * width * item_bytes(dtype)
    return lambda x: x.softmax(-1), (ones(device, dtype, rows, width),), (m,)


def _wide_softmax(device: str, dtype: str, rows: int, width: int) -> Any:
    m = rows * width * 4
    return (
        lambda x: x.softmax(-1, dtype=torch.float32),
        (ones(device, dtype, rows, width),),
        ((m,) if dtype == "float32" else (m, m, -m)),
    )


def _layer_norm(device: str, dtype: str, rows: int, width: int) -> Any:
    m, row = rows * width * item_bytes(dtype), rows * item_bytes(dtype)
    return lambda x: F.layer_norm(x, (width,)), (ones(device, dtype, rows, width),), (m, row, row, -row, -row)


def _written_out(device: str, dtype: str, queries: int, keys: int) -> Any:
    q, k = ones(device, dtype, 2, 4, queries, 32), ones(device, dtype, 2, 4, keys, 32)
    scores, out = 8 * queries * keys * item_bytes(dtype), q.numel() * item_bytes(dtype)
    return lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (q, k, k), (scores, scores, -scores, out, -scores)


_PLAIN = tuple(product(_DTYPES, _SIZES))
_FLOAT = tuple(product(_FLOATS, _SIZES))
_ROWS = ((1, 7), (64, 64), (300, 1024))

FAMILIES: dict[str, Family] = {
    "single": Family(make=_single, grid=_PLAIN),
    "kept": Family(make=_kept, grid=_FLOAT),
    "chain": Family(make=_chain, grid=_PLAIN),
    "three": Family(make=_three, grid=_FLOAT),
    "sum-of-three": Family(make=_sum_of_three, grid=_FLOAT),
    "product-of-sums": Family(make=_product_of_sums, grid=_FLOAT),
    "in-place": Family(make=_in_place, grid=_FLOAT),
    "views": Family(make=_views, grid=_FLOAT),
    "cast": Family(
        make=_cast,
        grid=tuple((a, b, n) for a, b, n in product((*_FLOATS, "bfloat16"), (*_FLOATS, "bfloat16"), (1000, 1 << 20))),
    ),
    "round-trip": Family(make=_round_trip, grid=tuple(product(("float16", "bfloat16", "float32"), _SIZES))),
    "nothing-returned": Family(make=_nothing_returned, grid=_FLOAT),
    "several-outputs": Family(make=_several_outputs, grid=_FLOAT),
    "concatenated": Family(make=_concatenated, grid=_FLOAT),
    "chosen": Family(make=_chosen, grid=_FLOAT),
    "number": Family(make=_scaled, grid=_FLOAT, kernel=True),
    "wide-sum": Family(make=_wide_sum, grid=tuple(product(("float16", "float32"), _SIZES)), kernel=True),
    "linear": Family(
        make=_linear,
        grid=tuple((d, *r, b) for d, r, b in product(("float32", "float64"), _ROWS, (False, True))),
        kernel=True,
    ),
    "softmax": Family(make=_softmax, grid=tuple((d, *r) for d, r in product(_FLOATS, _ROWS)), kernel=True),
    "wide-softmax": Family(
        make=_wide_softmax, grid=tuple((d, *r) for d, r in product(("float16", "float32"), _ROWS)), kernel=True
    ),
    "layer-norm": Family(make=_layer_norm, grid=tuple((d, *r) for d, r in product(_FLOATS, _ROWS)), kernel=True),
    "attention-written-out": Family(
        make=_written_out,
        grid=tuple((d, *r) for d, r in product(("float32", "float64"), ((1, 64), (64, 512)))),
        kernel=True,
    ),
    "attention-fused": Family(
        make=flash,
        grid=tuple(
            (d, *r, m, t)
            for d, r, m, t in product(
                ("float16", "bfloat16", "float32"), ((1, 64), (64, 600), (200, 600), (800, 900)), (False, True), (1, 2)
            )
        ),
        kernel=True,
    ),
    "attention-math": Family(
        make=math,
        grid=tuple(
            (d, h, *r, m) for d, h, r, m in product(("float32", "float64"), (4, 2), ((1, 64), (64, 600)), (False, True))
        ),
        kernel=True,
    ),
    "cache-under-fix": Family(
        make=fixed_cache,
        grid=(
            *product(("attention-decode", "attention-prefill"), SHAPES, ("kv_to_query",)),
            *product(("attention-decode",), SHAPES, ("query_to_half",)),
        ),
        kernel=True,
    ),
}
"""Every family, elementary ones first."""


def all_keys() -> tuple[str, ...]:
    """Keys of every call, in the order of the families."""
    return tuple(json.dumps([name, *arguments]) for name, family in FAMILIES.items() for arguments in family.grid)


def family_of(key: str) -> str:
    """Return the family of a key."""
    return str(json.loads(key)[0])


def build(key: str, *, device: str = "cpu") -> KnownCall:
    """Make a call from its key."""
    name, *arguments = json.loads(key)
    call, inputs, ledger = FAMILIES[name].make(device, *arguments)
    threads = int(arguments[-1]) if name == "attention-fused" else 1
    if device != "cpu":
        ledger = tuple(_rounded(piece) for piece in ledger)
    return KnownCall(key=key, call=call, inputs=inputs, ledger=ledger, threads=threads)


def _rounded(piece: int) -> int:
    grains = -(-abs(piece) // CUDA_GRAIN_BYTES) * CUDA_GRAIN_BYTES
    return grains if piece > 0 else -grains


def with_more(known: KnownCall, *, fraction: float) -> KnownCall:
    """Plant a regression: the same call beside another tensor that lives as long."""
    more = max(1, round(known.predicted_bytes * fraction))

    def call(*inputs: Any) -> Any:
        ballast = torch.ones(more, dtype=torch.uint8)
        found = known.call(*inputs)
        del ballast
        return found

    return replace(known, call=call, ledger=(more, *known.ledger, -more))
