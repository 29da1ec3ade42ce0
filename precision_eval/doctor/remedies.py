"""Tries every fix of ``FIXES`` on the model from outside, and the suggested changes, and ranks them; imports torch.

Conventions: a fix *cures* where the model passes under it, its output is finite, and no fault is left: the observer
runs once more with the fix in force. Each fix is on a copy of its own. Drift is the largest relative error over the
outputs against the reference. Latency is paired, in one process, over those that cure; the baseline is
``full_float32`` if that cures, else the one with the least drift. Memory is the allocator's peak of one call, and what
is stored. Those that no other one dominates in drift, latency and memory together come first, by drift; then the other
cures; then the rest.
"""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch

from precision_eval.core.cells import SUITE_FAILED, failure_of, is_fault_of_the_suite
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.targets import first_line
from precision_eval.doctor.diagnosis import Finding, Price, Remedy
from precision_eval.doctor.findings import left_faults
from precision_eval.doctor.repairs import Repair
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.fixes.storage import floating_tensors
from precision_eval.measure.blocks import MANY_CALLS_UP_TO_S, MIN_CALLS
from precision_eval.measure.float64_reference import Reference, device_of
from precision_eval.measure.generic import check_format
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.memory import call_memory
from precision_eval.measure.model_calls import (
    MOST_ZEROS,
    CallOutcome,
    attempt,
    base_dtype,
    copy_model,
    observe_call,
    output_error,
    zeros_of,
)
from precision_eval.measure.timers import LaunchedTimer
from precision_eval.stats.doubts import MIN_BLOCKS
from precision_eval.stats.paired import PairedRatio
from precision_eval.trace.provenance import named_tensors

BACKEND = "aot_eager"
BASELINE = "full_float32"
AS_IT_IS = "as it is"
# What the place of tensors stored otherwise may change in a ratio by itself; part of its interval.
LAYOUT = 0.01
# Latency is left out where its least number of blocks takes more than so many times what is allowed.
OVER_BUDGET = 10.0
_BYTES = ("allocated_peak_bytes", "stored_bytes")
_STATUSES = ("passed", "non_finite", "raised", "out_of_memory", "crashed", "unsupported")


@dataclass(frozen=True, kw_only=True)
class Trials:
    reference: Reference
    most_drift: float  # with more, a fix cures nothing
    compiles: bool
    times: bool
    budget_s: float
    repeats: bool
    available_bytes: int
    shipped: tuple[torch.Tensor, ...] = ()  # the outputs of the model as it is
    moves_tokens: bool = False  # rounding makes tokens others than float64's
    loses_values: bool = False  # the model gives zeros where float64 does not
    cut: tuple[str, ...] = ()  # faults of values that a model cuts in silence, which casts at the same places do too
    lost: tuple[Finding, ...] = ()  # what half formats do not hold; of what is stored, what no format brings back


def try_fixes(
    subject: ExaminedModel, trials: Trials, repairs: list[Repair]
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """Try every fix but the control, and measure the verified changes with them; also return doubts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model's own were shown when it first ran
        remedies = [_try_fix(fix, subject, trials) for fix in FIXES if fix.id != "as_shipped"]
        verified = {repair.title: repair for repair in repairs if repair.verified}
        remedies += [_measure_repair(repair, subject, trials) for repair in verified.values()]
        doubts: tuple[str, ...] = ()
        if not trials.repeats:
            doubts = ("the model carries state from call to call, so latency and memory were not measured",)
        elif trials.times:
            remedies, doubts = _time_cures(subject, remedies, trials, verified)
    return tuple(_rank(remedies)), doubts


def _mode(fix: Fix) -> str:
    return "eager" if "eager" in fix.modes else "compiled"


def _apply_fix(fix: Fix, model: ExaminedModel) -> AppliedFix:
    check_format(fix, _device(model))
    return AppliedFix(fix, model, mode=_mode(fix), backend=BACKEND)


def _device(model: ExaminedModel) -> str:
    return str(device_of((*model.tensors, *floating_tensors(model))))


def _try_fix(fix: Fix, subject: ExaminedModel, trials: Trials) -> Remedy:
    remedy = Remedy(fix=fix.id, title=fix.title, mode=_mode(fix), status="unsupported")
    if remedy.mode == "compiled" and not trials.compiles:
        return replace(remedy, reason="it has a meaning under the compiler only, which was not asked for")
    model = copy_model(subject)
    try:
        with _apply_fix(fix, model) as applied:
            inputs = applied.prepare(model.tensors)
            outcome = attempt(lambda: applied(*inputs))
    except Exception as error:  # noqa: BLE001 - a fix enters the model's own code, which may raise anything
        outcome = CallOutcome(None, error)
    if outcome.error is not None:
        return _note_failure(remedy, outcome.error)
    left, observed = _left(fix, subject, values=outcome.are_tokens)
    broken, total = replace(outcome, inside=observed.inside).broken(
        trials.reference.outputs, meant=trials.reference.inside
    )
    if broken:
        which = "values on the way to the tokens" if outcome.are_tokens else "output values"
        return replace(remedy, status="non_finite", reason=f"{broken} of {total} {which} are not finite")
    if fix.storage == "as_shipped":
        left = list(dict.fromkeys((*left, *trials.cut)))
    left += [f"left: {f.op}, {f.kind}" for f in trials.lost if f.place is None or fix.storage != "float32"]
    drift = output_error(outcome.outputs, trials.reference.outputs)
    if drift is not None and drift > trials.most_drift and (trials.moves_tokens or not outcome.are_tokens):
        left.append(f"left: a drift of {drift:.2g}")
    if trials.reference.outputs is None and any(not output.isfinite().all() for output in trials.shipped):
        left.append("left: it is finite, and without a reference nothing tells whether it is right")
    if trials.loses_values and zeros_of(outcome.outputs, trials.reference.outputs)[0] >= MOST_ZEROS:
        left.append("left: values that are 0 and not so in float64")
    remedy = replace(remedy, status="passed", cures=not left, relative_error=drift, reason="; ".join(left))
    if not (trials.repeats and remedy.cures):
        return remedy
    with ExitStack() as stack:
        model, candidate = _candidate(fix, subject, stack)
        return _with_peak(remedy, candidate, model)


def _note_failure(remedy: Remedy, error: Exception) -> Remedy:
    refused = isinstance(error, PrecisionEvalError)
    status = "unsupported" if refused else failure_of(remedy.fix, error).status
    reason = first_line(error, empty=type(error).__name__)
    return replace(remedy, status=status, reason=f"{SUITE_FAILED}{reason}" if status == "crashed" else reason)


def _left(fix: Fix, subject: ExaminedModel, *, values: bool) -> tuple[list[str], CallOutcome]:
    """Observe the model under a fix; name the faults that are left, and return the outcome.

    The compiler changes no dtype, so that one that only compiles leaves those of the model as it is.
    """
    model = copy_model(subject)
    with _apply_fix(fix_by_id("as_shipped") if _mode(fix) == "compiled" else fix, model) as applied:
        inputs = applied.prepare(model.tensors)
        base = applied.dtype or base_dtype(model)
        observer, outcome = observe_call(model, lambda: applied(*inputs), inputs, base=base, values=values)
    return [f"left: {fault}" for fault in left_faults(observer, outcome.outputs or ())], outcome


def _candidate(fix: Fix, subject: ExaminedModel, stack: ExitStack) -> tuple[ExaminedModel, Candidate]:
    """Put a fix on a copy for as long as the stack lives."""
    model = copy_model(subject)
    applied = _apply_fix(fix, model)
    stack.enter_context(applied.stored())
    return model, Candidate(applied.bind(*applied.prepare(model.tensors)), applied.agreeing)


def _repair_candidate(
    repair: Repair, subject: ExaminedModel, shared: ExaminedModel | None = None
) -> tuple[ExaminedModel, Candidate]:
    model = repair.copy(subject)
    if shared is not None:  # two copies differ in time by per cents
        _share_tensors(model, shared)
    return model, Candidate(partial(model, *model.tensors), repair.source.running)


def _share_tensors(changed: ExaminedModel, model: ExaminedModel) -> None:
    held = {(kind, name): tensor for kind, name, tensor in named_tensors(model, _inputs(model))}
    for kind, name, tensor in named_tensors(changed, _inputs(changed)):
        other = held.get((kind, name))
        if other is not None and (other.dtype, other.shape) == (tensor.dtype, tensor.shape):
            tensor.data = other.data


def _inputs(model: ExaminedModel) -> dict[str, torch.Tensor]:
    return dict(zip(model.names, model.tensors, strict=True))


def _with_peak(remedy: Remedy, candidate: Candidate, model: ExaminedModel) -> Remedy:
    device = str(device_of((*model.tensors, *floating_tensors(model))))
    try:  # Without autograd, as in every other run: an `out=` raises under it, and what it keeps is no peak of use.
        with torch.no_grad(), candidate.block():
            memory = call_memory(candidate.call, (), model=model, device=device)
    except Exception as error:
        if is_fault_of_the_suite(error):
            raise
        again = f"the call changes the model: once it has run, it raises {first_line(error)}"
        return replace(remedy, cures=False, reason=again)
    return replace(remedy, allocated_peak_bytes=memory.allocated_peak_bytes, stored_bytes=memory.storage_bytes)


def _measure_repair(repair: Repair, subject: ExaminedModel, trials: Trials) -> Remedy:
    assert repair.outputs is not None
    remedy = Remedy(
        fix=repair.title, title="a change of the source or of what is stored", mode="eager", status="passed",
        cures=True, relative_error=output_error(repair.outputs, trials.reference.outputs),
    )  # fmt: skip
    if not trials.repeats:
        return remedy
    model, candidate = _repair_candidate(repair, subject)
    return _with_peak(remedy, candidate, model)


def _time_cures(
    subject: ExaminedModel, remedies: list[Remedy], trials: Trials, repairs: dict[str, Repair]
) -> tuple[list[Remedy], tuple[str, ...]]:
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
    candidates: dict[str, Candidate] = {}
    least_s = 0.0
    with ExitStack() as stack, torch.no_grad():  # as fixes call a model: autograd is a fifth of a short call
        for name in (remedy.fix for remedy in cures):
            _, candidates[name] = (
                _repair_candidate(repairs[name], subject)
                if name in repairs
                else _candidate(fix_by_id(name), subject, stack)
            )
            least_s += MIN_BLOCKS * _block_s(candidates[name])
            if least_s > OVER_BUDGET * trials.budget_s:  # before the others are called too
                return remedies, (
                    f"latency was not measured: {MIN_BLOCKS} blocks of each fix take {least_s:.3g} s or more, "
                    f"{trials.budget_s:.3g} s are allowed",
                )
        ratios = _ratios(candidates, baseline, subject, trials.budget_s)
    doubts = {doubt.partition(":")[0]: doubt for ratio in ratios.values() for doubt in ratio.doubts}  # one of a kind
    return [_with_latency(remedy, ratios, baseline) for remedy in remedies], tuple(doubts.values())


def _ratios(
    candidates: dict[str, Candidate], baseline: str, subject: ExaminedModel, budget_s: float, *, launched: bool = False
) -> dict[str, PairedRatio]:
    """Compare on the device's clock where there is one, or launched from Python."""
    device = _device(subject)
    timer, graph = (LaunchedTimer(device), False) if launched else (None, device.startswith("cuda"))
    return compare_latency(
        candidates, baseline=baseline, budget_s=budget_s, device=device, check=False, timer=timer, graph=graph
    )


def _needed_bytes(subject: ExaminedModel, cures: list[Remedy]) -> int:
    """Bytes of a copy for each fix: as shipped, and as the fix stores it; and one call's peak."""
    copy_bytes = sum(tensor.nbytes for _, _, tensor in named_tensors(subject, subject.tensors))
    exchanged = {fix.id for fix in FIXES if fix.storage != "as_shipped"}
    stored = sum(remedy.stored_bytes or 0 for remedy in cures if remedy.fix in exchanged)
    return len(cures) * copy_bytes + stored + max(remedy.allocated_peak_bytes or 0 for remedy in cures)


def _block_s(candidate: Candidate) -> float:
    with candidate.block():
        candidate.call()
        started = time.perf_counter()
        candidate.call()
        call_s = time.perf_counter() - started
    return call_s * (MIN_CALLS if call_s < MANY_CALLS_UP_TO_S else 1)


def _with_latency(remedy: Remedy, ratios: dict[str, PairedRatio], baseline: str) -> Remedy:
    if remedy.fix == baseline:
        return replace(remedy, latency_ratio=1.0, latency_verdict="baseline", latency_baseline=baseline)
    ratio = ratios.get(remedy.fix)
    if ratio is None:
        return remedy
    return replace(
        remedy, latency_ratio=ratio.ratio, latency_low=ratio.ratio_low, latency_high=ratio.ratio_high,
        latency_verdict=ratio.verdict, latency_baseline=baseline,
    )  # fmt: skip


def prices_of(subject: ExaminedModel, repairs: list[Repair], trials: Trials) -> list[Price | None]:
    """Measure what each verified change saves against the model as it is; None for one that is within noise of it."""
    verified = {str(index): repair for index, repair in enumerate(repairs) if repair.verified}
    copy_bytes = sum(tensor.nbytes for _, _, tensor in named_tensors(subject, subject.tensors))
    prices: list[Price | None] = [None] * len(repairs)
    if not (trials.times and trials.repeats and verified) or (len(verified) + 1) * copy_bytes > trials.available_bytes:
        return prices
    model = copy_model(subject)
    candidates = {AS_IT_IS: Candidate(partial(model, *model.tensors))}
    now = _with_peak(Remedy(fix=AS_IT_IS, title="", mode="eager", status="passed"), candidates[AS_IT_IS], model)
    with torch.no_grad():
        candidates |= {name: _repair_candidate(repair, subject, model)[1] for name, repair in verified.items()}
        if MIN_BLOCKS * sum(map(_block_s, candidates.values())) > OVER_BUDGET * trials.budget_s:
            return prices
        has_clock = _device(subject).startswith("cuda")
        budget_s = trials.budget_s / (2 if has_clock else 1)
        launched = _ratios(candidates, AS_IT_IS, subject, budget_s, launched=True) if has_clock else {}
        ratios = _ratios(candidates, AS_IT_IS, subject, budget_s)  # second, as a profiler would slow launches
    error = output_error(trials.shipped, trials.reference.outputs)
    for name, repair in verified.items():
        place = LAYOUT if repair.changes_tensors else 0.0
        changed = _measure_repair(repair, subject, trials)
        prices[int(name)] = _price(ratios[name], changed, now, error, place=place, launched=launched.get(name))
    return prices


def _price(
    ratio: PairedRatio,
    changed: Remedy,
    now: Remedy,
    error: float | None,
    *,
    place: float = 0.0,
    launched: PairedRatio | None = None,
) -> Price | None:
    """Put what is beyond noise into a price: called differences of time, or bytes, which are counted."""
    saved = sum((getattr(now, name) or 0) - (getattr(changed, name) or 0) for name in _BYTES)
    times, launched_times = _times(ratio, place), _times(launched, place)
    if times[0] is None and launched_times[0] is None and not saved:
        return None
    return Price(
        latency_ratio=times[0], latency_low=times[1], latency_high=times[2], saved_bytes=saved,
        relative_error=changed.relative_error, relative_error_now=error, launched_ratio=launched_times[0],
        launched_low=launched_times[1], launched_high=launched_times[2], on_device=launched is not None,
    )  # fmt: skip


def _times(ratio: PairedRatio | None, place: float) -> tuple[float | None, float | None, float | None]:
    if ratio is None or ratio.verdict not in ("faster", "slower"):
        return None, None, None
    return ratio.ratio, ratio.ratio_low * (1 - place), ratio.ratio_high * (1 + place)


def _by_drift(remedy: Remedy) -> float:
    return float("inf") if remedy.relative_error is None else remedy.relative_error


def _dominates(better: Remedy, other: Remedy) -> bool:
    names = ("relative_error", "latency_ratio", *_BYTES)
    pairs = [(getattr(better, name), getattr(other, name)) for name in names]
    pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    return bool(pairs) and all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _rank(remedies: list[Remedy]) -> list[Remedy]:
    cures = [remedy for remedy in remedies if remedy.cures]
    marked = [
        replace(remedy, is_best=remedy.cures and not any(_dominates(other, remedy) for other in cures))
        for remedy in remedies
    ]
    return sorted(marked, key=lambda r: (not r.cures, not r.is_best, _STATUSES.index(r.status), _by_drift(r)))
