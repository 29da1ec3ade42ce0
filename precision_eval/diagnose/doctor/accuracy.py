"""Drift that a model's format does not explain, and the operation where it enters; imports torch.

Conventions: drift is the relative error of the output held to float64. What a format explains is its rounding, times
what the same model in float32 amplifies float32's rounding by. The operation is found by running the model and its
float64 copy operation by operation: it is the first whose result is off though what it was given was not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from precision_eval.diagnose.doctor.diagnosis import Finding, Severity
from precision_eval.diagnose.doctor.source import source_line
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference, in_float32, in_float64, run_as
from precision_eval.measure.model_calls import CallOutcome, copied, observe_call, relative_error
from precision_eval.trace.dtype_flow import TURNING
from precision_eval.trace.operations import short
from precision_eval.trace.provenance import Provenance, ancestors
from precision_eval.trace.value_counts import ValueCounts

BEYOND_FORMAT = 32.0
"""Times its amplified rounding up to which a format explains a drift; shipped and transformers' models stay below 5."""

HARDLY_A_DIGIT = 0.1
"""A drift beyond which no format explains it: less than one digit of the output is right."""

LOOKUPS = frozenset(("embedding", "__getitem__", "index_select", "gather", "take_along_dim", "where"))
"""Operations whose result hangs on an index or a condition: a near tie that rounding turns over changes all of it."""

MOST_BYTES = 1 << 30
"""Results of a call that are kept to find the operation; with more it is not looked for."""


@dataclass(frozen=True)
class Excess:
    """A drift that a format does not explain."""

    drift: float
    allowed: float
    base: torch.dtype

    def __str__(self) -> str:
        name = short(self.base)
        return f"the output's relative error to float64 is {self.drift:.2g}; {name} explains up to {self.allowed:.2g}"


def rounding(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to a format."""
    return float(torch.finfo(dtype).eps) / 2


def excess_drift(
    subject: ExaminedModel, outcome: CallOutcome, reference: Reference, base: torch.dtype
) -> Excess | None:
    """Say by how much a model drifts beyond what its format explains; None where it does not, or nothing is known."""
    drift = drift_of(outcome.outputs or (), reference)
    if drift is None or reference.name == "float32" or base is torch.float64:
        return None
    amplified = rounding(base)
    if base is not torch.float32:
        single = run_as(subject, in_float32, torch.float32)
        amplified *= max(1.0, (drift_of(single.outputs or (), reference) or 0.0) / rounding(torch.float32))
    allowed = min(BEYOND_FORMAT * amplified, HARDLY_A_DIGIT) if base is not torch.float32 else HARDLY_A_DIGIT
    return Excess(drift, allowed, base) if drift > allowed else None


def drift_of(outputs: tuple[torch.Tensor, ...], reference: Reference) -> float | None:
    """Largest relative error of outputs held to the reference; None where there is none."""
    truth = reference.outputs
    if truth is None or [t.shape for t in truth] != [o.shape for o in outputs] or not outputs:
        return None
    return max(relative_error(output, exact) for output, exact in zip(outputs, truth, strict=True))


def finding_of_drift(subject: ExaminedModel, excess: Excess) -> Finding:
    """Name the operation where a drift enters; the model itself where it was not found."""
    pairs = _compared(subject, excess.base)
    at = _entering(pairs, excess.allowed)
    if at is None or at[0].code is None:
        return Finding(
            kind="drift", severity="fault", op="", module="", module_class=type(subject.model).__name__, place=None,
            operands=(), result=short(excess.base), reason=str(excess),
        )  # fmt: skip
    record, error = at
    if record.name in LOOKUPS:
        why = "an index chosen before it turned over, as near ties do in any format, and the result is off"
        return _finding(record, "risk", f"{excess}; it enters here, where {why} by {error:.2g}")
    turned = _rounded_angle(record, pairs) if record.name in TURNING else None
    if turned is not None:
        return _finding(turned[0], "fault", f"{excess}; it enters here: {_turns(record, turned[1])}")
    why = "what goes in was right and the result is off"
    return _finding(record, "fault", f"{excess}; it enters here, where {why} by {error:.2g}")


def rounded_angle(subject: ExaminedModel, angles: list[Provenance], base: torch.dtype) -> Finding | None:
    """Name where an angle is rounded so that its sine is hardly right, though the output drifts within its format."""
    halves = (torch.float16, torch.bfloat16)
    if base not in halves or not any(p.dtype in halves for angle in angles for p in (angle, *ancestors(angle))):
        return None
    pairs = _compared(subject, base)
    for record, _, _ in pairs:
        turned = _rounded_angle(record, pairs) if record.name in TURNING else None
        if turned is not None:
            return _finding(turned[0], "risk", _turns(record, turned[1]))
    return None


def _turns(record: Provenance, error: float) -> str:
    return f"rounded to so few digits, the angle whose {record.name} is taken is off by {error:.2g} rad"


def _finding(record: Provenance, severity: Severity, reason: str) -> Finding:
    assert record.code is not None
    call = record.call
    return Finding(
        kind="drift", severity=severity, op=record.name, module=call.path if call else "",
        module_class=type(call.module).__name__ if call else "", place=source_line(record.code, record.instruction),
        operands=(), result=short(record.dtype), reason=reason,
    )  # fmt: skip


Pairs = list[tuple[Provenance, torch.Tensor, torch.Tensor]]
"""Of each operation how its result was made, what it is, and what it is in float64."""


def _compared(subject: ExaminedModel, base: torch.dtype) -> Pairs:
    """Run a model and its float64 copy operation by operation; empty where they took different ways."""
    exact, rounded = _Results(), _Results()
    run_as(subject, in_float64, torch.float64, through=lambda twin, inputs: _kept(twin, inputs, torch.float64, exact))
    model = copied(subject)
    _kept(model, model.tensors, base, rounded)
    pairs = [(record, a, b) for (record, a), (_, b) in zip(rounded.kept, exact.kept, strict=False)]
    names = ((record.name, twin.name) for (record, _), (twin, _) in zip(rounded.kept, exact.kept, strict=False))
    alike = all(one == other for one, other in names) and all(a.shape == b.shape for _, a, b in pairs)
    return pairs if alike and not (exact.full or rounded.full) else []


def _entering(pairs: Pairs, allowed: float) -> tuple[Provenance, float] | None:
    """The first result that is off beyond what is allowed, of an operation whose operands were not."""
    wrong: set[int] = set()
    for record, result, truth in pairs:
        error = relative_error(result, truth)
        if error > allowed:
            if not any(id(parent) in wrong for parent in record.parents):
                return record, error
            wrong.add(id(record))
    return None


def _rounded_angle(turning: Provenance, pairs: Pairs) -> tuple[Provenance, float] | None:
    """Where the angle of a sine gets the error that it has, and how many radians; None where it has hardly one."""
    off = {id(record): float((a.double() - b.double()).abs().max()) for record, a, b in pairs if a.numel()}
    lost, first = off.get(id(turning), 0.0), turning
    while first.parents:
        wrong = [parent for parent in first.parents if off.get(id(parent), 0.0) > HARDLY_A_DIGIT]
        casts = [parent for parent in first.parents if parent.kind == "cast"]  # which a float64 copy does not make
        if not wrong and not casts:
            break
        first = (wrong or casts)[0]
        lost = max(lost, off.get(id(first), 0.0))
    return (first, lost) if lost > HARDLY_A_DIGIT and first is not turning and first.code is not None else None


def _kept(
    model: ExaminedModel, inputs: tuple[torch.Tensor, ...], base: torch.dtype, results: _Results
) -> tuple[torch.Tensor, ...]:
    _, outcome = observe_call(model, lambda: model(*inputs), inputs, base=base, values=results)
    return outcome.outputs or ()


class _Results(ValueCounts):
    """Keeps the result of each operation but casts, which a float64 copy does not make."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Provenance, torch.Tensor]] = []
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        """Whether results were left out."""
        return self.size_bytes > MOST_BYTES

    def result(self, tensor: torch.Tensor, record: Provenance, *, masks: bool) -> None:
        """Keep a result."""
        if record.kind == "cast":
            return
        self.size_bytes += tensor.nbytes
        if not self.full:
            self.kept.append((record, tensor.detach().clone()))
