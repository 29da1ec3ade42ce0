"""The cast that a compiled cache write needs, put into the graph where a function mode cannot put it.

Up to torch 2.13 Dynamo routes ``x[index] = y`` to the function modes around it, and
:class:`~precision_eval.fixes.patches.AgreementMode` casts ``y`` there. In 2.15 it takes the assignment into its graph
as ``operator.setitem`` without asking them (2.14 was not tried), so the cast is added between Dynamo and the compiler.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from precision_eval.fixes.sites import indexes_with_tensor

_MODES_SEE_WRITES_UP_TO = (2, 13)


def modes_see_writes() -> bool:
    """Say whether this torch's Dynamo routes an assignment with a tensor index to function modes."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) <= _MODES_SEE_WRITES_UP_TO


def casting_writes(backend: str) -> Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]:
    """Make a compiler backend that first casts what is written with a tensor index."""

    def compiled(graph_module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        for node in list(graph_module.graph.nodes):
            if node.op == "call_function" and node.target is operator.setitem:
                _cast_value(node)
        graph_module.recompile()
        compile_graph = torch._dynamo.lookup_backend(backend)
        made: Callable[..., Any] = compile_graph(graph_module, inputs)
        return made

    return compiled


def _cast_value(write: fx.Node) -> None:
    """Cast the value of an assignment to the dtype of what it is assigned to, where both float and differ."""
    target, index, value = write.args
    into, wrote = (_example(part) for part in (target, value))
    if into is None or wrote is None or not indexes_with_tensor(fx.node.map_arg(index, _example)):
        return
    if into.dtype is wrote.dtype or not (into.is_floating_point() and wrote.is_floating_point()):
        return
    with write.graph.inserting_before(write):
        cast = write.graph.call_method("to", (value, into.dtype))
    cast.meta["example_value"] = wrote.to(into.dtype)
    write.args = (target, index, cast)


def _example(node: Any) -> torch.Tensor | None:
    """Return the fake tensor that Dynamo keeps with a node."""
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None
