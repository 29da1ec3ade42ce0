"""Runs a tape again in float32 or float64, rounding at chosen sites what the format would have rounded there.

Conventions: a *narrow* site stores in the tape's format, every other one in the dtype of the replay. Rounding is
storage: an operation takes its operands as stored, computes in the replay's dtype, and its result is rounded to the
format, to the nearest, ties to even, before anything reads it. That is what half kernels do: products of half operands
accumulate in float32 and are rounded once. So a replay with every site narrow stands for the uniform format (how well
is measured, not assumed), one without narrow sites *is* the call in float32, bit for bit, and nothing else differs
between two replays than which results are rounded.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from precision_eval.trace.operations import WRITING
from precision_eval.trace.sites import SensitivityError, StorageSite
from precision_eval.trace.tape import Leaf, Node, Ref, Tape, mapped


def rounded(
    tensor: torch.Tensor,
    dtype: torch.dtype,
    *,
    sites: Sequence[StorageSite],
    narrow: Collection[StorageSite],
    dim: int = -1,
) -> torch.Tensor:
    """Round a tensor to a format, where its sites are narrow."""
    which = [site in narrow for site in sites]
    if not any(which):
        return tensor
    if all(which):
        return tensor.to(dtype).to(tensor.dtype)
    parts = tensor.chunk(len(sites), dim=dim)
    return torch.cat([p.to(dtype).to(p.dtype) if yes else p for p, yes in zip(parts, which, strict=True)], dim=dim)


class _Replay:
    """One run along a tape."""

    def __init__(
        self, tape: Tape, model: nn.Module, inputs: Sequence[Any], narrow: Collection[StorageSite], compute: torch.dtype
    ) -> None:
        self.tape = tape
        self.narrow = narrow
        self.compute = compute
        self.format: torch.dtype = getattr(torch, tape.format)
        self.leaves = {leaf.index: leaf for leaf in tape.leaves}
        self.values: dict[int, Any] = {leaf.index: self._leaf_value(leaf, model, inputs) for leaf in tape.leaves}

    def _leaf_value(self, leaf: Leaf, model: nn.Module, inputs: Sequence[Any]) -> torch.Tensor:
        value: Any = leaf.constant
        if leaf.kind == "model":
            value = operator.attrgetter(leaf.name)(model)
        elif leaf.kind == "input":
            value = inputs[int(leaf.name)]
        stored: torch.Tensor = value.detach()
        if leaf.floating:
            stored = stored.to(self.compute)
        if leaf.cache_layer:
            stored = rounded(stored, self.format, sites=(StorageSite(leaf.cache_layer, "cache"),), narrow=self.narrow)
        return stored.clone() if leaf.written and stored.data_ptr() == value.data_ptr() else stored

    def _argument(self, ref: Ref, node: Node) -> Any:
        """Return a value as an operation reads it: a leaf that is stored at its site, rounded there."""
        value, leaf = self.values[ref.index], self.leaves.get(ref.index)
        if leaf is None or leaf.kind == "constant" or leaf.cache_layer or leaf.written or not leaf.stored:
            return value
        return rounded(value, self.format, sites=node.sites, narrow=self.narrow, dim=0) if node.sites else value

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.compute if dtype.is_floating_point and dtype is not torch.float64 else dtype

    def step(self, node: Node) -> None:
        """Run one operation."""
        args = mapped(node.args, lambda ref: self._argument(ref, node), kind=Ref)
        kwargs = mapped(node.kwargs, lambda ref: self._argument(ref, node), kind=Ref)
        args, kwargs = (mapped(one, self._dtype, kind=torch.dtype) for one in (args, kwargs))
        if node.operation in WRITING and any(node.rounds):
            args = self._source_rounded(node, args)
        result = node.function(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for index, result, rounds in zip(node.outputs, results, node.rounds, strict=True):
            if index is not None:
                self.values[index] = self._stored(node, result) if rounds else result
        for index in node.frees:
            self.values.pop(index, None)

    def _stored(self, node: Node, result: torch.Tensor) -> torch.Tensor:
        if node.operation in WRITING:
            return result
        stored = rounded(result, self.format, sites=node.sites, narrow=self.narrow)
        return result.copy_(stored) if node.written else stored

    def _source_rounded(self, node: Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Round what is written, and not the rest of the tensor that it is written to."""
        at = {"copy_": 1, "index_copy_": len(args) - 1, "index_put_": 2}[node.operation]
        source = rounded(args[at], self.format, sites=node.sites, narrow=self.narrow)
        return (*args[:at], source, *args[at + 1 :])


@torch.no_grad()
def replay(
    tape: Tape,
    model: nn.Module,
    inputs: Sequence[Any],
    *,
    narrow: Collection[StorageSite],
    compute: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Run a tape once."""
    unknown = set(narrow) - set(tape.sites)
    if unknown:
        raise SensitivityError(
            f"no operation of this call is at {', '.join(sorted(site.id for site in unknown))}; "
            f"its sites: {', '.join(site.id for site in tape.sites)}"
        )
    run = _Replay(tape, model, inputs, frozenset(narrow), compute)
    for node in tape.nodes:
        run.step(node)
    output: torch.Tensor = run.values[tape.output]
    return output
