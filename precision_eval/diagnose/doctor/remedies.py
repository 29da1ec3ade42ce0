"""Tries every fix of ``FIXES`` on the model from outside, ranks those that cure, and writes the patch; imports torch.

Conventions: a fix *cures* where the model passes under it, its output is finite, and no fault is left: the observer
runs once more with the fix in force. Each fix is on a copy of its own. Drift is the largest relative error over the
outputs, held to the reference of :mod:`.reference`. Latency is paired, in one process, over those that cure; the
baseline is ``full_float32`` if that cures, else the one with the least drift. Memory is the allocator's peak of one
call, and what is stored. Ranked are first those that no other one dominates in drift, latency and memory together,
by drift; then the other cures; then the rest.
"""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch

from precision_eval.core.errors import PrecisionEvalError, UnsupportedError
from precision_eval.core.formats import support
from precision_eval.diagnose.doctor.diagnosis import Patch, Remedy
from precision_eval.diagnose.doctor.findings import left_faults, owner_of, written_operands
from precision_eval.diagnose.doctor.source import (
    called,
    cast_of,
    dtype_of,
    expressions,
    source_line,
    with_casts,
)
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.fixes.storage import floating_tensors
from precision_eval.measure.blocks import MANY_CALLS_UP_TO_S, MIN_CALLS
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.memory import call_memory
from precision_eval.measure.model_calls import attempt, base_dtype, copied, observe_call, relative_error
from precision_eval.stats import MIN_BLOCKS, PairedRatio
from precision_eval.trace.dtype_flow import CodeLine, Event, is_internal
from precision_eval.trace.operations import OperationKind, short
from precision_eval.trace.provenance import Provenance, named_tensors, origin_of

BACKEND = "aot_eager"
BASELINE = "full_float32"
OVER_BUDGET = 10.0
"""Latency is left out where its least number of blocks takes more than so many times what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """How fixes are tried."""

    reference: Reference
    compiles: bool
    times: bool
    budget_s: float
    repeats: bool
    available_bytes: int


def try_fixes(subject: ExaminedModel, trials: Trials) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """Try every fix but the control."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model's own were shown when it first ran
        remedies = [_tried(fix, subject, trials) for fix in FIXES if fix.id != "as_shipped"]
        doubts: tuple[str, ...] = ()
        if not trials.repeats:
            doubts = ("the model carries state from call to call, so latency and memory were not measured",)
        elif trials.times:
            remedies, doubts = _timed(subject, remedies, trials)
    return tuple(_ranked(remedies)), doubts


def _mode(fix: Fix) -> str:
    return "eager" if "eager" in fix.modes else "compiled"


def _applied(fix: Fix, model: ExaminedModel) -> AppliedFix:
    device = next((t.device for t in model.tensors), torch.device("cpu"))
    if fix.storage not in ("as_shipped", "per_case"):
        supported = support(str(device), fix.storage)
        if supported.kind == "absent":
            raise UnsupportedError(f"{fix.storage} on {device}: {supported.reason}")
    return AppliedFix(fix, model, mode=_mode(fix), backend=BACKEND)


def _tried(fix: Fix, subject: ExaminedModel, trials: Trials) -> Remedy:
    mode = _mode(fix)
    remedy = Remedy(fix=fix.id, title=fix.title, mode=mode, status="unsupported")
    if mode == "compiled" and not trials.compiles:
        return replace(remedy, reason="it has a meaning under the compiler only, which was not asked for")
    model = copied(subject)
    try:
        applied = _applied(fix, model)
        with applied:
            inputs = applied.prepare(model.tensors)
            outcome = attempt(lambda: applied(*inputs))
    except PrecisionEvalError as error:
        return replace(remedy, reason=_first_line(error))
    except Exception as error:  # noqa: BLE001 - a fix enters the model's own code, which may raise anything
        return replace(remedy, status="raised", reason=_first_line(error))
    if isinstance(outcome.error, UnsupportedError):
        return replace(remedy, reason=_first_line(outcome.error))
    if outcome.outputs is None:
        assert outcome.error is not None
        return replace(remedy, status="raised", reason=_first_line(outcome.error))
    broken, total = outcome.broken(trials.reference.outputs)
    if broken:
        return replace(remedy, status="non_finite", reason=f"{broken} of {total} output values are not finite")
    left = _left(fix, subject) if mode == "eager" else []
    error_ = _drift(outcome.outputs, trials.reference)
    remedy = replace(remedy, status="passed", cures=not left, relative_error=error_, reason="; ".join(left))
    if trials.repeats and remedy.cures:
        remedy = _with_memory(fix, subject, remedy)
    return remedy


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _left(fix: Fix, subject: ExaminedModel) -> list[str]:
    """Observe the model under a fix; name the faults that are left."""
    model = copied(subject)
    applied = _applied(fix, model)
    with applied:
        inputs = applied.prepare(model.tensors)
        base = applied.dtype or base_dtype(model)
        observer, outcome = observe_call(model, lambda: applied(*inputs), inputs, base=base, values=False)
    return [f"left: {fault}" for fault in left_faults(observer, outcome.outputs or ())]


def _drift(outputs: tuple[torch.Tensor, ...], reference: Reference) -> float | None:
    truth = reference.outputs
    if truth is None or [t.shape for t in truth] != [o.shape for o in outputs] or not outputs:
        return None
    return max(relative_error(output, exact) for output, exact in zip(outputs, truth, strict=True))


def _with_memory(fix: Fix, subject: ExaminedModel, remedy: Remedy) -> Remedy:
    model = copied(subject)
    with _applied(fix, model) as applied:
        device = next((t.device for t in (*model.tensors, *floating_tensors(model))), torch.device("cpu"))
        inputs = applied.prepare(model.tensors)
        memory = call_memory(applied, inputs, model=model, device=str(device))
    return replace(remedy, allocated_peak_bytes=memory.allocated_peak_bytes, stored_bytes=memory.storage_bytes)


def _timed(subject: ExaminedModel, remedies: list[Remedy], trials: Trials) -> tuple[list[Remedy], tuple[str, ...]]:
    """Time those that cure, side by side."""
    cures = [remedy for remedy in remedies if remedy.cures]
    if len(cures) < 2:
        return remedies, ("latency is a ratio of two, and fewer than two fixes cure",) if cures else ()
    needed_bytes = _needed_bytes(subject, cures)
    if needed_bytes > trials.available_bytes:
        return remedies, (
            f"latency was not measured: copies of the model for {len(cures)} fixes side by side need "
            f"{needed_bytes / 2**30:.3g} GiB, {trials.available_bytes / 2**30:.3g} GiB are free",
        )
    baseline = BASELINE if any(r.fix == BASELINE for r in cures) else min(cures, key=_by_drift).fix
    by_id = {fix.id: fix for fix in FIXES}
    budget_s, least_s = trials.budget_s, 0.0
    candidates: dict[str, Candidate] = {}
    with ExitStack() as stack:
        for remedy in cures:
            candidates[remedy.fix], block_s = _candidate(by_id[remedy.fix], subject, stack)
            least_s += MIN_BLOCKS * block_s
            if least_s > OVER_BUDGET * budget_s:  # before the others are called too
                return remedies, (
                    f"latency was not measured: {MIN_BLOCKS} blocks of each fix take {least_s:.3g} s or more, "
                    f"{budget_s:.3g} s are allowed",
                )
        device = next((str(t.device) for t in subject.tensors), "cpu")
        ratios = compare_latency(candidates, baseline=baseline, budget_s=budget_s, device=device, check=False)
    return _with_latency(remedies, ratios, baseline)


def _needed_bytes(subject: ExaminedModel, cures: list[Remedy]) -> int:
    """Bytes of a copy for each fix: as shipped, beside that as the fix stores it, and one call's peak."""
    own = sum(tensor.nbytes for _, _, tensor in named_tensors(subject, subject.tensors))
    exchanged = {fix.id for fix in FIXES if fix.storage != "as_shipped"}
    stored = sum(remedy.stored_bytes or 0 for remedy in cures if remedy.fix in exchanged)
    return len(cures) * own + stored + max(remedy.allocated_peak_bytes or 0 for remedy in cures)


def _with_latency(
    remedies: list[Remedy], ratios: dict[str, PairedRatio], baseline: str
) -> tuple[list[Remedy], tuple[str, ...]]:
    done = []
    for remedy in remedies:
        if remedy.fix == baseline:
            remedy = replace(remedy, latency_ratio=1.0, latency_verdict="baseline", latency_baseline=baseline)
        elif remedy.fix in ratios:
            ratio = ratios[remedy.fix]
            remedy = replace(
                remedy,
                latency_ratio=ratio.ratio,
                latency_low=ratio.ratio_low,
                latency_high=ratio.ratio_high,
                latency_verdict=ratio.verdict,
                latency_baseline=baseline,
            )
        done.append(remedy)
    doubts = {doubt.partition(":")[0]: doubt for ratio in ratios.values() for doubt in ratio.doubts}  # one of a kind
    return done, tuple(doubts.values())


def _candidate(fix: Fix, subject: ExaminedModel, stack: ExitStack) -> tuple[Candidate, float]:
    """Put a fix on a copy for as long as the stack lives; also return about how many seconds a block of it takes."""
    model = copied(subject)
    applied = _applied(fix, model)
    stack.enter_context(applied.stored())
    inputs = applied.prepare(model.tensors)
    with applied.agreeing():
        applied(*inputs)
        started = time.perf_counter()
        applied(*inputs)
        call_s = time.perf_counter() - started
    block_s = call_s * (MIN_CALLS if call_s < MANY_CALLS_UP_TO_S else 1)
    return Candidate(partial(applied, *inputs), applied.agreeing), block_s


def _by_drift(remedy: Remedy) -> float:
    return float("inf") if remedy.relative_error is None else remedy.relative_error


def _dominates(one: Remedy, other: Remedy) -> bool:
    """Whether one is at least as good in all that was measured of both, and better in something."""
    pairs = []
    for name in ("relative_error", "latency_ratio", "allocated_peak_bytes", "stored_bytes"):
        a, b = getattr(one, name), getattr(other, name)
        if a is not None and b is not None:
            pairs.append((a, b))
    return bool(pairs) and all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _ranked(remedies: list[Remedy]) -> list[Remedy]:
    cures = [remedy for remedy in remedies if remedy.cures]
    marked = [
        replace(remedy, is_best=remedy.cures and not any(_dominates(other, remedy) for other in cures))
        for remedy in remedies
    ]
    order = {"passed": 0, "non_finite": 1, "raised": 2, "unsupported": 3}
    return sorted(marked, key=lambda r: (not r.cures, not r.is_best, order[r.status], _by_drift(r)))


def suggested(first: Event, raised: Event | None, base: torch.dtype) -> Patch:
    """Suggest a change."""
    event = raised if first.sort is OperationKind.WRITE and first.kind == "downcast" and raised is not None else first
    line = event.caller or event.line
    return Patch(place=source_line(*line), diff=_diff(event, base), origin=_origin(first, base))


def _diff(event: Event, base: torch.dtype) -> str:
    path = event.call.path if event.call else ""
    if is_internal((event.caller or event.line)[0].co_filename):
        return ""  # torch's own modules one after the other: there is no line of anybody's to change
    if event.caller is not None:
        return _around_module(event.caller, path="", cast_result=False)
    if event.sort is OperationKind.NORM and event.kind != "raise" and event.of_module:
        return _around_module(event.line, path=path, cast_result=True)
    if event.kind in ("kept_narrowed", "first_non_finite"):
        return ""
    if event.of_module:
        return _around_module(event.line, path=path, cast_result=False)
    written = written_operands(event)
    keep = _kept(event, base)
    name = dtype_of(written[keep]) if written[keep] else f"torch.{short(event.operands[keep][2].dtype)}"
    casts = {
        text: cast_of(text, name)
        for text, (_, _, record) in zip(written, event.operands, strict=True)
        if text and record.dtype is not event.operands[keep][2].dtype
    }
    return with_casts(*event.line, casts) if casts else ""


def _around_module(line: CodeLine, *, path: str, cast_result: bool) -> str:
    """Cast what a module is given to its weight's dtype, or what it returns to its input's."""
    code, instruction = line
    (given,) = expressions(code, instruction, "", [(0,)], of_module=True)
    owner = called(code, instruction)
    if not given or not owner:
        return ""
    if cast_result:
        whole = f"{owner}({given})"
        return with_casts(code, instruction, {whole: cast_of(whole, dtype_of(given))})
    return with_casts(code, instruction, {given: cast_of(given, f"{owner_of(owner, path)}.weight.dtype")})


def _kept(event: Event, base: torch.dtype) -> int:
    """Index of the operand whose dtype the others are cast to."""
    dtypes = [record.dtype for _, _, record in event.operands]
    if event.sort is OperationKind.WRITE or event.sort is OperationKind.ATTENTION:
        return 0
    if base in dtypes:
        return dtypes.index(base)
    return 1 if event.sort is OperationKind.PRODUCT and len(dtypes) > 1 else 0


def _origin(event: Event, base: torch.dtype) -> str:
    """Say what to change where the stray dtype comes from."""
    records = [record for _, _, record in event.operands]
    stray = next((record for record in records if record.dtype is not base), None)
    if event.kind == "downcast" and event.stored is not None:
        other = next((record for record in records[1:] if record.dtype is not event.stored.dtype), None)
        if event.stored.dtype is not base and other is not None:
            return f"make {event.stored.kind} {event.stored.name} in {short(other.dtype)}, or cast it where it is read"
    if event.kind == "kept_narrowed":
        return (
            f"load {records[-1].name} in float32, and do not call .half() or .to(float16) on the whole model afterwards"
        )
    return "" if stray is None else _where(origin_of(stray), base)


def _where(origin: Provenance, base: torch.dtype) -> str:
    name = short(base)
    if origin.kind in ("parameter", "buffer", "attribute"):
        return f"store {origin.kind} {origin.name} in {name}; it is in {short(origin.dtype)}"
    if origin.kind == "input":
        return f"give input {origin.name} in {name}; it is in {short(origin.dtype)}"
    place = "" if origin.code is None else f" at {source_line(origin.code, origin.instruction)}"
    if origin.kind == "cast":
        return f"cast the result back to {name} after the cast to {short(origin.dtype)}{place}"
    if origin.kind == "made":
        return f"make it in {name}: {origin.name}{place} makes {short(origin.dtype)}"
    return f"{origin.name}{place} brings {short(origin.dtype)}"
