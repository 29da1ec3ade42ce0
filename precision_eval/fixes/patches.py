"""Exchanges the operations of :mod:`.sites` while a block runs, and puts the very originals back.

Eager: attributes are swapped, so a call costs one Python function more than the source's own cast would, and
operations that are not sites cost nothing. A name that a model's own package imported earlier (``from
torch.nn.functional import scaled_dot_product_attention``), or that a submodule keeps as an attribute, is found by
identity and swapped too. A function kept elsewhere (a closure, a default argument, a class attribute) is missed; the
trace then shows the operation without its cast.

Compiled: up to torch 2.13 Dynamo routes ``x[index] = y`` to the function modes around it, and :class:`AgreementMode`
casts ``y`` there. In 2.15 it takes the assignment into its graph as ``operator.setitem`` without asking them (2.14 was
not tried), so the cast is added between Dynamo and the compiler.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, cast

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from precision_eval.fixes.late_dynamo import around_dynamo
from precision_eval.fixes.sites import SITES, Function, Site, differ, indexes_with_tensor, original_of, site_wrapper


@dataclass(frozen=True, eq=False)
class Swap:
    """One name to exchange: in a class, or in the dict of a module, package or instance."""

    owner: Any
    name: str
    replacement: Function

    def install(self) -> Callable[[], None]:
        """Exchange the name; returns what puts it back."""
        owner, name = self.owner, self.name
        had = name in vars(owner)
        original = vars(owner).get(name)
        if isinstance(owner, type):
            setattr(owner, name, self.replacement)
            return lambda: setattr(owner, name, original) if had else delattr(owner, name)
        vars(owner)[name] = self.replacement
        return lambda: vars(owner).__setitem__(name, original)


def _packages(model: nn.Module) -> tuple[ModuleType, ...]:
    """Imported modules of the packages that define the classes of a model, torch's own left out."""
    classes = {cls for kind in {type(module) for module in model.modules()} for cls in kind.__mro__}
    roots = {cls.__module__.partition(".")[0] for cls in classes} - {"torch", "builtins", "abc", "typing"}
    return _modules_of(frozenset(roots), tuple(sys.modules))


@lru_cache(maxsize=8)
def _modules_of(roots: frozenset[str], imported: tuple[str, ...]) -> tuple[ModuleType, ...]:
    """Modules of those packages among the imported ones; kept until something more is imported."""
    modules = (sys.modules[name] for name in imported if name.partition(".")[0] in roots)
    return tuple(module for module in modules if isinstance(module, ModuleType))


def eager_swaps(model: nn.Module | None, replace: Callable[[Site, Function], Function]) -> list[Swap]:
    """List every name to exchange so that a model's sites go elsewhere in eager."""
    by_present: dict[int, Function] = {}
    swaps: list[Swap] = []
    for site in SITES:
        present = getattr(site.owner, site.name)
        replacement = replace(site, original_of(present))
        if site.eager:
            swaps.append(Swap(site.owner, site.name, replacement))
            if isinstance(site.owner, ModuleType):
                by_present[id(present)] = replacement
    if model is None:
        return swaps
    for owner in [*_packages(model), *model.modules()]:
        names = vars(owner).copy()
        if not by_present.keys().isdisjoint(map(id, names.values())):  # most owners hold none; this is quick to see
            swaps.extend(Swap(owner, n, by_present[id(v)]) for n, v in names.items() if id(v) in by_present)
    return swaps


@contextmanager
def install_swaps(swaps: list[Swap]) -> Iterator[None]:
    """Hold names exchanged for the time of a block; Dynamo, if a call imports it, finds the originals."""
    restore: list[Callable[[], None]] = []

    def install() -> None:
        for swap in swaps:
            restore.append(swap.install())

    def put_back() -> None:
        while restore:
            restore.pop()()

    with around_dynamo(before=put_back, after=install):
        try:
            install()
            yield
        finally:
            put_back()


@contextmanager
def no_fused_encoder() -> Iterator[None]:
    """Switch off ``nn.MultiheadAttention``'s fused inference path, inside which nothing can be cast."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


class AgreementMode(TorchFunctionMode):
    """Routes each site to its wrapper; meant to be traced by Dynamo, not to run."""

    def __init__(self, agreement: str) -> None:
        super().__init__()
        originals = [original_of(getattr(site.owner, site.name)) for site in SITES]
        self._wrappers = {
            original: site_wrapper(site, agreement, original) for site, original in zip(SITES, originals, strict=True)
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._wrappers.get(func, func)(*args, **(kwargs or {}))


def modes_see_writes() -> bool:
    """Whether this torch's Dynamo routes an assignment with a tensor index to function modes, as up to 2.13."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) <= (2, 13)


def add_write_casts(
    backend: str, settings: Mapping[str, Any] | None = None
) -> Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]:
    """Make a compiler backend that first casts what is written with a tensor index; `settings` are inductor's."""

    def compiled(graph_module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        for node in list(graph_module.graph.nodes):
            if node.op == "call_function" and node.target is operator.setitem:
                _cast_value(node)
        graph_module.recompile()
        compile_graph: Any = torch._dynamo.lookup_backend(backend)
        patches = {"config_patches": dict(settings)} if settings else {}
        return cast(Callable[..., Any], compile_graph(graph_module, inputs, **patches))

    return compiled


def _cast_value(write: fx.Node) -> None:
    """Cast the value of an assignment to the dtype of what it is assigned to, where both float and differ."""
    target, index, value = write.args
    into, source = (_example(part) for part in (target, value))
    if into is None or source is None or not indexes_with_tensor(fx.node.map_arg(index, _example)):
        return
    if not differ(into, source):
        return
    with write.graph.inserting_before(write):
        node = write.graph.call_method("to", (value, into.dtype))
    node.meta["example_value"] = source.to(into.dtype)
    write.args = (target, index, node)


def _example(node: Any) -> torch.Tensor | None:
    """Return the fake tensor that Dynamo keeps with a node."""
    example = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return example if isinstance(example, torch.Tensor) else None
