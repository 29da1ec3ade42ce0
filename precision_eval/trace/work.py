"""The work of one call, as a roofline asks for it: which operations ran, the bytes they move and their FLOPs.

Conventions: bytes are those of each operand that is read and of each result that is written, once per operation; an
expanded dimension is read once, and of a table only what is looked up. What a kernel takes for itself is not seen. A
multiplication and an addition are 2 FLOPs, by the formulas of :mod:`torch.utils.flop_counter`. An operation without
one (norms, activations, sums) has bytes alone. Views and empty tensors are no work. A product whose second matrix lies
as it is multiplied, and not transposed as the weight of ``nn.Linear``, is a kind of its own: its kernel is another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from precision_eval.core.formats import short
from precision_eval.trace.observer import OperationMode

FRESH_BYTES = 32 << 20
"""Size of a result from which on glibc takes its memory from the system at each call, page by page."""

PRODUCT, UNTRANSPOSED, ATTENTION = "product", "untransposed product", "attention"
"""Kinds of operation that have FLOPs."""

_ATTENTION = "_scaled_dot_product_"
_LOOKUPS = frozenset(("embedding", "gather", "index", "index_select", "take", "take_along_dim"))
_WRITES = frozenset(("copy_", "fill_", "index_copy_", "index_fill_", "index_put_", "scatter_", "zero_"))
_MATRIX_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm"))
_NO_WORK = frozenset(("empty", "empty_like", "empty_strided", "new_empty"))


class WorkCounter(OperationMode):
    """Counts what runs under it; on fake tensors too."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[tuple[str, str, int, int, int]] = Counter()  # kind, dtype; FLOPs, bytes, rows of one
        self.bytes_of: Counter[tuple[str, str]] = Counter()
        self.fresh_bytes = 0
        self._touched: dict[int, int] = {}  # storage → the most of it that one operation used

    def runs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Keep the keywords, and the storages that are there already."""
        operands = leaf_tensors((args, kwargs))
        return kwargs, operands, {_storage(tensor) for tensor in operands}

    def ran(self, func: Any, args: tuple[Any, ...], result: Any, noted: Any) -> None:
        """Count an operation."""
        kwargs, operands, known = noted
        results, name = leaf_tensors(result), func.overloadpacket.__name__
        made = [tensor for tensor in results if _storage(tensor) not in known]
        if name in _NO_WORK or not results or (not made and not func._schema.is_mutable):
            return
        moved = _moved(name, operands, results)
        self.fresh_bytes += sum(size for tensor in made if (size := _bytes(tensor)) >= FRESH_BYTES)
        for tensor in moved:
            self._touched[_storage(tensor)] = max(self._touched.get(_storage(tensor), 0), _bytes(tensor))
        packet = torch.ops.aten._scaled_dot_product_flash_attention if name.startswith(_ATTENTION) else None
        formula = flop_registry.get(packet or func.overloadpacket)
        floats = [tensor.dtype for tensor in moved if tensor.is_floating_point()]
        size = sum(map(_bytes, moved))
        if formula is not None:
            flops = int(formula(*args, **kwargs, out_val=result))
            product = ATTENTION if packet else UNTRANSPOSED if _untransposed(name, operands) else PRODUCT
            rows = operands[0].shape[-2] if packet else 0  # heads that share a key read it again
            self.operations[product, short(operands[0].dtype), flops, size, rows] += 1
        elif name in ("_to_copy", "copy_") and len(set(floats)) > 1:
            self.bytes_of["cast", f"{short(floats[0])} to {short(floats[-1])}"] += size
            self.operations["cast", f"{short(floats[0])} to {short(floats[-1])}", 0, 0, 0] += 1
        else:
            kind = "other", short(max(floats, key=lambda dtype: dtype.itemsize)) if floats else "none"
            self.bytes_of[kind] += size
            self.operations[*kind, 0, 0, 0] += 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record; products are alike where FLOPs and bytes are, all else is added up by kind."""
        rows = []
        for (kind, dtype, flops, size, query), count in sorted(self.operations.items()):
            total = self.bytes_of[kind, dtype] if kind in ("cast", "other") else size * count
            rows.append({"kind": kind, "dtype": dtype, "count": count, "flops": flops * count, "bytes": total})
            rows[-1] |= {"rows": query} if query else {}
        touched = sum(self._touched.values())
        return {"operations": rows, "touched_bytes": touched, "fresh_bytes": self.fresh_bytes}


def work_of(call: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Run a call once, eager, and return its work as plain data."""
    counter = WorkCounter()
    with counter:
        call(*inputs)
    return counter.to_dict()


def _moved(name: str, operands: list[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what an operation reads, then what it writes."""
    if name in _LOOKUPS:
        return [*results, *results]  # the entries that are looked up are as large as the result
    if name in _WRITES:
        values = [tensor for tensor in operands[1:] if tensor.is_floating_point()]
        whole = name in ("copy_", "fill_", "zero_")
        return [*values, *(operands[:1] if whole else values)]
    if name == "_to_copy":
        return [operands[0], *results]
    return [*operands, *results]


def _untransposed(name: str, operands: list[torch.Tensor]) -> bool:
    """Say whether a product's second matrix, (…, K, N), lies row by row."""
    second = operands[-1]  # of addmm and baddbmm the first is the bias
    return name in _MATRIX_PRODUCTS and 1 not in second.shape[-2:] and second.stride(-1) == 1


def leaf_tensors(tree: Any) -> list[torch.Tensor]:
    """List the tensors among arguments or results, however nested."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements of a tensor."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in pairs if stride != 0 or size == 0)
