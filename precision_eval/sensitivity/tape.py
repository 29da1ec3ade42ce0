"""A model's call as a straight list of operations: what :mod:`.recorder` writes and :mod:`.replay` runs.

Conventions: values are numbered; a *leaf* is a value that no operation made: a parameter, buffer or tensor attribute of
the model (found again by its dotted name in any twin of it), an input, or a constant.

Contents: :class:`Node`, :class:`Leaf`, :class:`Tape`, :class:`Ref`, :func:`mapped`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .sites import Site

WRITING = frozenset(("copy_", "index_copy_", "index_put_"))
"""Operations that only put a tensor into another one."""


@dataclass(frozen=True)
class Ref:
    """The number of a value, in the place of a tensor among a node's arguments."""

    index: int


@dataclass(frozen=True)
class Leaf:
    """A value that no operation made.

    Attributes
    ----------
    index : int
    kind : {"model", "input", "constant"}
    name : str
        Dotted name in the model, or the input's position.
    constant : torch.Tensor or None
    written : bool
        Some operation writes into its storage.
    cache_layer : str
        Layer whose cache it holds; empty otherwise.
    floating : bool
    stored : bool
        It was in the recorded format.
    """

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
    """One operation.

    Attributes
    ----------
    function : callable
        torch's operator.
    operation : str
        Its name without namespace and overload.
    args, kwargs
        With :class:`Ref` in the place of tensors.
    outputs : tuple of int or None
        Numbers of the results; None for a result that is no tensor.
    rounds : tuple of bool
        Per result: it is a new number, stored in the recorded format.
    sites : tuple of Site
        Empty where neither a result nor a leaf among the arguments is rounded.
    written : bool
        The operation changes its first argument in place.
    frees : tuple of int
        Values that no later operation needs.
    """

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
    """A recorded call.

    Attributes
    ----------
    format : str
        In which it was recorded.
    nodes : tuple of Node
    leaves : tuple of Leaf
    output : int
        Number of the value that the call returned.
    found : torch.Tensor
        What it returned, in the recorded format: the uniform format, natively, with attention written out.
    """

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
