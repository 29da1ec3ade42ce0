"""Where each tensor of a call got its dtype: records of its making, and the table that finds them; imports torch.

Conventions: a *record* is made for every floating result of an operation and for every tensor that was there before
the call (parameter, buffer, plain attribute, input). Views share the record of what they are views of. The table holds
results weakly, by identity: a look-up whose tensor is gone finds nothing. A record holds no tensor.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import nn

from precision_eval.fixes.storage import tensors_within
from precision_eval.trace.observer import ModuleCall, TensorMap
from precision_eval.trace.operations import PART_DTYPES


class CallFrame(NamedTuple):
    """A function that was running, at a line, with the modules and the formats of the tensors that have names in it."""

    code: CodeType
    instruction: int
    modules: dict[str, ModuleCall]
    tensors: dict[str, torch.dtype]


@dataclass(eq=False, slots=True)
class Provenance:
    """How one tensor came to be.

    Its kind is parameter, buffer, attribute or input; made: from no floating tensor; cast; op; or outside: first seen
    as an operand, such as one of numpy's.
    """

    kind: str
    name: str  # of what was there before the call, or of the operation
    dtype: torch.dtype
    parents: tuple[Provenance, ...] = ()  # of the floating operands
    code: CodeType | None = None
    instruction: int = 0
    call: ModuleCall | None = None
    deliberate: bool = False  # of another dtype than most of the model because the code said so
    event: Any = None  # the mixing whose promoted dtype it carries
    finite: bool = True
    masks: bool = False  # it holds −inf that is meant
    reach: float = math.nan  # of what is the first not to be finite: the largest value that it would have in float64
    factors: tuple[float, ...] = ()  # of such a product: the largest value of each
    asked: bool = False  # in float32 because the code says so, or made of nothing that is trained or given
    giver: Provenance | None = None  # of a cast to another tensor's dtype: that tensor's
    is_complex: bool = False
    kept_by: tuple[CodeType, int, str] | None = None  # a cast to the format of another tensor that it had already
    frames: tuple[CallFrame, ...] = ()  # where a format that is not the model's was named for it, the innermost first

    @property
    def is_stored(self) -> bool:
        """Whether it was there before the call."""
        return self.kind in ("parameter", "buffer", "attribute", "input")


class ProvenanceMap(TensorMap[Provenance]):
    """How each tensor of a call came to be; what was there before the call is named and held."""

    def __init__(self, stored: list[tuple[str, str, torch.Tensor]], kept: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._stored: dict[int, Provenance] = {}
        self.held: list[torch.Tensor] = []  # so that no other tensor gets the identity of a stored one
        self._by_storage: dict[int, Provenance] = {}
        self.in_numpy: set[torch.dtype] = set()  # formats that the code chose for numpy, from where they come back
        for kind, name, tensor in stored:
            self.add(kind, name, tensor, deliberate=name in kept)

    def add(self, kind: str, name: str, tensor: torch.Tensor, *, deliberate: bool = False) -> None:
        self.held.append(tensor)
        record = self._stored.setdefault(id(tensor), Provenance(kind, name, tensor.dtype, deliberate=deliberate))
        record.asked = kind in ("buffer", "attribute") and tensor.dtype is torch.float32
        with torch._C.DisableTorchFunction():
            record.masks = kind != "parameter" and tensor.element_size() > 1 and bool((tensor == -math.inf).any())
        self._entries.pop(id(tensor), None)  # reading its dtype just now may have been observed
        if kind != "parameter" and tensor.numel():
            self._by_storage.setdefault(tensor.untyped_storage().data_ptr(), record)

    def __setitem__(self, tensor: torch.Tensor, record: Provenance) -> None:
        """Remember how a tensor was made; what was there before the call keeps its own record."""
        key = id(tensor)
        if key not in self._stored:
            self._entries[key] = (weakref.ref(tensor), record)

    def __getitem__(self, tensor: torch.Tensor) -> Provenance:
        """Find how a tensor was made; one never seen before was made outside."""
        key = id(tensor)
        entry = self._entries.get(key)
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        record = self._stored.get(key)
        if record is not None and record.dtype is not PART_DTYPES.get(tensor.dtype, tensor.dtype):  # set by `.data =`
            self.recast(tensor, record, None)
            return self._stored[key]
        if record is None:
            dtype = PART_DTYPES.get(tensor.dtype, tensor.dtype)
            is_chosen = dtype in self.in_numpy
            record = Provenance("outside", "made out of torch's sight", dtype, deliberate=is_chosen)
            self._entries[key] = (weakref.ref(tensor), record)
        elif PART_DTYPES.get(tensor.dtype, record.dtype) is not record.dtype:  # the call has set its data anew
            record = replace(record, dtype=PART_DTYPES[tensor.dtype], deliberate=True, event=None)
            self._stored[key] = record
        return record

    def recast(self, tensor: torch.Tensor, record: Provenance, line: tuple[CodeType, int] | None) -> None:
        """Remember that what is stored was cast by the call itself."""
        dtype = PART_DTYPES.get(tensor.dtype, tensor.dtype)
        if record.dtype is not dtype and record.is_stored:
            code, instruction = line or (None, 0)
            self.held.append(tensor)
            self._stored[id(tensor)] = replace(record, dtype=dtype, code=code, instruction=instruction)

    def pass_on(self, source: torch.Tensor, results: tuple[torch.Tensor, ...]) -> None:
        record = self[source]
        for result in results:
            self[result] = record

    def stored_behind(self, tensor: torch.Tensor) -> Provenance | None:
        """Find the buffer, attribute or input that a tensor is, or is a view of."""
        record = self._stored.get(id(tensor))
        if record is not None:
            return record
        return self._by_storage.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None


def named_tensors(
    model: nn.Module, inputs: Any, *, prefix: str = "", by_path: list[tuple[str, nn.Module]] | None = None
) -> list[tuple[str, str, torch.Tensor]]:
    """List every floating tensor that a call can find: parameters, buffers, attributes, inputs."""
    tensors: list[tuple[str, str, torch.Tensor]] = []
    by_path = list(model.named_modules()) if by_path is None else by_path
    modules = [(f"{path}.".removeprefix(prefix) if path else "", module) for path, module in by_path]
    seen: set[int] = set()
    for kind in ("parameter", "buffer"):
        for path, module in modules:
            for name, tensor in (module._parameters if kind == "parameter" else module._buffers).items():
                if tensor is not None and id(tensor) not in seen and tensor.is_floating_point():
                    seen.add(id(tensor))
                    tensors.append((kind, path + name, tensor))
    given = [("input", name, tensor) for name, tensor in tensors_within(inputs, "", seen=seen)]
    for path, module in modules:
        for name, value in vars(module).items():
            if name not in _OF_MODULES and value.__class__ not in _PLAIN:
                inside = tensors_within(value, f"{path}{name}.", seen=seen)
                tensors += [("attribute", found, tensor) for found, tensor in inside]
    return tensors + given


_PLAIN = (bool, int, float, str, type(None))
_OF_MODULES = frozenset(vars(nn.Module()))


def dtype_bringer(record: Provenance) -> Provenance | None:
    """Find the operand that a result has its dtype from; None where the result's is none of theirs."""
    if record.kind == "cast":
        return record.giver if record.event is not None else None
    return next((parent for parent in record.parents if parent.dtype is record.dtype), None)


def dtype_chain(record: Provenance) -> list[Provenance]:
    """From where the dtype came to the tensor itself, oldest first."""
    chain, at = [record], record
    while at.kind in ("op", "cast"):
        parent = dtype_bringer(at)
        if parent is None:
            break
        chain.append(parent)
        at = parent
    return chain[::-1]


def origin_of(record: Provenance) -> Provenance:
    """Find the record that a tensor has its dtype from: stored, made, cast, or promoted from two others."""
    return dtype_chain(record)[0]


# Functions that make a new tensor of another's format.
_ANEW = frozenset(name for what in ("zeros", "ones", "empty", "full") for name in (f"{what}_like", f"new_{what}"))


def maker_of(record: Provenance) -> Provenance:
    """Find what made a tensor: as the origin of its dtype, but a new tensor of another's format is its own."""
    chain = dtype_chain(record)
    return next((at for at in reversed(chain) if at.name in _ANEW), chain[0])


def ancestors(record: Provenance) -> Iterator[Provenance]:
    """Everything that a tensor was made of, once each."""
    pending, seen = [*record.parents], set()
    while pending:
        at = pending.pop()
        if id(at) not in seen:
            seen.add(id(at))
            pending += at.parents
            yield at
