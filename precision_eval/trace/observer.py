"""Runs a model once and follows every floating tensor: what made it, from what, and where dtypes meet; imports torch.

Conventions: a ``TorchFunctionMode`` sees each call of torch's Python interface as the source has it, above autograd
and autocast; a dispatch mode, which costs several times as much, is on only inside one attention call of each kind, to
see the backend. Modules are followed by global hooks. While a model runs, a line is a code object and an instruction;
everything that takes time is done afterwards.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode

from precision_eval.diagnose.doctor.source import is_internal
from precision_eval.trace.events import (
    MASKS,
    TENSORS,
    Event,
    Kernels,
    Line,
    Raised,
    Tensors,
    asks_for_dtype,
    operands_of,
    widest,
)
from precision_eval.trace.numbers import Numbers
from precision_eval.trace.operations import ASSIGNMENTS, FLOATS, Kind, kind_of, loses, name_of
from precision_eval.trace.provenance import Call, Record, Table, short


def _nothing(*_: Any) -> bool:
    return False


class Observer(TorchFunctionMode):
    """Follows one call."""

    def __init__(
        self, table: Table, base: torch.dtype, paths: dict[int, str], *, watched: frozenset[str], values: bool
    ) -> None:
        super().__init__()
        self.table = table
        self.base = base
        self.paths = paths
        self.watched = watched
        self.numbers = Numbers() if values else None
        self.events: list[Event] = []
        self.uses: dict[str, Event] = {}
        self.raised: list[Raised] = []
        self.autocast: Counter[tuple[str, tuple[str, ...], str]] = Counter()
        self.recast: dict[str, torch.dtype] = {}
        self.attention: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.dead: Counter[tuple[str, str, str, CodeType, int]] = Counter()
        self.writes: dict[int, list[tuple[Line, torch.dtype]]] = {}
        self.calls: list[Call] = []
        self.number = 0
        self._giver: tuple[int, Record | None] = -1, None  # whose dtype the code read last, and when
        self._kinds: dict[Any, Kind] = {}
        self._names: dict[Any, str] = {}
        self._skipped: dict[int, bool] = {}
        self._codes: list[CodeType] = []  # kept, so that no other gets the identity of one
        self._backends: dict[Any, str] = {}

    # Hooks ------------------------------------------------------------------------------------------------------------

    def entered(self, module: nn.Module, args: Any) -> None:
        """Begin a module's call."""
        self.calls.append(Call(module, self.paths.get(id(module), type(module).__name__)))

    def left(self, module: nn.Module, args: Any, output: Any) -> None:
        """End a module's call."""
        self.calls.pop()

    # The mode ---------------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch and follow its floating results."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = kind_of(func)
            self._names[func] = name_of(func)
        if kind is Kind.SKIP:
            return func(*args, **(kwargs or {}))
        if kind is Kind.DTYPE:
            self._giver = self.number, self.table.get(args[0])
            return func(*args)
        self.number += 1
        try:
            found = self._run(func, kind, args, kwargs)
        except Exception as error:
            self._note_raised(error, func, kind, args, kwargs)
            raise
        if found.__class__ is torch.Tensor or isinstance(found, torch.Tensor):
            if found.dtype in FLOATS:
                self._follow(func, kind, args, kwargs, (found,))
        elif found is None:
            if kind is Kind.WRITE:
                self._follow(func, kind, args, kwargs, ())
        elif isinstance(found, tuple | list):
            floating = tuple(part for part in found if isinstance(part, torch.Tensor) and part.dtype in FLOATS)
            if floating:
                self._follow(func, kind, args, kwargs, floating)
        return found

    def _run(self, func: Callable[..., Any], kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if kind is Kind.ATTENTION:
            return self._attend(func, args, kwargs or {})
        if kind is Kind.MULTIHEAD:
            return self._inside(func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _attend(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run attention, the first call of each kind under a dispatch mode."""
        tensors = [value for _, value in operands_of(args, kwargs)]
        kind = (tuple((t.dtype, t.shape) for t in tensors), len(args), *sorted(kwargs))
        backend = self._backends.get(kind)
        if backend is None:
            kernels = Kernels()
            with kernels:
                found = func(*args, **kwargs)
            backend = self._backends[kind] = kernels.backend
        else:
            found = func(*args, **kwargs)
        self.attention[backend, tuple(short(t.dtype) for t in tensors[:3])] += 1
        return found

    def _inside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of torch that is written in Python, with what it calls observed too."""
        names = vars(F)
        original = names["has_torch_function"]
        names["has_torch_function"] = _nothing
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            names["has_torch_function"] = original

    # Following --------------------------------------------------------------------------------------------------------

    def _line(self, depth: int = 3) -> tuple[CodeType, int, bool]:
        """Find the line outside torch that led here, and whether it calls a module of torch's."""
        frame: Any = sys._getframe(depth)
        first, of_module, skipped = frame, False, self._skipped
        while frame is not None:
            code = frame.f_code
            skip = skipped.get(id(code))  # a code object's own hash is computed from all its parts, each time
            if skip is None:
                skip = skipped[id(code)] = is_internal(code.co_filename)
                self._codes.append(code)
            if not skip:
                return code, frame.f_lasti, of_module
            if code is _ENTRY:
                break
            of_module = of_module or code is _MODULE_CALL
            frame = frame.f_back
        return first.f_code, first.f_lasti, False

    def _follow(
        self,
        func: Callable[..., Any],
        kind: Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        found: tuple[torch.Tensor, ...],
    ) -> None:
        """Record the results of an operation, and the mixing if there is one."""
        table = self.table
        if kind is Kind.VIEW and args.__class__ is tuple and args and args[0].__class__ in TENSORS:
            record = table.get(args[0])
            for result in found:
                table.put(result, record)
            return
        operands = operands_of(args, kwargs)
        records = [table.get(tensor) for _, tensor in operands]
        code, instruction, of_module = self._line()
        call = self.calls[-1] if self.calls else None
        if kind is Kind.CAST:
            self._cast(func, args, kwargs, operands, records, found[0], code, instruction, call)
            return
        if kind is Kind.WRITE and self._write(func, operands, records, code, instruction, call, of_module):
            return
        event, unlike = None, False
        dtype = found[0].dtype if found else None
        for record in records:
            if record.dtype is not dtype:
                unlike = True
            if event is None and record.event is not None:
                event = self._carried(record, kind, records, call)
        if unlike:
            event = self._mixed(func, kind, operands, records, found, code, instruction, call, of_module, event)
        if self.watched and kind in (Kind.PRODUCT, Kind.NORM, Kind.PLAIN):
            self._used(func, kind, operands, records, code, instruction, call, of_module)
        name, parents = self._names[func], tuple(records)
        for result in found:
            dtype = result.dtype
            deliberate = dtype is not self.base and self._deliberate(kind, kwargs, records, dtype)
            carried = event if event is not None and dtype is event.result else None
            record = Record(
                "op" if parents else "made", name, dtype, parents, code, instruction, call, deliberate, carried
            )
            if self.numbers is not None:
                self.numbers.result(result, record, masks=name in MASKS)
            table.put(result, record)

    def _deliberate(self, kind: Kind, kwargs: dict[str, Any] | None, records: list[Record], dtype: torch.dtype) -> bool:
        """Whether a result is of another dtype than the model because the code says so."""
        if kwargs and kwargs.get("dtype") is not None:
            return True
        if any(record.deliberate and record.dtype is dtype for record in records):
            return True
        return bool(records) and torch._C._is_any_autocast_enabled()

    def _carried(self, record: Record, kind: Kind, records: list[Record], call: Call | None) -> Event:
        """Follow a promoted tensor into an operation: does its dtype go on from here?"""
        event: Event = record.event
        if not event.leaked and not event.deliberate:
            if kind in (Kind.PRODUCT, Kind.ATTENTION, Kind.RNN, Kind.NORM):
                event.leaked = f"went on into {kind.name.lower()}"
            elif call is not event.call and any(other.dtype is not record.dtype for other in records):
                event.leaked = "met the model's dtype again in another module"
        return event

    def _event(
        self, kind: str, func: Callable[..., Any], sort: Kind, operands: Tensors, records: list[Record], line: Line,
        call: Call | None, result: torch.dtype, of_module: bool, **more: Any,
    ) -> Event:  # fmt: skip
        parts = [(key, tuple(t.shape), record) for (key, t), record in zip(operands, records, strict=True)]
        return Event(kind, self.number, name_of(func), sort, line, call, parts, result, of_module=of_module, **more)

    def _mixed(
        self, func: Callable[..., Any], kind: Kind, operands: Tensors, records: list[Record],
        found: tuple[torch.Tensor, ...], code: CodeType, instruction: int, call: Call | None, of_module: bool,
        event: Event | None,
    ) -> Event | None:  # fmt: skip
        """Note operands of unlike dtypes; returns the event whose dtype the result carries."""
        result = found[0].dtype if found else records[0].dtype
        if torch._C._is_any_autocast_enabled():
            self.autocast[name_of(func), tuple(short(record.dtype) for record in records), short(result)] += 1
            if kind in (Kind.PRODUCT, Kind.RNN):
                self.recast.update({r.name: result for r in records if r.kind == "parameter" and r.dtype is not result})
            return event
        counting = [
            (operand, record)
            for operand, record in zip(operands, records, strict=True)
            if operand[1].dim() > 0 or kind not in (Kind.PLAIN, Kind.WRITE)
        ]
        if kind is Kind.ATTENTION:
            counting = counting[:3]
        if len({record.dtype for _, record in counting}) < 2 or kind is Kind.BATCH_NORM:
            return event
        kept = [operand for operand, _ in counting], [record for _, record in counting]
        if kind is Kind.RNN:
            result = widest(found)
        if kind is Kind.NORM and result is records[0].dtype:
            self.events.append(
                self._event("mixed_norm", func, kind, *kept, (code, instruction), call, result, of_module)
            )
            return event
        deliberate = any(record.deliberate and record.dtype is not self.base for record in kept[1])
        new = self._event(
            "promotion", func, kind, *kept, (code, instruction), call, result, of_module, deliberate=deliberate
        )
        self.events.append(new)
        return new if event is None or (event.deliberate and not deliberate) else event

    def _write(
        self, func: Callable[..., Any], operands: Tensors, records: list[Record], code: CodeType, instruction: int,
        call: Call | None, of_module: bool,
    ) -> bool:  # fmt: skip
        """Follow a write in place; returns whether that is all there is to it."""
        if not operands or operands[0][0] != (0,):
            return True
        assigns = name_of(func) in ASSIGNMENTS
        destination, target = operands[0][1], records[0]
        others = [
            record
            for (_, tensor), record in zip(operands[1:], records[1:], strict=True)
            if tensor.dim() > 0 or destination.dim() == 0
        ]
        if not assigns and not others:
            return False
        stored = self.table.stored_behind(destination) if assigns or len({r.dtype for r in records}) > 1 else None
        if stored is not None and others and assigns:
            self.writes.setdefault(id(stored), []).append(((code, instruction), others[-1].dtype))
        mixed = [record for record in others if record.dtype is not target.dtype]
        if not mixed or (torch._C._is_any_autocast_enabled() and stored is None):
            return assigns
        narrows = any(loses(record.dtype, target.dtype) for record in mixed)
        if not narrows and not assigns:
            return False  # a narrower operand is promoted in place: like any promotion
        self._note_write(func, operands, records, mixed, code, instruction, call, of_module, stored, narrows)
        return True

    def _note_write(
        self, func: Callable[..., Any], operands: Tensors, records: list[Record], mixed: list[Record], code: CodeType,
        instruction: int, call: Call | None, of_module: bool, stored: Record | None, narrows: bool,
    ) -> None:  # fmt: skip
        target = records[0]
        homecoming = target.dtype is self.base and all(record.deliberate for record in mixed)
        stray = any(record.is_stored or (record.event and not record.event.deliberate) for record in mixed)
        assigns = name_of(func) in ASSIGNMENTS
        wrong = narrows and not homecoming and (stored is not None or (stray and not assigns))
        event = self._event(
            "downcast" if narrows else "widening", func, Kind.WRITE, operands, records, (code, instruction), call,
            target.dtype, of_module, deliberate=not wrong, stored=stored,
        )  # fmt: skip
        if wrong:
            event.leaked = "the values were cast in silence"
            for record in mixed:
                if record.event is not None and not (record.event.leaked or record.event.deliberate):
                    record.event.leaked = "was cast back in silence, by a write"
        self.events.append(event)
        if self.numbers is not None and narrows:
            for (_, tensor), record in zip(operands[1:], records[1:], strict=True):
                if record.dtype is not target.dtype:
                    self.numbers.cast(tensor, target.dtype, (code, instruction), call)

    def _cast(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None, operands: Tensors,
        records: list[Record], found: torch.Tensor, code: CodeType, instruction: int, call: Call | None,
    ) -> None:  # fmt: skip
        """Follow a cast that the code makes."""
        source = args[0]
        if source.dtype is found.dtype:
            if asks_for_dtype(func, args, kwargs):
                name = short(found.dtype)
                self.dead["same dtype", name, name, code, instruction] += 1
            self.table.put(found, records[0])
            return
        name, giver = f"cast from {short(source.dtype)}", self._given(operands, records, found.dtype)
        event = giver.event if giver is not None else None
        if event is not None and (event.deliberate or event.result is not found.dtype):
            event = None
        deliberate = found.dtype is not self.base and event is None
        record = Record("cast", name, found.dtype, tuple(records[:1]), code, instruction, call, deliberate, event)
        record.giver = giver
        if records and source.dtype in FLOATS:
            before = records[0]
            if before.kind == "cast" and before.parents and before.parents[0].dtype is found.dtype:
                self.dead["there and back", short(found.dtype), short(before.dtype), code, instruction] += 1
            if self.numbers is not None and loses(source.dtype, found.dtype):
                self.numbers.cast(source, found.dtype, (code, instruction), call)
        if self.numbers is not None:
            self.numbers.result(found, record, masks=False)
        self.table.put(found, record)

    def _given(self, operands: Tensors, records: list[Record], dtype: torch.dtype) -> Record | None:
        """Find the tensor to whose dtype a cast was: ``x.type_as(y)``, ``x.to(y)``, ``x.to(y.dtype)``."""
        if len(records) > 1:
            return records[1]
        number, giver = self._giver
        return giver if giver is not None and number == self.number - 1 and giver.dtype is dtype else None

    def _used(
        self, func: Callable[..., Any], kind: Kind, operands: Tensors, records: list[Record], code: CodeType,
        instruction: int, call: Call | None, of_module: bool,
    ) -> None:  # fmt: skip
        """Locate the first use of a parameter that is looked for."""
        for record in records:
            if record.name in self.watched and record.name not in self.uses:
                self.uses[record.name] = self._event(
                    "kept_narrowed", func, kind, operands, records, (code, instruction), call, record.dtype, of_module
                )

    def _note_raised(
        self, error: BaseException, func: Callable[..., Any], kind: Kind, args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        if any(raised.error is error for raised in self.raised):
            return  # the operation inside this one
        operands = operands_of(args, kwargs)
        records = [self.table.get(tensor) for _, tensor in operands]
        code, instruction, of_module = self._line()
        result = records[0].dtype if records else self.base
        call = self.calls[-1] if self.calls else None
        event = self._event("raise", func, kind, operands, records, (code, instruction), call, result, of_module)
        self.raised.append(Raised(error, event))


@contextmanager
def _hooked(observer: Observer) -> Iterator[None]:
    handles = [
        module_hooks.register_module_forward_pre_hook(observer.entered),
        module_hooks.register_module_forward_hook(observer.left, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def observed_call(observer: Observer, call: Callable[[], Any]) -> Any:
    """Run a call under an observer."""
    with torch.no_grad(), _hooked(observer), observer:
        return call()


_ENTRY = observed_call.__code__
_MODULE_CALL = nn.Module._call_impl.__code__
