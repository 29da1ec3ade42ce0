"""Values that are not finite in float64 either: what the arithmetic is given, and a change that was run; imports torch.

No dtype cures what is not defined. The operands of the first result that is not finite say what it is: a divisor of
zero, 0 · ±inf, or a softmax of nothing but −inf.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.core.formats import short
from precision_eval.doctor.diagnosis import Finding, Patch
from precision_eval.doctor.repairs import follow
from precision_eval.doctor.source import Insertion, expressions, imports_torch, with_calls
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import attempt, copy_model
from precision_eval.trace.dtype_flow import Event, is_internal, line_outside
from precision_eval.trace.operations import name_of, python_body

_OF_NO_ZERO = ("rsqrt", "reciprocal", "log", "log2", "log10", "__rtruediv__", "__rdiv__")


class _Given(TorchFunctionMode):
    """Holds what the operation of an event is given when its result is first not finite."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event
        self.tensors: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if body := python_body(func):
            with self:
                return body(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if name_of(func) == self.event.name and not self.tensors and isinstance(result, torch.Tensor):
            is_there = line_outside(sys._getframe(1))[:2] == self.event.line
            if is_there and not bool(result.isfinite().all()):
                self.tensors = [value for value in args if isinstance(value, torch.Tensor)]
        return result


def blame_arithmetic(
    subject: ExaminedModel, findings: tuple[Finding, ...], events: list[Event], reference: Reference
) -> tuple[tuple[Finding, ...], Patch | None]:
    """Say of the first value that is not finite in float64 either what makes it, and return a change that was run."""
    at = next((i for i, finding in enumerate(findings) if finding.kind == "first_non_finite"), None)
    event = next((event for event in events if event.kind == "first_non_finite"), None)
    if at is None or event is None:
        return findings, None
    words, patch = _defined(event, subject)[0], None
    if words:
        repair = follow("defined", partial(_define, subject=subject), subject, reference)
        if repair.verified:
            words += "; with the change the output is finite"
            patch = repair.as_patch(findings[at].place, "")
    reason = (
        f"{findings[at].reason.partition('; ')[0]}; float64 gives the same, so no dtype cures it: "
        f"{words or 'look at what this operation is given'}"
    )
    return (*findings[:at], replace(findings[at], reason=reason), *findings[at + 1 :]), patch


def _define(event: Event, base: torch.dtype, *, subject: ExaminedModel) -> tuple[Insertion, ...]:
    return _defined(event, subject)[1] if event.kind == "first_non_finite" else ()


def _defined(event: Event, subject: ExaminedModel) -> tuple[str, tuple[Insertion, ...]]:
    """Read off the operands what is not defined, and keep the operation from it."""
    given, model, (code, _), name = _Given(event), copy_model(subject), event.line, event.name
    with warnings.catch_warnings(), given:
        warnings.simplefilter("ignore")
        attempt(lambda: model(*model.tensors))
    if not given.tensors or is_internal(code.co_filename) or not imports_torch(code.co_filename):
        return "", ()
    left, right = expressions(*event.line, name, [(0,), (1,)], of_module=False)
    first, last = given.tensors[0], given.tensors[-1]
    limits = f"torch.finfo(torch.{short(last.dtype)})"
    text = right if name == "div" or not left else left
    if name in ("div", *_OF_NO_ZERO) and text and bool((last == 0).any()) and not bool((last < 0).any()):
        words = f"{text} is 0 in {int((last == 0).sum())} of {last.numel()} places, in every format: keep it from zero"
        return words, with_calls(*event.line, {text: f".clamp(min={limits}.tiny)"})
    if name in ("softmax", "log_softmax") and left and bool((first < math.inf).all()):
        fill = ", or whose fill is beyond 65504, such as −1e9" if first.dtype is torch.float16 else ""
        words = f"whole rows of {left} are −inf, as of a query whose mask leaves no key{fill}: their softmax is NaN"
        return words, with_calls(*event.line, {left: f".clamp(min={limits}.min)"})
    if name in ("mul", "__mul__", "__rmul__") and len(given.tensors) > 1:
        both = ((first == 0) & last.isinf()) | (first.isinf() & (last == 0))
        if bool(both.any()):
            words = f"{int(both.sum())} of its products are 0 · ±inf, which is NaN: let them be 0"
            return words, with_calls(*event.line, {}, result=".nan_to_num(0.0)")
    return "", ()
