"""Drift of a case under a fix: of a whole model, split as :mod:`.drift` splits one tensor's, or of a bare attention.

Figures are of float64 on the CPU, from copies of the model in float64 on the case's own device (not MPS, which has
none). Any module can be measured whose floating outputs are tensors, alone or inside what it returns. A shipped system
keeps its float64 copy wide itself; in any other module, casts to narrower formats do nothing there.
"""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.modes import KeepingWide
from precision_eval.cases.systems.system import CachedAttention, System, in_float64
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.formats import short
from precision_eval.core.targets import first_line
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.packing import floating_leaves, in_dtype, token_leaves
from precision_eval.fixes.storage import set_dtype_attributes
from precision_eval.measure import model_calls
from precision_eval.measure.assess import assess_attention, plain_attention
from precision_eval.measure.drift import Drift, tensor_drift, wide
from precision_eval.trace.capture import observe
from precision_eval.trace.cast_replay import CastTape, ReplayError, Shifts, record_casts, run_in_float64, run_shifted

# Relative distance of two float64 runs of one function: far above float64's rounding, far below a format's.
SAME_FUNCTION = 1e-9

OF_TOKENS = "the output is tokens: drift is the share that differs from those of float64"

_CASTING = ("activation_to_storage", "storage_to_activation", "autocast")
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class SystemDrift(Drift):
    """Distance of a system's outputs from their references; the figures inherited are of the first output."""

    outputs: tuple[Drift, ...] = ()
    casts: tuple[dict[str, Any], ...] = ()
    doubts: tuple[str, ...] = ()


def system_drift(built: BuiltCase, applied: AppliedFix) -> SystemDrift:
    system, inputs = _model(built, applied), applied.prepare(built.inputs)
    outputs = _outputs(applied(*inputs))
    reference = _reference(built)
    try:
        return _split_drift(system, applied, inputs, outputs, reference)
    except ReplayError as error:
        whole = [tensor_drift(output, true, yardstick=true) for output, true in zip(outputs, reference, strict=True)]
        doubt = f"the drift is not split into its parts: {error}"
        return SystemDrift(**vars(whole[0]), outputs=tuple(whole[1:]), doubts=(doubt,))


def _split_drift(
    system: nn.Module, applied: AppliedFix, inputs: tuple[Any, ...], outputs: Tensors, reference: Tensors
) -> SystemDrift:
    tape, last = _record(system, applied, inputs, outputs)
    with _keep_wide(system, casts=applied.fix.change is not None):
        returned, shifts = run_in_float64(_twin(system, applied), in_dtype(inputs, torch.float64), tape=tape)
    exact = _outputs(returned)
    _check_function(system, applied, exact, reference)
    coarser = [max(output.dtype, last or output.dtype, key=lambda dtype: torch.finfo(dtype).eps) for output in outputs]
    yardsticks = {
        dtype: _yardstick(_twin(system, applied, dtype), inputs, dtype, tape, shifts)
        for dtype in dict.fromkeys(coarser)
    }
    drifts, doubts = [], [reason for _, reason in yardsticks.values() if reason]
    for index, (output, dtype) in enumerate(zip(outputs, coarser, strict=True)):
        plain, _ = yardsticks[dtype]
        drift, doubt = _output_drift(output, reference[index], exact[index], None if plain is None else plain[index])
        drifts.append(replace(drift, yardstick_dtype=short(dtype)))
        doubts += [doubt] if doubt and doubt not in doubts else []
    return SystemDrift(**vars(drifts[0]), outputs=tuple(drifts[1:]), casts=_summary(tape), doubts=tuple(doubts))


def exact_output(built: BuiltCase) -> torch.Tensor:
    return exact_attention(built) if isinstance(built.model, CachedAttention) else _reference(built)[0]


def _reference(built: BuiltCase) -> Tensors:
    def calculate() -> Tensors:
        with _keep_wide(built.model):
            return _outputs(run_in_float64(in_float64(built.model), in_dtype(built.inputs, torch.float64))[0])

    reference: Tensors = built.once("reference", calculate)
    return reference


def relative_error(built: BuiltCase, applied: AppliedFix, reference: torch.Tensor | None = None) -> float:
    _model(built, applied)
    output = _outputs(applied(*applied.prepare(built.inputs)))[0]
    reference = exact_output(built) if reference is None else reference
    return tensor_drift(output.to(reference.device), reference, yardstick=reference).relative_error


def token_error(built: BuiltCase, output: Any) -> float:
    """Return the share of the tokens that a call returned which are not those of float64."""
    with _keep_wide(built.model):
        exact = run_in_float64(in_float64(built.model), in_dtype(built.inputs, torch.float64))[0]
    tokens, truth = token_leaves(output), token_leaves(exact)
    if not tokens or [t.shape for t in tokens] != [t.shape for t in truth]:
        raise UnsupportedError("neither floating values nor tokens of float64's shape are returned; drift needs these")
    return max(model_calls.relative_error(*pair) for pair in zip(tokens, truth, strict=True))


def _output_drift(
    output: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor | None
) -> tuple[Drift, str | None]:
    """Drift of one output, and a doubt where a part of it is missing."""
    if not exact.isfinite().all():
        doubt = "float64 arithmetic on the operands as cast is not finite, so the noise is not split"
        return tensor_drift(output, reference, yardstick=reference), doubt
    # `exact` in the yardstick's place is a yardstick without error, against which no ratio is taken
    return tensor_drift(output, reference, yardstick=exact if plain is None else plain, on_cast_inputs=exact), None


def _model(built: BuiltCase, applied: AppliedFix) -> nn.Module:
    if built.model is applied.model:
        raise ParameterError(
            f"'{applied.fix.id}' is on the case's own model; put it on a copy, which the reference is not"
        )
    return built.model


def _keep_wide(model: nn.Module, *, casts: bool = False) -> AbstractContextManager[Any]:
    """Keep float64 wide in a model that does not do so itself, or on which somebody's candidate may cast."""
    return nullcontext() if isinstance(model, System) and not casts else KeepingWide(torch.float64)


def _outputs(returned: Any) -> Tensors:
    """Return the floating tensors of what a call returned, copied: a later call may write into the same memory."""
    tensors = floating_leaves(returned)
    if not tensors:
        kind = type(returned).__name__
        raise UnsupportedError(f"the model returns a {kind} without floating values; drift is of floating tensors")
    return tuple(tensor.detach().clone() for tensor in tensors)


def _record(
    system: nn.Module, applied: AppliedFix, inputs: tuple[Any, ...], measured: Tensors
) -> tuple[CastTape | None, torch.dtype | None]:
    """Run the fix once in eager; returns its casts, None where it inserts none, and what its last site returns."""
    casting, model = applied.fix.agreement in _CASTING, copy.deepcopy(system)
    try:
        with applied.holding(model) as held, applied.around_call():
            tape, returned = record_casts(held, inputs, agreement=applied.fix.agreement if casting else "none")
    except RuntimeError as error:
        if applied.mode == "eager":
            raise
        if not casting:
            return None, None  # the compiler hid a mismatch; nothing depends on the eager run
        raise ReplayError(
            f"the casts of '{applied.fix.id}' are recorded in eager, where it raises: {error}; "
            "measure the drift of a fix that works in eager too"
        ) from error
    # without casts there is no tape: torch's fused encoder, which a recorder takes apart, may round otherwise
    is_eager = casting and applied.mode == "eager"
    if is_eager and not _equal(_outputs(returned), measured) and _equal(_outputs(applied(*inputs)), measured):
        raise ReplayError(
            f"recording changed the output of '{applied.fix.id}', so the casts recorded are not those that it makes; "
            "does a call leave something behind in the model?"
        )
    outputs = [call.output for call in tape if call.output is not None and call.output.is_floating_point]
    return tape if casting else None, outputs[-1] if outputs else None


def _equal(left: Tensors, right: Tensors) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def _twin(system: nn.Module, applied: AppliedFix, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Copy the system as the fix stores it, with everything in one dtype."""
    with applied.holding(system) as held:
        twin = in_float64(held)
    if dtype is not torch.float64:
        twin.to(dtype)
        set_dtype_attributes(twin, dtype)
    return twin


def _yardstick(
    twin: nn.Module, inputs: tuple[Any, ...], dtype: torch.dtype, tape: CastTape | None, shifts: Shifts
) -> tuple[Tensors | None, str | None]:
    """Run the plain model in a dtype; return its outputs, or why there are none."""
    name = short(dtype)
    try:
        outputs = _outputs(run_shifted(twin, in_dtype(inputs, dtype), dtype=dtype, tape=tape, shifts=shifts))
    except (RuntimeError, ValueError) as error:  # torch's of mismatched dtypes, and a replay that does not fit
        return None, f"no yardstick: plain arithmetic in {name} raises: {first_line(error)}"
    if not all(bool(tensor.isfinite().all()) for tensor in outputs):
        return None, f"no yardstick: plain arithmetic in {name} is not finite"
    return outputs, None


def _check_function(system: nn.Module, applied: AppliedFix, exact: Tensors, reference: Tensors) -> None:
    """Refuse an `upstream` that is another function: same stored values, other results in float64."""
    if applied.fix.storage != "per_case":
        return
    stored = [tensor.clone() for tensor in chain(system.parameters(), system.buffers())]
    with applied.holding(system):
        held = list(chain(system.parameters(), system.buffers()))
        same = _equal(tuple(t.double() for t in held), tuple(t.double() for t in stored))
    for output, truth in zip(exact, reference, strict=True):
        distance = float((output - truth).norm() / truth.norm())
        if same and not distance <= SAME_FUNCTION:
            raise ParameterError(
                f"in float64 '{applied.fix.id}' is {distance:.1e} from the model as shipped, on the same stored "
                "values; it computes another function, so its drift has no reference"
            )


def _summary(tape: CastTape | None) -> tuple[dict[str, Any], ...]:
    counts = Counter(
        (call.site, cast.operand, short(cast.before), short(cast.after))
        for call in tape or ()
        for cast in call.casts
        if cast.rounds
    )
    keys = ("site", "operand", "from", "to", "count")
    return tuple(dict(zip(keys, (*cast, count), strict=True)) for cast, count in sorted(counts.items()))


def _operands(built: BuiltCase, cast: dict[str, str]) -> list[torch.Tensor]:
    """Query, key and value on the CPU as cast, one key and value head per query head."""
    model: Any = built.model
    stored = {"query": built.inputs[0], "key": model.key, "value": model.value}
    query, key, value = (
        tensor.to(getattr(torch, cast[name]) if name in cast else tensor.dtype).cpu() for name, tensor in stored.items()
    )
    groups = query.shape[1] // key.shape[1]
    return [query, *(t.repeat_interleave(groups, dim=1) for t in (key, value))]


def exact_attention(built: BuiltCase, cast: dict[str, str] | None = None) -> torch.Tensor:
    """Attention of an attention case in float64, on its stored query, key and value."""
    return _plain_attention(built, *map(wide, _operands(built, cast or {})))


def _plain_attention(built: BuiltCase, *operands: torch.Tensor) -> torch.Tensor:
    model: Any = built.model
    return plain_attention(*operands, mask=model.mask.cpu(), scale=model.scale)


def attention_drift(built: BuiltCase, applied: AppliedFix) -> Drift:
    observed = observe(applied, applied.prepare(built.inputs))
    if not observed.sites["sdpa"]:
        raise ParameterError(f"no attention was observed in '{applied.fix.id}', so its input cast is not known")
    cast = {name: observed.sites["sdpa"][0][name] for name in ("query", "key", "value")}
    output = observed.output.cpu()
    cast_operands = _operands(built, cast)
    operands = [tensor.to(output.dtype) for tensor in cast_operands]
    exact = _plain_attention(built, *map(wide, cast_operands))
    reference = built.once("reference", lambda: exact_attention(built))
    drift = tensor_drift(output, reference, yardstick=_plain_attention(built, *operands), on_cast_inputs=exact)
    model: Any = built.model
    query, key, value = (tensor.to(built.inputs[0].device) for tensor in operands)
    assessment = assess_attention(output, exact, (query, key, value), mask=model.mask, scale=model.scale)
    return replace(drift, assessment=assessment)
