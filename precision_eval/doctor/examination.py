"""The examination: observe, judge, hold to the compiler, try the fixes; imports torch."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from precision_eval.cases.own import OwnCase
from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import short
from precision_eval.core.formatting import grouped, memory_text, percent
from precision_eval.core.targets import first_line
from precision_eval.doctor.accuracy import (
    HALF_LOST,
    HARDLY_A_DIGIT,
    Excess,
    find_moved_choice,
    find_raising_rounding,
    is_storage,
    lost_before,
    most_drift_of,
    of_numbers,
    tell_largest_share,
)
from precision_eval.doctor.arithmetic import blame_arithmetic
from precision_eval.doctor.controls import (
    CACHE_OFF,
    blame_cached_casts,
    blame_epsilon,
    blame_trained_halves,
    count_inside_float64,
    find_idle_autocast,
    find_lost_steps,
    find_rounded_buffer,
    is_broken_in_float64,
    unused_formats,
)
from precision_eval.doctor.costs import costs_of, find_needless_scalers
from precision_eval.doctor.diagnosis import Compiled, Diagnosis, Finding, Held, Patch, SilentCost
from precision_eval.doctor.findings import (
    autocast_of,
    backends_of,
    dead_casts_of,
    findings_of,
    is_of_dtypes,
    is_of_observer,
    lost_of,
    place_of,
    raised_event,
    ranges_of,
    recast_of,
)
from precision_eval.doctor.remedies import BACKEND, Trials, prices_of, try_fixes
from precision_eval.doctor.repairs import Repair, repairs_of, search_doubts
from precision_eval.doctor.source import source_line
from precision_eval.doctor.upcasts import blame_autocast, blame_other_device
from precision_eval.doctor.ways import lacks_kernel, origin_text
from precision_eval.explain import explain
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import (
    Reference,
    check_available,
    device_of,
    in_wide,
    reference_of,
    run_as,
)
from precision_eval.measure.model_calls import (
    MOST_ZEROS,
    CallOutcome,
    Repeatability,
    attempt,
    base_dtype,
    copy_model,
    difference,
    observe_call,
    output_error,
    run_twice,
    subject_of,
    zeros_of,
)
from precision_eval.trace.dtype_flow import DtypeFlow, Event
from precision_eval.trace.provenance import named_tensors

# Relative difference of two calls up to which a model is called repeatable though not bit-identical.
REPEATABLE = 1e-6

_WITHOUT_EVENT = ("drift", "declared", "collapsed")


def examine(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    fixes: bool = True,
    latency: bool = True,
    costs: bool | None = None,
    compiled: bool = False,
    budget_s: float = 3.0,
    available_bytes: int | None = None,
    first: Callable[[Diagnosis], None] = lambda diagnosis: None,
) -> Diagnosis:
    """Find where dtypes split in a model, and what cures it.

    Parameters
    ----------
    model : torch.nn.Module or method of one
        As it is used: in eval mode, on its device; ``model.generate`` follows every step with its cache. It is copied
        for each run, and left as it is.
    *inputs : object
        What it is called with; a single dict holds keyword arguments.
    fixes : bool
        Try every fix of ``FIXES``.
    latency : bool
        Time those that cure.
    costs : bool, optional
        Look for what raises nothing and costs time or memory, and price its changes; by default where fixes are timed.
    compiled : bool
        Also run under ``torch.compile`` (backend ``aot_eager``), and try the fix that needs it; takes most of the time.
    budget_s : float
        Seconds for the timing of all fixes together, and as many for that of the suggested changes, and of those that
        save; latency is left out where it would take far longer.
    available_bytes : int, optional
        Memory of the model's device that the float64 copy, and the copies timed side by side, may use; what is free
        there by default.
    first : callable
        Called with the findings as soon as they are known, before changes and fixes are tried.

    Returns
    -------
    Diagnosis

    Raises
    ------
    ParameterError
        The inputs do not fit; the model raises something that has nothing to do with dtypes; it does not repeat; it
        cannot be copied, or the machine has no room for a copy; it is on meta, sharded or held in a tensor subclass.
    """
    subject = subject_of(_callable_module(model, inputs), inputs)
    memory = check_available(available_bytes, device_of((*subject.tensors, *subject.parameters())))
    _check_fits(subject, check_available(available_bytes))
    repeats = run_twice(subject)
    _check_repeats(subject, repeats, strict=fixes)
    costs = fixes and latency if costs is None else costs
    diagnosis, reference, repairs, excess = _diagnose(
        subject, repeats, compiled=compiled, available_bytes=memory, first=first
    )
    if not fixes and not costs:
        return diagnosis
    trials = Trials(
        reference=reference,
        most_drift=most_drift_of(subject, reference, excess),
        compiles=compiled,
        times=latency,
        budget_s=budget_s,
        repeats=not repeats.carries_state,
        available_bytes=memory,
        shipped=repeats.outcome.outputs or (),
        moves_tokens=repeats.outcome.are_tokens and any(finding.kind == "drift" for finding in diagnosis.faults),
        loses_values=any(f.kind == "drift" for f in diagnosis.faults)
        and zeros_of(repeats.outcome.outputs, reference.outputs)[0] >= MOST_ZEROS,
        cut=tuple(f"left: downcast at {f.place}" for f in diagnosis.faults if f.kind == "downcast")
        if diagnosis.status == "passed"
        else (),
        lost=tuple(f for f in diagnosis.faults if f.kind == "collapsed"),
    )
    if costs:
        diagnosis = replace(diagnosis, costs=tuple(_costs(subject, trials, diagnosis)))
    if not fixes:
        return diagnosis
    remedies, more = try_fixes(subject, trials, repairs)
    diagnosis = replace(diagnosis, remedies=remedies, doubts=(*diagnosis.doubts, *more))
    if diagnosis.status == "passed" and repairs and len(repairs) == len(diagnosis.patches):
        prices = prices_of(subject, repairs, trials)
        patches = (replace(patch, price=price) for patch, price in zip(diagnosis.patches, prices, strict=True))
        diagnosis = replace(diagnosis, patches=tuple(patches))
    is_local = trials.moves_tokens or any(patch.verified for patch in diagnosis.patches)
    return _with_wider_range(diagnosis if is_local else _with_fix(diagnosis))


def _costs(subject: ExaminedModel, trials: Trials, diagnosis: Diagnosis) -> Iterator[SilentCost]:
    if diagnosis.status != "passed" or any(patch.code == CACHE_OFF for patch in diagnosis.patches):
        return
    yield from find_needless_scalers(subject, [ranges.dtype for ranges in diagnosis.ranges])
    if trials.repeats:
        yield from costs_of(subject, trials)


def _callable_module(model: nn.Module | Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """The module whose call is the one to examine: a method's owner is called through the method."""
    if isinstance(model, nn.Module):  # compiled as a whole: it is examined as it is in eager
        return getattr(model, "_orig_mod", model)
    owner = getattr(model, "__self__", None)
    if not isinstance(model, nn.Module) and isinstance(owner, nn.Module) and inspect.ismethod(model):
        return OwnCase(model=owner, inputs=inputs, call=model.__func__).module()
    return model


def _check_fits(subject: ExaminedModel, available_bytes: int) -> None:
    """Refuse a model of which main memory holds no copy; a device says so by itself."""
    held = [tensor for _, _, tensor in named_tensors(subject, subject.tensors) if tensor.device.type == "cpu"]
    needed_bytes = sum(tensor.nbytes for tensor in held)
    if needed_bytes > available_bytes:
        raise ParameterError(
            f"a copy of {type(subject.unwrapped).__name__} needs {memory_text(needed_bytes)}, "
            f"{memory_text(available_bytes)} are free; each run is on a copy: examine it with fewer layers, which have "
            "the same dtypes"
        )


def _with_wider_range(diagnosis: Diagnosis) -> Diagnosis:
    """Offer bfloat16 for all of what overflows in float16, where it was run and cures."""
    cures = {remedy.fix: remedy for remedy in diagnosis.remedies if remedy.cures}
    first, wider = diagnosis.first_split, cures.get("bfloat16")
    overflows = first is not None and first.kind == "first_non_finite" and diagnosis.base_dtype == "float16"
    if wider is None or not overflows or diagnosis.status != "non_finite":
        return diagnosis
    patch = Patch(
        place=first.place if first else None, diff="", code='model = precision_eval.fixed(model, "bfloat16")',
        origin="", verified=True, left=(), relative_error=wider.relative_error,
    )  # fmt: skip
    known = [other.code for other in diagnosis.patches]
    return diagnosis if patch.code in known else replace(diagnosis, patches=(*diagnosis.patches, patch))


def _with_fix(diagnosis: Diagnosis) -> Diagnosis:
    """Where no line could be changed so that it cures, suggest the fix from outside that drifts least."""
    cures = [remedy for remedy in diagnosis.remedies if remedy.cures and remedy.relative_error is not None]
    if diagnosis.status == "passed" and diagnosis.base_dtype == "float32":  # in fewer digits it is right by chance
        cures = [remedy for remedy in cures if remedy.fix not in ("float16", "bfloat16", "autocast")]
    best = min(cures, key=lambda remedy: (remedy.relative_error, remedy.stored_bytes or 0), default=None)
    first = diagnosis.first_split
    if best is None or first is None or first.severity != "fault" or first.kind in ("bits", "collapsed"):
        return diagnosis
    patch = Patch(
        place=first.place, diff="", code=f'model = precision_eval.fixed(model, "{best.fix}")', origin="",
        verified=True, left=(), relative_error=best.relative_error,
    )  # fmt: skip
    return replace(diagnosis, patches=(patch, *diagnosis.patches))


def _diagnose(
    subject: ExaminedModel,
    repeats: Repeatability,
    *,
    compiled: bool,
    available_bytes: int,
    first: Callable[[Diagnosis], None],
) -> tuple[Diagnosis, Reference, list[Repair], Excess | None]:
    observer, seen, raised = _observe(subject, base_dtype(subject))
    base = observer.base
    reference = _meant_inside(subject, seen, _reference(subject, repeats, available_bytes=available_bytes))
    outcome = replace(repeats.outcome, inside=seen.inside)
    broken, total = outcome.broken(reference.outputs, meant=reference.inside)
    judged = _judge_call(subject, observer, seen, raised, outcome, reference)
    findings = judged.findings if broken or raised is not None else judged.with_costs
    doubts = (*_doubts(subject, repeats, seen, reference), *_infinity_doubts(outcome, broken), *reference.doubts)
    diagnosis = Diagnosis(
        model=type(subject.unwrapped).__name__,
        status="raised" if raised is not None else "non_finite" if broken else "passed",
        message=_message(seen, broken, total, reference) + (", in float64 too" if judged.in_float64_too else ""),
        base_dtype=short(base),
        findings=findings,
        explanation=None if seen.error is None else explain(seen.error).to_dict(),
        held=_held(subject, base),
        autocast=autocast_of(observer),
        recast=recast_of(observer, subject.unwrapped),
        backends=backends_of(observer),
        dead_casts=dead_casts_of(observer),
        ranges=ranges_of(observer),
        lost=lost_of(observer),
        compiled=None,
        remedies=(),
        reference=reference.name,
        patches=(),
        doubts=doubts,
        torch_version=torch.__version__,
        device=str(device_of((*subject.tensors, *subject.parameters()))),
        largest_share=_largest_share(subject, outcome, reference, findings),
    )
    first(diagnosis)
    split = diagnosis.first_split
    event = None if split is None or split.kind in _WITHOUT_EVENT else judged.events[findings.index(split)]
    if judged.patch is not None or judged.in_float64_too:
        known = () if judged.patch is None else (judged.patch,)
        return replace(diagnosis, patches=known), reference, [], judged.excess
    repairs, cut_short = _repairs(subject, reference, judged)
    patches = _patches(split, event, repairs, base, judged.updated)
    under_compiler = _compiled(subject, repeats.outcome, reference) if compiled else None
    diagnosis = replace(diagnosis, patches=patches, compiled=under_compiler, doubts=(*doubts, *cut_short))
    return diagnosis, reference, repairs, judged.excess


def _meant_inside(subject: ExaminedModel, seen: CallOutcome, reference: Reference) -> Reference:
    if not (seen.are_tokens and seen.inside[0]):
        return reference
    is_known = reference.name == "float64"  # without it, nothing tells which of them are meant
    return replace(reference, inside=count_inside_float64(subject) if is_known else seen.inside[0])


def _largest_share(
    subject: ExaminedModel, outcome: CallOutcome, reference: Reference, findings: tuple[Finding, ...]
) -> str:
    if reference.name != "float64" or any(f.severity in ("fault", "risk") for f in findings):
        return ""
    drift = None if outcome.are_tokens else output_error(outcome.outputs, reference.outputs)
    return tell_largest_share(subject, drift)


class _Judged(NamedTuple):
    """What an observed call shows; a patch where the cause is none of its lines."""

    findings: tuple[Finding, ...]
    events: list[Event]
    excess: Excess | None
    drifts: bool
    in_float64_too: bool
    patch: Patch | None

    @property
    def with_costs(self) -> tuple[Finding, ...]:
        """The findings, where nothing raised; a promotion that the weights follow is right by its numbers then."""
        followed = {index for index, event in enumerate(self.events) if event.is_followed and not event.deliberate}
        return tuple(
            replace(finding, kind="followed", severity="risk")
            if index in followed and finding.kind == "promotion"
            else finding
            for index, finding in enumerate(self.findings)
        )

    @property
    def updated(self) -> tuple[tuple[str, str], ...]:
        return () if self.excess is None else self.excess.updated


def _repairs(subject: ExaminedModel, reference: Reference, judged: _Judged) -> tuple[list[Repair], tuple[str, ...]]:
    faults = [finding for finding in judged.findings if finding.severity == "fault"]
    pairs = zip(judged.findings, judged.events, strict=False)
    leaks = not faults and any(finding.severity == "risk" and event.reached_output for finding, event in pairs)
    if not (judged.drifts or leaks or any(finding.kind not in ("drift", "collapsed") for finding in faults)):
        return [], ()
    repairs = repairs_of(subject, reference, drifts=judged.drifts, leaks=leaks, updated=judged.updated)
    return repairs, search_doubts()


def _judge_call(
    subject: ExaminedModel,
    observer: DtypeFlow,
    seen: CallOutcome,
    raised: Event | None,
    outcome: CallOutcome,
    reference: Reference,
) -> _Judged:
    base, broken = observer.base, outcome.broken(reference.outputs, meant=reference.inside)[0]
    caused = _check_is_of_dtypes(subject, seen.error, raised)
    findings, events = findings_of(observer, seen.outputs or (), raised, broken=bool(broken))
    excess, noted, patch = None, None, None
    passes = raised is None and not outcome.are_tokens and not any(f.severity == "fault" for f in findings)
    at_autocast = (subject, reference, observer, _device_of(subject))
    narrowed = (blame_autocast(*at_autocast) or blame_other_device(*at_autocast)) if passes else None
    if narrowed is not None:
        findings, patch = (*findings, narrowed[0]), narrowed[1]
    elif passes:
        excess, noted = of_numbers(subject, seen, reference, base, observer)
    if noted is not None:
        drift, patch = noted[0], None
        if excess is not None:
            drift, patch = _blame_other(subject, reference, observer, excess, drift)
        findings = _with_numbers(findings, drift)
    elif raised is None and outcome.are_tokens and not broken:
        noted = find_moved_choice(subject, outcome, reference, base)
        findings = findings if noted is None else (*findings, noted[0])
    if raised is None:
        findings = _with_lost_before(findings, subject, reference)
        stored = find_rounded_buffer(subject, observer.angles, reference) if passes else None
        stored = find_lost_steps(subject, observer) if passes and stored is None and excess is None else stored
        findings = findings if stored is None else (*findings, stored)
    in_float64_too = bool(broken) and is_broken_in_float64(outcome, reference)
    if in_float64_too:
        findings, patch = blame_arithmetic(subject, findings, events, reference)
    if raised is None:
        findings += _unused(subject, observer, base)
    is_cost = noted is not None and noted[1] is not None and is_storage(noted[1], observer)
    drifts = caused is not None or (noted is not None and not is_cost)
    findings = findings if caused is None else (caused, *findings)
    refused = None if seen.error is None else blame_trained_halves(subject, seen.error)
    if refused is not None:
        findings = tuple(replace(f, operands=(), reason=refused[1]) if f.kind == "raise" else f for f in findings)
        excess = Excess(HARDLY_A_DIGIT, HARDLY_A_DIGIT, base, refused[0], 1.0)
    return _Judged(findings, events, excess, drifts, in_float64_too, patch)


def _unused(subject: ExaminedModel, observer: DtypeFlow, base: torch.dtype) -> tuple[Finding, ...]:
    """Name formats that nothing runs in."""
    declared = None if observer.numbers is None else unused_formats(subject, base, observer.numbers.counts)
    return tuple(finding for finding in (find_idle_autocast(observer), declared) if finding is not None)


def _blame_other(
    subject: ExaminedModel, reference: Reference, observer: DtypeFlow, excess: Excess, drift: Finding
) -> tuple[Finding, Patch | None]:
    """Blame what is no rounding of a line where a run without it shows that it is the cause."""
    patch = None
    if excess.updated and excess.lost < HALF_LOST:
        drift = replace(drift, severity="risk")
    if observer.autocast:
        drift, patch = blame_cached_casts(subject, reference, excess, drift)
    return (drift, patch) if patch is not None else blame_epsilon(subject, reference, excess, drift)


def _device_of(subject: ExaminedModel) -> str:
    return next((t.device.type for t in (*subject.tensors, *subject.parameters())), "cpu")


def _observe(subject: ExaminedModel, base: torch.dtype) -> tuple[DtypeFlow, CallOutcome, Event | None]:
    fresh = copy_model(subject)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observer, seen = observe_call(fresh, lambda: fresh(*fresh.tensors), fresh.tensors, base=base, values=True)
    now = base_dtype(fresh)
    if now is not base and not observer.narrowed:  # parameters are of another format since the call began
        subject.computes_in = now
        return _observe(subject, now)
    if seen.error is None:
        return observer, seen, None
    if is_of_observer(seen.error):
        raise RuntimeError(f"observing failed: {type(seen.error).__name__}: {seen.error}") from seen.error
    raised = raised_event(observer, seen.error)
    return observer, seen, raised


def _with_lost_before(
    findings: tuple[Finding, ...], subject: ExaminedModel, reference: Reference
) -> tuple[Finding, ...]:
    first = next((finding for finding in findings if finding.severity == "fault"), None)
    if first is None or first.kind != "first_non_finite" or reference.name != "float64":
        return findings
    before = lost_before(subject, first)
    return findings if before is None else (before, *findings)


def _with_numbers(findings: tuple[Finding, ...], drift: Finding) -> tuple[Finding, ...]:
    """Add what the numbers say; a rounding whose dtype then meets another is the fault of that meeting."""
    for index, finding in enumerate(findings):
        places = [step.place for operand in finding.operands for step in operand.history]
        if finding.kind != "promotion" or finding.module != drift.module:
            continue  # a cast in another module is where one would change it
        if drift.severity == "fault" and drift.place in places:
            fault = replace(finding, severity="fault", reason=f"{drift.reason} ({drift.place})")
            return (*findings[:index], fault, *findings[index + 1 :])
    return (*findings, drift)


def _reference(subject: ExaminedModel, repeats: Repeatability, *, available_bytes: int) -> Reference:
    hides = (
        repeats.outcome.error is not None or repeats.outcome.broken()[0] > 0
    )  # what is drawn may not reach the output
    draws = repeats.draws or (None if hides else False)
    return reference_of(subject, available_bytes=available_bytes, draws=draws)


def _infinity_doubts(outcome: CallOutcome, broken: int) -> tuple[str, ...]:
    infinite, total = outcome.broken()
    if infinite == broken or outcome.are_tokens:
        return ()
    return (f"{infinite - broken} of {total} output values are infinite in the reference too, and taken as meant",)


def _check_repeats(subject: ExaminedModel, repeats: Repeatability, *, strict: bool) -> None:
    if strict and repeats.difference > REPEATABLE:
        raise ParameterError(
            f"{type(subject.unwrapped).__name__} does not repeat: two calls from the same state and seeds differ "
            f"by {repeats.difference:.2g} relative; take the randomness out, or examine it without trying fixes"
        )


def _check_is_of_dtypes(subject: ExaminedModel, error: Exception | None, raised: Event | None) -> Finding | None:
    """Refuse an error that has nothing to do with dtypes; of one that a rounding brings, return the rounding."""
    if raised is None or error is None or is_of_dtypes(error, raised):
        return None
    caused = find_raising_rounding(subject, error, raised)
    if caused is not None:
        return caused[0]
    if lacks_kernel(raised) and run_as(subject, in_wide).error is None:
        return None  # the same call passes in float64
    first = first_line(error)[:300]
    raise ParameterError(
        f"the model raises {type(error).__name__} at {source_line(*raised.line)}: {first}; that is not a dtype "
        "error: give inputs with which it runs, or with which it raises the error that you want to understand"
    ) from error


def _message(seen: CallOutcome, broken: int, total: int, reference: Reference) -> str:
    if seen.error is not None:
        lines = str(seen.error).strip().splitlines() or [""]
        of_script = [line for line in lines if line.startswith("RuntimeError: ")]  # below TorchScript's own traceback
        return of_script[-1] if of_script else f"{type(seen.error).__name__}: {lines[0]}"
    if not broken:
        return ""
    if not seen.are_tokens:
        return f"{broken} of {total} output values are not finite"
    message = f"{broken} of {total} values on the way to the tokens are not finite"
    wrong = output_error(seen.outputs, reference.outputs)
    return message if wrong is None else f"{message}; {percent(wrong)} of the tokens are not those of {reference.name}"


def _held(subject: ExaminedModel, base: torch.dtype) -> tuple[Held, ...]:
    named = named_tensors(subject.unwrapped, ())
    groups = grouped((short(t.dtype), (name.rpartition(".")[0], t)) for _, name, t in named if t.dtype is not base)
    return tuple(
        Held(
            dtype=dtype, modules=tuple(dict.fromkeys(path for path, _ in of_dtype)),
            elements=sum(t.numel() for _, t in of_dtype), stored_bytes=sum(t.nbytes for _, t in of_dtype),
            wide_matrices=sum(t.dim() > 1 and t.element_size() > base.itemsize for _, t in of_dtype),
        )
        for dtype, of_dtype in groups.items()
    )  # fmt: skip


def _doubts(subject: ExaminedModel, repeats: Repeatability, seen: CallOutcome, reference: Reference) -> tuple[str, ...]:
    doubts = []
    if repeats.carries_state:
        doubts.append(
            f"a second call gives something else: the model carries state from call to call "
            f"({', '.join(repeats.changed[:4]) or 'outside its tensors'}); every run here starts from the same state"
        )
    if repeats.difference > 0:
        doubts.append(f"two calls from the same state differ by {repeats.difference:.2g} relative")
    if seen.error is None and difference(repeats.outcome, CallOutcome(seen.outputs, None)) > repeats.difference:
        doubts.append("the observed call's output differs from an unobserved one's")
    if seen.are_tokens:
        wrong = output_error(seen.outputs, reference.outputs)
        differ = "" if wrong is None else f"; {percent(wrong)} of the tokens differ from those of {reference.name}"
        doubts.append(
            f"the output is integers, such as tokens, so silent rounding is not seen{differ}: have it return scores "
            "(return_dict_in_generate=True, output_scores=True)"
        )
    if seen.error is None and not seen.outputs:
        doubts.append(
            "the output has no floating values, as that of generate() has none, so drift is not known and silent "
            "rounding is not seen: have it return scores (return_dict_in_generate=True, output_scores=True)"
        )
    fused = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
    if any(isinstance(module, fused) for module in subject.modules()):
        doubts.append("torch's fused path of nn.MultiheadAttention was not taken while observing")
    if any(isinstance(module, torch.jit.ScriptModule) for module in subject.modules()):
        doubts.append("operations inside ScriptModules are not seen; their results count as made outside")
    return tuple(doubts)


def _patches(
    split: Finding | None,
    event: Event | None,
    repairs: list[Repair],
    base: torch.dtype,
    updated: tuple[tuple[str, str], ...],
) -> tuple[Patch, ...]:
    if event is None:
        if split is None or split.place is None or (split.severity != "fault" and not repairs):
            return ()
        if split.kind == "collapsed":  # its reason says what to do
            return ()
        wide = short(base) if split.result != short(base) else "float32"
        advice = f"keep the result of {split.op} in {wide} there: what is rounded away does not come back"
        if split.result == "float32" == short(base):
            advice = f"compute {split.op} and what goes into it in float64: float32 has rounded the digits away by then"
        if updated:
            names = ", ".join(name for _, name in updated[:3])
            advice = f"keep {names} in float32, as master weights, and run what reads them under autocast"
        return tuple(repair.as_patch(split.place, advice) for repair in repairs or [Repair()])
    place, origin = place_of(event.caller or event.line), origin_text(event, base)
    if not repairs and origin and event.kind != "first_non_finite":  # an overflow's changes were run and cure nothing
        return (Repair().as_patch(place, origin),)
    return tuple(repair.as_patch(place, origin) for repair in repairs)


def _compiled(subject: ExaminedModel, eager: CallOutcome, reference: Reference) -> Compiled:
    model = copy_model(subject)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with AppliedFix(fix_by_id("as_shipped"), model, mode="compiled", backend=BACKEND) as call:
            outcome = attempt(lambda: call(*model.tensors))
    status = (
        "raised" if outcome.error is not None else "non_finite" if outcome.broken(reference.outputs)[0] else "passed"
    )
    how, distance = _how_it_differs(eager, outcome)
    message = "" if outcome.error is None else _sentence(outcome.error)
    return Compiled(
        backend=BACKEND, status=status, message=message, differs=bool(how), how=how, relative_difference=distance
    )


def _sentence(error: BaseException) -> str:
    explained = explain(error)
    if explained.known and explained.sentence:
        own = (explained.frame or "").startswith("fixes/")
        where = f" (at {explained.frame})" if explained.frame and not own else ""
        return explained.sentence + where
    return first_line(error, empty=type(error).__name__)


def _how_it_differs(eager: CallOutcome, compiled: CallOutcome) -> tuple[str, float | None]:
    if (eager.error is None) != (compiled.error is None):
        return ("eager passes, compiled raises" if eager.error is None else "eager raises, compiled passes"), None
    if eager.error is not None and compiled.error is not None:
        one, other = explain(eager.error), explain(compiled.error)
        if one.known and other.known and one.member != other.member:
            return f"eager raises at {one.op or one.member}, compiled at {other.op or other.member}", None
        return "", None
    assert eager.outputs is not None
    assert compiled.outputs is not None
    dtypes = [[short(t.dtype) for t in outcome] for outcome in (eager.outputs, compiled.outputs)]
    if dtypes[0] != dtypes[1]:
        return f"outputs are {', '.join(dtypes[1])} compiled and {', '.join(dtypes[0])} in eager", None
    return "", difference(compiled, eager)
