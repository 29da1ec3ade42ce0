"""A call replayed operation by operation: the results of chosen steps are rounded to the formats of another call.

Conventions: a *step* is one operation of a call as its Python code makes it. It is found again in a call of a float64
copy by its place in the source, its name, and how often it ran there. What rounds out of torch's sight, as numpy or a
kernel does, rounds in float64 too: it shows in values that hold no more digits than a narrow format.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.trace.dtype_flow import TURNING, Event, floating_operands, line_outside
from precision_eval.trace.observer import ModuleCall, ModuleCalls
from precision_eval.trace.operations import CHOOSING, PART_DTYPES, Key, OperationKind, kind_of, name_of, python_body
from precision_eval.trace.provenance import Provenance
from precision_eval.trace.value_counts import unwrapped

# Results of a call that are kept to find an operation; with more it is not looked for.
MOST_BYTES = 1 << 30


# Relative error beyond which less than one digit of a value is right.
HARDLY_RIGHT = 0.1


def line_of(code: CodeType, instruction: int) -> int:
    span = next(islice(code.co_positions(), instruction // 2, None), None)
    return span[0] if span is not None and span[0] is not None else code.co_firstlineno


def rounding(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to a format."""
    return float(torch.finfo(dtype).eps) / 2


@dataclass(frozen=True)
class TracedStep:
    """One operation of a call, the formats of its results, and where its floating operands stood."""

    name: str
    sort: OperationKind
    dtypes: tuple[torch.dtype, ...]
    code: CodeType
    instruction: int
    of_module: bool
    call: ModuleCall | None
    keys: tuple[Key, ...]
    occurrence: int  # of this operation at this place in the call

    @property
    def identity(self) -> Hashable:
        """By what the step is found in the float64 run, which leaves out casts that a code makes of narrower values."""
        return self.code, self.instruction, self.name, self.occurrence

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[0]

    @property
    def is_narrow(self) -> bool:
        return any(rounding(dtype) > rounding(torch.float32) for dtype in self.dtypes)

    @property
    def line(self) -> tuple[str, int]:
        return self.code.co_filename, line_of(self.code, self.instruction)

    @property
    def event(self) -> Event:
        """The rounding of what it returns."""
        operands: list[tuple[Key, tuple[int, ...], Provenance]] = [
            (key, (), Provenance("op", "", self.dtype)) for key in self.keys
        ]
        line = self.code, self.instruction
        return Event("drift", 0, self.name, self.sort, line, self.call, operands, self.dtype, self.of_module)


class Steps(TorchFunctionMode):
    """Notes what each operation of a call returns; some are of another call too, and rounded here as there."""

    def __init__(
        self,
        paths: dict[int, str],
        rounded: dict[int, TracedStep],
        *,
        keeps: bool = False,
        instead: dict[Hashable, torch.Tensor] | None = None,
        scaled: bool = False,
    ) -> None:
        super().__init__()
        self.scaled = scaled  # what is rounded fills its format's range
        self.keeps = keeps
        self.instead = instead or {}  # results to put in the place of a step's own
        self.lost = 0.0, 0.0  # of the operands of such a result what it is off by, and what it is, where it is off
        self.results: list[tuple[TracedStep, torch.Tensor]] = []  # of each step that makes new numbers
        self.room_bytes = MOST_BYTES
        self.modules = ModuleCalls(paths)
        self.rounded = {step.identity: step for step in rounded.values()}
        self.occurrences: Counter[Hashable] = Counter()
        self.steps: list[TracedStep] = []
        self.angles: list[torch.Tensor] = []
        self.choices: list[torch.Tensor] = []  # indices that were chosen by numbers
        self.outputs: tuple[torch.Tensor, ...] = ()
        self.error: Exception | None = None
        self.rounds_whole_numbers = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if body := python_body(func):
            with self:
                return body(*args, **(kwargs or {}))
        if name_of(func) in TURNING and isinstance(args[-1], torch.Tensor):
            self.angles.append(args[-1].detach().clone())
        result = func(*args, **(kwargs or {}))
        if name_of(func) in CHOOSING:
            self._note_choice(name_of(func), result)
        if kind_of(func) in (OperationKind.SKIP, OperationKind.DTYPE, OperationKind.VIEW):
            return result
        writes = result is None and args
        results = (args[0],) if writes else result if isinstance(result, tuple | list) else (result,)
        floats = [
            part
            for part in results
            if isinstance(part, torch.Tensor) and (part.is_floating_point() or part.is_complex())
        ]
        if not floats:
            return result
        line, name = line_outside(sys._getframe(1)), name_of(func)
        self.occurrences[line[:2], name] += 1
        dtypes = tuple(PART_DTYPES.get(part.dtype, part.dtype) for part in floats)
        keys = tuple(key for key, _ in floating_operands(args, kwargs))
        occurrence = self.occurrences[line[:2], name]
        self.steps.append(TracedStep(name, kind_of(func), dtypes, *line, self.modules.current, keys, occurrence))
        if self.keeps and self.steps[-1].sort is not OperationKind.CAST and not floats[0].is_complex():
            self.room_bytes -= floats[0].nbytes
            if self.room_bytes >= 0:
                self.results.append((self.steps[-1], unwrapped(floats[0]).detach().clone()))
        if (exact := self.instead.get(self.steps[-1].identity)) is not None:
            self._exchange(floats[0], exact, args)
        to = self.rounded.get(self.steps[-1].identity)
        if to is None:
            return result
        with torch._C.DisableTorchFunction():
            pairs = zip(floats, to.dtypes, strict=False)
            rounded = {id(part): _rounded(part, dtype, scaled=self.scaled) for part, dtype in pairs}
            self.rounds_whole_numbers |= any(_is_another_whole_number(part, rounded[id(part)]) for part in floats)
            given = {id(value) for value in (*args, *(kwargs or {}).values()) if isinstance(value, torch.Tensor)}
            if kind_of(func) is not OperationKind.CAST:  # a cast that does nothing gives back what it was given
                for part in floats:
                    if writes or id(part) in given:
                        part.copy_(rounded[id(part)])
                        rounded[id(part)] = part
        return result if writes else _with(result, rounded)

    def _note_choice(self, name: str, result: Any) -> None:
        with torch._C.DisableTorchFunction():
            chosen = unwrapped(result if isinstance(result, torch.Tensor) else result[-1]).detach()
            self.choices.append(chosen.sort(-1).values if name == "topk" else chosen.clone())  # its order says nothing

    def _exchange(self, result: torch.Tensor, exact: torch.Tensor, args: tuple[Any, ...]) -> None:
        with torch._C.DisableTorchFunction():
            off = (result - exact).abs() > HARDLY_RIGHT * exact.abs()
            sizes = [torch.as_tensor(value, device=exact.device).detach().abs().double() for value in args[:2]]
            size = torch.stack(torch.broadcast_tensors(*sizes, exact)[:2]).amax(0)[off]
            self.lost = float(((result - exact).abs()[off] / size).amax()), float((exact.abs()[off] / size).amax())
            result.copy_(exact)


def _is_another_whole_number(exact: torch.Tensor, rounded: torch.Tensor) -> bool:
    one, other = _real(exact), _real(rounded)
    first = one.flatten()[:16]  # which spares most tensors the rounding of all
    return bool((first == first.round()).all()) and bool((one == one.round()).all()) and not torch.equal(one, other)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()


def _rounded(tensor: torch.Tensor, dtype: torch.dtype, *, scaled: bool = False) -> torch.Tensor:
    if scaled and float(largest := tensor.detach().abs().max()):
        return _rounded(tensor * (torch.finfo(dtype).max / largest), dtype) * (largest / torch.finfo(dtype).max)
    if tensor.requires_grad:  # a gradient through the cast would be rounded too, and may overflow
        return tensor + (_rounded(tensor.detach(), dtype) - tensor.detach())
    parts = _real(tensor)
    back = parts.to(dtype).to(parts.dtype)
    return torch.view_as_complex(back) if tensor.is_complex() else back


def _with(result: Any, rounded: dict[int, torch.Tensor]) -> Any:
    if isinstance(result, torch.Tensor):
        return rounded[id(result)]
    parts = [rounded.get(id(part), part) for part in result]
    return type(result)(parts)  # also torch's named tuples
