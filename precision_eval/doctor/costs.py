"""What raises nothing and is right by its numbers, but costs time or memory: changes tried, and priced; imports torch.

Conventions: a *suspect* is what the observer noted, with ways to change it. It becomes a cost only where a change ran
on a copy without a new fault, within the drift that the format explains, and saved beyond noise: paired time, by more
than :data:`LEAST_SAVING` with its whole interval, or as many bytes, which are counted. Everything else is dropped.
Casts of fewer than :data:`LEAST_ELEMENTS` values are not looked at.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

import torch

from precision_eval.core.formats import short
from precision_eval.core.formatting import grouped, memory_text
from precision_eval.doctor.accuracy import excess_drift
from precision_eval.doctor.device_costs import half_of, host_waits, is_of_a_library, wait_note, wide_attention
from precision_eval.doctor.diagnosis import CostKind, Price, SilentCost
from precision_eval.doctor.findings import left_faults, place_of, written_operands
from precision_eval.doctor.remedies import Trials, prices_of
from precision_eval.doctor.repairs import Repair, any_layer
from precision_eval.doctor.source import (
    Insertion,
    cast_target,
    imports_torch,
    with_backend,
    with_calls,
    with_result_cast,
    with_single,
    without_call,
)
from precision_eval.doctor.suspects import Suspect, line_of, make_edit
from precision_eval.doctor.ways import Stored
from precision_eval.doctor.wide_results import (
    Widened,
    find_wide_inputs,
    find_wide_output,
    find_wide_scales,
    widened_by_stored,
)
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.fixes.storage import floating_tensors
from precision_eval.measure.float64_reference import device_of
from precision_eval.measure.model_calls import (
    CallOutcome,
    base_dtype,
    copy_model,
    difference,
    observe_call,
    output_error,
)
from precision_eval.trace.attention import why_unfused
from precision_eval.trace.dtype_flow import CodeLine, Event, Operation, is_internal
from precision_eval.trace.host_waits import WaitFlow, is_on_device
from precision_eval.trace.observer import ModuleCall
from precision_eval.trace.operations import FLOATS, PART_DTYPES, Key, OperationKind
from precision_eval.trace.provenance import Provenance

# Share of the time, or of what is stored, below which a saving is none: two copies of a model differ by as much.
LEAST_SAVING = 0.02

LEAST_ELEMENTS = 4096
MOST_SUSPECTS = 8
# A change may drift so many times more than the model as it is, and else as much as its format explains.
MORE_DRIFT = 1.5

CHOSEN = "the code asks for float32 here, so no patch is offered; the price is what the narrow format would save"

_HALVES = (torch.float16, torch.bfloat16)
# Costs that are told where this device saves nothing: others have units for half, and few for float64.
_OF_OTHER_DEVICES = ("wide_product", "double")
_PRODUCTS = (OperationKind.PRODUCT, OperationKind.ATTENTION, OperationKind.RNN)


@dataclass(frozen=True, eq=False, slots=True)
class CastSeen:
    record: Provenance
    elements: int
    address: int


@dataclass(frozen=True, eq=False, slots=True)
class WideProduct:
    event: Event
    narrow: torch.dtype
    under_autocast: bool


@dataclass(frozen=True, eq=False, slots=True)
class Unfused:
    """Attention without a fused kernel: changes that would let an operand in, and why torch says that none takes it."""

    event: Event
    changes: dict[Key, str]
    why: str


class CostFlow(WaitFlow):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.casts: list[CastSeen] = []
        self.wide: list[WideProduct] = []
        self.doubles: list[tuple[Event, frozenset[Key]]] = []  # what computes in float64, and its complex operands
        self.unfused: list[Unfused] = []
        self.scales: list[Widened] = []
        self.most_elements = 0  # of the result of a product
        self.has_halves = False  # results, of more than casts
        self.wide_attention: list[Event] = []  # in the memory-efficient kernel, on a device
        self.uncached: Counter[str] = Counter()  # uses of parameters whose casts autocast does not keep

    def _follow(self, operation: Operation, results: tuple[torch.Tensor, ...]) -> None:
        if operation.kind in _PRODUCTS and results:
            self._note_product(operation, results[0])
            self.most_elements = max(self.most_elements, results[0].numel())
        self.has_halves |= operation.kind is not OperationKind.CAST and any(r.dtype in _HALVES for r in results)
        if results and self.base is not torch.float64 and PART_DTYPES[results[0].dtype] is torch.float64:
            complex_keys = frozenset(key for key, tensor in operation.operands if tensor.is_complex())
            self.doubles.append((self._event("wide", operation, torch.float64), complex_keys))
        if results and results[0].dtype is torch.float32 and len({record.dtype for record in operation.records}) > 1:
            event = self._event("wide", operation, torch.float32)
            self.scales += filter(None, [widened_by_stored(operation, results[0], event)])
        super()._follow(operation, results)
        source = operation.args[0] if operation.kind is OperationKind.CAST else None
        if source is not None and source.dtype is not results[0].dtype and source.numel():
            record = self.tensors[results[0]]
            if record.kind == "cast" and record.parents:
                self.casts.append(CastSeen(record, source.numel(), source.data_ptr()))

    def _note_product(self, operation: Operation, result: torch.Tensor) -> None:
        device = result.device.type
        autocast = torch.is_autocast_enabled(device)
        narrow = torch.get_autocast_dtype(device) if autocast else self.base
        if result.dtype is torch.float32 and narrow.itemsize < result.dtype.itemsize:
            self.wide.append(WideProduct(self._event("wide", operation, result.dtype), narrow, autocast))
        elif (
            operation.kind is OperationKind.ATTENTION and result.dtype is torch.float32 and self.backend == "efficient"
        ):
            self.wide_attention.append(self._event("wide", operation, result.dtype))
        if operation.kind is OperationKind.ATTENTION and self.backend == "math":
            event, operands = self._event("unfused", operation, result.dtype), operation.operands
            why = why_unfused(operation.args, operation.kwargs or {}) if is_on_device(result) else ""
            self.unfused.append(Unfused(event, _changes_to_fuse(operands) | (_repeats(operands) if why else {}), why))
        if autocast and is_on_device(result):
            keeps = torch.is_autocast_cache_enabled()
            pairs = [(tensor, record.name) for (_, tensor), record in operation.pairs() if record.kind == "parameter"]
            self.uncached.update(name for tensor, name in pairs if not (keeps and tensor.requires_grad))


def _repeats(given: list[tuple[Key, torch.Tensor]]) -> dict[Key, str]:
    """Repeat keys and values that heads share: the memory-efficient kernel takes them only so."""
    heads = given[0][1].size(-3)
    shared = {key: heads // tensor.size(-3) for key, tensor in given[1:3] if tensor.size(-3) < heads}
    return {key: f".repeat_interleave({times}, dim=-3)" for key, times in shared.items()}


def _changes_to_fuse(given: list[tuple[Key, torch.Tensor]]) -> dict[Key, str]:
    """Say which operand keeps attention from a fused kernel that this machine may have, and what would let it in."""
    if given[0][1].dim() == 3:
        return {key: ".unsqueeze(0)" for key, tensor in given if tensor.dim() == 3}
    changes = {key: ".contiguous()" for key, tensor in given if tensor.stride(-1) != 1}
    return changes | {key: ".detach()" for key, tensor in given[3:] if tensor.requires_grad}


def find_needless_scalers(subject: ExaminedModel, formats: Collection[str]) -> tuple[SilentCost, ...]:
    """Gradient scalers of a model of which nothing runs in float16, the only format whose range asks for them."""
    named = (
        (path, name) for path, module in subject.unwrapped.named_modules() for name, value in vars(module).items()
        if isinstance(value, torch.amp.GradScaler) and value.is_enabled()
    )  # fmt: skip
    gradient_bytes = sum(p.nbytes for p in subject.unwrapped.parameters() if p.requires_grad)
    reason = (
        "is a GradScaler, and nothing runs in float16: bfloat16 and float32 reach 1e-38, so no gradient asks for a "
        f"scale. Each step reads and writes {memory_text(gradient_bytes)} of gradients once more to unscale and check "
        "them, and waits for the result: leave it out, or make it with enabled=False"
    )
    return () if "float16" in formats else tuple(
        SilentCost(
            kind="needless_scaler", reason=f"{name} {reason}", module=path, place=None, count=1, patch=None, price=None
        )
        for path, name in named
    )  # fmt: skip


def costs_of(subject: ExaminedModel, trials: Trials) -> tuple[SilentCost, ...]:
    """Return what a change saves here, the most time first; then what one may save on other devices."""
    model = copy_model(subject)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model's own were shown when it first ran
        observer, seen = observe_call(
            model, lambda: model(*model.tensors), model.tensors, base=base_dtype(model), values=False, flow=CostFlow
        )
        assert isinstance(observer, CostFlow)
        suspects = _suspects(observer, subject)
        known = set(left_faults(observer, ()))
        tried = [(suspect, _find_change(suspect, subject, trials, known)) for suspect in suspects]
        repairs = [(suspect, repair) for suspect, repair in tried if repair is not None]
        prices = prices_of(subject, [repair for _, repair in repairs], trials) if repairs else []
    stored = sum(tensor.nbytes for tensor in floating_tensors(subject))
    savings = {
        id(suspect): price
        for (suspect, _), price in zip(repairs, prices, strict=True)
        if price is not None and _saves(price, stored)
    }
    costs = [
        (suspect, _cost(suspect, repair, savings.get(id(suspect))))
        for suspect, repair in tried
        if id(suspect) in savings or suspect.is_fact or (repair is not None and suspect.kind in _OF_OTHER_DEVICES)
    ]
    costs.sort(key=lambda pair: _rank(pair[1].price))
    kept: list[tuple[Suspect, SilentCost]] = []
    for suspect, cost in costs:  # of two changes of one line, the one that saves more
        if not any(suspect.lines & other.lines for other, _ in kept):
            kept.append((suspect, cost))
    places = {cost.place for _, cost in kept}
    told = [cost for cost in _unpatched(observer, seen.outputs or (), stored, subject) if cost.place not in places]
    return (*(cost for _, cost in kept), *told)


def _unpatched(
    observer: CostFlow, outputs: tuple[torch.Tensor, ...], stored: int, subject: ExaminedModel
) -> Iterator[SilentCost]:
    """What is wide without need where no change of a line is known to be right."""
    yield from find_wide_scales(observer.scales, observer.most_elements)
    yield from find_wide_output([(output, observer.tensors[output]) for output in outputs], stored)
    if observer.base is torch.float32 and not observer.has_halves:
        inputs = [cast.record for cast in observer.casts if cast.record.parents[0].kind == "input"]
        yield from find_wide_inputs([record for record in inputs if record.parents[0].dtype in _HALVES], stored)


def _suspects(observer: CostFlow, subject: ExaminedModel) -> list[Suspect]:
    suspects = [
        *_repeated_casts(observer, subject),
        *_there_and_back(observer),
        *_wide_products(observer, subject),
        *_doubles(observer),
        *_unfused_attention(observer),
        *_autocast_casts(observer, subject),
        *_eager_attention(subject),
    ]
    if observer.is_on_device:
        half = half_of(device_of((*subject.tensors, *subject.parameters())))
        suspects += [*wide_attention(observer.wide_attention, half)]
    largest = sorted(suspects, key=lambda suspect: -suspect.elements)[:MOST_SUSPECTS]
    return [*largest, *host_waits(observer.waits)]


def _rank(price: Price | None) -> tuple[float, float]:
    if price is None:
        return 1.0, 0.0
    return min(price.latency_ratio or 1.0, price.launched_ratio or 1.0), -price.saved_bytes


def _saves(price: Price, stored: int) -> bool:
    if price.latency_high is not None and price.latency_ratio is not None and price.latency_ratio > 1.0:
        return False
    highs = (price.latency_high, price.launched_high)
    faster = any(high is not None and high < 1.0 - LEAST_SAVING for high in highs)
    return faster or price.saved_bytes > LEAST_SAVING * stored


def _cost(suspect: Suspect, repair: Repair | None, price: Price | None) -> SilentCost:
    place = None if suspect.line is None else place_of(suspect.line)
    elsewhere = price is None and suspect.kind in _OF_OTHER_DEVICES
    is_kept = (
        repair is not None and not suspect.chosen and (price is not None or suspect.kind == "host_wait" or elsewhere)
    )
    reason = suspect.reason + ("; to keep it narrow saves nothing here, others may be faster so" if elsewhere else "")
    reason += f"; {suspect.chosen}" if suspect.chosen else ""
    if suspect.kind == "host_wait":
        reason += wait_note(suspect, was_tried=repair is not None)
        is_kept = is_kept and not is_of_a_library(suspect)
    return SilentCost(
        kind=suspect.kind, reason=reason, module=suspect.call.path if suspect.call else "", place=place,
        count=suspect.count, patch=repair.as_patch(place, "", price) if repair and is_kept else None, price=price,
    )  # fmt: skip


# Trying ---------------------------------------------------------------------------------------------------------------


def _find_change(suspect: Suspect, subject: ExaminedModel, trials: Trials, known: set[str]) -> Repair | None:
    for way in suspect.ways:
        try:
            repair = way()
        except (SyntaxError, ValueError, AttributeError):
            continue
        if (
            repair is not None
            and (not repair.source or repair.source.reaches)
            and _runs(repair, subject, trials, known, suspect)
        ):
            return repair
    return None


def _runs(repair: Repair, subject: ExaminedModel, trials: Trials, known: set[str], suspect: Suspect) -> bool:
    """Run a change on a copy: no error, no new fault, outputs alike, no wait moved, no more drift than is explained."""
    try:
        with repair.source.active():
            model = repair.copy(subject)
            base = base_dtype(model)
            observer, seen = observe_call(
                model, lambda: model(*model.tensors), model.tensors, base=base, values=False, flow=WaitFlow
            )
            left = set(left_faults(observer, seen.outputs or ()))
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return False
    assert isinstance(observer, WaitFlow)
    if seen.error is not None or left - known or _kinds_of(seen.outputs) != _kinds_of(trials.shipped):
        return False
    if suspect.most_waits is not None and len(observer.waits) > suspect.most_waits:
        return False
    if seen.broken(trials.reference.outputs)[0]:
        return False
    repair.outputs = seen.outputs
    drift, now = (output_error(outputs, trials.reference.outputs) for outputs in (seen.outputs, trials.shipped))
    if drift is None or now is None:
        return difference(CallOutcome(seen.outputs, None), CallOutcome(trials.shipped, None)) == 0.0
    if drift <= MORE_DRIFT * now:
        return True
    dtypes = [tensor.dtype for tensor in seen.outputs or ()]
    narrow = suspect.narrow or (base if base in _HALVES else min(dtypes, key=lambda d: d.itemsize, default=base))
    return drift <= trials.most_drift and excess_drift(subject, seen, trials.reference, narrow) is None


def _kinds_of(outputs: tuple[torch.Tensor, ...] | None) -> list[tuple[torch.dtype, torch.device]]:
    return [(tensor.dtype, tensor.device) for tensor in outputs or ()]


# Casts ----------------------------------------------------------------------------------------------------------------


def _trained(subject: ExaminedModel, changes: Stored) -> str:
    """Say that parameters which a change would narrow are trained; empty where none is."""
    named = dict(subject.unwrapped.named_parameters())
    training = any(module.training for module in subject.unwrapped.modules())
    trained = [name for kind, name in changes if kind == "parameter" and name in named and named[name].requires_grad]
    return (
        "they are trained and stay in float32, so no patch is offered; the price is what the narrow format would save"
        if training and trained
        else ""
    )


def _repeated_casts(observer: CostFlow, subject: ExaminedModel) -> Iterator[Suspect]:
    """Casts of what is stored, which every call repeats, and of one tensor several times in a call."""
    large = [
        cast
        for cast in observer.casts
        if cast.elements >= LEAST_ELEMENTS and (cast.record.event is None or cast.record.event.deliberate)
    ]  # what follows a promotion goes with it
    tensors = grouped(((id(c.record.parents[0]), c.address, c.elements, c.record.dtype), c) for c in large)
    stored: dict[Any, list[CastSeen]] = {}
    made: dict[Any, list[CastSeen]] = {}
    for casts in tensors.values():
        source, after = casts[0].record.parents[0], casts[0].record.dtype
        several = len(casts) > 1
        is_input = source.kind == "input" and source.name.isidentifier()  # and no cache, whose tensors are inside it
        if source.is_stored and not source.deliberate and (several or not is_input):
            stored.setdefault((source.dtype, after, _lines(casts)), []).extend(casts)  # keys and values are one change
        elif not source.is_stored and several and source.code is not None and _is_own(source.code):
            made.setdefault((source.code, source.instruction, after), []).extend(casts)
    for (_, after, _), casts in stored.items():
        changes: Stored = {(c.record.parents[0].kind, c.record.parents[0].name): after for c in casts}
        suspect = _cast_suspect(casts, "what is stored is cast anew at each call", partial(make_edit, [], changes))
        suspect.chosen = _trained(subject, changes)
        yield suspect
    for (code, instruction, after), casts in made.items():
        change = list(with_result_cast(code, instruction, f"torch.{short(after)}"))
        yield _cast_suspect(casts, "one tensor is cast several times in a call", partial(make_edit, change))


def _is_own(code: CodeType) -> bool:
    return not is_internal(code.co_filename) and imports_torch(code.co_filename)


def _lines(casts: list[CastSeen]) -> frozenset[tuple[Any, int]]:
    return frozenset(line_of(cast.record.code, cast.record.instruction) for cast in casts)


def _cast_suspect(casts: list[CastSeen], words: str, way: Callable[[], Repair | None]) -> Suspect:
    record, elements = casts[0].record, sum(cast.elements for cast in casts)
    sources = [cast.record.parents[0] for cast in casts]
    names = list(dict.fromkeys(any_layer(source.name) for source in sources))[:3]
    dtypes = f"{short(sources[0].dtype)} → {short(record.dtype)}"
    reason = f"{words}: {', '.join(names)}, {dtypes}, {memory_text(elements * record.dtype.itemsize)} a call"
    line = None if record.code is None else (record.code, record.instruction)
    return Suspect("repeated_cast", reason, line, record.call, [way], elements, len(casts), set(_lines(casts)))


def _there_and_back(observer: CostFlow) -> Iterator[Suspect]:
    """Widened and narrowed again with nothing between, which changes no value."""
    groups: dict[CodeLine, list[CastSeen]] = {}
    for cast in observer.casts:
        after, before = cast.record, cast.record.parents[0]
        origin = before.parents[0] if before.kind == "cast" and before.parents else None
        undone = origin is not None and origin.dtype is after.dtype and before.dtype.itemsize > after.dtype.itemsize
        if undone and cast.elements >= LEAST_ELEMENTS and after.code is not None:
            groups.setdefault((after.code, after.instruction), []).append(cast)
    for line, casts in groups.items():
        before = casts[0].record.parents[0]
        change = [*without_call(*line), *(without_call(before.code, before.instruction) if before.code else ())]
        suspect = _cast_suspect(casts, "widened and narrowed again", partial(make_edit, change))
        suspect.kind = "there_and_back"
        yield suspect


# Products in float32 --------------------------------------------------------------------------------------------------


def _sources(record: Provenance, dtype: torch.dtype = torch.float32) -> list[Provenance]:
    """Walk back through what is in a wide format: casts from a narrower one, what is stored, what is made."""
    found, pending, seen = [], [record], {id(record)}
    while pending:
        at = pending.pop()
        if at.is_stored or at.kind in ("cast", "made", "outside") or not at.parents:
            found.append(at)
            continue
        pending += [parent for parent in at.parents if parent.dtype is dtype and id(parent) not in seen]
        seen.update(map(id, at.parents))
    return found


def _wide_products(observer: CostFlow, subject: ExaminedModel) -> Iterator[Suspect]:
    """Products in float32 whose input was half, or under autocast; those that share an input or a line are one."""
    groups: list[tuple[set[Any], list[tuple[WideProduct, list[Provenance]]]]] = []
    for product in observer.wide:
        event = product.event
        operands = event.operands[:3] if event.sort is OperationKind.ATTENTION else event.operands
        sources = [source for _, _, record in operands for source in _sources(record)]
        if max((_elements(shape) for _, shape, _ in event.operands), default=0) < LEAST_ELEMENTS:
            continue
        if not product.under_autocast and not _is_silent(sources):
            continue
        keys = {id(source) for source in sources if source.kind == "cast"} | {event.line}
        joined = [group for group in groups if group[0] & keys]
        groups = [group for group in groups if not group[0] & keys]
        members = [member for _, of_group in joined for member in of_group]
        groups.append((keys.union(*(k for k, _ in joined)), [*members, (product, sources)]))
    for _, members in groups:
        yield _wide_suspect([product for product, _ in members], [s for _, of_one in members for s in of_one], subject)


def _elements(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _is_silent(sources: list[Provenance]) -> bool:
    """Whether an activation came in half, and nothing but parameters, or codes of weights, brought float32."""
    widened = [s for s in sources if s.kind == "cast" and s.parents and s.parents[0].dtype in _HALVES]
    others = [s for s in sources if s not in widened]
    others = [s for s in others if s.kind != "made" and (s.kind != "cast" or s.parents)]
    if any(s.kind != "parameter" or s.deliberate for s in others):
        return False
    return any(source.parents[0].kind not in ("parameter", "buffer", "attribute") for source in widened)


def _wide_suspect(products: list[WideProduct], sources: list[Provenance], subject: ExaminedModel) -> Suspect:
    events, narrow, autocast = [p.event for p in products], products[0].narrow, products[0].under_autocast
    wide = [s for s in sources if s.kind == "parameter" and s.dtype is torch.float32]
    stored: Stored = {("parameter", source.name): narrow for source in wide}
    casts = [source for source in sources if source.kind == "cast" and source.code is not None]
    if autocast:
        ways = [
            lambda: make_edit([], stored),
            lambda: make_edit(_cast_operands(events, narrow), stored),
            lambda: make_edit(_cast_operands(events, narrow, weights=True)),
        ]
    else:
        drops = [inserted for s in casts if s.code for inserted in without_call(s.code, s.instruction)]
        ways = [
            *(partial(_with_attribute, subject, name, narrow) for name in _attributes(casts)),
            lambda: make_edit(drops, stored),
            lambda: make_edit([*drops, *_cast_results(events)], stored),
            lambda: make_edit([*_cast_operands(events, narrow, weights=True), *_cast_results(events)], stored),
        ]
    names = ", ".join(dict.fromkeys(event.name for event in events))
    reason = f"{names} in float32 where {'autocast is' if autocast else 'all around is'} {short(narrow)}"
    reason += "".join(f"; {name} is float32" for name in _attributes(casts) if not autocast)
    elements = sum(_elements(shape) for event in events for _, shape, _ in event.operands)
    lines = {line_of(*event.line) for event in events}
    line = (casts[0].code, casts[0].instruction) if casts and casts[0].code and not autocast else events[0].line
    kind: CostKind = "autocast_ignored" if autocast else "wide_product"
    chosen = CHOSEN if not autocast and all(map(_is_asked, events)) else ""
    return Suspect(kind, reason, line, events[0].call, ways, elements, len(events), lines, chosen=chosen)


def _is_asked(event: Event) -> bool:
    """Whether each operand is cast to float32 by hand for this, as for a router or for logits."""
    given = [record for _, _, record in event.operands[:3]]
    return all(record.kind == "cast" and record.asked and not _attributes([record]) for record in given)


def _attributes(casts: list[Provenance]) -> tuple[str, ...]:
    """Name the attributes of modules that say what casts bring about, such as ``compute_dtype``."""
    names: dict[str, None] = {}
    for cast in casts:
        target = "" if cast.code is None else cast_target(cast.code, cast.instruction)
        owner, _, name = target.rpartition(".")
        module = cast.call.module if cast.call is not None else None
        if owner == "self" and isinstance(getattr(module, name, None), torch.dtype):
            names[name] = None
    return tuple(names)


def _with_attribute(subject: ExaminedModel, name: str, dtype: torch.dtype) -> Repair | None:
    """Say another format in the modules that say which they compute in."""
    paths = [path for path, module in subject.named_modules() if getattr(module, name, None) is torch.float32]

    def change(model: ExaminedModel) -> None:
        for path in paths:
            setattr(model.get_submodule(path), name, dtype)

    lines = (
        "for module in model.modules():", f'    if hasattr(module, "{name}"):',
        f"        module.{name} = torch.{short(dtype)}",
    )  # fmt: skip
    return Repair(setting="\n".join(lines), change=change) if paths else None


def _doubles(observer: CostFlow) -> Iterator[Suspect]:
    """Work in float64 on what a line widened to it by hand; what it meets there is in float64 too."""
    casts = {
        id(cast.record): cast
        for cast in observer.casts
        if cast.record.dtype is torch.float64 and cast.elements >= LEAST_ELEMENTS and cast.record.code is not None
    }
    if not casts:
        return
    change = [i for c in casts.values() if c.record.code for i in with_single(c.record.code, c.record.instruction)]
    names: dict[str, None] = {}
    for event, complex_keys in observer.doubles:
        widened = [any(id(s) in casts for s in _sources(record, torch.float64)) for _, _, record in event.operands]
        if event.sort is OperationKind.CAST or not any(widened):
            continue
        names[event.name] = None
        texts = zip(written_operands(event), event.operands, widened, strict=True)
        met = {text: key in complex_keys for text, (key, _, _), is_wide in texts if text and not is_wide}
        calls = {text: f".to(torch.{'complex64' if is_complex else 'float32'})" for text, is_complex in met.items()}
        change += with_calls(*event.line, calls)
    record = next(iter(casts.values())).record
    reason = (
        f"{', '.join(names) or record.name} in float64 of what is {short(record.parents[0].dtype)}: float32 holds all "
        "the digits that come in"
    )
    line = (record.code, record.instruction) if record.code is not None else None
    lines, elements = set(_lines(list(casts.values()))), sum(cast.elements for cast in casts.values())
    yield Suspect("double", reason, line, record.call, [partial(make_edit, change)], elements, len(casts), lines)


def _cast_operands(events: list[Event], narrow: torch.dtype, *, weights: bool = False) -> list[Insertion]:
    change: list[Insertion] = []
    for event in events:
        texts = [
            text
            for text, (_, _, record) in zip(written_operands(event), event.operands, strict=True)
            if text and record.dtype is torch.float32 and (weights or record.kind != "parameter")
        ]
        change += with_calls(*event.line, dict.fromkeys(texts, f".to(torch.{short(narrow)})"))
    return change


def _cast_results(events: list[Event]) -> list[Insertion]:
    return [inserted for event in events for inserted in with_calls(*event.line, {}, result=".to(torch.float32)")]


# Attention ------------------------------------------------------------------------------------------------------------


def _unfused_attention(observer: CostFlow) -> Iterator[Suspect]:
    for line, members in grouped((seen.event.line, seen) for seen in observer.unfused).items():
        event, changes, refusals = members[0].event, members[0].changes, members[0].why
        texts = zip(written_operands(event), event.operands, strict=True)
        given = [(text, changes[key]) for text, (key, _, _) in texts if key in changes and text]
        calls = dict(given)
        pinned = list(with_backend(*line, "FLASH_ATTENTION"))
        result = ".squeeze(0)" if ".unsqueeze(0)" in calls.values() else ""
        opened = list(with_calls(*line, calls, result=result)) if given and len(given) == len(changes) else []
        elements = len(members) * sum(_elements(shape) for _, shape, _ in event.operands)
        fused = (
            f"; no fused kernel takes it: {refusals}" if refusals else ", where a fused kernel takes what it is given"
        )
        yield Suspect(
            "slow_attention", f"attention by plain products and a softmax{fused}", line, event.call,
            [partial(make_edit, [*pinned, *opened])], elements, len(members), {line_of(*line)}, is_fact=bool(refusals),
        )  # fmt: skip


def _eager_attention(subject: ExaminedModel) -> Iterator[Suspect]:
    """A model of transformers that attends by its eager functions, where its class has others."""
    for path, module in subject.named_modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", "") != "eager" or not getattr(module, "_supports_sdpa", False):
            continue
        inner = path.removeprefix(subject.prefix.rstrip(".")).removeprefix(".")
        code = f'model{"." if inner else ""}{inner}.set_attn_implementation("sdpa")'

        def change(model: ExaminedModel, path: str = path) -> None:
            model.get_submodule(path).set_attn_implementation("sdpa")  # type: ignore[operator]

        reason = 'attn_implementation is "eager": scores and probabilities are written to memory'
        way = partial(Repair, setting=code, change=change)
        yield Suspect("slow_attention", reason, None, ModuleCall(module, inner), [way], 1 << 40)
        return


def _autocast_casts(observer: CostFlow, subject: ExaminedModel) -> Iterator[Suspect]:
    changes: Stored = {("parameter", name): dtype for name, dtype in observer.recast.items() if dtype in FLOATS}
    if changes:
        to = ", ".join(sorted({short(dtype) for dtype in changes.values()}))
        uses = sum(observer.uncached[name] for _, name in changes)
        often = f"{uses} times a call, as its cache takes only parameters that require gradients, and may be off"
        how = often if uses > len(changes) else "at each call"
        chosen = _trained(subject, changes)
        reason = f"autocast casts {len(changes)} parameters to {to} {how}" + ("" if chosen else ": store them so")
        way = partial(make_edit, [], changes)
        yield Suspect("repeated_cast", reason, None, None, [way], 1 << 40, len(changes), chosen=chosen)
