"""Values that are not finite in float64 either: what the arithmetic is given, and a change that was run; imports torch.

No dtype cures what is not defined. The operands of the first result that is not finite say what it is (a divisor of
zero, 0 · −inf, a softmax of nothing but −inf), and a change of that line, or of the tensor that holds −inf, is verified
where the output is then finite.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.core.formats import short
from precision_eval.doctor.diagnosis import Finding, Patch
from precision_eval.doctor.repairs import Repair, follow
from precision_eval.doctor.source import Insertion, expressions, imports_torch, with_calls
from precision_eval.doctor.ways import path_of
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import attempt, copy_model, run_fresh
from precision_eval.trace.dtype_flow import CodeLine, Event, is_internal, line_outside
from precision_eval.trace.operations import name_of, python_body
from precision_eval.trace.provenance import Provenance, ancestors, named_tensors

_OF_NO_ZERO = ("rsqrt", "reciprocal", "log", "log2", "log10", "__rtruediv__", "__rdiv__")
_PRODUCTS = ("mul", "__mul__", "__rmul__", "mul_")
_SUMS = ("sub", "add", "__sub__", "__add__", "__rsub__", "sub_", "add_")
_SOFTMAX = ("softmax", "log_softmax")


class _Watched(TorchFunctionMode):
    """Holds what an operation of a line is given when its result is first not finite; or looks at every quotient."""

    def __init__(self, line: CodeLine, name: str) -> None:
        super().__init__()
        self.line, self.name = line, name
        self.given: tuple[Any, ...] = ()
        self.dim: int = -1
        self.gains: dict[CodeLine, float] = {}  # of quotients: how many times what is divided

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if body := python_body(func):
            with self:
                return body(*args, **(kwargs or {}))
        name = name_of(func)
        before = args if name.endswith("_") else ()
        held = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in before)
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and name in (self.name, "div"):
            code, instruction, _ = line_outside(sys._getframe(1))
            line = code, instruction
            if line == self.line and name == self.name and not self.given and not bool(result.isfinite().all()):
                self.given = held or args
                self.dim = (kwargs or {}).get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else -1)
            if name == "div" and isinstance(args[0], torch.Tensor) and args[0].numel():
                gain = float(result.detach().abs().max() / args[0].detach().abs().max())
                self.gains[line] = max(self.gains.get(line, 0.0), gain)
        return result


# Quotients of so many times what is divided are looked at, where parameters are updated by them.
LEAST_GAIN = 100.0


def blame_arithmetic(
    subject: ExaminedModel, findings: tuple[Finding, ...], events: list[Event], reference: Reference
) -> tuple[tuple[Finding, ...], Patch | None]:
    """Say of the first value that is not finite in float64 either what makes it, and return a change that was run."""
    at = next((i for i, finding in enumerate(findings) if finding.kind == "first_non_finite"), None)
    event = next((event for event in events if event.kind == "first_non_finite"), None)
    if at is None or event is None:
        return findings, None
    words, patch = "look at what this operation is given", None
    for said, repair in _trials(subject, event, reference):
        words = said if words.startswith("look at") else words
        if repair is not None and repair.verified:
            words = f"{said}; with the change the output is finite"
            patch = repair.as_patch(findings[at].place, "")
            break
    first, *more = findings[at].reason.split("; ", 1)
    reason = "; ".join((first, *more)) if patch is None and more and more[0].startswith("it would be") else first
    blamed = replace(findings[at], reason=f"{reason}; float64 gives the same, so no dtype cures it: {words}")
    return (*findings[:at], blamed, *findings[at + 1 :]), patch


def _trials(subject: ExaminedModel, event: Event, reference: Reference) -> Iterator[tuple[str, Repair | None]]:
    """Yield what may be wrong, the surest first, each with a change that was run."""
    watched = _watch(subject, event)
    is_mask = event.name in (*_SOFTMAX, "scaled_dot_product_attention")
    for words, repair in [
        *(_of_quotients(watched) if subject.updated else ()),
        *(_of_stored(subject, event) if is_mask else ()),
    ]:
        if repair is not None:
            with repair.source.active():
                outcome = run_fresh(repair.copy(subject))
            is_finite = outcome.error is None and not outcome.broken()[0]
            repair.outputs, repair.left = outcome.outputs, () if is_finite else ("not finite",)
        yield words, repair
    words, _ = _defined(event, watched, "tiny")
    for floor in ("tiny", "eps") if words else ():
        yield words, follow("defined", partial(_define, subject=subject, floor=floor), subject, reference)


def _define(event: Event, base: torch.dtype, *, subject: ExaminedModel, floor: str) -> tuple[Insertion, ...]:
    return _defined(event, _watch(subject, event), floor)[1] if event.kind == "first_non_finite" else ()


def _watch(subject: ExaminedModel, event: Event) -> _Watched:
    watched, model = _Watched(event.line, event.name), copy_model(subject)
    with warnings.catch_warnings(), watched:
        warnings.simplefilter("ignore")
        attempt(lambda: model(*model.tensors))
    return watched


def _of_stored(subject: ExaminedModel, event: Event) -> Iterator[tuple[str, Repair]]:
    named = {name: tensor for _, name, tensor in named_tensors(subject, (), prefix=subject.prefix)}
    given = dict(zip(subject.names, subject.tensors, strict=True))
    records: dict[str, Provenance] = {
        at.name: at for _, _, record in event.operands for at in (record, *ancestors(record)) if at.masks
    }
    for name, record in records.items():
        tensor = given.get(name) if record.kind == "input" else named.get(name)
        if not record.is_stored or tensor is None:
            continue
        least = f"torch.finfo(torch.{short(tensor.dtype)}).min"
        path = name if record.kind == "input" else path_of(name)
        code = f"{path} = {path}.clamp(min={least})" if record.kind == "input" else f"{path}.data.clamp_(min={least})"
        narrow = ", as a number beyond 65504 such as −1e9 is in float16" if tensor.dtype is torch.float16 else ""
        words = (
            f"{record.kind} {name} holds −inf{narrow}: a row of nothing else is NaN in softmax; give it a finite number"
        )
        yield words, Repair(setting=code, change=partial(_clamp, name=name, kind=record.kind))


def _clamp(model: ExaminedModel, *, name: str, kind: str) -> None:
    for of_kind, path, tensor in named_tensors(
        model, dict(zip(model.names, model.tensors, strict=True)), prefix=model.prefix
    ):
        if (of_kind, path) == (kind, name):
            tensor.data = tensor.data.clamp(min=torch.finfo(tensor.dtype).min)


def _defined(event: Event, watched: _Watched, floor: str) -> tuple[str, tuple[Insertion, ...]]:
    """Read off the operands what is not defined, and keep the operation from it."""
    tensors = [value for value in watched.given if isinstance(value, torch.Tensor)]
    code, name = event.line[0], event.name
    if not tensors or is_internal(code.co_filename) or not imports_torch(code.co_filename):
        return "", ()
    (left, right), (first, last) = (
        expressions(*event.line, name, [(0,), (1,)], of_module=False),
        (tensors[0], tensors[-1]),
    )
    limits = f"torch.finfo(torch.{short(last.dtype)})"
    if name in ("div", "div_", *_OF_NO_ZERO):
        text, zeros = right if name.startswith("div") or not left else left, int((last == 0).sum())
        if not zeros or not text or bool((last < 0).any()):
            return "", ()
        words = f"{text} is 0 in {zeros} of {last.numel()} places, in every format: keep it from zero"
        return words, with_calls(*event.line, {text: f".clamp(min={limits}.{floor})"})
    if name in _SOFTMAX and left and (rows := int((first == -math.inf).all(watched.dim).sum())):
        words = (
            f"{rows} rows of {left} are −inf throughout, as of a query whose mask leaves no key: their softmax is NaN"
        )
        return words, with_calls(*event.line, {left: f".clamp(min={limits}.min)"})
    if len(tensors) > 1 and name in _PRODUCTS:
        both = ((first == 0) & last.isinf()) | (first.isinf() & (last == 0))
        if bool(both.any()):
            words = f"{int(both.sum())} of its products are 0 · ±inf, which is NaN: let them be 0"
            return words, with_calls(*event.line, {}, result=".nan_to_num(0.0)")
    if len(tensors) > 1 and name in _SUMS and bool((first.isinf() & last.isinf()).any()):
        return "both operands are infinite in places, and inf − inf is NaN", ()
    return "", ()


def _of_quotients(watched: _Watched) -> Iterator[tuple[str, Repair]]:
    """What an optimizer divides by almost nothing is of any size, in every format."""
    for line, gain in sorted(watched.gains.items(), key=lambda item: -item[1]):
        if gain < LEAST_GAIN or is_internal(line[0].co_filename):
            continue
        text, repair = expressions(*line, "div", [(1,)], of_module=False)[0] or "the divisor", Repair()
        with suppress(SyntaxError):
            repair.source.insert(with_calls(*line, {}, result=".clamp(-1.0, 1.0)"))
        words = (
            f"the update explodes ahead of it: the quotient by {text}, which is near zero, is up to {gain:.2g} times "
            "what is divided; clip the quotient, or keep the divisor larger"
        )
        if repair.source and repair.source.reaches:
            yield words, repair
