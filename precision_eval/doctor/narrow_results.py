"""What a half format spoils though the output drifts within it: losses, and values rounded to whole numbers; imports
torch.

Conventions: a *code* is a value that is scaled and rounded to a whole number, as quantisation does. It is held to the
same scaling in float64 of the same values.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.core.formats import short, ulp
from precision_eval.core.formatting import percent
from precision_eval.doctor.error_budget import run_steps, steps_of
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.model_calls import attempt, copy_model
from precision_eval.trace.dtype_flow import line_outside
from precision_eval.trace.observer import TensorMap
from precision_eval.trace.operations import CASTS, name_of, python_body
from precision_eval.trace.replay import TracedStep
from precision_eval.trace.value_counts import in_float64

# The share of codes that may be others than float64 gives: of values spread evenly to 127, float16 changes 0.02.
MOST_CODES = 0.05

_HALVES = (torch.float16, torch.bfloat16)
LOSSES = frozenset(
    f"{name}_loss" for name in ("nll", "mse", "l1", "smooth_l1", "huber", "ctc", "poisson_nll", "gaussian_nll")
) | {"cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"}
_SCALES = frozenset(("mul", "div", "__mul__", "__rmul__", "__truediv__", "true_divide", "reciprocal", "__rtruediv__"))
_SHIFTS = frozenset(("add", "sub", "__add__", "__sub__", "__radd__", "clamp", "clip", "clamp_min", "clamp_max"))
_ROUNDS = {
    name: getattr(torch, name.removesuffix("_"))
    for name in ("round", "floor", "ceil", "trunc", "round_", "floor_", "ceil_", "trunc_")
}
_TO_INTEGERS = ("long", "int", "short", "char")


def find_narrow_loss(subject: ExaminedModel) -> tuple[TracedStep, str] | None:
    """The first loss that is computed in half, and what its steps are."""
    if not any(step.name in LOSSES and step.dtype in _HALVES for step in steps_of(subject)):
        return None
    model = copy_model(subject)
    run = run_steps(model, model.tensors, {}, keeps=True)
    for step, result in run.results:
        if step.name in LOSSES and step.dtype in _HALVES and result.numel():
            largest = result.abs().max().double()
            apart = float(ulp(largest, short(step.dtype)))
            reason = (
                f"the loss is computed in {short(step.dtype)}, whose numbers are {apart:.2g} apart at "
                f"{float(largest):.3g}, and what it is given is rounded so too; give it float32, as autocast does"
            )
            return (step, reason) if math.isfinite(apart) else None
    return None


def find_unlike_codes(subject: ExaminedModel) -> tuple[TracedStep, str] | None:
    """The first scaling in half after which other whole numbers come of rounding, and their share."""
    steps = steps_of(subject)
    if not any(step.name in _SCALES and step.dtype in _HALVES for step in steps):
        return None
    model, codes = copy_model(subject), _Codes()
    with torch.no_grad(), codes:
        attempt(lambda: model(*model.tensors))
    for line, dtype, share in codes.unlike:
        step = next((s for s in steps if (s.code, s.instruction) == line and s.dtype is dtype), None)
        if step is not None:
            reason = (
                f"{percent(share)} of what is rounded to whole numbers after it comes out as others than float32 "
                f"gives of the same values: {short(dtype)} has {_bits(dtype)} binary digits, fraction included; scale "
                "in float32"
            )
            return step, reason
    return None


def _bits(dtype: torch.dtype) -> int:
    return 1 - round(math.log2(torch.finfo(dtype).eps))


class _Codes(TorchFunctionMode):
    """Follows values that are scaled in half, as float64 has them, to where they are rounded to whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.exact: TensorMap[tuple[torch.Tensor, Any]] = TensorMap()  # with the line of the last scaling
        self.unlike: list[tuple[Any, torch.dtype, float]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if body := python_body(func):
            with self:
                return body(*args, **(kwargs or {}))
        name, known = name_of(func), None
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if (name in _ROUNDS or name in CASTS or name in _TO_INTEGERS) and first is not None and first.dtype in _HALVES:
            known = self.exact.get(first)
            dtype = first.dtype
        result = func(*args, **(kwargs or {}))
        if known is not None and (name in _ROUNDS or not result.is_floating_point()):
            with torch._C.DisableTorchFunction():
                rounded = _ROUNDS[name](known[0]) if name in _ROUNDS else known[0].trunc()
                share = float((rounded != result).double().mean())
            if share > MOST_CODES:
                self.unlike.append((known[1], dtype, share))
        elif name in _SCALES or (name in _SHIFTS and any(self._known(value) for value in args)):
            self._follow(func, name, args, kwargs, result)
        return result

    def _known(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and self.exact.get(value) is not None

    def _follow(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        if not isinstance(result, torch.Tensor) or result.dtype not in _HALVES or not result.numel():
            return
        entries = [self.exact.get(value) if isinstance(value, torch.Tensor) else None for value in args]
        wide = tuple(value if entry is None else entry[0] for value, entry in zip(args, entries, strict=True))
        exact = in_float64(func, wide, kwargs)
        scaled = next((entry[1] for entry in entries if entry is not None), None)
        line = line_outside(sys._getframe(2))[:2] if name in _SCALES else scaled
        if exact is not None and exact.shape == result.shape and bool(exact.isfinite().all()):
            self.exact[result] = exact, line
