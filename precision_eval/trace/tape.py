"""Records a call of a model in one format as a tape: a straight list of operations that is run again in float32 or
float64, rounding at chosen sites what the format would have rounded there.

The call is recorded where torch dispatches, below Python, so the tape holds what really ran, with the dtype that each
result really had: what a source widens by itself (a norm's mean square, rotary angles) is float32 there and stays
unrounded on replay. Attention is written out for the recording, each step stored in the operands' dtype. Values are
numbered; a *leaf* is a value that no operation made: a parameter, buffer or tensor attribute of the model (found again
by its dotted name in any twin of it), an input, or a constant. On replay a *narrow* site stores in the tape's format,
every other one in the dtype of the replay; an operation takes its operands as stored, and its result is rounded.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from precision_eval.fixes.packing import in_dtype
from precision_eval.fixes.storage import stored_as
from precision_eval.trace.attention import written_out
from precision_eval.trace.observer import ModuleCalls, OperationMode
from precision_eval.trace.operations import MOVING, WRITING
from precision_eval.trace.sites import Rule, SensitivityError, StorageSite, sites_of


@dataclass(frozen=True)
class Ref:
    """The number of a value, in the place of a tensor among a node's arguments."""

    index: int


@dataclass
class Leaf:
    """A value that no operation made; `stored` in the tape's format, `written` to by an operation."""

    index: int
    kind: str
    name: str
    constant: torch.Tensor | None
    cache_layer: str
    floating: bool
    stored: bool
    written: bool = False


@dataclass(frozen=True)
class Node:
    """One operation."""

    function: Callable[..., Any]
    operation: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    rounds: tuple[bool, ...]
    sites: tuple[StorageSite, ...]
    written: bool
    frees: tuple[int, ...] = ()  # values that no later operation needs


@dataclass(frozen=True)
class Tape:
    """A recorded call."""

    format: str
    nodes: tuple[Node, ...]
    leaves: tuple[Leaf, ...]
    output: int
    found: torch.Tensor

    @property
    def sites(self) -> tuple[StorageSite, ...]:
        """Every site at which something is rounded, in the order in which the call comes to them."""
        caches = [StorageSite(leaf.cache_layer, "cache") for leaf in self.leaves if leaf.cache_layer]
        reached = [site for node in self.nodes for site in node.sites]
        return tuple(dict.fromkeys([*reached, *caches]))


def mapped(tree: Any, function: Callable[[Any], Any], *, kind: type = torch.Tensor) -> Any:
    """Apply a function to every `kind` inside tuples, lists and dicts."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(mapped(part, function, kind=kind) for part in tree)
    if isinstance(tree, dict):
        return {name: mapped(one, function, kind=kind) for name, one in tree.items()}
    return tree


class TapeRecorder(OperationMode):
    """Writes every operation down as it runs."""

    def __init__(
        self, model: nn.Module, named: dict[int, tuple[str, str]], rules: Sequence[Rule], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.modules = ModuleCalls({id(module): path for path, module in model.named_modules()})
        self.named = named  # id of a tensor of the model or of an input → kind and name
        self.rules = rules
        self.dtype = dtype
        self.tag = ""  # of the step of attention in progress
        self.nodes: list[Node] = []
        self.values: list[torch.Tensor] = []  # held, so that no id is used twice
        self.index_of: dict[int, int] = {}
        self.leaves: dict[int, Leaf] = {}
        self.leaf_of_storage: dict[int, int] = {}

    def set_tag(self, role: str) -> None:
        """Say which step of attention comes next."""
        self.tag = role

    def _ref(self, tensor: torch.Tensor) -> Ref:
        known = self.index_of.get(id(tensor))
        if known is not None:
            return Ref(known)
        index = len(self.values)
        self.values.append(tensor)
        self.index_of[id(tensor)] = index
        kind, name = self.named.get(id(tensor), ("constant", ""))
        constant = tensor.detach().clone() if kind == "constant" else None
        caches = (rule.sites(name, "") for rule in self.rules if rule.role == "cache" and kind == "model")
        layer = next((sites[0].layer for sites in caches if sites is not None), "")
        floating, stored = tensor.is_floating_point(), tensor.dtype is self.dtype
        self.leaves[index] = Leaf(index, kind, name, constant, layer, floating, stored)
        if tensor.numel():
            self.leaf_of_storage.setdefault(tensor.untyped_storage().data_ptr(), index)
        return Ref(index)

    def _new(self, result: Any) -> int | None:
        if not isinstance(result, torch.Tensor):
            return None
        if id(result) in self.index_of:  # written in place
            return self.index_of[id(result)]
        self.values.append(result)
        self.index_of[id(result)] = len(self.values) - 1
        return len(self.values) - 1

    def runs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Number the operands, before a write changes what they hold."""
        before = args[0].dtype if args and isinstance(args[0], torch.Tensor) else None
        return mapped(args, self._ref), mapped(kwargs, self._ref), before

    def ran(self, func: Any, args: tuple[Any, ...], result: Any, noted: Any) -> None:
        """Write an operation down."""
        refs, named_refs, before = noted
        results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if not any(isinstance(part, torch.Tensor) for part in results):
            return
        operation = func.overloadpacket.__name__
        written = bool(func._schema.is_mutable)
        cache = self._note_write(args[0]) if written else ""
        moves = self._moves(func, operation, args, before) and not cache
        rounds = tuple(isinstance(part, torch.Tensor) and part.dtype is self.dtype and not moves for part in results)
        sites: tuple[StorageSite, ...] = ()
        if cache:
            sites = (StorageSite(cache, "cache"),)
        elif any(rounds) or self._reads_leaf((refs, named_refs)):
            call = self.modules.current
            sites = sites_of(self.rules, call.path if call else "", operation, self.tag)
        outputs = tuple(self._new(part) for part in results)
        self.nodes.append(Node(func, operation, refs, named_refs, outputs, rounds, sites, written))

    def _moves(self, func: Any, operation: str, args: tuple[Any, ...], before: torch.dtype | None) -> bool:
        """Say whether an operation makes no new number in the format."""
        if operation in WRITING:
            return bool(args[WRITING[operation]].dtype is self.dtype)
        if operation == "_to_copy":
            return before is self.dtype
        views = any(result.alias_info is not None for result in func._schema.returns) and not func._schema.is_mutable
        return operation in MOVING or views

    def _note_write(self, target: torch.Tensor) -> str:
        """Mark the leaf whose storage is written; return the layer whose cache it is, or an empty string."""
        leaf = self.leaf_of_storage.get(target.untyped_storage().data_ptr()) if target.numel() else None
        if leaf is None:
            return ""
        self.leaves[leaf].written = True
        return self.leaves[leaf].cache_layer

    def _reads_leaf(self, refs: Any) -> bool:
        """Say whether a parameter, buffer or input in the format is among the arguments; a cache is none of them."""
        leaves = self.leaves
        return any(
            index in leaves
            and leaves[index].kind != "constant"
            and not leaves[index].cache_layer
            and leaves[index].stored
            for index in _referred(refs)
        )


def _model_tensors(model: nn.Module, inputs: Sequence[Any]) -> dict[int, tuple[str, str]]:
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


def record(model: nn.Module, inputs: Sequence[Any], *, format: str, rules: Sequence[Rule]) -> Tape:
    """Run a model once with everything stored in a format, and write down what ran."""
    dtype: torch.dtype = getattr(torch, format)
    model = copy.deepcopy(model)  # where the format is the shipped one, nothing is converted and a write would stay
    cast = in_dtype(inputs, dtype)
    with stored_as(model, dtype):
        recorder = TapeRecorder(model, _model_tensors(model, cast), rules, dtype)
        with recorder.modules.followed(), written_out(model, recorder.set_tag), recorder:
            output = model(*cast)
    index = recorder.index_of[id(output)]
    leaves = tuple(recorder.leaves.values())
    return Tape(format, _with_lifetimes(recorder.nodes, kept=index), leaves, index, output.detach().clone())


def _referred(tree: Any) -> list[int]:
    """Return the numbers of the values among arguments."""
    indices: list[int] = []
    mapped(tree, lambda ref: indices.append(ref.index), kind=Ref)
    return indices


def _with_lifetimes(recorded: Sequence[Node], *, kept: int) -> tuple[Node, ...]:
    """Note at each node what no later one needs."""
    needed: set[int] = {kept}
    nodes: list[Node] = []
    for node in reversed(recorded):
        touched: list[int] = [index for index in node.outputs if index is not None]
        touched += _referred((node.args, node.kwargs))
        last = tuple(dict.fromkeys(index for index in touched if index not in needed))
        needed.update(touched)
        nodes.append(replace(node, frees=last))
    return tuple(reversed(nodes))


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
        at = WRITING[node.operation]
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
