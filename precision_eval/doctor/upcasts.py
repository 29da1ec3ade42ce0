"""What the code brings to float32 in vain or too late: autocast narrows it again, or a half format rounded it before.

Conventions: a cause is named where a run with its change drifts less. Only operations of one function are widened, back
to the last product with weights, whose result is what the format costs.
"""

from __future__ import annotations

from contextlib import suppress

import torch

from precision_eval.core.formats import short
from precision_eval.core.formatting import join, plural
from precision_eval.doctor.accuracy import HARDLY_A_DIGIT, finding_at, most_off
from precision_eval.doctor.diagnosis import Finding, Patch
from precision_eval.doctor.error_budget import run_rounded, run_steps
from precision_eval.doctor.findings import left_faults
from precision_eval.doctor.repairs import Repair
from precision_eval.doctor.source import Insertion, source_line, with_device, without_autocast
from precision_eval.doctor.ways import widen
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import CallOutcome, base_dtype, copy_model, observe_call, output_error
from precision_eval.trace.dtype_flow import HALVES, DtypeFlow, inside_event, is_internal
from precision_eval.trace.operations import WITH_WEIGHTS, kind_by_name
from precision_eval.trace.provenance import Provenance
from precision_eval.trace.replay import Steps

# Times that a drift must fall by for its cause to be a fault, or a risk: one rounding of two is less.
FALLS, FALLS_A_LITTLE = 2.0, 1.45


def blame_autocast(
    subject: ExaminedModel, reference: Reference, observer: DtypeFlow, device: str
) -> tuple[Finding, Patch] | None:
    """Blame autocast where it narrows what is in float32 on purpose, and switched off there it does no harm."""
    products = {line: record for line, record in observer.narrowed_products if not is_internal(line[0].co_filename)}
    if not products or reference.name != "float64":
        return None
    tried = _try_changes(subject, [without_autocast(*at, device) for at in products])
    if tried is None:
        return None
    repair, now, then = tried
    drifts, turns = now[0] > FALLS * then[0], now[1] > max(HARDLY_A_DIGIT, FALLS * then[1])
    if not (drifts or turns):
        return None
    record = next(iter(products.values()))
    what = "the output's relative error to float64" if drifts else "the error of an angle in rad"
    before, after = (now[0], then[0]) if drifts else (now[1], then[1])
    reason = (
        f"autocast runs this in {short(record.dtype)}, though what it is given is in float32 on purpose: {what} is "
        f"{before:.2g}, and {after:.2g} with autocast switched off here"
    )
    finding = finding_at(record, "fault", reason)
    return finding, repair.as_patch(finding.place, "")


def blame_other_device(
    subject: ExaminedModel, reference: Reference, observer: DtypeFlow, device: str
) -> tuple[Finding, Patch] | None:
    """Blame an autocast of another device than the model's, such as one that is to switch it off, where that harms."""
    lines = [line for line, other in dict.fromkeys(observer.autocasts) if other != device]
    if not lines or not observer.autocast or reference.name != "float64":
        return None
    tried = _try_changes(subject, [with_device(*line, device) for line in lines])
    if tried is None or not tried[1][0] > FALLS * tried[2][0]:
        return None
    repair, now, then = tried
    place = source_line(*lines[0])
    reason = (
        f"this autocast is of another device, so on {device} it does nothing, and the one around it goes on inside: "
        f"the output's relative error to float64 is {now[0]:.2g}, and {then[0]:.2g} with this one of {device}, or of "
        "the device of a tensor, as x.device.type"
    )
    finding = Finding(
        kind="drift", severity="fault", op="autocast", module="", module_class=type(subject.unwrapped).__name__,
        place=place, operands=(), result=short(observer.base), reason=reason,
    )  # fmt: skip
    return finding, repair.as_patch(place, "")


def _try_changes(
    subject: ExaminedModel, changes: list[tuple[Insertion, ...]]
) -> tuple[Repair, tuple[float, float], tuple[float, float]] | None:
    """Run with changes of the source, and return the errors of the model as it is and with them."""
    repair = Repair()
    with suppress(SyntaxError):
        for change in changes:
            repair.source.insert(change)
    if not (repair.source and repair.source.reaches):
        return None
    exact = run_rounded(subject, {})
    now = _errors(_run(subject), exact)
    with repair.source.active():
        run = _run(subject)
    then = _errors(run, exact)
    repair.outputs, repair.relative_error = run.outputs, then[0]
    return repair, now, then


def _run(subject: ExaminedModel) -> Steps:
    model = copy_model(subject)
    return run_steps(model, model.tensors, {})


def _errors(run: Steps, exact: Steps) -> tuple[float, float]:
    """How far the outputs of a run are off, and the angles of which it took a sine."""
    drift = output_error(run.outputs, exact.outputs) if run.error is None else None
    return float("inf") if drift is None else drift, most_off(run.angles, exact.angles)


def find_late_cast(
    subject: ExaminedModel, seen: CallOutcome, reference: Reference, observer: DtypeFlow
) -> tuple[Finding, Patch] | None:
    """Name what is rounded to half ahead of a cast to float32, or summed in it, where float32 drifts less."""
    if reference.name != "float64" or seen.outputs is None:
        return None
    now, best = _distance(seen.outputs, reference), None
    sinks = {(record.code, record.instruction): record for record in (*observer.widened, *observer.sums)}
    for sink in sinks.values():
        chain = _chain(sink)
        repair = _widened([at for at in chain if not set(chain) & set(at.parents)], subject, reference)
        then = now if repair is None else _distance(repair.outputs or (), reference)
        if repair is not None and now > FALLS_A_LITTLE * then and (best is None or then < best[0]):
            best = then, sink, chain, repair
    if best is None:
        return None
    then, sink, chain, repair = best
    first, names = chain[-1], list(dict.fromkeys(at.name for at in reversed(chain)))
    assert sink.code is not None
    line = source_line(sink.code, sink.instruction)
    late = f"ahead of the cast to float32 at {line}" if sink.kind == "cast" else f"up to {line}"
    reason = (
        f"{join(names)} {plural(len(names), 'runs', 'run')} in {short(first.dtype)} {late}, and what is rounded there "
        f"does not come back: the output is off by {now:.2g}, and by {then:.2g} with the cast ahead of {names[0]}"
    )
    is_fault = now > FALLS * then and now > torch.finfo(first.dtype).eps  # within a step, the format explains it
    finding = finding_at(first, "fault" if is_fault else "risk", reason)
    return finding, repair.as_patch(finding.place, "")


def _distance(outputs: tuple[torch.Tensor, ...], reference: Reference) -> float:
    """The drift; of integers, which may be counts, the mean distance."""
    exact = reference.outputs or ()
    whole = [(a - b).abs().double().mean() for a, b in zip(outputs, exact, strict=False) if not b.is_floating_point()]
    if whole and len(whole) == len(exact):
        return float(max(whole))
    error = output_error(outputs, exact)
    return float("inf") if error is None else error


def _chain(sink: Provenance) -> list[Provenance]:
    """The operations in half of what a sink is made of, in its own function, back to the last products with weights."""
    pending, chain = [sink] if sink.kind == "op" else [*sink.parents], dict[Provenance, None]()
    while pending:
        at = pending.pop(0)
        if at not in chain and _is_between(at, sink):
            chain[at] = None
            pending += at.parents
    return list(chain)


def _is_between(record: Provenance, sink: Provenance) -> bool:
    narrow = record.kind == "op" and record.dtype in HALVES and record.code is sink.code
    return narrow and kind_by_name(record.name) not in WITH_WEIGHTS


def _widened(starts: list[Provenance], subject: ExaminedModel, reference: Reference) -> Repair | None:
    """Run with the operands of some operations cast to float32; None where that raises, or leaves a fault."""
    repair = Repair()
    with suppress(SyntaxError):
        for start in {(at.code, at.instruction): at for at in starts}.values():
            change = widen(inside_event("drift", start, 0), start.dtype)
            repair.source.insert(change if isinstance(change, tuple) else ())
        if not (repair.source and repair.source.reaches):
            return None
        with repair.source.active():
            fresh = copy_model(subject)
            observer, seen = observe_call(
                fresh, lambda: fresh(*fresh.tensors), fresh.tensors, base=base_dtype(subject), values=False
            )
        if seen.error is None and not left_faults(observer, seen.outputs or ()):
            repair.outputs = seen.outputs
            repair.relative_error = output_error(seen.outputs, reference.outputs)
            return repair
    return None
