"""Suggested changes, each run on a copy until no fault is left; imports torch.

Conventions: there are four ways to cure a fault. *At the meeting*: the operand that strays is cast where the dtypes
meet. *At the origin*: what brought the stray dtype is cast where it is made. *Stored*: the parameter, buffer or input
is kept in the other dtype. *Widened*: the operation whose result loses digits or range works in float32, and what then
meets another dtype is cast at that meeting. Each way is followed fault by fault, since a cured line shows the next
one; a change is *verified* when the model then passes, its output is finite, and the observer finds no fault. Nothing
is written.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Callable
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
    owner_of,
    raised_event,
    written_operands,
)
from precision_eval.doctor.narrow_results import LOSSES
from precision_eval.doctor.patched import PatchedSource
from precision_eval.doctor.source import (
    Insertion,
    callee,
    dtype_of,
    expressions,
    imports_torch,
    is_written_there,
    source_line,
    variables,
    with_cast_for_numpy,
    with_cast_to,
    with_casts,
    with_dtype,
    with_keyword_cast,
    with_number_that_fits,
    with_result_cast,
    with_scale_first,
    without_call,
)
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.fixes.storage import tensors_in
from precision_eval.measure.float64_reference import Reference
from precision_eval.measure.model_calls import (
    CallOutcome,
    base_dtype,
    copy_model,
    observe_call,
    output_error,
    run_fresh,
)
from precision_eval.trace.dtype_flow import CodeLine, Event, inside_event, is_internal
from precision_eval.trace.operations import ASSIGNMENTS, EIGHT_BITS, SLOTS, OperationKind, loses, operand_names
from precision_eval.trace.provenance import Provenance, ancestors, dtype_chain, maker_of, named_tensors, origin_of

# Faults that are cured one after the other before a way is given up.
MOST_STEPS = 16
MOST_ALIKE = 4  # meetings of a line that are alike

# Kind and name of a stored tensor → the dtype it is kept in.
Stored = dict[tuple[str, str], torch.dtype]


@dataclass
class Repair:
    source: PatchedSource = field(default_factory=PatchedSource)
    stored: Stored = field(default_factory=dict)
    left: tuple[str, ...] = ()
    outputs: tuple[torch.Tensor, ...] | None = None
    setting: str = ""
    change: Callable[[ExaminedModel], None] | None = None
    undoes: bool = False  # a cast ahead of what is wrong
    keeps_wide: bool = False  # what the code widened on purpose, until it meets what refuses it

    @property
    def verified(self) -> bool:
        return self.outputs is not None and not self.left

    @property
    def title(self) -> str:
        return "suggested change" if self.source else "stored otherwise"

    def copy(self, subject: ExaminedModel) -> ExaminedModel:
        model = copy_model(subject)
        if self.change is not None:
            self.change(model)
        given = dict(zip(model.names, model.tensors, strict=True))
        for kind, name, tensor in named_tensors(model, given, prefix=model.prefix) if self.stored else ():
            dtype = self.stored.get((kind, name))
            if dtype is not None and kind != "input":
                tensor.data = tensor.data.to(dtype)
        for path, tensor in _in_objects(model):
            tensor.data = tensor.data.to(self.stored.get(("input", path), tensor.dtype))
        inputs = zip(model.names, model.tensors, strict=True)
        model.tensors = tuple(tensor.to(self.stored.get(("input", name), tensor.dtype)) for name, tensor in inputs)
        return model

    @property
    def changes_tensors(self) -> bool:
        return bool(self.stored) or self.change is not None

    def as_patch(self, place: SourceLine | None, origin: str, price: Price | None = None) -> Patch:
        return Patch(
            place=place, diff=self.source.diff(), code=self.setting or _code(self.stored), origin=origin,
            verified=self.verified, left=self.left, price=price,
        )  # fmt: skip


Step = Callable[[Event, torch.dtype], tuple[Insertion, ...] | Stored]
# What is wrong, and the operation to change where it is known.
Faults = list[tuple[Finding, Event | None]]


def repairs_of(
    subject: ExaminedModel,
    reference: Reference,
    *,
    drifts: bool = False,
    updated: tuple[tuple[str, str], ...] = (),
) -> list[Repair]:
    """Follow each way to cure a model, and return a change of the source and one of what is stored, the better first.

    Of casts at the meetings and at the origin those are kept that drift less, of equals the fewer lines, and of these
    what takes casts out. A change of what is stored goes before one of a library's source, and one that leaves no
    drift beyond the format before one that does. Where it is the numbers that say that something is wrong, operations
    are widened, as where no cast cures a model; what loses its updates is stored in float32.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model's own were shown when it first ran
        if updated:
            return [_with_wide_updates(subject, reference, updated)]
        repairs = [] if drifts else _repairs_of_dtypes(subject, reference)
        if any(repair.verified for repair in repairs):
            return repairs
        scaled = _follow("scaled", _scale_first, subject, reference)
        undone = _follow("undone", _undo_or_widen, subject, reference)
        is_last = undone.verified or not undone.undoes
        widened = undone if is_last else _follow("widened", _widen, subject, reference)
        if not widened.verified:  # what overflows where it meets the model's format again
            later = _follow(_UNTIL_IT_RAISES, _widen, subject, reference)
            widened = later if later.verified else widened
    scales = scaled.verified and (
        _is_explained(scaled, subject, reference) or (widened.verified and _as_exact(scaled, widened, reference))
    )
    verified = [*([scaled] if scales else []), *([widened] if widened.verified else [])]
    return verified or repairs


def _repairs_of_dtypes(subject: ExaminedModel, reference: Reference) -> list[Repair]:
    late = _follow("late", partial(_at_meeting, late=True), subject, reference)
    if not (late.source or late.verified) and all(left.startswith("first_non_finite") for left in late.left):
        return []  # no dtypes meet there
    origin, stored = (
        _follow(way, step, subject, reference) for way, step in (("origin", _at_origin), ("stored", _as_stored))
    )
    meeting = late if late.verified else _follow("meeting", _at_meeting, subject, reference)
    shorter = origin.source.size < meeting.source.size or (
        origin.source.only_removes and origin.source.size == meeting.source.size
    )
    widened = meeting.verified and meeting.keeps_wide and _as_exact(meeting, origin, reference)
    if (
        origin.verified
        and not widened
        and (
            not meeting.verified
            or (shorter and _as_exact(origin, meeting, reference))
            or not _as_exact(meeting, origin, reference)
        )
    ):
        meeting = origin
    changes = [repair for repair in (meeting, stored) if repair.source or repair.stored]
    # What does not cure is no advice to store something with fewer digits.
    changes = [repair for repair in changes if repair.verified] or [
        repair for repair in changes[:1] if not any(dtype.itemsize < 4 for dtype in repair.stored.values())
    ]
    drifts = [not _is_explained(repair, subject, reference) for repair in changes]
    ranked = sorted(zip(drifts, changes, strict=True), key=lambda p: (not p[1].verified, p[0], p[1].source.of_library))
    return [repair for _, repair in ranked]


def _with_wide_updates(subject: ExaminedModel, reference: Reference, updated: tuple[tuple[str, str], ...]) -> Repair:
    repair = Repair(stored=dict.fromkeys(updated, torch.float32))
    outcome = run_fresh(repair.copy(subject))
    excess = excess_drift(subject, outcome, reference, base_dtype(subject))
    repair.outputs = outcome.outputs
    repair.left = (*_still_wrong(outcome, reference), *([] if excess is None else [str(excess)]))
    return repair


def _is_explained(repair: Repair, subject: ExaminedModel, reference: Reference) -> bool:
    """Whether a change leaves no drift beyond the format: a cast that says aloud what was lost in silence does."""
    outcome = CallOutcome(repair.outputs, None)
    return excess_drift(subject, outcome, reference, base_dtype(subject)) is None


def _as_exact(one: Repair, other: Repair, reference: Reference) -> bool:
    """Whether a change drifts no more than another does, or nothing is known of it."""
    return not _drift(one, reference) > 2 * _drift(other, reference)


def _drift(repair: Repair, reference: Reference) -> float:
    """The drift that a change leaves; no number where nothing is known of it."""
    error = output_error(repair.outputs, reference.outputs)
    return float("nan") if error is None else error


def _follow(way: str, step: Step, subject: ExaminedModel, reference: Reference) -> Repair:
    """Cure one fault after the other until none is left, or until one cannot be cured this way."""
    repair = Repair()
    cured: Counter[object] = Counter()  # several meetings of a line may be alike, as in `q * cos + p * sin`
    base, first_drift = base_dtype(subject), None
    for _ in range(MOST_STEPS + 1):
        with repair.source.active():
            model = repair.copy(subject)
            faults, outcome, is_tie = _observe(model, base, reference, numbers=way in _OF_NUMBERS)
            drift = output_error(outcome.outputs, reference.outputs)
            first_drift = drift if first_drift is None else first_drift
            if not faults:
                is_tie = is_tie and drift is not None and first_drift is not None and drift < first_drift / 2
                repair.outputs, repair.left = outcome.outputs, () if is_tie else _still_wrong(outcome, reference)
                return repair
            event = _last_meeting(faults) if way in _OF_NUMBERS else _to_cure(faults, late=way == "late")
            if way == _UNTIL_IT_RAISES:
                event = next((raised for finding, raised in faults if finding.kind == "raise"), event)
            repair.keeps_wide |= way == "late" and event is not faults[0][1] and faults[0][0].kind == "promotion"
            at = None if event is None else _identity(event)
            tries = event is not None and (event.kind in _INSIDE or cured[at] < MOST_ALIKE)
            if event is not None and event.kind == "raise" and not event.operands:
                tries = False  # it knows none of what it was given, and nothing of it floats
            change = step(event, base) if event is not None and tries else ()
            if cured[at] and isinstance(change, tuple) and any(map(is_written_there, change)):
                change = ()  # it did not cure
        repair.left = tuple(dict.fromkeys(f"{finding.kind} at {finding.place}" for finding, _ in faults))
        if not change:
            return repair
        cured[at] += 1
        repair.undoes |= not isinstance(change, dict) and not any(inserted.text for inserted in change)
        if isinstance(change, dict):
            if event is not None and is_of_optimizer(event):
                change |= _trained(subject, event.result)
            repair.stored |= _alike(change, subject)
            continue
        try:
            repair.source.insert(change)
        except SyntaxError:
            return repair
        if not repair.source.reaches:
            return repair
    return repair


def _observe(
    model: ExaminedModel, base: torch.dtype, reference: Reference, *, numbers: bool
) -> tuple[Faults, CallOutcome, bool]:
    """Observe a copy; return its faults and, if asked for, what is wrong by the numbers where none is left, and
    whether that is a near tie.
    """
    fresh = copy_model(model) if numbers else model
    observer, seen = observe_call(fresh, lambda: fresh(*fresh.tensors), fresh.tensors, base=base, values=True)
    raised = None if seen.error is None else raised_event(observer, seen.error)
    broken, _ = seen.broken(reference.outputs, meant=reference.inside)
    findings, events = findings_of(observer, seen.outputs or (), raised, broken=bool(broken))
    faults: Faults = [
        (finding, event)
        for finding, event in zip(findings, events, strict=True)
        if finding.severity == "fault" or (numbers and event.reached_output and event.result is not base)
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
    return faults, seen, is_tie


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


def any_layer(name: str) -> str:
    """Write a tensor's name for every layer: ``layers.0.keys`` → ``layers.*.keys``."""
    return re.sub(r"\[\d+\]", "[*]", re.sub(r"\.\d+\.", ".*.", name))


# At the meeting -------------------------------------------------------------------------------------------------------


def _at_meeting(event: Event, base: torch.dtype, *, late: bool = False) -> tuple[Insertion, ...]:
    path = event.call.path if event.call else ""
    if is_internal((event.caller or event.line)[0].co_filename):
        return ()  # torch's own modules one after the other: there is no line of anybody's to change
    if event.kind in ("kept_narrowed", "first_non_finite", "bits"):
        return ()
    if event.kind == "raise" and (local := with_cast_for_numpy(*event.line) or with_number_that_fits(*event.line)):
        return local
    if event.caller is not None:
        return _around_module(event, event.caller, path="", cast_result=False)
    if event.of_module:
        of_norm = event.sort is OperationKind.NORM and event.kind != "raise"
        if by_keyword := _cast_keyword(event, base):
            return by_keyword
        return _around_module(event, event.line, path=path, cast_result=of_norm)
    if any(key == ("out",) for key, _, _ in event.operands):
        return ()  # a cast of what is written to would be written to in its place
    if event.kind == "downcast" and event.name not in ASSIGNMENTS:
        return ()  # a cast of what is added would hide that the sum is held in less
    written = written_operands(event)
    keep = _index_to_keep(event, base, late=late)
    to = event.operands[keep][2].dtype
    if to in EIGHT_BITS and event.sort is not OperationKind.WRITE:  # nothing computes in float8
        to = base
    is_kept = to is event.operands[keep][2].dtype
    dtype = _dtype_text(written[keep], to, event.line[0].co_filename) if is_kept else f"torch.{short(to)}"
    casts = {
        text: dtype
        for text, (_, _, record) in zip(written, event.operands, strict=True)
        if text and record.dtype is not to
    }
    return with_casts(*event.line, casts) if casts else ()


def _dtype_text(expression: str, dtype: torch.dtype, file: str) -> str:
    """Write a dtype as an operand's own where that costs nothing to read, else by its name."""
    if expression and _is_dotted_name(expression):
        return dtype_of(expression)
    return f"torch.{short(dtype)}" if imports_torch(file) or not expression else dtype_of(expression)


def _is_dotted_name(expression: str) -> bool:
    try:
        node: ast.AST = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return False
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _around_module(event: Event, line: CodeLine, *, path: str, cast_result: bool) -> tuple[Insertion, ...]:
    """Cast what a module is given to its weight's dtype, or what it returns to its input's."""
    code, instruction = line
    (given,) = expressions(code, instruction, "", [(0,)], of_module=True)
    owner = callee(code, instruction)
    if not given or not owner:
        return ()
    if cast_result:
        return with_result_cast(code, instruction, _dtype_text(given, event.operands[0][2].dtype, code.co_filename))
    return with_casts(code, instruction, {given: _weight_dtype(event, owner_of(owner, path), code.co_filename)})


def _cast_keyword(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    """Cast what a module is given by a keyword and hands on under the same name; what it is called on is no stray."""
    if event.sort is not OperationKind.ATTENTION or event.operands[0][2].dtype is not base:
        return ()
    names = operand_names(event.name, event.sort, [key for key, _, _ in event.operands])
    strays = [name for name, (_, _, record) in zip(names, event.operands, strict=True) if record.dtype is not base]
    words = tuple(word for name in strays if name in SLOTS["sdpa"] for word in SLOTS["sdpa"][name][1])
    (given,) = expressions(*event.line, "", [(0,)], of_module=True)
    return with_keyword_cast(*event.line, words, _dtype_text(given, base, event.line[0].co_filename))


def _weight_dtype(event: Event, owner: str, file: str) -> str:
    module = event.call.module if event.call else None
    own = dict(module.named_parameters(recurse=False)) if module is not None else {}
    if module is not None and next(module.parameters(), None) is None:
        return "torch.float32"  # packed, as a quantised layer: what refuses half and has no weight of its own
    given = event.operands[0][2].dtype if event.operands else None
    for name, parameter in own.items():
        if parameter.dtype is not given and name.isidentifier():
            return f"{owner}.{name}.dtype"
    weights = [record.dtype for _, _, record in event.operands[1:] if record.dtype is not given]
    if weights and imports_torch(file):
        return f"torch.{short(weights[0])}"
    return f"next({owner}.parameters()).dtype"


def _index_to_keep(event: Event, base: torch.dtype, *, late: bool) -> int:
    """Which operand's dtype the others are cast to; late, a query that the code widened is cast and no cache."""
    dtypes = [record.dtype for _, _, record in event.operands]
    widened = late and event.operands[0][2].event
    if widened and widened.deliberate and event.sort is OperationKind.ATTENTION and dtypes[1:3] == [base, base]:
        return 1
    if event.sort is OperationKind.WRITE or event.sort is OperationKind.ATTENTION:
        return 0
    if base in dtypes:
        return dtypes.index(base)
    return 1 if event.sort is OperationKind.PRODUCT and len(dtypes) > 1 else 0


# Widened --------------------------------------------------------------------------------------------------------------

WIDE = "torch.float32"
_INSIDE = ("drift", "first_non_finite")
_UNTIL_IT_RAISES = "widened until it raises"
_OF_NUMBERS = ("scaled", "undone", "widened", _UNTIL_IT_RAISES)  # ways that also cure what the numbers say


def _scale_first(event: Event, base: torch.dtype) -> tuple[Insertion, ...] | Stored:
    """Have a product that overflows before it is scaled be one of scaled factors."""
    return with_scale_first(*event.line) if event.kind == "first_non_finite" else ()


def _undo_or_widen(event: Event, base: torch.dtype) -> tuple[Insertion, ...] | Stored:
    return _without_narrowing(event, {torch.float32, torch.float64}) or _widen(event, base)


def _without_narrowing(event: Event, wide: set[torch.dtype]) -> tuple[Insertion, ...]:
    """Take out the casts by hand that brought operands down from some dtypes: no cast back brings the digits back."""
    change: dict[Insertion, None] = {}
    for _, _, record in event.operands:
        first, *later = dtype_chain(record)
        is_cast = first.kind == "cast" and first.parents and loses(first.parents[0].dtype, first.dtype)
        alone = all(len(at.parents) == 1 for at in later)  # a product with weights is one of the narrow format
        if is_cast and alone and first.parents[0].dtype in wide and _is_written(first) and first.code is not None:
            change |= dict.fromkeys(without_call(first.code, first.instruction))
    return tuple(change)


def _widen(event: Event, base: torch.dtype) -> tuple[Insertion, ...] | Stored:
    """Have an operation that loses digits or range keep them; what is wrong by its dtypes is cast where they meet."""
    if event.kind == "raise" and not event.of_module and event.caller is None:
        return _wide(event)  # it stays wide until a module with weights of its own
    if event.kind not in _INSIDE:
        return _at_meeting(event, base)
    pending = [event]
    for at in pending:
        if change := _wide(at):
            return change
        pending += _producers(at)[: MOST_STEPS - len(pending)]
    return ()


def _wide(event: Event) -> tuple[Insertion, ...] | Stored:
    """Widen one operation; nothing where that is done, or where it is not written in somebody's line."""
    file = event.line[0].co_filename
    if event.of_module and event.name in LOSSES and event.call and next(event.call.module.parameters(), None) is None:
        (given,) = expressions(*event.line, "", [(0,)], of_module=True)
        return with_casts(*event.line, {given: WIDE}) if given and imports_torch(file) else ()
    if event.of_module or is_internal(file) or not imports_torch(file):
        return ()
    if is_of_optimizer(event):
        return _wide_leaf(event)
    if event.sort is OperationKind.WRITE:
        return _wide_destination(event)
    if event.sort is OperationKind.CAST and event.result in EIGHT_BITS:
        return ()  # nothing is in 8 bits unless the code says so
    if event.sort is OperationKind.CAST:
        return without_call(*event.line) or with_dtype(*event.line, WIDE)
    narrow = [key for key, _, record in event.operands if loses(torch.float32, record.dtype)]
    if ("out",) in [key for key, _, _ in event.operands]:
        return ()  # what is written to would be another tensor
    if change := with_dtype(*event.line, WIDE):
        return change if narrow or not event.operands else ()
    written = variables(*event.line, event.name, narrow) if narrow else []
    return with_casts(*event.line, dict.fromkeys(written, WIDE)) if written else ()


def _producers(event: Event) -> list[Event]:
    """What made the operands that are, or were, narrow, a divisor first; a product with weights keeps its format."""
    producers = []
    for _, _, record in reversed(event.operands) if event.name == "div" else event.operands:
        before = record
        while not loses(torch.float32, before.dtype) and before.parents:
            before = before.parents[0]
        of_weights = any(parent.kind == "parameter" and parent.dtype is before.dtype for parent in before.parents[1:])
        if loses(torch.float32, before.dtype) and before.code is not None and not of_weights:
            producers.append(inside_event(event.kind, before, event.number))
    return producers


def _wide_destination(event: Event) -> tuple[Insertion, ...] | Stored:
    """Keep what is written to in float32: as it is stored, or where it is made."""
    made = event.stored or maker_of(event.operands[0][2])
    if event.stored is None and made.is_stored:  # what its dtype is from is not what is written to
        made = event.operands[0][2]
    if made.is_stored:
        return {(made.kind, made.name): torch.float32}
    if made.code is None or not imports_torch(made.code.co_filename):
        return ()
    line = made.code, made.instruction
    return with_dtype(*line, WIDE) or with_result_cast(*line, WIDE)


def _wide_leaf(event: Event) -> tuple[Insertion, ...] | Stored:
    """Keep what an optimizer trains in float32: as it is stored, or where it is made."""
    trained = event.operands[0][2]
    while trained.parents and (trained.code, trained.instruction) == event.line:  # as weight decay has it
        trained = trained.parents[0]
    if trained.is_stored:
        return {(trained.kind, trained.name): torch.float32}
    if trained.code is None or not _is_written(trained):
        return ()
    return with_result_cast(trained.code, trained.instruction, WIDE)


# At the origin, and as stored -----------------------------------------------------------------------------------------


def _stray(event: Event, base: torch.dtype) -> Provenance | None:
    """What brought the dtype that is not the model's."""
    if event.kind == "downcast" and event.stored is not None and event.stored.dtype is not base:
        return event.stored
    return next((origin_of(record) for _, _, record in event.operands if record.dtype is not base), None)


def _at_origin(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    """Take out the cast that brought the stray dtype; else cast what is narrower where it is made, and what is wider
    as late as possible, after what is computed in it.
    """
    if undone := _without_narrowing(event, {record.dtype for _, _, record in event.operands}):
        return undone
    stray = _stray(event, base)
    operand = next((record for _, _, record in event.operands if record.dtype is not base), stray)
    if stray is None or operand is None:
        return ()
    rounded = stray.kind == "cast" and stray.parents and stray.parents[0].dtype is base
    line_of_cast = (stray.code, stray.instruction) if rounded and stray.code and _is_written(stray) else None
    if line_of_cast and (taken_out := without_call(*line_of_cast)):
        return taken_out  # what a cast rounds away does not come back
    at = operand if loses(operand.dtype, base) else stray
    if at.is_stored or not _is_written(at):
        return ()
    assert at.code is not None
    line = at.code, at.instruction
    dtype = _named_dtype(at, [record for _, _, record in event.operands], base)
    made = with_dtype(*line, dtype) if at.kind == "made" else ()
    return made or with_cast_to(*line, dtype) or with_result_cast(*line, dtype)


def _is_written(record: Provenance) -> bool:
    """Whether a record was made in a line of somebody's in which a dtype can be named."""
    return (
        record.code is not None and not is_internal(record.code.co_filename) and imports_torch(record.code.co_filename)
    )


def _named_dtype(stray: Provenance, operands: list[Provenance], base: torch.dtype) -> str:
    """Write the model's dtype as that of one of its parameters where a line has `self`, else by its name.

    The parameter is, if possible, what the operand was made of that the stray tensor meets.
    """
    module, code = stray.call.module if stray.call is not None else None, stray.code
    forward = getattr(type(module), "forward", None)
    if module is None or code is None or getattr(forward, "__code__", None) != code or code.co_varnames[0] != "self":
        return f"torch.{short(base)}"
    of_base = {name: tensor for name, tensor in module.named_parameters() if tensor.dtype is base}
    prefix = f"{stray.call.path}." if stray.call is not None and stray.call.path else ""
    met = [at.name.removeprefix(prefix) for record in operands for at in (record, *ancestors(record))]
    matrices = [name for name in (*met, *of_base) if name in of_base and of_base[name].dim() > 1]
    name = next(iter([*matrices, *of_base]), None)
    return f"torch.{short(base)}" if name is None else f"{_path(name).replace('model', 'self', 1)}.dtype"


def _as_stored(event: Event, base: torch.dtype) -> Stored:
    stray = _stray(event, base)
    if stray is None or event.kind in ("kept_narrowed", "first_non_finite"):
        return {}
    if stray.is_stored:
        return {(stray.kind, stray.name): base}
    # a product or a norm brings its weight's dtype to what it returns
    return {("parameter", p.name): base for p in stray.parents if p.kind == "parameter" and p.dtype is stray.dtype}


def origin_text(event: Event, base: torch.dtype) -> str:
    records = [record for _, _, record in event.operands]
    if event.kind == "bits":
        name = short(event.result)
        return f"convert the values with .to(torch.{name}) before their bits are copied, or keep both in one format"
    if event.kind == "kept_narrowed":
        return (
            f"load {records[-1].name} in float32, and do not call .half() or .to(float16) on the whole model afterwards"
        )
    if event.kind == "downcast" and event.stored is not None and event.stored.dtype is not base:
        other = next((record for record in records[1:] if record.dtype is not event.stored.dtype), None)
        if other is not None:
            return f"make {event.stored.kind} {event.stored.name} in {short(other.dtype)}, or cast it where it is read"
    stray = _stray(event, base)
    return "" if stray is None else _where(stray, base)


def _where(origin: Provenance, base: torch.dtype) -> str:
    name = short(base)
    if origin.is_stored and origin.code is not None:
        return f"cast what meets {origin.name} to {short(origin.dtype)}, to which the call itself casts it"
    if origin.kind in ("parameter", "buffer", "attribute"):
        return f"store {origin.kind} {origin.name} in {name}; it is in {short(origin.dtype)}"
    if origin.kind == "input":
        return f"give input {origin.name} in {name}; it is in {short(origin.dtype)}"
    place = "" if origin.code is None else f" at {source_line(origin.code, origin.instruction)}"
    if origin.kind == "cast" and origin.parents and loses(origin.parents[0].dtype, origin.dtype):
        return f"leave out the cast to {short(origin.dtype)}{place}: what it rounds away does not come back"
    if origin.kind == "cast":
        return f"cast the result back to {name} after the cast to {short(origin.dtype)}{place}"
    if origin.kind == "made":
        return f"make it in {name}: {origin.name}{place} makes {short(origin.dtype)}"
    return f"{origin.name}{place} brings {short(origin.dtype)}"


# Writing it down ------------------------------------------------------------------------------------------------------


def _code(stored: Stored) -> str:
    """Write stored tensors' changes as lines of Python, one for each name, its layers together."""
    blocks: dict[str, list[str]] = {}  # a line, and those below it
    groups: dict[tuple[str, str, torch.dtype], list[str]] = {}
    for (kind, name), dtype in stored.items():
        groups.setdefault((kind, any_layer(name), dtype), []).append(name)
    for (kind, pattern, dtype), names in groups.items():
        target = f"torch.{short(dtype)}"
        listed, inside, own = pattern.partition("[*].")
        if inside and sorted(names) == sorted(f"{listed}[{index}].{own}" for index in range(len(names))):
            parts = listed if kind == "input" else _path(listed)
            blocks.setdefault(f"for part in {parts}[:{len(names)}]:", []).append(
                f"    part.{own} = part.{own}.to({target})"
            )
        elif kind == "input":
            blocks |= {f"{name} = {name}.to({target})": [] for name in names}
        elif len(names) == 1 or kind == "attribute":
            blocks |= {f"{path}.data = {path}.data.to({target})": [] for path in map(_path, names)}
        else:
            regex = r"\.".join(r"\d+" if part == "*" else part for part in pattern.split("."))
            below = [f'    if re.fullmatch(r"{regex}", name):', f"        tensor.data = tensor.data.to({target})"]
            named = "named_parameters" if kind == "parameter" else "named_buffers"
            blocks = {"import re": []} | blocks
            blocks.setdefault(f"for name, tensor in model.{named}():", []).extend(below)
    return "\n".join(line for first, below in blocks.items() for line in (first, *below))


def _path(name: str) -> str:
    """Write the path of a module's tensor as code: ``layers.0.keys`` → ``model.layers[0].keys``."""
    return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))
