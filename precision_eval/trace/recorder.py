"""Records a call of a model in one format, as a tape.

Conventions: the call is recorded where torch dispatches, below Python, so the tape holds what really ran, with the
dtype that each result really had: what a source widens by itself (a norm's mean square, rotary angles) is float32 there
and stays unrounded on replay. Attention is written out for the recording, each step stored in the operands' dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from precision_eval.fixes.storage import stored_as
from precision_eval.trace.attention import written_out
from precision_eval.trace.sites import Rule, Site, sites_of
from precision_eval.trace.tape import WRITING, Leaf, Node, Ref, Tape, mapped

#: Operations that make no new number: each value they return is one that they were given, or its negative.
MOVING = frozenset(
    (
        "_unsafe_view", "alias", "cat", "clone", "constant_pad_nd", "embedding", "empty", "expand", "fill_", "flip",
        "full", "full_like", "gather", "index", "index_select", "masked_fill", "masked_fill_", "neg", "ones",
        "ones_like", "repeat", "scalar_tensor", "select_scatter", "slice_scatter", "stack", "tril", "triu", "where",
        "zero_", "zeros", "zeros_like",
    )
)  # fmt: skip


@dataclass
class _Draft:
    """A node before it is known who needs its results."""

    function: Any
    operation: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    rounds: tuple[bool, ...]
    sites: tuple[Site, ...]
    written: bool


@dataclass
class _Seen:
    """A leaf while it is being recorded."""

    index: int
    kind: str
    name: str
    tensor: torch.Tensor
    constant: torch.Tensor | None
    written: bool = False
    cache_layer: str = ""


@dataclass
class _State:
    drafts: list[_Draft] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)  # held, so that no id is used twice
    index_of: dict[int, int] = field(default_factory=dict)
    leaves: dict[int, _Seen] = field(default_factory=dict)
    leaf_of_storage: dict[int, int] = field(default_factory=dict)


class _Recorder(TorchDispatchMode):
    """Writes every operation down as it runs."""

    def __init__(self, named: dict[int, tuple[str, str]], rules: Sequence[Rule], dtype: torch.dtype) -> None:
        super().__init__()
        self.named = named  # id of a tensor of the model or of an input → kind and name
        self.rules = rules
        self.dtype = dtype
        self.path: list[str] = [""]
        self.tag = ""
        self.state = _State()

    def set_tag(self, role: str) -> None:
        self.tag = role

    def _ref(self, tensor: torch.Tensor) -> Ref:
        state = self.state
        known = state.index_of.get(id(tensor))
        if known is not None:
            return Ref(known)
        index = len(state.values)
        state.values.append(tensor)
        state.index_of[id(tensor)] = index
        kind, name = self.named.get(id(tensor), ("constant", ""))
        constant = tensor.detach().clone() if kind == "constant" else None
        caches = (rule.sites(name, "") for rule in self.rules if rule.role == "cache" and kind == "model")
        layer = next((sites[0].layer for sites in caches if sites is not None), "")
        state.leaves[index] = _Seen(index, kind, name, tensor, constant, cache_layer=layer)
        if tensor.numel():
            state.leaf_of_storage.setdefault(tensor.untyped_storage().data_ptr(), index)
        return Ref(index)

    def _new(self, found: Any) -> int | None:
        if not isinstance(found, torch.Tensor):
            return None
        state = self.state
        if id(found) in state.index_of:  # written in place
            return state.index_of[id(found)]
        state.values.append(found)
        state.index_of[id(found)] = len(state.values) - 1
        return len(state.values) - 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and write it down."""
        kwargs = kwargs or {}
        refs, named_refs = mapped(args, self._ref), mapped(kwargs, self._ref)
        before = args[0].dtype if args and isinstance(args[0], torch.Tensor) else None
        found = func(*args, **kwargs)
        results = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if not any(isinstance(one, torch.Tensor) for one in results):
            return found
        operation = func.overloadpacket.__name__
        written = bool(func._schema.is_mutable)
        cache = self._note_write(args[0]) if written else ""
        moves = self._moves(func, operation, args, before) and not cache
        rounds = tuple(isinstance(one, torch.Tensor) and one.dtype is self.dtype and not moves for one in results)
        sites: tuple[Site, ...] = ()
        if cache:
            sites = (Site(cache, "cache"),)
        elif any(rounds) or self._reads_leaf(refs) or self._reads_leaf(named_refs):
            sites = sites_of(self.rules, self.path[-1], operation, self.tag)
        outputs = tuple(self._new(one) for one in results)
        self.state.drafts.append(_Draft(func, operation, refs, named_refs, outputs, rounds, sites, written))
        return found

    def _moves(self, func: Any, operation: str, args: tuple[Any, ...], before: torch.dtype | None) -> bool:
        """Say whether an operation makes no new number in the format."""
        if operation in WRITING:
            source = args[-1] if operation == "index_copy_" else args[2 if operation == "index_put_" else 1]
            return bool(source.dtype is self.dtype)
        if operation == "_to_copy":
            return before is self.dtype
        views = any(result.alias_info is not None for result in func._schema.returns) and not func._schema.is_mutable
        return operation in MOVING or views

    def _note_write(self, target: torch.Tensor) -> str:
        """Mark the leaf whose storage is written; return the layer whose cache it is, or an empty string."""
        leaf = self.state.leaf_of_storage.get(target.untyped_storage().data_ptr()) if target.numel() else None
        if leaf is None:
            return ""
        self.state.leaves[leaf].written = True
        return self.state.leaves[leaf].cache_layer

    def _reads_leaf(self, refs: Any) -> bool:
        """Say whether a parameter, buffer or input in the format is among the arguments; a cache is none of them."""
        leaves = self.state.leaves
        return any(
            index in leaves
            and leaves[index].kind != "constant"
            and not leaves[index].cache_layer
            and leaves[index].tensor.dtype is self.dtype
            for index in _referred(refs)
        )


def _named_tensors(model: nn.Module, inputs: Sequence[Any]) -> dict[int, tuple[str, str]]:
    """Return id → kind and name of parameters, buffers, tensor attributes and inputs."""
    named: dict[int, tuple[str, str]] = {}
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            named[id(value)] = ("input", str(position))
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        own = {**module._parameters, **module._buffers, **vars(module)}
        named |= {id(t): ("model", prefix + name) for name, t in own.items() if isinstance(t, torch.Tensor)}
    return named


@contextmanager
def _following(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Keep the path of the innermost module that runs, for the time of a block."""
    handles: list[Any] = []
    try:
        for path, module in model.named_modules():
            enter = _entering(recorder, path)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(_leaving(recorder), always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(recorder: _Recorder, path: str) -> Callable[..., None]:
    def enter(module: nn.Module, args: Any) -> None:
        recorder.path.append(path)

    return enter


def _leaving(recorder: _Recorder) -> Callable[..., None]:
    def leave(module: nn.Module, args: Any, output: Any) -> None:
        recorder.path.pop()

    return leave


def record(model: nn.Module, inputs: Sequence[Any], *, format: str, rules: Sequence[Rule]) -> Tape:
    """Run a model once with everything stored in a format, and write down what ran."""
    dtype: torch.dtype = getattr(torch, format)
    model = copy.deepcopy(model)  # where the format is the shipped one, nothing is converted and a write would stay
    cast = [x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
    with stored_as(model, dtype):
        recorder = _Recorder(_named_tensors(model, cast), rules, dtype)
        with _following(model, recorder), written_out(model, recorder.set_tag), recorder:
            output = model(*cast)
        state = recorder.state
        leaves = tuple(_leaf(seen, dtype) for seen in state.leaves.values())  # while parameters are in the format
    return Tape(
        format=format,
        nodes=_with_lifetimes(state.drafts, kept=state.index_of[id(output)]),
        leaves=leaves,
        output=state.index_of[id(output)],
        found=output.detach().clone(),
    )


def _leaf(seen: _Seen, dtype: torch.dtype) -> Leaf:
    floating, stored = seen.tensor.is_floating_point(), seen.tensor.dtype is dtype
    return Leaf(seen.index, seen.kind, seen.name, seen.constant, seen.written, seen.cache_layer, floating, stored)


def _referred(tree: Any) -> list[int]:
    """Return the numbers of the values among arguments."""
    found: list[int] = []
    mapped(tree, lambda ref: found.append(ref.index), kind=Ref)
    return found


def _with_lifetimes(drafts: Sequence[_Draft], *, kept: int) -> tuple[Node, ...]:
    """Note at each node what no later one needs."""
    needed: set[int] = {kept}
    nodes: list[Node] = []
    for draft in reversed(drafts):
        touched: list[int] = [index for index in draft.outputs if index is not None]
        touched += _referred((draft.args, draft.kwargs))
        last = tuple(dict.fromkeys(index for index in touched if index not in needed))
        needed.update(touched)
        nodes.append(
            Node(
                draft.function, draft.operation, draft.args, draft.kwargs, draft.outputs, draft.rounds, draft.sites,
                draft.written, last,
            )
        )  # fmt: skip
    return tuple(reversed(nodes))
