"""Runs a model once and follows every floating tensor: what made it, from what, and where dtypes meet.

A function mode sees each call of torch's Python interface as the source has it, above autograd and autocast; what is
inside is looked at only in one attention call of each kind, to see the backend. While a model runs, a line is a code
object and an instruction; everything that takes time is done afterwards.
"""

from __future__ import annotations

import math
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from precision_eval.core.formats import short
from precision_eval.trace.observer import InsideOperation, ModuleCall, ModuleCalls, backend_name
from precision_eval.trace.operations import (
    ASSIGNMENTS,
    FLOATS,
    PART_DTYPES,
    Key,
    OperationKind,
    kind_of,
    loses,
    name_of,
    python_body,
)
from precision_eval.trace.provenance import CallFrame, Provenance, ProvenanceMap, maker_of
from precision_eval.trace.value_counts import ValueCounts, reach_of, size_of

# A code object and an instruction in it.
CodeLine = tuple[CodeType, int]

_TENSORS = (torch.Tensor, nn.Parameter)
# Operations that take an angle, whose absolute error counts, not the relative one.
TURNING = frozenset(("sin", "cos", "tan", "sin_", "cos_", "polar"))

HALVES = (torch.float16, torch.bfloat16)
_MASKS = frozenset(("masked_fill", "where", "full", "full_like", "masked_fill_", "fill_", "triu", "tril"))
_CARRIERS = (OperationKind.PRODUCT, OperationKind.ATTENTION, OperationKind.RNN, OperationKind.NORM)
_COMPUTING = (OperationKind.PRODUCT, OperationKind.NORM, OperationKind.PLAIN)
# looked up at each operation: a member of an enumeration takes several times as long
_SKIP, _DTYPE, _VIEW, _CAST, _WRITE = (OperationKind[name] for name in ("SKIP", "DTYPE", "VIEW", "CAST", "WRITE"))
_ATTENTION, _MULTIHEAD = OperationKind.ATTENTION, OperationKind.MULTIHEAD

_TORCH, _PYTHON = str(Path(torch.__file__).parent), sysconfig.get_path("stdlib")
_PACKAGE = Path(__file__).parents[1]
_OWN = tuple(str(_PACKAGE / name) for name in ("doctor", "explain", "measure", "trace", "fixes"))
_WRAPPING = frozenset(str(_PACKAGE / "cases" / name) for name in ("huggingface/generation.py", "modes.py", "own.py"))

_ACCELERATE = str(Path("accelerate", "hooks.py"))  # takes the place of each module's forward, as device_map asks


@cache
def is_internal(file: str) -> bool:
    """Say whether a file is torch's or the observer's, so that a line in it is not what a user wants to see."""
    return file.startswith((_TORCH, *_OWN)) or file in _WRAPPING or file.endswith(_ACCELERATE)


@cache
def is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file or file.startswith(_PYTHON)


# Ancestors that are searched for the tensor a module was given.
MOST_ANCESTORS = 1024

# First results that are not finite of which is computed how large they would be.
MOST_BROKEN = 16


@dataclass(eq=False, slots=True)
class Event:
    """One mixing of dtypes, or an operation that raised."""

    kind: str
    number: int
    name: str
    sort: OperationKind
    line: CodeLine
    call: ModuleCall | None
    operands: list[tuple[Key, tuple[int, ...], Provenance]]
    result: torch.dtype
    of_module: bool
    deliberate: bool = False
    stored: Provenance | None = None
    leaked: str = ""
    is_followed: bool = False  # what it went on into casts its weights to it, and refuses nothing
    was_cast_back: bool = False
    reached_output: bool = False
    caller: CodeLine | None = None
    reach: float = math.nan
    factors: tuple[float, ...] = ()
    last: Provenance | None = None  # of a promotion: the last result of the same function that carries its dtype
    message: str = ""  # of what raised
    autocast: bool = False  # whether one was on
    device: str = ""
    # modules that were being called, the outermost first: where, and what floating format they were given
    entries: tuple[tuple[ModuleCall, CodeLine, torch.dtype], ...] = ()


def inside_event(kind: str, record: Provenance, number: int) -> Event:
    """Make the event of an operation that spoils its result, of what is known of that result."""
    assert record.code is not None
    operands: list[tuple[Key, tuple[int, ...], Provenance]] = [((i,), (), r) for i, r in enumerate(record.parents)]
    line, sort = (record.code, record.instruction), OperationKind.CAST if record.kind == "cast" else OperationKind.PLAIN
    name, dtype = record.name, record.dtype
    return Event(
        kind, number, name, sort, line, record.call, operands, dtype, of_module=False, reach=record.reach,
        factors=record.factors,
    )  # fmt: skip


@dataclass(eq=False, slots=True)
class Operation:
    """One call of a function of torch, with its floating operands and the line of its call."""

    func: Callable[..., Any]
    kind: OperationKind
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    operands: list[tuple[Key, torch.Tensor]]
    records: list[Provenance]
    line: CodeLine
    of_module: bool
    call: ModuleCall | None

    @property
    def name(self) -> str:
        return name_of(self.func)

    def pairs(self) -> zip[tuple[tuple[Key, torch.Tensor], Provenance]]:
        return zip(self.operands, self.records, strict=True)


def line_outside(frame: Any) -> tuple[CodeType, int, bool]:
    """Find the line outside torch that led to a frame, and whether by a module's call."""
    first, of_module = frame, False
    while frame is not None:
        code = frame.f_code
        if not is_internal(code.co_filename):
            return code, frame.f_lasti, of_module
        if code is _ENTRY:
            break
        of_module = of_module or code is _MODULE_CALL
        frame = frame.f_back
    return first.f_code, first.f_lasti, False


def _frames(frame: Any, called: Callable[[nn.Module], ModuleCall]) -> Iterator[CallFrame]:
    """Yield the functions outside torch that are running, the innermost first."""
    while frame is not None and frame.f_code is not _ENTRY:
        if not is_internal(frame.f_code.co_filename):
            names = frame.f_locals.items()
            modules = {name: called(value) for name, value in names if issubclass(type(value), nn.Module)}
            tensors = {name: value.dtype for name, value in names if issubclass(type(value), torch.Tensor)}
            yield CallFrame(frame.f_code, frame.f_lasti, modules, tensors)
        frame = frame.f_back


def _entries(frame: Any) -> Iterator[tuple[nn.Module, CodeLine, torch.dtype]]:
    """Yield the modules that are being called, the innermost first."""
    while frame is not None and frame.f_code is not _ENTRY:
        if frame.f_code is _MODULE_CALL:
            given = frame.f_locals["args"][:1]
            code, instruction, _ = line_outside(frame)
            if (
                given
                and isinstance(given[0], torch.Tensor)
                and given[0].dtype in FLOATS
                and not is_internal(code.co_filename)
            ):
                yield frame.f_locals["self"], (code, instruction), given[0].dtype
        frame = frame.f_back


def _is_in_python(error: BaseException) -> bool:
    """Whether an error of autograd was raised in a line of Python outside torch."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and not is_internal(last.tb_frame.f_code.co_filename)


def floating_operands(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[tuple[Key, torch.Tensor]]:
    """List the floating operands of a call, with where they stood."""
    operands: list[tuple[Key, torch.Tensor]] = []
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            if value.dtype in PART_DTYPES:
                operands.append(((index,), value))
        elif value.__class__ in (tuple, list):
            for at, part in enumerate(value):
                if isinstance(part, torch.Tensor) and part.dtype in PART_DTYPES:
                    operands.append(((index, at), part))
    if kwargs:
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor) and value.dtype in PART_DTYPES:
                operands.append(((name,), value))
    return operands


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in named if tensor.dtype in PART_DTYPES}


def _came_in(record: Provenance, dtype: torch.dtype, call: ModuleCall | None) -> Provenance | None:
    """Find what a module was given in the dtype that it casts back to; None where its own code brought that dtype."""
    pending, seen = [record], {id(record)}
    while pending and len(seen) < MOST_ANCESTORS:  # each step of a recurrence would look through all before it
        at = pending.pop()
        if at.dtype is dtype and (at.call is not call or at.is_stored):
            return at
        if at.call is call and not at.is_stored:
            pending += [parent for parent in at.parents if id(parent) not in seen]
            seen.update(map(id, at.parents))
    return None


class DtypeFlow(TorchFunctionMode):
    def __init__(
        self,
        tensors: ProvenanceMap,
        base: torch.dtype,
        paths: dict[int, str],
        *,
        watched: frozenset[str],
        values: bool | ValueCounts,
    ) -> None:
        super().__init__()
        self.tensors = tensors
        self.base = base
        self.modules = ModuleCalls(paths)
        self.watched = watched
        self.numbers = values if isinstance(values, ValueCounts) else ValueCounts() if values else None
        self.events: list[Event] = []
        self.uses: dict[str, Event] = {}
        self.raised: list[tuple[BaseException, Event]] = []
        self.autocast: Counter[tuple[str, tuple[str, ...], str]] = Counter()
        self.recast: dict[str, torch.dtype] = {}
        self.idle_autocasts: list[tuple[CodeLine, torch.dtype]] = []  # that are switched off, with their format
        self.narrowed_products: list[tuple[CodeLine, Provenance]] = []  # by autocast, though float32 was asked for
        self.autocasts: list[tuple[CodeLine, str]] = []  # all, with their device
        self.attention: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.angles: list[Provenance] = []  # of what sines and cosines are taken
        # Address of a storage read as integers → the format of its bits, and the storage, so that none takes its place.
        self.bits: dict[int, tuple[torch.dtype, torch.UntypedStorage]] = {}
        self.narrowed: list[Event] = []  # modules that the call itself casts to a narrower format
        self.targets: dict[CodeLine, Provenance] = {}  # what an operation in place changes
        self.written: set[CodeLine] = set()  # casts to the narrower format of what is stored, to be written to it
        self.dead: Counter[tuple[str, str, CodeType, int]] = Counter()  # casts that the next one undoes
        self.backend = ""  # of the last attention
        self.number = 0
        self._frames: dict[CodeLine, tuple[CallFrame, ...]] = {}
        self._giver: tuple[int, Provenance | None] = -1, None  # whose dtype the code read last, and when

    def observed(self, call: Callable[[], Any]) -> Any:
        with torch.no_grad(), self.modules.followed(), self._watching_modules(), self._watching_autocast(), self:
            return call()

    @contextmanager
    def _watching_modules(self) -> Iterator[None]:
        """Note where the call casts a module's trained parameters to a narrower format."""
        original, inside = nn.Module._apply, False

        def apply(module: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
            nonlocal inside
            if inside:
                return original(module, fn, recurse)
            inside = True
            try:
                return watched(module, fn, recurse)
            finally:
                inside = False

        def watched(module: nn.Module, fn: Callable[..., Any], recurse: bool) -> nn.Module:
            before = {name: p.dtype for name, p in module.named_parameters() if p.requires_grad}
            stored = {name: self.tensors[t] for name, t in _tensors_of(module).items()}
            with torch._C.DisableTorchFunction():
                result = original(module, fn, recurse)
                now = _tensors_of(module)
                code, instruction, _ = line_outside(sys._getframe(1))
                for name, record in stored.items():
                    self.tensors.recast(now[name], record, (code, instruction))
            names = [n for n, dtype in before.items() if n in now and dtype in FLOATS and loses(dtype, now[n].dtype)]
            if names:
                to, dtype = now[names[0]].dtype, before[names[0]]
                event = Event(
                    "downcast", self.number, "to", OperationKind.CAST, (code, instruction), None, [], to, False
                )
                event.leaked = (
                    f"the call itself narrows {names[0]}, which is trained, from {short(dtype)} to {short(to)}"
                    + (f", and {len(names) - 1} more" if len(names) > 1 else "")
                )
                self.narrowed.append(event)
            return result

        make = nn.Parameter.__new__

        def made(cls: Any, data: Any = None, requires_grad: bool = True) -> nn.Parameter:
            """Have a parameter that the call makes keep the record of its data."""
            parameter = make(cls, data, requires_grad)
            if cls is nn.Parameter and isinstance(data, torch.Tensor) and data.dtype in PART_DTYPES:
                self.tensors.pass_on(data, (parameter,))
            return parameter

        nn.Module._apply = apply  # type: ignore[method-assign]
        nn.Parameter.__new__ = made  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            nn.Module._apply = original  # type: ignore[method-assign]
            nn.Parameter.__new__ = make  # type: ignore[method-assign]

    @contextmanager
    def _watching_autocast(self) -> Iterator[None]:
        """Note where the call makes an autocast to a half format that does nothing."""
        original = torch.autocast.__init__

        def made(context: torch.autocast, *args: Any, **kwargs: Any) -> None:
            original(context, *args, **kwargs)
            self.autocasts.append((line_outside(sys._getframe(1))[:2], context.device))
            if not context._enabled and context.fast_dtype in (torch.float16, torch.bfloat16):
                self.idle_autocasts.append((line_outside(sys._getframe(1))[:2], context.fast_dtype))

        torch.autocast.__init__ = made  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.autocast.__init__ = original  # type: ignore[method-assign]

    # Running ----------------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if body := python_body(func):
            with self:
                return body(*args, **(kwargs or {}))
        kind = kind_of(func)
        if kind is _SKIP:
            if func is torch.Tensor.numpy and (record := self.tensors[args[0]]).deliberate:
                self.tensors.in_numpy.add(record.dtype)
            return func(*args, **(kwargs or {}))
        if kind is _DTYPE:
            self._giver = self.number, self.tensors[args[0]]
            return func(*args)
        self.number += 1
        try:
            if kind is _ATTENTION:
                result = self._attend(func, args, kwargs or {})
            elif kind is _MULTIHEAD:
                result = self._inside(func, args, kwargs or {})
            else:
                result = func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            self._note_raised(error, func, kind, args, kwargs)
            raise
        if kind is _VIEW or (self.bits and kind is _WRITE):
            self._follow_bits(func, kind, args, kwargs, result)
        if result.__class__ is torch.Tensor or isinstance(result, torch.Tensor):
            floating: tuple[torch.Tensor, ...] = (result,) if result.dtype in PART_DTYPES else ()
        elif isinstance(result, tuple | list):
            floating = tuple(part for part in result if isinstance(part, torch.Tensor) and part.dtype in PART_DTYPES)
        else:
            floating = ()
        if floating and kind is _VIEW and args and args[0].__class__ in _TENSORS:
            self.tensors.pass_on(args[0], floating)
        elif floating or (result is None and kind is _WRITE):
            self._follow(self._operation(func, kind, args, kwargs), floating)
        elif kind is _CAST and isinstance(result, torch.Tensor):
            self._truncate(self._operation(func, kind, args, kwargs), result)
        return result

    def _attend(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inside = InsideOperation()
        with inside:
            result = func(*args, **kwargs)
        self.backend = backend_name(inside.kernels)
        dtypes = tuple(short(tensor.dtype) for _, tensor in floating_operands(args, kwargs)[:3])
        self.attention[self.backend, dtypes] += 1
        return result

    def _inside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of torch that is written in Python, with what it calls observed too."""
        names = vars(F)
        original = names["has_torch_function"]
        names["has_torch_function"] = lambda *_: False
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            names["has_torch_function"] = original

    def _note_raised(self, error: BaseException, func: Any, kind: OperationKind, args: Any, kwargs: Any) -> None:
        if any(known is error for known, _ in self.raised) or (name_of(func) == "grad" and _is_in_python(error)):
            return  # the operation inside this one, or a line of an autograd function's backward
        operation = self._operation(func, kind, args, kwargs)
        result = operation.records[0].dtype if operation.records else self.base
        event = self._event("raise", operation, result)
        event.message = str(error)
        event.device = device = next((tensor.device.type for _, tensor in operation.operands), "")
        event.autocast = bool(device) and torch.is_autocast_enabled(device)
        event.entries = tuple((self.modules.called(m), line, t) for m, line, t in _entries(sys._getframe(1)))[::-1]
        self.raised.append((error, event))

    # Following --------------------------------------------------------------------------------------------------------

    def _follow(self, operation: Operation, results: tuple[torch.Tensor, ...]) -> None:
        name, kind, records, call = operation.name, operation.kind, operation.records, operation.call
        if name in TURNING:
            self.angles += records[:1]
        if kind is _CAST:
            self._cast(operation, results[0])
            return
        if kind is _WRITE and self._write(operation):
            return
        event, unlike, dtype = None, False, PART_DTYPES[results[0].dtype] if results else None
        for record in records:
            if record.dtype is not dtype:
                unlike = True
            if event is None and record.event is not None:
                event = self._carried(record, kind, records, call)
        if unlike:
            event = self._mixed(operation, results, event)
        if self.watched and kind in _COMPUTING:
            self._used(operation)
        parents = tuple(records)
        for result in results:
            dtype = PART_DTYPES[result.dtype]
            deliberate = dtype is not self.base and self._is_deliberate(operation, dtype)
            carried = event if event is not None and dtype is event.result else None
            record = Provenance(
                "op" if parents else "made", name, dtype, parents, *operation.line, call, deliberate, carried
            )
            record.asked = dtype is torch.float32 and all(parent.asked for parent in parents)
            if not parents and dtype is not self.base:
                record.frames = self._frames_at(operation.line)
            if kind is OperationKind.PRODUCT and dtype in HALVES and parents and all(p.asked for p in parents):
                self.narrowed_products.append((operation.line, record))
            if carried is not None and carried.line[0] is operation.line[0]:
                carried.last = record
                if unlike and self.events and self.events[-1].number == self.number:
                    self.events[-1].last = record
            record.is_complex = dtype is not result.dtype
            if self.numbers is not None and dtype is result.dtype:
                self.numbers.result(result, record, masks=name in _MASKS)
                self._look_how_far(operation, record)
            self.tensors[result] = record

    def _look_how_far(self, operation: Operation, record: Provenance) -> None:
        """Note how large the first results that are not finite would be in float64, without running a write again."""
        assert self.numbers is not None
        broken = self.numbers.broken
        if not broken or broken[-1] is not record or len(broken) > MOST_BROKEN or operation.kind is _WRITE:
            return
        if not operation.kwargs or "out" not in operation.kwargs:
            record.reach = reach_of(operation.func, operation.args, operation.kwargs)
            if operation.name in ("mul", "__mul__", "__rmul__") and not operation.kwargs:
                record.factors = tuple(map(size_of, operation.args))

    def _operation(
        self, func: Callable[..., Any], kind: OperationKind, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> Operation:
        operands = floating_operands(args, kwargs)
        records = [self.tensors[tensor] for _, tensor in operands]
        code, instruction, of_module = line_outside(sys._getframe(2))
        line, stack = (code, instruction), self.modules.stack
        call = stack[-1] if stack else None
        return Operation(func, kind, args, kwargs, operands, records, line, of_module, call)

    def _is_deliberate(self, operation: Operation, dtype: torch.dtype) -> bool:
        """Whether a result is of another dtype than the model because the code says so."""
        if operation.kwargs and operation.kwargs.get("dtype") is not None:
            return True
        if any(record.deliberate and record.dtype is dtype for record in operation.records):
            return True
        if dtype in self.tensors.in_numpy and operation.args and isinstance(operation.args[0], np.ndarray):
            return True
        return bool(operation.records) and torch._C._is_any_autocast_enabled()

    def _carried(
        self, record: Provenance, kind: OperationKind, records: list[Provenance], call: ModuleCall | None
    ) -> Event:
        """Follow a promoted tensor into an operation: does its dtype go on from here?"""
        event: Event = record.event
        if not event.leaked and not event.deliberate:
            if kind in _CARRIERS and not self._is_stored_so(event, records):
                event.leaked = f"went on into {kind.name.lower()}"
                event.is_followed = any(r.giver is not None and r.parents[0].kind == "parameter" for r in records)
            elif call is not event.call and any(other.dtype is not record.dtype for other in records):
                event.leaked = "met the model's dtype again in another module"
        return event

    def _is_stored_so(self, event: Event, records: list[Provenance]) -> bool:
        """Whether what follows is itself stored in the wider dtype, and would refuse the model's."""
        return event.result is not self.base and any(r.is_stored and r.dtype is event.result for r in records)

    def _event(
        self,
        kind: str,
        operation: Operation,
        result: torch.dtype,
        *,
        deliberate: bool = False,
        stored: Provenance | None = None,
        counting: list[tuple[tuple[Key, torch.Tensor], Provenance]] | None = None,
    ) -> Event:
        pairs = operation.pairs() if counting is None else counting
        operands = [(key, tuple(tensor.shape), record) for (key, tensor), record in pairs]
        return Event(
            kind,
            self.number,
            operation.name,
            operation.kind,
            operation.line,
            operation.call,
            operands,
            result,
            of_module=operation.of_module,
            deliberate=deliberate,
            stored=stored,
        )

    def _mixed(self, operation: Operation, results: tuple[torch.Tensor, ...], event: Event | None) -> Event | None:
        """Note operands of unlike dtypes; returns the event whose dtype the result carries."""
        kind, records = operation.kind, operation.records
        result = PART_DTYPES[results[0].dtype] if results else records[0].dtype
        if torch._C._is_any_autocast_enabled():
            self.autocast[operation.name, tuple(short(record.dtype) for record in records), short(result)] += 1
            if kind in (OperationKind.PRODUCT, OperationKind.RNN):
                self.recast.update({r.name: result for r in records if r.kind == "parameter" and r.dtype is not result})
            return event
        counting = [
            (operand, record)
            for operand, record in operation.pairs()
            if (operand[1].dim() > 0 or kind not in (OperationKind.PLAIN, OperationKind.WRITE))
            and (operand[1].numel() or record.dtype is result)  # an empty placeholder mixes with nothing
        ]
        if operation.kwargs and ("out",) in [key for (key, _), _ in counting]:
            self._written_out(operation, counting)
            return event
        if kind is OperationKind.ATTENTION:
            counting, masks = counting[:3], counting[3:]
            if any(record.dtype is not counting[0][1].dtype for _, record in masks):
                self.events.append(self._event("mixed_mask", operation, result, counting=[counting[0], *masks]))
        if len({record.dtype for _, record in counting}) < 2 or kind is OperationKind.BATCH_NORM:
            return event
        if kind is OperationKind.RNN:
            result = max((tensor.dtype for tensor in results), key=lambda dtype: torch.finfo(dtype).bits)
        if kind is OperationKind.NORM and result is records[0].dtype:
            self.events.append(self._event("mixed_norm", operation, result, counting=counting))
            return event
        deliberate = any(record.deliberate and record.dtype is not self.base for _, record in counting)
        is_complex = any(tensor.is_complex() for (_, tensor), _ in counting) or results[0].is_complex()
        deliberate |= self.base is torch.bfloat16 and is_complex  # of which there are no complex numbers
        new = self._event("promotion", operation, result, deliberate=deliberate, counting=counting)
        self.events.append(new)
        return new if event is None or (event.deliberate and not deliberate) else event

    def _written_out(self, operation: Operation, pairs: list[tuple[tuple[Key, torch.Tensor], Provenance]]) -> None:
        """Note a result that ``out=`` brings to another dtype: a write, whose destination comes first."""
        destination = next(pair for pair in pairs if pair[0][0] == ("out",))
        (_, tensor), target = destination
        mixed = [pair for pair in pairs if pair[1].dtype is not target.dtype]
        if not mixed:
            return
        narrows = any(loses(record.dtype, target.dtype) for _, record in mixed)
        stored = self.tensors.stored_behind(tensor)
        wrong = narrows and not all(record.deliberate for _, record in mixed)
        event = self._event(
            "downcast" if narrows else "widening", operation, target.dtype, deliberate=not wrong, stored=stored,
            counting=[destination, *mixed],
        )  # fmt: skip
        event.sort = OperationKind.WRITE
        event.leaked = "the values were cast in silence" if wrong else ""
        self.events.append(event)

    def _write(self, operation: Operation) -> bool:
        """Follow a write in place; returns whether that is all there is to it."""
        operands, records = operation.operands, operation.records
        if not operands or operands[0][0] != (0,):
            return True
        assigns = operation.name in ASSIGNMENTS
        destination, target = operands[0][1], records[0]
        if not assigns and operation.line not in self.targets:
            self.targets[operation.line] = self.tensors.stored_behind(destination) or maker_of(target)
        others = [
            record for (_, tensor), record in list(operation.pairs())[1:] if tensor.dim() > 0 or destination.dim() == 0
        ]
        if not assigns and not others:
            return False
        unlike = len({record.dtype for record in records}) > 1
        stored = self.tensors.stored_behind(destination) if assigns or unlike else None
        if stored is not None:
            narrowed = [r for r in others if r.kind == "cast" and r.parents and loses(r.parents[0].dtype, r.dtype)]
            self.written |= {(record.code, record.instruction) for record in narrowed if record.code is not None}
        mixed = [record for record in others if record.dtype is not target.dtype]
        if not mixed or (torch._C._is_any_autocast_enabled() and stored is None):
            return assigns
        narrows = any(loses(record.dtype, target.dtype) for record in mixed)
        if not narrows and not assigns:
            return False  # a narrower operand is promoted in place: like any promotion
        self._note_write(operation, mixed, stored, narrows=narrows, assigns=assigns)
        return True

    def _note_write(
        self, operation: Operation, mixed: list[Provenance], stored: Provenance | None, *, narrows: bool, assigns: bool
    ) -> None:
        target = operation.records[0]
        homecoming = target.dtype is self.base and all(record.deliberate for record in mixed)
        stray = any(record.is_stored or (record.event and not record.event.deliberate) for record in mixed)
        sums = not assigns and target.dtype is not self.base and any(record.dtype is self.base for record in mixed)
        wrong = narrows and not homecoming and (stored is not None or sums or (stray and not assigns))
        kind = "downcast" if narrows else "widening"
        event = self._event(kind, operation, target.dtype, deliberate=not wrong, stored=stored)
        if wrong:
            event.leaked = "the values were cast in silence"
            for record in mixed:
                if record.event is not None and not (record.event.leaked or record.event.deliberate):
                    record.event.leaked = "was cast back in silence, by a write"
        self.events.append(event)
        if self.numbers is not None and narrows:
            for (_, tensor), record in list(operation.pairs())[1:]:
                if record.dtype is not target.dtype:
                    self.numbers.cast(tensor, target.dtype, operation.line, operation.call)

    def _cast(self, operation: Operation, result: torch.Tensor) -> None:
        source, records = operation.args[0], operation.records
        is_asked = result.dtype is torch.float32 and self._given(records, result.dtype) is None
        if source.dtype is result.dtype:
            records[0].asked |= is_asked
            self.tensors[result] = records[0]
            if result.dtype is not self.base:
                records[0].frames = self._frames_at(operation.line)
            giver = self._given(records, result.dtype)
            if giver is not None and giver.kind == "parameter":
                records[0].kept_by = *operation.line, giver.name
            return
        if source.dtype.is_complex or result.dtype.is_complex:
            dtype, made_from = PART_DTYPES[result.dtype], tuple(records[:1])
            self.tensors[result] = Provenance("op", operation.name, dtype, made_from, *operation.line, operation.call)
            return
        giver = self._given(records, result.dtype)
        event = giver.event if giver is not None else None
        if event is not None and (event.deliberate or event.result is not result.dtype):
            event = None
        stray = result.dtype is not self.base
        names_none = operation.name in ("to", "type", "type_as")  # .float() names its dtype
        given = _came_in(records[0], result.dtype, operation.call) if stray and names_none and records else None
        event = event or (given.event if given is not None else None)
        deliberate = stray and event is None and (given is None or given.deliberate)
        name, parents = f"cast from {short(source.dtype)}", tuple(records[:1])
        record = Provenance("cast", name, result.dtype, parents, *operation.line, operation.call, deliberate, event)
        record.giver, record.asked = giver, is_asked
        record.frames = self._frames_at(operation.line) if stray else ()
        if records and source.dtype in PART_DTYPES:
            before = records[0]
            if before.kind == "cast" and before.parents and before.parents[0].dtype is result.dtype:
                self.dead[short(result.dtype), short(before.dtype), *operation.line] += 1
            if self.numbers is not None and loses(source.dtype, result.dtype):
                self.numbers.cast(source, result.dtype, operation.line, operation.call)
        if self.numbers is not None:
            self.numbers.result(result, record, masks=False)
            self._look_how_far(operation, record)
        if records and records[0].event is not None and result.dtype is self.base:
            records[0].event.was_cast_back = True
        self.tensors[result] = record

    def _frames_at(self, line: CodeLine) -> tuple[CallFrame, ...]:
        """Look at the functions that run, once a line."""
        if line not in self._frames:
            self._frames[line] = tuple(_frames(sys._getframe(1), self.modules.called))
        return self._frames[line]

    def _follow_bits(self, func: Any, kind: OperationKind, args: Any, kwargs: Any, result: Any) -> None:
        """Follow bits that are viewed in another dtype; written or read as another format they are other numbers."""
        if kind is _WRITE:
            tensors = [value for value in args if value.__class__ is torch.Tensor and not value.is_floating_point()]
            if len(tensors) < 2:
                return
            read, made = (self._format_of_bits(tensor) for tensor in (tensors[0], tensors[-1]))
        else:
            if not any(isinstance(value, torch.dtype) for value in args[1:]) or not isinstance(result, torch.Tensor):
                return
            made = args[0].dtype if args[0].is_floating_point() else self._format_of_bits(args[0])
            read = result.dtype if result.is_floating_point() else None
            if made is not None and read is None:
                storage = result.untyped_storage()
                self.bits[storage.data_ptr()] = made, storage
        if made is not None and read is not None and made is not read:
            event = self._event("bits", self._operation(func, kind, args, kwargs), read)
            event.operands = []
            event.leaked = (
                f"bits of {short(made)} become those of {short(read)}, as which they are other numbers: convert"
            )
            self.events.append(event)

    def _format_of_bits(self, tensor: torch.Tensor) -> torch.dtype | None:
        return self.bits.get(tensor.untyped_storage().data_ptr(), (None,))[0]

    def _truncate(self, operation: Operation, result: torch.Tensor) -> None:
        """Note a cast to the dtype of an integer tensor that cuts off digits; one to a named dtype means to."""
        source, (number, giver) = operation.args[0], self._giver
        by_another = giver is not None and number == self.number - 1 and giver.dtype is result.dtype
        if not operation.records or not (by_another or operation.name == "type_as"):
            return
        with torch._C.DisableTorchFunction():
            cut = float((source != result).double().mean()) if source.numel() else 0.0
        if cut:
            event = self._event("downcast", operation, result.dtype)
            event.leaked = (
                f"the cast is to the dtype of an integer tensor, and cuts digits off {100 * cut:.3g} % of values"
            )
            self.events.append(event)

    def _given(self, records: list[Provenance], dtype: torch.dtype) -> Provenance | None:
        """Find the tensor to whose dtype a cast was: ``x.type_as(y)``, ``x.to(y)``, ``x.to(y.dtype)``."""
        if len(records) > 1:
            return records[1]
        number, giver = self._giver
        return giver if giver is not None and number == self.number - 1 and giver.dtype is dtype else None

    def _used(self, operation: Operation) -> None:
        """Locate the first use of a parameter that is looked for."""
        for record in operation.records:
            if record.name in self.watched and record.name not in self.uses:
                self.uses[record.name] = self._event("kept_narrowed", operation, record.dtype)


_ENTRY = DtypeFlow.observed.__code__
_MODULE_CALL = nn.Module._call_impl.__code__
