"""Suggested changes, each run on a copy until no fault is left; imports torch.

Conventions: each way of :mod:`.ways` is followed fault by fault, since a cured line shows the next one; a change is
*verified* when the model then passes, its output is finite, and the observer finds no fault. Nothing is written.
"""

from __future__ import annotations

import math
import re
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

import torch

from precision_eval.core.formats import short
from precision_eval.core.targets import first_line
from precision_eval.doctor.accuracy import (
    HARDLY_A_DIGIT,
    LOOKUPS,
    excess_drift,
    find_moved_choice,
    find_raising_rounding,
    is_storage,
    of_numbers,
)
from precision_eval.doctor.diagnosis import Finding, Patch, Price, SourceLine
from precision_eval.doctor.findings import (
    findings_of,
    is_of_dtypes,
    is_of_optimizer,
    raised_event,
)
from precision_eval.doctor.patched import PatchedSource
from precision_eval.doctor.source import (
    Insertion,
    is_written_there,
    source_line,
    with_cast_on_the_right,
)
from precision_eval.doctor.ways import (
    INSIDE,
    MOST_STEPS,
    OF_NUMBERS,
    UNTIL_IT_RAISES,
    Stored,
    Widen,
    as_stored,
    at_argument,
    at_entry,
    at_error,
    at_meeting,
    at_origin,
    at_source,
    at_wide,
    drops_choice,
    fit_fill,
    fold_of,
    is_wide_on_purpose,
    lacks_kernel,
    narrowest_of,
    path_of,
    policies_of,
    rescale,
    scale_first,
    sources_of,
    stored_without_kernel,
    under_policy,
    widen,
    widen_function,
    with_cast_elsewhere,
    with_wide_fold,
)
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.fixes.storage import dtype_attributes, tensors_in
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import (
    CallOutcome,
    base_dtype,
    copy_model,
    observe_call,
    output_error,
    run_fresh,
)
from precision_eval.trace.dtype_flow import Event
from precision_eval.trace.operations import EIGHT_BITS, OperationKind
from precision_eval.trace.provenance import ancestors, named_tensors
from precision_eval.trace.replay import rounding

MOST_ALIKE = 4  # meetings of a line that are alike
MOST_TURNS = 2  # times that edits may come to the same source
MOST_SOURCES = 3  # expressions that a dtype comes from, of which a change is tried
# The share of a model's elements from which a part in float32 is no exception, such as a norm kept wide.
LEAST_PART = 0.1


@dataclass
class Repair:
    source: PatchedSource = field(default_factory=PatchedSource)
    stored: Stored = field(default_factory=dict)
    left: tuple[str, ...] = ()
    outputs: tuple[torch.Tensor, ...] | None = None
    relative_error: float | None = None
    whole: tuple[str, ...] = ()  # paths of modules of which all is stored so
    setting: str = ""
    source_of: str = ""  # where the dtype was chosen that is another now
    change: Callable[[ExaminedModel], None] | None = None
    undoes: bool = False  # a cast ahead of what is wrong
    first: Event | None = None  # what was cured first
    drops: int = 0  # choices of the author: casts up that were taken out, float32 parameters that were narrowed
    works_in: torch.dtype | None = None  # the format of an autocast
    computed: Counter[torch.dtype] = field(default_factory=Counter)  # values that were computed in each format

    @property
    def verified(self) -> bool:
        return self.outputs is not None and not self.left

    @property
    def title(self) -> str:
        return "suggested change" if self.source else "stored otherwise"

    @property
    def places(self) -> set[tuple[str, int | str]]:
        """What is changed: lines of files, and what is stored."""
        return {*self.source.places, *self.stored}

    def copy(self, subject: ExaminedModel) -> ExaminedModel:
        model = copy_model(subject)
        if self.change is not None:
            self.change(model)
        given = dict(zip(model.names, model.tensors, strict=True))
        for kind, name, tensor in named_tensors(model, given, prefix=model.prefix) if self.stored else ():
            dtype = self.stored.get((kind, name))
            if dtype is not None and kind != "input":
                tensor.data = tensor.data.to(dtype)
        for path, dtype in [(name, dtype) for (kind, name), dtype in self.stored.items() if kind == "dtype"]:
            _set_format(model.unwrapped, path, dtype)
        for path, tensor in _in_objects(model):
            tensor.data = tensor.data.to(self.stored.get(("input", path), tensor.dtype))
        inputs = zip(model.names, model.tensors, strict=True)
        model.tensors = tuple(tensor.to(self.stored.get(("input", name), tensor.dtype)) for name, tensor in inputs)
        return model

    @property
    def changes_tensors(self) -> bool:
        return bool(self.stored) or self.change is not None

    def note(self, way: str, event: Event | None, change: tuple[Insertion, ...] | Stored, base: torch.dtype) -> None:
        """Note what a change that is about to be made means to the author's choices."""
        self.first = self.first or event
        if event is None or not change:
            return
        self.drops += drops_choice(event, change, base, late=way == "late")
        self.works_in = self.works_in or (narrowest_of(event) if event.autocast else None)
        if not isinstance(change, dict):
            self.undoes |= not any(inserted.text for inserted in change)

    def as_patch(self, place: SourceLine | None, origin: str, price: Price | None = None) -> Patch:
        return Patch(
            place=place, diff=self.source.diff(), origin=origin,
            code=self.setting or _code(self.stored, self.whole, self.source_of),
            verified=self.verified, left=self.left, price=price, relative_error=self.relative_error,
        )  # fmt: skip


# For long loops, of which each trial is a run of seconds; a search begins anew for each examination.
SEARCH_S = 60.0
_ENDS_S: ContextVar[float] = ContextVar("_ENDS_S", default=math.inf)

Step = Callable[[Event, torch.dtype], tuple[Insertion, ...] | Stored]
# What is wrong, and the operation to change where it is known.
Faults = list[tuple[Finding, Event | None]]


def repairs_of(
    subject: ExaminedModel,
    reference: Reference,
    *,
    drifts: bool = False,
    leaks: bool = False,
    updated: tuple[tuple[str, str], ...] = (),
) -> list[Repair]:
    """Follow each way to cure a model, and return those that do, the best first.

    Where nothing is wrong but that the model's output `leaks` a format, changes keep the model's. Where it is the
    numbers that say that something is wrong, operations are widened, as where no cast cures a model; what loses its
    updates is stored in float32.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model's own were shown when it first ran
        _ENDS_S.set(time.monotonic() + SEARCH_S)
        if updated:
            return [_with_wide_updates(subject, reference, updated)]
        repairs = [] if drifts else _repairs_of_dtypes(subject, reference, leaks=leaks)
        if leaks or any(repair.verified for repair in repairs):
            return repairs
        scaled, is_known = _find_scaled(subject, reference)
        undone = follow("undone", Widen(undoes=True), subject, reference)
        is_last = undone.verified or not undone.undoes
        widened = undone if is_last else follow("widened", Widen(), subject, reference)
        if not widened.verified:  # what overflows where it meets the model's format again
            later = follow(UNTIL_IT_RAISES, widen, subject, reference)
            widened = later if later.verified else widened
        if not widened.verified or (drifts and _drift(widened, reference) > 2 * rounding(base_dtype(subject))):
            whole = _widen_function(subject, reference)
            is_better = widened.verified and not _as_exact(widened, whole, reference)
            widened = whole if whole.verified and (is_better or not widened.verified) else widened
    scales = scaled.verified and (
        _is_explained(scaled, subject, reference) or (widened.verified and _as_exact(scaled, widened, reference))
    )
    verified = [*([scaled] if scales else []), *([widened] if widened.verified else [])]
    if len(verified) == 2 and not is_known and not widened.stored:  # a range for any input, at no cost in memory
        verified.reverse()
    for repair in verified:
        repair.relative_error = output_error(repair.outputs, reference.outputs)
    return verified or repairs


def search_doubts() -> tuple[str, ...]:
    """Say that the last search was ended by its time."""
    if time.monotonic() <= _ENDS_S.get():
        return ()
    return (f"not every change was tried: the search ends after {SEARCH_S:.0f} s; give the model a shorter input",)


def _find_scaled(subject: ExaminedModel, reference: Reference) -> tuple[Repair, bool]:
    """Scale what overflows: by a scale that comes later, or by a factor that what follows or its inverse takes out."""
    scaled = Repair()
    for step in (fit_fill, scale_first, partial(rescale, undone=False), partial(rescale, undone=True)):
        scaled = follow("scaled", step, subject, reference)
        if scaled.verified and _is_explained(scaled, subject, reference):
            return scaled, step in (fit_fill, scale_first)
        if step is scale_first and not any(left.startswith("first_non_finite") for left in scaled.left):
            break
    return scaled, False


def _widen_function(subject: ExaminedModel, reference: Reference) -> Repair:
    """Widen what is computed in half in the function where digits are lost, and cast what comes of it once."""
    repair, base, fresh = Repair(), base_dtype(subject), copy_model(subject)
    faults, *_ = _observe(fresh, base, reference, numbers=True)
    event = _last_meeting(faults) if faults else None
    observer, seen = observe_call(fresh, lambda: fresh(*fresh.tensors), fresh.tensors, base=base, values=False)
    sinks = [*(observer.tensors[output] for output in seen.outputs or ()), *observer.angles]
    made = {at: None for sink in sinks for at in (sink, *ancestors(sink))}
    change = widen_function(event, made) if event is not None and event.kind in INSIDE else ()
    with suppress(SyntaxError):
        repair.source.insert(change)
        if repair.source and repair.source.reaches:
            return follow(UNTIL_IT_RAISES, Widen(), subject, reference, repair)
    return repair


def _repairs_of_dtypes(subject: ExaminedModel, reference: Reference, *, leaks: bool) -> list[Repair]:
    along = partial(follow, subject=subject, reference=reference, leaks=leaks)
    late = along("late", partial(at_meeting, late=True))
    if not (late.source or late.verified) and all(left.startswith("first_non_finite") for left in late.left):
        return []  # no dtypes meet there
    meeting = late if late.verified else along("meeting", at_meeting)
    stored = along("stored", as_stored)
    tried = [meeting, along("origin", at_origin), stored]
    first, base = late.first, base_dtype(subject)
    if first is not None and first.entries and (meeting.source.size > 1 or not meeting.verified):
        tried.append(along("entry", at_entry))
    if first is not None and (meeting.source.size > 1 or any(record.event for _, _, record in first.operands)):
        tried.insert(1, along("argument", at_argument))
    if first is not None and policies_of(first):
        tried.append(along("policy", under_policy))
    if first is not None and (is_wide_on_purpose(first, base) or stored_without_kernel(first)):
        tried.append(along("wide", at_wide))
        if not any(repair.verified and not repair.drops for repair in tried):
            tried.append(along("origin", partial(at_origin, takes_out=False)))
    if first is not None and any(record.kept_by for _, _, record in first.operands):
        tried.insert(0, along("cast elsewhere", with_cast_elsewhere))
    if first is not None and fold_of(first) is not None:
        tried.insert(0, along("fold", with_wide_fold))
    for rank, (_, words) in enumerate(sources_of(first, base)[:MOST_SOURCES] if first is not None else ()):
        if not any(repair.source_of and repair.verified for repair in tried):
            tried.append(along(f"source {rank}", partial(at_source, rank=rank)))
            tried[-1].source_of = words or "as it is named"
    verified = [repair for repair in tried if repair.verified and (repair.source or repair.stored)]
    if not verified and first is not None and (leaks or (lacks_kernel(first) and meeting.outputs is None)):
        return []  # the format is not what it refuses
    if not verified:  # what does not cure is no advice to store something with fewer digits
        unproven = [repair for repair in (meeting, stored) if repair.source or repair.stored][:1]
        return [r for r in unproven if not any(dtype.itemsize < 4 for dtype in r.stored.values())]
    return _rank(verified, subject, reference)


def _rank(verified: list[Repair], subject: ExaminedModel, reference: Reference) -> list[Repair]:
    """Put changes in order, and leave out those that no reader would choose.

    By what the format explains; then what keeps the model's format, what its author chose, a library's lines, and the
    output's format; then drift, of which twice as much is a difference; of equals, lines go before what is stored;
    then bytes, half formats by name, lines. What is changed where the dtype was chosen goes before all that are no
    better than it.
    """
    base = base_dtype(subject)
    known = [drift for drift in (_drift(repair, reference) for repair in verified) if not math.isnan(drift)]
    least = min(known, default=0.0)

    def gives_other(repair: Repair) -> bool:
        narrows = any(rounding(dtype) > rounding(torch.float32) for dtype in repair.stored.values())
        return narrows or any(o.is_floating_point() and o.dtype is not base for o in repair.outputs or ())

    def order(repair: Repair) -> tuple[float, ...]:
        changed = repair.copy(subject)
        grown = sum(max(0, now - before) for now, before in zip(_bytes_of(changed), _bytes_of(subject), strict=True))
        return (
            not _is_explained(repair, subject, reference), base_dtype(changed) is not base, repair.drops,
            repair.source.of_library, gives_other(repair), _drift(repair, reference) > 2 * least, bool(repair.stored),
            grown, repair.source.literals, repair.source.size, not repair.source.only_removes,
        )  # fmt: skip

    unique = {r.source.diff() + _code(r.stored): r for r in sorted(verified, key=lambda r: bool(r.source_of))}
    ranked = sorted(((order(repair), repair) for repair in unique.values()), key=lambda pair: pair[0])
    best = ranked[0]
    ranked.sort(key=lambda p: not (p[1].source_of and p[0][:3] == best[0][:3] and _as_exact(p[1], best[1], reference)))
    is_mixed = _is_of_two_formats(subject)
    (_, first), *others = [pair for at, pair in enumerate(ranked) if not (at and pair[0][1]) or is_mixed]
    shown = [first, *_weighed([repair for _, repair in others], first, reference)]
    for repair in shown:
        repair.relative_error = output_error(repair.outputs, reference.outputs)
        repair.whole = tuple(_whole_modules(subject, repair.stored))
    return shown


def _weighed(others: list[Repair], first: Repair, reference: Reference) -> list[Repair]:
    """Choose what drops least that the author chose, and computes in formats farthest from the first's."""
    far = sorted(others, key=lambda r: (r.drops, r.source.literals, -_distance(r.computed, first.computed)))
    return [repair for repair in far if _is_choice(repair, first, reference)][:1]


def _is_choice(repair: Repair, first: Repair, reference: Reference) -> bool:
    """Whether a maintainer may weigh a change against the first: in other formats, or as good at other places."""
    if repair.computed != first.computed or bool(repair.stored) != bool(first.stored):
        return True
    return not repair.places & first.places and _as_exact(repair, first, reference)


def _distance(computed: Counter[torch.dtype], other: Counter[torch.dtype]) -> int:
    return sum(abs(computed[dtype] - other[dtype]) for dtype in computed | other)


def _whole_modules(subject: ExaminedModel, stored: Stored) -> Iterator[str]:
    """Yield the paths of the outermost modules that a change brings to one format, several tensors of each."""
    kinds = ("parameter", "buffer")
    after = {name: t.dtype for kind, name, t in named_tensors(subject, (), prefix=subject.prefix) if kind in kinds}
    changed = {name: dtype for (kind, name), dtype in stored.items() if kind in kinds}
    after |= changed
    last = "\0"
    for path in sorted(path.removeprefix(subject.prefix) for path, _ in subject.named_modules()):
        inside = [name for name in after if name.startswith(f"{path}.")]
        is_one = len(set(inside) & set(changed)) > 1 and len({after[name] for name in inside}) == 1
        if path and not path.startswith(last) and is_one:
            last = f"{path}."
            yield path


def _bytes_of(model: ExaminedModel) -> list[int]:
    return [tensor.nbytes for kind, _, tensor in named_tensors(model, (), prefix=model.prefix) if kind != "input"]


def _is_of_two_formats(subject: ExaminedModel) -> bool:
    """Whether whole parts of a model are stored in float32 beside others in half."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in subject.parameters():
        sizes[parameter.dtype] += parameter.numel()
    return sizes[torch.float32] >= LEAST_PART * sizes.total()


def _with_wide_updates(subject: ExaminedModel, reference: Reference, updated: tuple[tuple[str, str], ...]) -> Repair:
    repair = Repair(stored=dict.fromkeys(updated, torch.float32))
    if run_fresh(repair.copy(subject)).error is not None:  # what refuses the wider format is cast where it does
        repair = follow(UNTIL_IT_RAISES, at_error, subject, reference, repair)
    with repair.source.active():
        outcome = run_fresh(repair.copy(subject))
    excess = excess_drift(subject, outcome, reference, base_dtype(subject))
    repair.outputs = outcome.outputs
    repair.left = (*_still_wrong(outcome, reference), *([] if excess is None else [str(excess)]))
    return repair


def _is_explained(repair: Repair, subject: ExaminedModel, reference: Reference) -> bool:
    """Whether a change leaves no drift beyond the format: a cast that says aloud what was lost in silence does."""
    outcome, base = CallOutcome(repair.outputs, None), base_dtype(subject)
    base = max(base, repair.works_in or base, key=rounding)
    return excess_drift(subject, outcome, reference, base) is None


def _as_exact(one: Repair, other: Repair, reference: Reference) -> bool:
    """Whether a change drifts no more than another does, or nothing is known of it."""
    return not _drift(one, reference) > 2 * _drift(other, reference)


def _drift(repair: Repair, reference: Reference) -> float:
    """The drift that a change leaves; no number where nothing is known of it."""
    error = output_error(repair.outputs, reference.outputs)
    return float("nan") if error is None else error


def follow(
    way: str, step: Step, subject: ExaminedModel, reference: Reference, begun: Repair | None = None, leaks: bool = False
) -> Repair:
    """Cure one fault after the other until none is left, or until one cannot be cured this way."""
    repair = begun or Repair()
    cured: Counter[object] = Counter()  # several meetings of a line may be alike, as in `q * cos + p * sin`
    base, numbers, first_drift, states = base_dtype(subject), way in OF_NUMBERS, None, Counter[str]()
    for _ in range(MOST_STEPS + 1):
        if time.monotonic() > _ENDS_S.get():
            return repair
        with repair.source.active():
            model = repair.copy(subject)
            faults, outcome, is_tie, repair.computed = _observe(model, base, reference, numbers=numbers, leaks=leaks)
            drift = output_error(outcome.outputs, reference.outputs)
            first_drift = drift if first_drift is None else first_drift
            if not faults:
                is_tie = is_tie and drift is not None and first_drift is not None and drift < first_drift / 2
                repair.outputs, repair.left = outcome.outputs, () if is_tie else _still_wrong(outcome, reference)
                return repair
            event = _last_meeting(faults) if numbers else _to_cure(faults, late=way == "late")
            if way == UNTIL_IT_RAISES:
                event = next((raised for finding, raised in faults if finding.kind == "raise"), event)
            at = None if event is None else _identity(event)
            tries = event is not None and (event.kind in INSIDE or cured[at] < MOST_ALIKE)
            if event is not None and event.kind == "raise" and not event.operands:
                tries = False  # it knows none of what it was given, and nothing of it floats
            change = step(event, base) if event is not None and tries else ()
            if isinstance(outcome.error, AttributeError) and event is not None:  # what was cast is a number
                change = with_cast_on_the_right(*event.line) or change
            if cured[at] and isinstance(change, tuple) and any(map(is_written_there, change)):
                change = ()  # it did not cure
            repair.note(way, event, change, base)
        repair.left = tuple(dict.fromkeys(f"{finding.kind} at {finding.place}" for finding, _ in faults))
        if not change:
            if isinstance(step, Widen) and step.ends_wide:  # what it returns does not fit the model's format
                repair.outputs, repair.left = outcome.outputs, _still_wrong(outcome, reference)
            return repair
        cured[at] += 1
        assert event is not None
        if isinstance(change, dict):
            if is_of_optimizer(event):
                change |= _trained(subject, event.result)
            repair.stored |= _alike(change, subject)
            continue
        try:
            repair.source.insert(change)
        except SyntaxError:
            return repair
        states[re.sub(r"[()\s]", "", repair.source.diff())] += 1
        if not repair.source.reaches or max(states.values()) > MOST_TURNS:  # a cast is put in and taken out again
            return repair
    return repair


def _observe(
    model: ExaminedModel, base: torch.dtype, reference: Reference, *, numbers: bool, leaks: bool = False
) -> tuple[Faults, CallOutcome, bool, Counter[torch.dtype]]:
    """Observe a copy; return its faults and, if asked for, what is wrong by the numbers where none is left, and
    whether that is a near tie; and what it computes in each format.
    """
    fresh = copy_model(model) if numbers else model
    observer, seen = observe_call(fresh, lambda: fresh(*fresh.tensors), fresh.tensors, base=base, values=True)
    raised = None if seen.error is None else raised_event(observer, seen.error)
    broken, _ = seen.broken(reference.outputs, meant=reference.inside)
    findings, events = findings_of(observer, seen.outputs or (), raised, broken=bool(broken))
    faults: Faults = [
        (finding, event)
        for finding, event in zip(findings, events, strict=True)
        if finding.severity == "fault" or ((numbers or leaks) and event.reached_output and event.result is not base)
    ]
    if numbers and seen.error is not None and raised is not None and not is_of_dtypes(seen.error, raised):
        faults = [noted for noted in (find_raising_rounding(model, seen.error, raised),) if noted is not None] or faults
    is_tie = False
    if numbers and not faults and not broken and seen.error is None:
        noted = (
            find_moved_choice(model, seen, reference, base)
            if seen.are_tokens
            else of_numbers(model, seen, reference, base, observer)[1]
        )
        is_meant = noted is None or (noted[1] is not None and is_storage(noted[1], observer))
        is_meant |= noted is not None and noted[1] is not None and noted[1].result in EIGHT_BITS
        is_tie = noted is not None and noted[1] is None and noted[0].severity == "risk" and noted[0].op in LOOKUPS
        is_meant |= is_tie
        faults = [] if noted is None or is_meant else [noted]
        for _, event in faults:
            writes = [e for e in observer.events if event is not None and (e.line, e.kind) == (event.line, "downcast")]
            if event is not None and writes:  # where it is written to is known of the write
                event.operands, event.stored = writes[0].operands, writes[0].stored
            elif event is not None and event.line in observer.targets:
                event.stored = observer.targets[event.line]
    assert observer.numbers is not None
    return faults, seen, is_tie, observer.numbers.computed


def _still_wrong(outcome: CallOutcome, reference: Reference) -> tuple[str, ...]:
    if outcome.error is not None:
        return (f"{type(outcome.error).__name__}: {first_line(outcome.error, empty='')}",)
    broken, total = outcome.broken(reference.outputs, meant=reference.inside)
    if broken:
        return (f"{broken} of {total} {'values' if outcome.are_tokens else 'output values'} are not finite",)
    if outcome.are_tokens:
        return ()
    drift = output_error(outcome.outputs, reference.outputs)
    return (f"a drift of {drift:.2g}",) if drift is not None and drift > HARDLY_A_DIGIT else ()


def _to_cure(faults: Faults, *, late: bool) -> Event | None:
    """The first fault; where that is a write into what is stored and something raised, what raised; and late also where
    it is a mixing on purpose, so that what the code widened stays wide until then.
    """
    first = faults[0][1]
    if first is None:
        return None
    raised = next((event for finding, event in faults if finding.kind == "raise"), None)
    writes = first.sort is OperationKind.WRITE and first.kind == "downcast"
    widened = late and first.kind == "promotion" and first.deliberate
    return raised if (writes or widened) and raised is not None else first


def _last_meeting(faults: Faults) -> Event | None:
    """The last promotion, since what was widened stays wide until then; else the first fault."""
    promotions = [event for finding, event in faults if finding.kind == "promotion" and event is not None]
    return promotions[-1] if promotions else faults[0][1]


def _identity(event: Event) -> object:
    place = source_line(*(event.caller or event.line))
    records = [record for _, _, record in event.operands]
    dtypes = tuple(record.dtype for record in records)
    stored = tuple(any_layer(record.name) for record in records if record.is_stored)  # one line may call two layers
    path = event.call.path if event.call else ""
    written = event.stored and any_layer(event.stored.name)
    return event.kind, place.file, place.line, event.name, dtypes, stored, re.sub(r"\d+", "*", path), written


def _alike(change: Stored, subject: ExaminedModel) -> Stored:
    """Widen a change to tensors of the same name in other layers, where they are in the same dtype."""
    given = dict(zip(subject.names, subject.tensors, strict=True))
    dtypes = {(kind, name): t.dtype for kind, name, t in named_tensors(subject, given, prefix=subject.prefix)}
    dtypes |= {("input", path): tensor.dtype for path, tensor in _in_objects(subject)}
    dtypes |= {("dtype", path): dtype for path, dtype in dtype_attributes(subject.unwrapped)}
    patterns = {(kind, any_layer(name)): (dtypes.get((kind, name)), to) for (kind, name), to in change.items()}
    return change | {
        key: patterns[key[0], any_layer(key[1])][1]
        for key, dtype in dtypes.items()
        if patterns.get((key[0], any_layer(key[1])), (None, None))[0] is dtype
    }


def _trained(subject: ExaminedModel, dtype: torch.dtype) -> Stored:
    """Keep every trained parameter of a dtype in float32: an optimizer steps them all."""
    named = dict(subject.named_parameters())
    stored = [name for kind, name, _ in named_tensors(subject, (), prefix=subject.prefix) if kind == "parameter"]
    trained = {
        name.removeprefix(subject.prefix): p for name, p in named.items() if p.requires_grad and p.dtype is dtype
    }
    return {("parameter", name): torch.float32 for name in stored if name in trained}


def _in_objects(subject: ExaminedModel) -> list[tuple[str, torch.Tensor]]:
    """List the floating tensors inside objects among the inputs, such as caches."""
    return [pair for name, value in subject.objects() for pair in tensors_in(name, value)]


def _set_format(model: torch.nn.Module, path: str, dtype: torch.dtype) -> None:
    holder, _, name = path.rpartition(".")
    for part in holder.split(".") if holder else ():
        model = getattr(model, part)
    setattr(model, name, short(dtype) if isinstance(getattr(model, name), str) else dtype)


def any_layer(name: str) -> str:
    """Write a tensor's name for every layer: ``layers.0.keys`` → ``layers.*.keys``."""
    return re.sub(r"\[\d+\]", "[*]", re.sub(r"\.\d+\.", ".*.", name))


# Writing it down ------------------------------------------------------------------------------------------------------


def _code(stored: Stored, whole: tuple[str, ...] = (), source_of: str = "") -> str:
    """Write stored tensors' changes as lines of Python, one for each name, its layers together, or for each module."""
    blocks: dict[str, list[str]] = {}  # a line, and those below it
    if source_of and stored:
        blocks |= {f"# {line}": [] for line in textwrap.wrap(source_of, 100, break_on_hyphens=False)}
    groups: dict[tuple[str, str, torch.dtype], list[str]] = {}
    for (kind, name), dtype in stored.items():
        if module := next(
            (path for path in whole if kind in ("parameter", "buffer") and name.startswith(f"{path}.")), ""
        ):
            blocks[f"{path_of(module)}.to(torch.{short(dtype)})"] = []
            continue
        groups.setdefault((kind, any_layer(name), dtype), []).append(name)
    for (kind, pattern, dtype), names in groups.items():
        target = f"torch.{short(dtype)}"
        listed, inside, own = pattern.partition("[*].")
        if inside and sorted(names) == sorted(f"{listed}[{index}].{own}" for index in range(len(names))):
            parts = listed if kind == "input" else path_of(listed)
            blocks.setdefault(f"for part in {parts}[:{len(names)}]:", []).append(
                f"    part.{own} = part.{own}.to({target})"
            )
        elif kind == "dtype":
            blocks |= {f"{path_of(name)} = {target}": [] for name in names}
        elif kind == "input":
            blocks |= {f"{name} = {name}.to({target})": [] for name in names}
        elif len(names) == 1 or kind == "attribute":
            blocks |= {f"{path}.data = {path}.data.to({target})": [] for path in map(path_of, names)}
        else:
            regex = r"\.".join(r"\d+" if part == "*" else part for part in pattern.split("."))
            below = [f'    if re.fullmatch(r"{regex}", name):', f"        tensor.data = tensor.data.to({target})"]
            named = "named_parameters" if kind == "parameter" else "named_buffers"
            blocks = {"import re": []} | blocks
            blocks.setdefault(f"for name, tensor in model.{named}():", []).extend(below)
    return "\n".join(line for first, below in blocks.items() for line in (first, *below))
