"""Drift that a model's format does not explain, and the operation where it enters; imports torch.

Conventions: drift is the relative error of the output against float64. What a format explains is its rounding, times
what the same model in float32, nothing narrowed on the way, amplifies float32's rounding by; where outputs are returned
in a narrower format, also what that costs by itself. The operation is found by a float64 copy whose first results are
rounded as the model rounds them: by halving, the first whose rounding takes the drift beyond what is explained. Where
none does, an operation loses it inside: it is the first whose result is off though what it was given was not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from precision_eval.core.formats import short, ulp
from precision_eval.core.formatting import join, percent
from precision_eval.doctor.diagnosis import Finding, Severity
from precision_eval.doctor.error_budget import (
    Place,
    Share,
    drift_between,
    first_rounding,
    kept_results,
    largest_shares,
    moved_choices,
    places_that_round,
    run_rounded,
    run_steps,
    steps_of,
    wide_of,
)
from precision_eval.doctor.findings import declared_formats
from precision_eval.doctor.source import source_line
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import Reference, in_wide, run_as
from precision_eval.measure.model_calls import (
    MOST_ZEROS,
    CallOutcome,
    copy_model,
    output_error,
    relative_error,
    zeros_of,
)
from precision_eval.trace.dtype_flow import HALVES, DtypeFlow, Event
from precision_eval.trace.operations import EIGHT_BITS, WITH_WEIGHTS, OperationKind
from precision_eval.trace.provenance import Provenance, ancestors, named_tensors
from precision_eval.trace.replay import Steps, TracedStep, rounding

# Times its amplified rounding up to which a format explains a drift; clean models without near ties stay below 4.
BEYOND_FORMAT = 8.0

# Times its format's rounding that one line, or several together, must add to a drift to be named.
LEAST_SHARE, LEAST_OF_SEVERAL = 3.0, 5.0

# Times what all other lines add together; where a format does not explain the drift, the second. Of clean models in
# half the largest is 2.6, near ties left out, and 1.7 with a drift beyond what is explained.
OUTWEIGHS, OUTWEIGHS_IN_EXCESS = 4.0, 2.0

# Relative change of a stored tensor up to which a call is an update of it, and the share of an update that may be lost.
SMALL_UPDATE, MOST_LOST = 0.1, 0.1
# The share of an update that, once lost, makes a fault of it.
HALF_LOST = 0.5

# The share of the tokens that the rounding of one line has to change to be a fault.
MOVES_TOKENS = 0.25

# A drift beyond which no format explains it: less than one digit of the output is right.
HARDLY_A_DIGIT = 0.1
# Of a format's rounding: a drift of so many is what arithmetic made of it, and no more what the format alone explains.
MANY_STEPS = 100.0

# Operations that may cancel, how many are tried, and the roundings that what goes in may be off by.
DIFFERENCES = frozenset(
    ("sub", "sub_", "rsub", "__sub__", "__rsub__", "__isub__", "add", "add_", "__add__", "__iadd__")
)
MOST_DIFFERENCES, MOST_ROUNDINGS = 4, 256

LOSSES = frozenset(
    f"{name}_loss" for name in ("nll", "mse", "l1", "smooth_l1", "huber", "ctc", "poisson_nll", "gaussian_nll")
) | {"cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"}

# Operations whose result hangs on an index or a condition: a near tie decided otherwise changes all of it.
LOOKUPS = frozenset(("embedding", "__getitem__", "index_select", "gather", "take_along_dim", "where"))


@dataclass(frozen=True)
class Excess:
    """A drift and what is allowed; of a call that changes stored tensors a little, which, and the share it loses."""

    drift: float
    allowed: float
    base: torch.dtype
    updated: tuple[tuple[str, str], ...] = ()  # kind and name
    lost: float = 0.0

    def __str__(self) -> str:
        name = short(self.base)
        if self.updated:
            names = join([stored for _, stored in self.updated[:3]])
            return f"{percent(self.lost)} of the update of {names} is lost: {name} cannot hold steps so small beside it"
        return f"the output's relative error to float64 is {self.drift:.2g}; {name} explains up to {self.allowed:.2g}"


def excess_drift(
    subject: ExaminedModel, outcome: CallOutcome, reference: Reference, base: torch.dtype
) -> Excess | None:
    """Say by how much a model drifts beyond what its format explains; None where it does not, or nothing is known."""
    drift = output_error(outcome.outputs, reference.outputs)
    if drift is None or reference.name == "float32" or base is torch.float64 or outcome.are_tokens:
        return None
    if (lost := _lost_update(subject, outcome, reference, base)) is not None:
        return lost
    base = max([base, *(dtype for _, dtype in declared_formats(subject.unwrapped))], key=rounding)  # it is asked for
    explained = min(BEYOND_FORMAT * _format_cost(outcome, reference, base), HARDLY_A_DIGIT)
    if drift <= explained:
        return None
    single = run_as(subject, in_wide, torch.float32)
    amplified = max(1.0, (output_error(single.outputs, reference.outputs) or 0.0) / rounding(torch.float32))
    allowed = min(max(BEYOND_FORMAT * rounding(base) * amplified, explained), HARDLY_A_DIGIT)
    return Excess(drift, allowed, base) if drift > allowed else None


def updates_of(subject: ExaminedModel, reference: Reference) -> list[tuple[int, tuple[str, str], float]]:
    """List the outputs that are a stored tensor changed a little: index, kind and name, relative size of the change.

    Inputs are none: a residual block returns its input changed a little, and may lose of that what it likes.
    """
    stored = [
        entry for entry in named_tensors(subject, (), prefix=subject.prefix) if not entry[1].startswith("tensors[")
    ]
    sizes = [
        (index, (kind, name), relative_error(tensor, exact))
        for index, exact in enumerate(reference.outputs or ())
        for kind, name, tensor in stored
        if tensor.shape == exact.shape and tensor.dim() and exact.is_floating_point()
    ]
    return [update for update in sizes if 0 < update[2] < SMALL_UPDATE]


def _lost_update(
    subject: ExaminedModel, outcome: CallOutcome, reference: Reference, base: torch.dtype
) -> Excess | None:
    """Hold outputs that are updates to what they change; None where little of each is lost."""
    lost = {}
    for index, stored, size in updates_of(subject, reference):
        error = relative_error((outcome.outputs or ())[index], (reference.outputs or ())[index])
        if error > MOST_LOST * size:
            lost[stored] = (error / size, error, size)
    if not lost:
        return None
    share, drift, size = max(lost.values())
    return Excess(drift, MOST_LOST * size, base, tuple(lost), share)


def most_drift_of(subject: ExaminedModel, reference: Reference, excess: Excess | None) -> float:
    """Return the drift beyond which a fix cures nothing."""
    updates = [size for _, _, size in updates_of(subject, reference)] if reference.name != "float32" else []
    if updates:
        return MOST_LOST * min(updates)
    return HARDLY_A_DIGIT if excess is None else max(excess.allowed, excess.drift / 2)


def _format_cost(outcome: CallOutcome, reference: Reference, base: torch.dtype) -> float:
    """The rounding of a model's format, or what the narrower one costs in which it returns an output."""
    pairs = zip(outcome.outputs or (), reference.outputs or (), strict=False)  # without a reference there are none
    returned = (relative_error(t.to(o.dtype), t) for o, t in pairs if rounding(o.dtype) > rounding(base))
    return max([rounding(base), *returned])


def of_numbers(
    subject: ExaminedModel,
    outcome: CallOutcome,
    reference: Reference,
    base: torch.dtype,
    observer: DtypeFlow,
) -> tuple[Excess | None, tuple[Finding, Event | None] | None]:
    """Say what the numbers show where dtypes show nothing, with the operation to change where it is known."""
    if (zeros := _find_zeros(subject, outcome, reference, observer)) is not None:
        return None, zeros
    excess = excess_drift(subject, outcome, reference, base)
    if excess is not None and not excess.updated:
        asked = max(
            (step.dtype for step in steps_of(subject) if _is_asked_for(step, observer)), key=rounding, default=base
        )
        excess = excess_drift(subject, outcome, reference, asked) if rounding(asked) > rounding(base) else excess
    if reference.name == "float64":
        drift = output_error(outcome.outputs, reference.outputs)
        cost = _format_cost(outcome, reference, base)
        share = _find_outweighing(subject, drift, base, cost, is_excess=excess is not None)
        if drift is not None and share is not None:
            return excess or Excess(drift, drift / 2, base), (
                _finding_of_share(subject, share, drift, observer),
                share.step.event,
            )
    if excess is not None:
        return excess, finding_of_drift(subject, excess)
    if reference.name != "float64":
        return None, None
    return None, find_rounded_angle(subject, observer.angles, base) or find_narrow_loss(subject)


def find_narrow_loss(subject: ExaminedModel) -> tuple[Finding, Event | None] | None:
    """Name the first loss that is computed in half, and its steps."""
    if not any(step.name in LOSSES and step.dtype in HALVES for step in steps_of(subject)):
        return None
    model = copy_model(subject)
    for step, result in run_steps(model, model.tensors, {}, keeps=True).results:
        largest = result.abs().max().double() if result.numel() else torch.tensor(torch.inf)
        if step.name in LOSSES and step.dtype in HALVES and largest.isfinite():
            apart = float(ulp(largest, short(step.dtype)))
            reason = (
                f"the loss is computed in {short(step.dtype)}, whose numbers are {apart:.2g} apart at "
                f"{float(largest):.3g}, and what it is given is rounded so too; give it float32, as autocast does"
            )
            return finding_at(step, "risk", reason), step.event
    return None


def _find_outweighing(
    subject: ExaminedModel, drift: float | None, base: torch.dtype, cost: float, *, is_excess: bool
) -> Share | None:
    """What rounds to a narrow format and adds far more to a drift than all else; None where nothing does."""
    if drift is None or not LEAST_SHARE * cost < drift < float("inf"):
        return None
    times = OUTWEIGHS_IN_EXCESS if is_excess else OUTWEIGHS
    best: Share | None = None
    for share in largest_shares(subject):
        of_format = max(cost, rounding(share.work)) * (LEAST_SHARE if share.lines == 1 else LEAST_OF_SEVERAL)
        if share.step.of_module and share.step.dtype is base:
            break  # a layer of torch's gives back the model's format: that is what the format costs
        outweighs = of_format < share.own < LEAST_SHARE * drift and share.own > times * share.others
        if outweighs and (best is None or share.own * best.others > best.own * share.others):
            best = share
        if best is share and share.lines == 1:
            break  # by itself; of several, those that leave least
    if best is None or best.is_of_whole_numbers:  # what is looked up by other numbers is no near tie
        return best
    return None if _is_tie(subject) else best


def _is_tie(subject: ExaminedModel) -> bool:
    at = _find_entry(subject, HARDLY_A_DIGIT)
    return at is not None and at[0].name in LOOKUPS


def _finding_of_share(subject: ExaminedModel, share: Share, drift: float, observer: DtypeFlow) -> Finding:
    step = share.step
    reason = (
        f"the output's relative error to float64 is {drift:.2g}; rounding to {short(step.dtype)} here brings "
        f"{share.own:.2g} of it, and what all other lines round {share.others:.2g}"
    )
    if step.dtype in EIGHT_BITS and (scaled := _scaled_error(subject, step)) < share.own / OUTWEIGHS:
        reason += f"; with a scale that fits, its largest value over the tensor's, it would be {scaled:.2g}"
    if is_storage(step, observer):
        return finding_at(step, "risk", f"{reason}: that is what the format of the tensor that it is written to costs")
    is_meant = _is_asked_for(step, observer)
    is_meant |= step.dtype in [dtype for _, dtype in declared_formats(subject.unwrapped)]
    return finding_at(step, "risk" if is_meant else "fault", reason)


def _is_asked_for(step: TracedStep, observer: DtypeFlow) -> bool:
    """Whether the code asks for a step's format: 8 bits, in which nothing is unless it says so, or an autocast's."""
    return step.dtype in EIGHT_BITS or any(
        (name, result) == (step.name, short(step.dtype)) and step.sort in WITH_WEIGHTS and {*operands} != {result}
        for name, operands, result in observer.autocast
    )


def _find_zeros(
    subject: ExaminedModel, outcome: CallOutcome, reference: Reference, observer: DtypeFlow
) -> tuple[Finding, Event | None] | None:
    """Say how many gradients among the outputs are zero that are none in float64, and what made them so."""
    share, largest = zeros_of(outcome.outputs, reference.outputs)
    records = [observer.tensors[output] for output in outcome.outputs or ()]
    made = [at for record in records for at in (record, *ancestors(record))]
    if share < MOST_ZEROS or not any(at.kind == "outside" or at.name == "grad" for at in made):
        return None
    if not all(at.finite for at in made):  # divided by infinity, such as a norm that overflows
        return None
    said = f"{percent(share)} of the gradients are 0, and up to {largest:.2g} in float64"
    step, _ = first_rounding(subject, lambda rounded, exact: zeros_of(rounded.outputs, exact.outputs)[0], MOST_ZEROS)
    if step is not None and largest > torch.finfo(step.dtype).smallest_normal:
        name, below = short(step.dtype), 1 - torch.finfo(step.dtype).eps / 2
        reason = (
            f"{said}: rounding to {name} here makes them so, and no underflow: {name} has no number between "
            f"{below:.4g} and 1, for one, so that smaller differences become 0; keep in float32 what is subtracted"
        )
        return finding_at(step, "fault", reason), step.event
    is_half = observer.numbers is not None and torch.float16 in observer.numbers.counts
    why = ": they underflow; scale the loss (torch.amp.GradScaler), or use bfloat16" if is_half else ", rounded away"
    return Finding(
        kind="drift", severity="fault", op="backward", module="", module_class="the model", place=None, operands=(),
        result=short(observer.base), reason=said + why,
    ), None  # fmt: skip


def _scaled_error(subject: ExaminedModel, at: TracedStep) -> float:
    """The drift that the rounding at a line brings if what is rounded is scaled to its format's range."""
    line = [step for step in steps_of(subject) if step.line == at.line and step.dtype is at.dtype]
    rounded = run_rounded(subject, dict(enumerate(line)), scaled=True)
    return drift_between(rounded, run_rounded(subject, {}))


def is_storage(step: TracedStep | Event, observer: DtypeFlow) -> bool:
    """Say whether a step is a cast by hand to the format of a cache, of what is then written to it."""
    line = (step.code, step.instruction) if isinstance(step, TracedStep) else step.line
    return step.sort is OperationKind.CAST and line in observer.written


def lost_before(subject: ExaminedModel, broken: Finding) -> Finding | None:
    """Name the rounding that makes a result further on infinite or no number; None where it is that result's own."""
    step, _ = first_rounding(subject, drift_between, HARDLY_A_DIGIT)
    if step is None:
        return None
    lines = [(at.code, at.instruction) for at in steps_of(subject)]
    before = lines[: lines.index((step.code, step.instruction)) + 1]
    if broken.place in [source_line(*line) for line in before]:
        return None  # it is not finite by then
    name = short(step.dtype)
    return finding_at(
        step, "fault", f"rounding to {name} here makes {broken.op} at {broken.place} give what is not finite"
    )


def find_moved_choice(
    subject: ExaminedModel, outcome: CallOutcome, reference: Reference, base: torch.dtype
) -> tuple[Finding, Event | None] | None:
    """Name the line whose rounding alone makes tokens others than float64's; None where many lines do, as near ties
    have it, or where a layer gives back the model's format.
    """
    share = output_error(outcome.outputs, reference.outputs) if reference.name == "float64" else None
    if not share or not outcome.are_tokens:
        return None
    found = _find_outweighing(subject, share, base, rounding(base), is_excess=False)
    if found is None or found.step.sort in (OperationKind.PRODUCT, OperationKind.ATTENTION, OperationKind.RNN):
        return None
    reason = (
        f"{percent(share)} of the tokens are not those of float64: rounding to {short(found.step.dtype)} here changes "
        f"{percent(found.own)} by itself, what all other lines round {percent(found.others)}; cast the scores to "
        "float32 before this line, and choose between them so"
    )
    return finding_at(found.step, "fault" if found.own >= MOVES_TOKENS else "risk", reason), found.step.event


def find_raising_rounding(
    subject: ExaminedModel, error: Exception, raised: Event
) -> tuple[Finding, Event | None] | None:
    """Name the rounding that makes a call raise; None where float64 raises too, or no rounding of a result does it."""

    def raises(rounded: Steps, exact: Steps) -> float:
        return float(type(rounded.error) is type(error) and exact.error is None)

    step, _ = first_rounding(subject, raises, 0.5)
    if step is None:
        return None
    says = f"{type(error).__name__} at {source_line(*(raised.caller or raised.line))}"
    return finding_at(
        step, "fault", f"rounding to {short(step.dtype)} here brings the {says}, which float64 does not raise"
    ), step.event


def finding_of_drift(subject: ExaminedModel, excess: Excess) -> tuple[Finding, Event | None]:
    at = _find_entry(subject, excess.allowed)
    is_tie = at is not None and at[0].name in LOOKUPS and not excess.updated
    if not is_tie and rounding(excess.base) <= rounding(torch.float32):
        cancelled = _find_cancelled(subject, excess)
        if cancelled is not None:
            return cancelled, None
    rounded = None if is_tie else first_rounding(subject, drift_between, excess.allowed)[0]
    if rounded is not None:
        reason = f"{excess}; rounding to {short(rounded.dtype)} here takes it beyond that"
        return finding_at(rounded, "fault", reason), rounded.event
    if at is None:
        finding = Finding(
            kind="drift", severity="fault", op="", module="", module_class=type(subject.unwrapped).__name__, place=None,
            operands=(), result=short(excess.base), reason=str(excess),
        )  # fmt: skip
        return finding, None
    step, error = at
    why = "what goes in was right"
    if is_tie:
        why = "an index chosen before it changed, as near ties do in any format,"
    reason = f"{excess}; it enters here, where {why} and the result is off by {error:.2g}"
    if step.sort is OperationKind.PRODUCT and error > HARDLY_A_DIGIT and not is_tie:
        reason += ": rounding alone loses less in one product, so compare it with another kernel of this device"
    return finding_at(step, "risk" if is_tie else "fault", reason), None if is_tie else step.event


def _find_cancelled(subject: ExaminedModel, excess: Excess) -> Finding | None:
    """Name a difference whose digits are gone though its tensor as a whole is right: with float64's in its place, the
    output is right.
    """
    results, exact = kept_results(subject)
    truths, candidates = run_rounded(subject, {}).outputs, []
    for step, result in results:
        truth = exact.get(step.identity)
        if step.name in DIFFERENCES and not step.is_narrow and truth is not None and truth.shape == result.shape:
            off = float(((result - truth).abs() > HARDLY_A_DIGIT * truth.abs()).double().mean())
            candidates += [(off, step, truth)] if off else []
    most = sorted((off for off, _, _ in candidates), reverse=True)[:MOST_DIFFERENCES]
    for _, step, truth in [candidate for candidate in candidates if candidate[0] in most][:MOST_DIFFERENCES]:
        model = copy_model(subject)
        run = run_steps(model, model.tensors, {}, instead={step.identity: truth})
        drift = output_error(run.outputs, truths)
        error, left = run.lost
        if drift is None or drift > excess.allowed or error > MOST_ROUNDINGS * rounding(step.dtype):
            continue
        reason = (
            f"{excess}; nearly equal numbers are subtracted here: what is left is {left:.2g} of them or less, and "
            f"{short(step.dtype)} has rounded that much away before; with float64's difference in its place the output "
            f"is off by {drift:.2g}. Write it without the subtraction, as a variance by the mean of (x - mean)²"
        )
        return finding_at(step, "fault", reason)
    return None


def find_rounded_angle(
    subject: ExaminedModel, angles: list[Provenance], base: torch.dtype
) -> tuple[Finding, Event | None] | None:
    """Name where an angle is rounded so that its sine is hardly right, though the output drifts within its format."""
    halves = (torch.float16, torch.bfloat16)
    if base not in halves or not any(p.dtype in halves for angle in angles for p in (angle, *ancestors(angle))):
        return None
    step, off = first_rounding(subject, lambda rounded, exact: most_off(rounded.angles, exact.angles), HARDLY_A_DIGIT)
    if step is None:
        return None
    reason = f"rounded to so few digits, an angle whose sine is taken is off by {off:.2g} rad"
    return finding_at(step, "risk", reason), step.event


def most_off(angles: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    return max((float((a - b).abs().max()) for a, b in zip(angles, exact, strict=False) if a.numel()), default=0.0)


def finding_at(at: TracedStep | Provenance, severity: Severity, reason: str) -> Finding:
    call = at.call
    place = None if at.code is None else source_line(at.code, at.instruction)
    return Finding(
        kind="drift", severity=severity, op=at.name, module=call.path if call else "",
        module_class=type(call.module).__name__ if call else "", place=place, operands=(), result=short(at.dtype),
        reason=reason,
    )  # fmt: skip


def _find_entry(subject: ExaminedModel, allowed: float) -> tuple[TracedStep, float] | None:
    """The first result that is off beyond what is allowed, against a float64 copy; None where they went unlike ways."""
    results, exact = kept_results(subject)
    pairs = [(step, result, exact.get(step.identity)) for step, result in results]
    if any(truth is not None and truth.shape != result.shape for _, result, truth in pairs):
        return None
    errors = ((step, relative_error(result, truth)) for step, result, truth in pairs if truth is not None)
    return next((pair for pair in errors if pair[1] > allowed), None)


def tell_largest_share(subject: ExaminedModel, drift: float | None) -> str:
    """Say where most of a drift is rounded that its format explains, and what would be left of it without."""
    told = []
    if drift and drift < HARDLY_A_DIGIT:
        _, places = places_that_round(subject)
        share = None if places else next(largest_shares(subject), None)
        if share is not None and not share.is_of_whole_numbers and share.others <= drift / 2.0:
            places = [Place((share.step,), share.others)]
        if places:
            most = "most" if places[0].left < drift * 0.5**0.5 else "the largest part"  # roundings add in squares
            coarsest = max((step.dtype for step in places[0].steps), key=rounding)
            name, where = short(coarsest), _tell_places(places, "{:.2g}".format, wide_of(subject))
            steps = drift / rounding(coarsest)
            much = (
                f"no more than {name} explains" if steps < MANY_STEPS else f"{steps:,.0f} times what {name} rounds by"
            )
            told.append(f"{drift:.2g}, {much}; {most} of it is rounded by {where}")
    moved, places = places_that_round(subject, moved_choices)
    if places:
        where = _tell_places(places[:1], percent, wide_of(subject))
        told.append(f"{percent(moved)} of the choices between near ties differ from float64's, rounded by {where}")
    return "; ".join(told)


def _tell_places(places: list[Place], text: Callable[[float], str], wide: torch.dtype) -> str:
    told = [f"{_tell_place(place)}: in {short(wide)} there, {text(place.left)} would be left" for place in places]
    return "; or ".join(told)


def _tell_place(place: Place) -> str:
    step = place.steps[0]
    lines = sorted({source_line(at.code, at.instruction).line for at in place.steps})
    every = list(dict.fromkeys(at.name for at in place.steps))
    names = join([*every[:3], *([f"{len(every) - 3} more"] if len(every) > 4 else every[3:])])
    where = f"{names}{f' in {step.call.path}' if step.call and step.call.path else ''}"
    at = f"{source_line(step.code, step.instruction).file}:{lines[0]}"
    if lines[1:]:
        at += f"-{lines[-1]} ({step.code.co_qualname})"
    return f"{where} at {at}"
