"""Drift of a whole system under a fix, split as :mod:`.drift` splits that of one attention.

Conventions: figures are of float64 on the CPU, from models in float64 on the case's own device (not MPS, which has
none); the terms are those of :mod:`.drift`. For a system they mean:
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import torch

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.system import System
from precision_eval.core.errors import ParameterError
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.storage import stored_as
from precision_eval.measure.drift import Drift, tensor_drift
from precision_eval.trace.cast_replay import CastTape, ReplayError, Shifts, record_casts, run_in_float64, run_shifted

SAME_FUNCTION = 1e-9
"""Relative distance of two float64 runs of one function: far above float64's rounding, far below a format's."""

_CASTING = ("activation_to_storage", "storage_to_activation", "autocast")
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class SystemDrift(Drift):
    """Distance of a system's outputs from their references; the figures inherited are of the first output."""

    outputs: tuple[Drift, ...] = ()
    casts: tuple[dict[str, Any], ...] = ()
    doubts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record."""
        lists = {"outputs": [found.to_dict() for found in self.outputs], "casts": list(self.casts)}
        return {**asdict(self), **lists, "doubts": list(self.doubts)}


def system_drift(built: BuiltCase, applied: AppliedFix) -> SystemDrift:
    """Drift of a fix on a whole system."""
    system, inputs = _system(built, applied), applied.prepare(built.inputs)
    found = _outputs(applied(*inputs))
    reference = _outputs(run_in_float64(system.in_float64(), _brought_to(torch.float64, built.inputs))[0])
    tape, last = _recorded(system, applied, inputs, found)
    returned, shifts = run_in_float64(_twin(system, applied), _brought_to(torch.float64, inputs), tape=tape)
    exact = _outputs(returned)
    _check_function(system, applied, exact, reference)
    coarser = [max(output.dtype, last or output.dtype, key=_eps) for output in found]
    yardsticks = {
        dtype: _yardstick(_twin(system, applied, dtype), inputs, dtype, tape, shifts)
        for dtype in dict.fromkeys(coarser)
    }
    drifts, doubts = [], [reason for _, reason in yardsticks.values() if reason]
    for index, (output, dtype) in enumerate(zip(found, coarser, strict=True)):
        plain, _ = yardsticks[dtype]
        drift, doubt = _one(output, reference[index], exact[index], None if plain is None else plain[index])
        drifts.append(replace(drift, yardstick_dtype=str(dtype).removeprefix("torch.")))
        doubts += [doubt] if doubt and doubt not in doubts else []
    return SystemDrift(**vars(drifts[0]), outputs=tuple(drifts[1:]), casts=_summary(tape), doubts=tuple(doubts))


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _one(
    found: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor | None
) -> tuple[Drift, str | None]:
    """Hold one output to its reference; returns a doubt too where a part is missing."""
    if not exact.isfinite().all():
        doubt = "float64 arithmetic on the operands as cast is not finite, so the noise is not split"
        return tensor_drift(found, reference, yardstick=reference), doubt
    # `exact` in the yardstick's place is a yardstick without error, against which no ratio is taken
    return tensor_drift(found, reference, yardstick=exact if plain is None else plain, on_cast_inputs=exact), None


def _system(built: BuiltCase, applied: AppliedFix) -> System:
    if not isinstance(built.model, System):
        raise ParameterError(f"the model is a {type(built.model).__name__}; the drift of a system needs a System")
    if built.model is applied.model:
        raise ParameterError(
            f"'{applied.fix.id}' is on the case's own model; put it on a copy, which the reference is not"
        )
    return built.model


def _outputs(returned: Any) -> Tensors:
    """Return what a call returned as tensors of its own: a later call may write into the same memory."""
    tensors = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ParameterError(f"the model returns a {kind}; drift is of floating tensors, or a tuple of them")
    return tuple(tensor.detach().clone() for tensor in tensors)


def _brought_to(dtype: torch.dtype, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


@contextmanager
def _held(model: System, applied: AppliedFix) -> Iterator[None]:
    """Hold a model as the fix stores it."""
    with model.upstream() if applied.fix.storage == "per_case" else stored_as(model, applied.dtype):
        yield


def _recorded(
    system: System, applied: AppliedFix, inputs: tuple[Any, ...], found: Tensors
) -> tuple[CastTape | None, torch.dtype | None]:
    """Run the fix once in eager; returns its casts, None where it inserts none, and what its last site returns."""
    casting, model = applied.fix.agreement in _CASTING, copy.deepcopy(system)
    try:
        with _held(model, applied), applied.around_call():
            tape, returned = record_casts(model, inputs, agreement=applied.fix.agreement if casting else "none")
    except RuntimeError as error:
        if applied.mode == "eager":
            raise
        if not casting:
            return None, None  # the compiler hid a mismatch; nothing depends on the eager run
        raise ReplayError(
            f"the casts of '{applied.fix.id}' are recorded in eager, where it raises: {error}; "
            "measure the drift of a fix that works in eager too"
        ) from error
    if applied.mode == "eager" and not _equal(_outputs(returned), found) and _equal(_outputs(applied(*inputs)), found):
        raise ReplayError(
            f"recording changed the output of '{applied.fix.id}', so the casts recorded are not those that it makes; "
            "does a call leave something behind in the model?"
        )
    outputs = [call.output for call in tape if call.output is not None and call.output.is_floating_point]
    return tape if casting else None, outputs[-1] if outputs else None


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.double(), other.double())


def _equal(some: Tensors, others: Tensors) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _twin(system: System, applied: AppliedFix, dtype: torch.dtype = torch.float64) -> System:
    """Copy the system as the fix stores it, with everything in one dtype."""
    with _held(system, applied):
        twin = system.in_float64()
    if dtype is not torch.float64:
        twin.to(dtype)
        for module in twin.modules():
            for name, value in list(vars(module).items()):
                if value is torch.float64:
                    setattr(module, name, dtype)
    return twin


def _yardstick(
    twin: System, inputs: tuple[Any, ...], dtype: torch.dtype, tape: CastTape | None, shifts: Shifts
) -> tuple[Tensors | None, str | None]:
    """Run the plain model in a dtype; returns its outputs, or why there are none."""
    name = str(dtype).removeprefix("torch.")
    try:
        outputs = _outputs(run_shifted(twin, _brought_to(dtype, inputs), dtype=dtype, tape=tape, shifts=shifts))
    except RuntimeError as error:  # torch's own errors of mismatched dtypes, and a replay that does not fit
        return None, f"no yardstick: plain arithmetic in {name} raises: {str(error).splitlines()[0]}"
    if not all(bool(tensor.isfinite().all()) for tensor in outputs):
        return None, f"no yardstick: plain arithmetic in {name} is not finite"
    return outputs, None


def _check_function(system: System, applied: AppliedFix, exact: Tensors, reference: Tensors) -> None:
    """Refuse an `upstream` that is another function: same stored values, other results in float64."""
    if applied.fix.storage != "per_case":
        return
    stored = [tensor.clone() for tensor in chain(system.parameters(), system.buffers())]
    with _held(system, applied):
        held = list(chain(system.parameters(), system.buffers()))
        same = len(held) == len(stored) and all(map(_same_values, stored, held))
    for found, truth in zip(exact, reference, strict=True):
        distance = float((found - truth).norm() / truth.norm())
        if same and not distance <= SAME_FUNCTION:
            raise ParameterError(
                f"in float64 '{applied.fix.id}' is {distance:.1e} from the model as shipped, on the same stored "
                "values; it computes another function, so its drift has no reference"
            )


def _summary(tape: CastTape | None) -> tuple[dict[str, Any], ...]:
    counts = Counter(
        (call.site, cast.operand, *(str(d).removeprefix("torch.") for d in (cast.before, cast.after)))
        for call in tape or ()
        for cast in call.casts
        if cast.rounds
    )
    keys = ("site", "operand", "from", "to", "count")
    return tuple(dict(zip(keys, (*cast, count), strict=True)) for cast, count in sorted(counts.items()))
