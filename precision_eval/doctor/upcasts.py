"""What the code brings to float32 in vain, since autocast narrows it again; imports torch.

Conventions: a cause is named where a run with its change drifts less.
"""

from __future__ import annotations

from contextlib import suppress

from precision_eval.core.formats import short
from precision_eval.doctor.accuracy import HARDLY_A_DIGIT, finding_at, most_off
from precision_eval.doctor.diagnosis import Finding, Patch
from precision_eval.doctor.error_budget import run_rounded, run_steps
from precision_eval.doctor.repairs import Repair
from precision_eval.doctor.source import Insertion, source_line, with_device, without_autocast
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import copy_model, output_error
from precision_eval.trace.dtype_flow import DtypeFlow, is_internal
from precision_eval.trace.replay import Steps

# Times that a drift must fall by for its cause to be a fault: one rounding of two is less.
FALLS = 2.0


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
