"""A model's call as a straight list of operations: what :mod:`.recorder` writes and :mod:`.replay` runs.

Conventions: values are numbered; a *leaf* is a value that no operation made: a parameter, buffer or tensor attribute of
the model (found again by its dotted name in any twin of it), an input, or a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from precision_eval.trace.sites import Site

WRITING = frozenset(("copy_", "index_copy_", "index_put_"))
"""Operations that only put a tensor into another one."""


@dataclass(frozen=True)
class Ref:
    """The number of a value, in the place of a tensor among a node's arguments."""

    index: int


@dataclass(frozen=True)
class Leaf:
    """A value that no operation made."""

    index: int
    kind: str
    name: str
    constant: torch.Tensor | None
    written: bool
    cache_layer: str
    floating: bool
    stored: bool


@dataclass(frozen=True)
class Node:
    """One operation."""

    function: Callable[..., Any]
    operation: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    rounds: tuple[bool, ...]
    sites: tuple[Site, ...]
    written: bool
    frees: tuple[int, ...]


@dataclass(frozen=True)
class Tape:
    """A recorded call."""

    format: str
    nodes: tuple[Node, ...]
    leaves: tuple[Leaf, ...]
    output: int
    found: torch.Tensor

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site at which something is rounded, in the order in which the call comes to them."""
        caches = [Site(leaf.cache_layer, "cache") for leaf in self.leaves if leaf.cache_layer]
        reached = [site for node in self.nodes for site in node.sites]
        return tuple(dict.fromkeys([*reached, *caches]))


def mapped(tree: Any, function: Callable[[Any], Any], *, kind: type = torch.Tensor) -> Any:
    """Apply a function to every `kind` inside tuples, lists and dicts."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(mapped(one, function, kind=kind) for one in tree)
    if isinstance(tree, dict):
        return {name: mapped(one, function, kind=kind) for name, one in tree.items()}
    return tree
