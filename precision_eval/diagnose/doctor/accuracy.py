"""Drift that a model's format does not explain, and the operation where it enters; imports torch.

Conventions: drift is the relative error of the output held to float64. What a format explains is its rounding, times
what the same model in float32, nothing narrowed on the way, amplifies float32's rounding by. The operation is found by
a float64 copy whose first results are rounded as the model rounds them: by halving, the first whose rounding takes the
drift beyond what is explained. Where none does, an operation loses it inside: it is the first whose result is off
though what it was given was not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.diagnose.doctor.diagnosis import Finding, Severity
from precision_eval.diagnose.doctor.source import source_line
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference, in_float32, in_float64, run_as
from precision_eval.measure.model_calls import CallOutcome, attempt, copied, module_paths, observe_call, relative_error
from precision_eval.trace.dtype_flow import TURNING, Event, floating_operands, inside_event, line_outside
from precision_eval.trace.observer import ModuleCall, ModuleCalls
from precision_eval.trace.operations import PART_DTYPES, Key, OperationKind, kind_of, name_of, short
from precision_eval.trace.provenance import Provenance, ancestors, modules_by_path
from precision_eval.trace.value_counts import ValueCounts

BEYOND_FORMAT = 8.0
"""Times its amplified rounding up to which a format explains a drift; clean models without near ties stay below 4."""

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
    if drift <= BEYOND_FORMAT * rounding(base):
        return None
    single = run_as(subject, in_float32, torch.float32)
    amplified = max(1.0, (drift_of(single.outputs or (), reference) or 0.0) / rounding(torch.float32))
    allowed = min(BEYOND_FORMAT * rounding(base) * amplified, HARDLY_A_DIGIT)
    return Excess(drift, allowed, base) if drift > allowed else None


def of_numbers(
    subject: ExaminedModel,
    outcome: CallOutcome,
    reference: Reference,
    base: torch.dtype,
    angles: list[Provenance],
) -> tuple[Excess | None, tuple[Finding, Event | None] | None]:
    """Say what the numbers show where dtypes show nothing, with the operation to mend where it is known."""
    excess = excess_drift(subject, outcome, reference, base)
    if excess is not None:
        return excess, finding_of_drift(subject, excess)
    return None, rounded_angle(subject, angles, base) if reference.name == "float64" else None


def lost_before(subject: ExaminedModel, broken: Finding) -> Finding | None:
    """Name the rounding that makes a result further on infinite or no number; None where it is that result's own."""
    step, _ = _first_rounding(subject, _drift_between, HARDLY_A_DIGIT)
    if step is None:
        return None
    model = copied(subject)
    lines = [(at.code, at.instruction) for at in _stepped(model, model.tensors, ()).steps]
    before = lines[: lines.index((step.code, step.instruction)) + 1]
    if broken.place in [source_line(*line) for line in before]:
        return None  # it is not finite by then
    name = short(step.dtype)
    return _finding(
        step, "fault", f"rounding to {name} here makes {broken.op} at {broken.place} give what is not finite"
    )


def drift_of(outputs: tuple[torch.Tensor, ...], reference: Reference) -> float | None:
    """Largest relative error of outputs held to the reference; None where there is none."""
    truth = reference.outputs
    if truth is None or [t.shape for t in truth] != [o.shape for o in outputs] or not outputs:
        return None
    return max(relative_error(output, exact) for output, exact in zip(outputs, truth, strict=True))


def finding_of_drift(subject: ExaminedModel, excess: Excess) -> tuple[Finding, Event | None]:
    """Name the operation where a drift enters; the model itself where it was not found."""
    at = _entering(_compared(subject, excess.base), excess.allowed)
    is_tie = at is not None and at[0].name in LOOKUPS
    step = None if is_tie else _first_rounding(subject, _drift_between, excess.allowed)[0]
    if step is not None:
        reason = f"{excess}; rounding to {short(step.dtype)} here takes it beyond that"
        return _finding(step, "fault", reason), step.event
    if at is None or at[0].code is None:
        finding = Finding(
            kind="drift", severity="fault", op="", module="", module_class=type(subject.model).__name__, place=None,
            operands=(), result=short(excess.base), reason=str(excess),
        )  # fmt: skip
        return finding, None
    record, error = at
    why = "what goes in was right"
    if is_tie:
        why = "an index chosen before it turned over, as near ties do in any format,"
    reason = f"{excess}; it enters here, where {why} and the result is off by {error:.2g}"
    event = None if is_tie or record.code is None else inside_event("drift", record, 0)
    return _finding(record, "risk" if is_tie else "fault", reason), event


def _drift_between(rounded: _Steps, exact: _Steps) -> float:
    return max((relative_error(a, b) for a, b in zip(rounded.outputs, exact.outputs, strict=False)), default=0.0)


def rounded_angle(
    subject: ExaminedModel, angles: list[Provenance], base: torch.dtype
) -> tuple[Finding, Event | None] | None:
    """Name where an angle is rounded so that its sine is hardly right, though the output drifts within its format."""
    halves = (torch.float16, torch.bfloat16)
    if base not in halves or not any(p.dtype in halves for angle in angles for p in (angle, *ancestors(angle))):
        return None
    step, off = _first_rounding(subject, lambda rounded, exact: _most_off(rounded.angles, exact.angles), HARDLY_A_DIGIT)
    if step is None:
        return None
    reason = f"rounded to so few digits, an angle whose sine is taken is off by {off:.2g} rad"
    return _finding(step, "risk", reason), step.event


def _most_off(angles: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    return max((float((a - b).abs().max()) for a, b in zip(angles, exact, strict=False) if a.numel()), default=0.0)


def _finding(at: Provenance | _Step, severity: Severity, reason: str) -> Finding:
    assert at.code is not None
    call = at.call
    return Finding(
        kind="drift", severity=severity, op=at.name, module=call.path if call else "",
        module_class=type(call.module).__name__ if call else "", place=source_line(at.code, at.instruction),
        operands=(), result=short(at.dtype), reason=reason,
    )  # fmt: skip


@dataclass(frozen=True)
class _Step:
    """One operation of a call, the formats of its results, and where its floating operands stood."""

    name: str
    sort: OperationKind
    dtypes: tuple[torch.dtype, ...]
    code: CodeType
    instruction: int
    of_module: bool
    call: ModuleCall | None
    keys: tuple[Key, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Format of the first result."""
        return self.dtypes[0]

    @property
    def event(self) -> Event:
        """The rounding of what it returns."""
        operands: list[tuple[Key, tuple[int, ...], Provenance]] = [
            (key, (), Provenance("op", "", self.dtype)) for key in self.keys
        ]
        line = self.code, self.instruction
        return Event("drift", 0, self.name, self.sort, line, self.call, operands, self.dtype, self.of_module)


class _Steps(TorchFunctionMode):
    """Notes what each operation of a call returns; `rounded` are of another call, and rounded here as there."""

    def __init__(self, model: ExaminedModel, rounded: Sequence[_Step] = ()) -> None:
        super().__init__()
        self.modules = ModuleCalls(module_paths(modules_by_path(model)))
        self.rounded = rounded
        self.steps: list[_Step] = []
        self.angles: list[torch.Tensor] = []
        self.outputs: tuple[torch.Tensor, ...] = ()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, note what it returns and round that."""
        if name_of(func) in TURNING and isinstance(args[-1], torch.Tensor):
            self.angles.append(args[-1].detach().clone())
        result = func(*args, **(kwargs or {}))
        if kind_of(func) in (OperationKind.SKIP, OperationKind.DTYPE, OperationKind.VIEW):
            return result
        writes = result is None and args
        results = (args[0],) if writes else result if isinstance(result, tuple | list) else (result,)
        floats = [part for part in results if isinstance(part, torch.Tensor) and part.dtype in PART_DTYPES]
        if not floats:
            return result
        line, at = line_outside(sys._getframe(1)), len(self.steps)
        dtypes = tuple(PART_DTYPES[part.dtype] for part in floats)
        keys = tuple(key for key, _ in floating_operands(args, kwargs))
        self.steps.append(_Step(name_of(func), kind_of(func), dtypes, *line, self.modules.current, keys))
        if at >= len(self.rounded) or self.rounded[at].name != name_of(func):
            return result
        with torch._C.DisableTorchFunction():
            rounded = {id(part): _rounded(part, to) for part, to in zip(floats, self.rounded[at].dtypes, strict=False)}
            given = {id(value) for value in (*args, *(kwargs or {}).values()) if isinstance(value, torch.Tensor)}
            if kind_of(func) is not OperationKind.CAST:  # a cast that does nothing gives back what it was given
                for part in floats:
                    if writes or id(part) in given:
                        part.copy_(rounded[id(part)])
                        rounded[id(part)] = part
        return result if writes else _with(result, rounded)


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.requires_grad:  # a gradient through the cast would be rounded too, and may overflow
        return tensor + (_rounded(tensor.detach(), dtype) - tensor.detach())
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    back = parts.to(dtype).to(parts.dtype)
    return torch.view_as_complex(back) if tensor.is_complex() else back


def _with(result: Any, rounded: dict[int, torch.Tensor]) -> Any:
    """Put rounded tensors in the place of what an operation returned."""
    if isinstance(result, torch.Tensor):
        return rounded[id(result)]
    parts = [rounded.get(id(part), part) for part in result]
    return type(result)(parts)  # also torch's named tuples


def _first_rounding(
    subject: ExaminedModel, error: Callable[[_Steps, _Steps], float], most: float
) -> tuple[_Step | None, float]:
    """The first operation the rounding of whose result brings an error beyond the most, and what all bring; None where
    rounding results does not.
    """
    model = copied(subject)
    steps = _stepped(model, model.tensors, ()).steps
    exact = _in_float64(subject, ())
    low, high = 0, len(steps)
    total = error(_in_float64(subject, steps), exact)
    if not total > most or not steps:
        return None, total
    while high - low > 1:
        middle = (low + high) // 2
        is_beyond = error(_in_float64(subject, steps[:middle]), exact) > most
        low, high = (low, middle) if is_beyond else (middle, high)
    return steps[high - 1], total


def _in_float64(subject: ExaminedModel, rounded: Sequence[_Step]) -> _Steps:
    """Run a float64 copy whose first results are rounded."""
    runs: list[_Steps] = []

    def through(twin: ExaminedModel, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        runs.append(_stepped(twin, inputs, rounded))
        return runs[0].outputs

    run_as(subject, in_float64, torch.float64, through=through)
    return runs[0]


def _stepped(model: ExaminedModel, inputs: tuple[torch.Tensor, ...], rounded: Sequence[_Step]) -> _Steps:
    follower = _Steps(model, rounded)
    with torch.no_grad(), follower.modules.followed(), follower:
        follower.outputs = attempt(lambda: model(*inputs)).outputs or ()
    return follower


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
