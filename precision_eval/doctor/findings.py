"""From what an observer noted to findings: which mixing is a fault, and how its operands are described; imports torch.

Conventions: the rules are those of the package's text. Mixings of one kind at one line, with the same dtypes, are one
finding that counts them; it tells the operands of the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from typing import Any, cast

import torch
from torch import nn

from precision_eval.core.formats import short
from precision_eval.doctor.choices import choices_of, words_of
from precision_eval.doctor.diagnosis import (
    Finding,
    HistoryStep,
    Kind,
    OperandHistory,
    Ranges,
    Severity,
    SourceLine,
)
from precision_eval.doctor.source import (
    callee,
    expressions,
    factor_and_inverse,
    names_at,
    python_frames,
    source_line,
)
from precision_eval.explain import explain
from precision_eval.trace.dtype_flow import CodeLine, DtypeFlow, Event, inside_event, is_installed, is_internal
from precision_eval.trace.operations import FLOATS, Key, OperationKind, operand_names
from precision_eval.trace.provenance import Provenance, ancestors, dtype_bringer, dtype_chain, origin_of

# Steps of a history that are shown.
LONGEST_HISTORY = 12

# What an error says that refuses values and no dtype, as that of sampling does.
_OF_VALUES = re.compile(r"\b(inf|nan)\b", re.IGNORECASE)

_OF_DTYPES = re.compile(
    r"dtype|scalar type|result type|\bHalf\b|BFloat16|float16|bfloat16|data type|not implemented for '|a bool tensor",
    re.IGNORECASE,
)

# Operations that give infinity or NaN of a finite operand that is zero, as a small epsilon is in half.
_OF_ZERO = frozenset(("div", "reciprocal", "rsqrt", "log"))

_DEVICE_RISKS = {
    "rms_norm": (
        "this torch returns the input's dtype; torch 2.6, and CPU autocast of that time, return float32, which then "
        "meets what is stored in half"
    ),
    "layer_norm": "the CPU's kernel takes a half input with float32 weights; CUDA's raises",
    "group_norm": "the CPU's kernel takes a half input with float32 weights; CUDA's raises",
    "scaled_dot_product_attention": (
        "the CPU's kernel takes a mask that is not in the query's dtype; CUDA's memory-efficient one raises 'invalid "
        "dtype for bias'"
    ),
    "instance_norm": "a norm whose weights are wider than its input is refused by other devices",
}


_PACKAGE, _TORCH = Path(__file__).parents[1], Path(torch.__file__).parent
_CALLS_MODELS = ("cases", "dtype_flow.py", "observer.py", "packing.py", "model_calls.py")


def is_of_observer(error: BaseException) -> bool:
    """Say whether an error was raised by the code that observes, and by no operation of the model."""
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_tb(error.__traceback__)]
    last = next((file for file in reversed(files) if _TORCH not in file.parents), Path())
    return _PACKAGE in last.parents and not set(_CALLS_MODELS) & set(last.relative_to(_PACKAGE).parts)


def raised_event(observer: DtypeFlow, error: BaseException) -> Event:
    chain = {id(error), id(error.__cause__), id(error.__context__)}
    for known, event in observer.raised:
        if id(known) in chain:
            return event
    return _python_event(observer, error)


def is_of_dtypes(error: Exception, raised: Event) -> bool:
    dtypes = {record.dtype for _, _, record in raised.operands}
    text = str(error)
    known = explain(error).known if text.strip() else False
    if known or (len(dtypes) > 1 and isinstance(error, RuntimeError | TypeError | ValueError)):
        return True
    return bool(_OF_DTYPES.search(text)) and not isinstance(error, AttributeError | NameError)


def _python_event(observer: DtypeFlow, error: BaseException) -> Event:
    module: nn.Module | None = None
    local: dict[str, Any] = {}
    of_module = False
    trace, last = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            module, local = owner, dict(frame.f_locals)
            of_module = is_internal(frame.f_code.co_filename)
        last, trace = frame, trace.tb_next
    frames = python_frames(error)
    written = [frame for frame in frames if not is_installed(frame[0].co_filename)] or frames
    line = written[-1] if written else (_python_event.__code__, 0)
    in_function = last is not None and last.f_code is line[0] and not isinstance(last.f_locals.get("self"), nn.Module)
    if last is not None and in_function:  # such as the backward of an autograd function
        names = names_at(*line)
        local = {name: value for name, value in last.f_locals.items() if name in names}
    given = local.get("args", ())  # a tuple in the call of a module that is no Python inside
    values = [*local.items(), *((f"input {at}", v) for at, v in enumerate(given if isinstance(given, tuple) else ()))]
    named = {name: value for name, value in values if isinstance(value, torch.Tensor)}
    for name, value in [] if module is None or in_function else [*module.named_parameters(recurse=False)]:
        named.setdefault(name, value)
    operands: list[tuple[Key, tuple[int, ...], Provenance]] = []
    seen: set[int] = set()
    for name, tensor in named.items():
        if tensor.dtype in FLOATS and id(tensor) not in seen:
            seen.add(id(tensor))
            operands.append(((name,), tuple(tensor.shape), observer.tensors[tensor]))
    call = None if module is None else observer.modules.called(module)
    name = type(module).__name__ if module is not None else "the model"
    result = operands[0][2].dtype if operands else observer.base
    number, sort = observer.number + 1, OperationKind.SKIP
    event = Event("raise", number, name, sort, line, call, operands, result, of_module=of_module)
    event.message, event.device = str(error), next((t.device.type for t in named.values()), "")
    if not of_module and not in_function and len(frames) > 1:
        event.caller = frames[-2]
    return event


def place_of(line: CodeLine) -> SourceLine | None:
    """Name a line; None where none outside torch led to an operation, as of a scripted model or layers one by one."""
    return None if is_internal(line[0].co_filename) else source_line(*line)


def findings_of(
    observer: DtypeFlow, outputs: tuple[torch.Tensor, ...], raised: Event | None, *, broken: bool
) -> tuple[tuple[Finding, ...], list[Event]]:
    for tensor in outputs:
        event = observer.tensors[tensor].event
        if event is not None and not event.leaked:
            event.reached_output = tensor.dtype is event.result
            of_base = event.result is observer.base  # what was narrower has gone up to the model's own format
            event.leaked = "" if event.deliberate or of_base else "reached the model's output"
    events, refused = list(observer.events), False
    if raised is not None:
        events.append(raised)
        for _, _, record in raised.operands:
            if record.event is not None and not record.event.leaked and _brings(record.event, record):
                record.event.leaked = "raised an error further on"
        recast = {(record.code, record.instruction) for _, _, record in raised.operands if record.is_stored}
        is_operation = raised.sort is not OperationKind.SKIP
        events += [event for event in observer.narrowed if not is_operation or event.line in recast]
        refused = any(_OF_VALUES.search(str(error)) for error, _ in observer.raised)
    events += list(observer.uses.values())
    if (broken or refused) and observer.numbers is not None:
        made = [observer.tensors[tensor] for tensor in outputs]
        events += _broken_events(observer.numbers.broken, made, 0 if refused else observer.number)
    _spread(events, observer.base)
    groups: dict[Any, list[Event]] = {}
    for event in sorted(events, key=lambda e: e.number):
        severity, reason = _judge(event)
        dtypes = tuple(record.dtype for _, _, record in event.operands)
        groups.setdefault((event.kind, event.line, event.name, dtypes, event.result, severity, reason), []).append(
            event
        )
    findings = [finding_of(group, cast(Severity, key[5]), key[6], observer.base) for key, group in groups.items()]
    return tuple(findings), [group[0] for group in groups.values()]


# Where the indices, or the labels, of an operation are.
INDEX_OF = {"embedding": 0, "embedding_bag": 0, "one_hot": 0, "bincount": 0, "cross_entropy": 1, "nll_loss": 1}
INDEX_OF |= {"__getitem__": 1, "take": 1} | dict.fromkeys(
    ("gather", "index_select", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_",
     "index_copy", "index_copy_", "scatter_reduce", "take_along_dim"), 2,
)  # fmt: skip
_OF_BITS = re.compile(r"\bbitwise_\w+\" not implemented for '(Half|BFloat16|Float|Double)'")
_ASKS_INTEGERS = re.compile(r"\b(Long|Int|int64|integers?|indices must be long)\b")


def asks_integers(event: Event) -> bool:
    return event.kind == "raise" and event.name in INDEX_OF and bool(_ASKS_INTEGERS.search(event.message))


def _brings(event: Event, record: Provenance) -> bool:
    """Whether a mixing is what a tensor has its dtype from; one on purpose is not where a stored tensor brings it."""
    origin = origin_of(record)
    return not event.deliberate or not origin.is_stored or any(origin is origin_of(r) for _, _, r in event.operands)


def _spread(events: list[Event], base: torch.dtype) -> None:
    """Mark contained promotions by a tensor that does harm elsewhere: the first meeting is where it came in."""
    harmful = {
        id(origin_of(record))
        for event in events
        if event.leaked and not event.deliberate
        for _, _, record in event.operands
        if record.dtype is not base and not record.deliberate
    }
    for event in events:
        if event.kind == "promotion" and not (event.leaked or event.deliberate):
            strays = [record for _, _, record in event.operands if record.dtype is not base]
            if any(id(origin_of(record)) in harmful for record in strays):
                event.leaked = "was cast back, but the same tensor does harm further on"


def _broken_events(broken: list[Provenance], outputs: list[Provenance], number: int) -> list[Event]:
    """The first result that is not finite though its operands are, of those that went into an output if any did."""
    entered = {id(record) for output in outputs for record in (output, *ancestors(output))}
    record = next((one for one in broken if id(one) in entered), broken[0] if broken else None)
    return [] if record is None or record.code is None else [inside_event("first_non_finite", record, number)]


LARGEST_INTEGER = {torch.float16: 2048, torch.bfloat16: 256}  # up to which a format holds every one


def _judge(event: Event) -> tuple[Severity, str]:
    if event.kind == "raise":
        half = [record.dtype for _, _, record in event.operands[-1:] if record.dtype in LARGEST_INTEGER]
        if half and asks_integers(event):
            takes = f": it takes integers, and {short(half[0])} holds those up to {LARGEST_INTEGER[half[0]]} only"
            return "fault", f"it raised{takes}"
        takes = ": it takes bool or integers; make a mask of numbers bool where it is made (dtype=torch.bool)"
        return "fault", f"it raised{takes if _OF_BITS.search(event.message) else ''}"
    if event.kind == "promotion":
        if event.leaked:
            asked = "an operand was brought to its dtype by the code" if event.deliberate else "nothing asked for it"
            follows = ", whose weights are cast to it: nothing refuses it, and it costs time and memory"
            reason = f"the result is {short(event.result)}: {asked}, and it {event.leaked}"
            return "fault", reason + (follows if event.is_followed else "")
        if event.deliberate and event.reached_output:
            return (
                "risk",
                f"an operand was brought to its dtype by the code; the model's output is {short(event.result)}",
            )
        if event.deliberate:
            return "note", "an operand was brought to its dtype by the code"
        if event.was_cast_back:
            return "risk", "it was cast back before it went on; nothing asked for it, so it hangs on that cast"
        return "risk", "nothing asked for it; it went no further than its own module"
    if event.kind == "bits":
        return "fault", event.leaked
    if event.kind == "downcast":
        if event.deliberate:
            return "note", "what is written was widened on purpose, or the destination was made for it"
        return "fault", event.leaked
    if event.kind in ("mixed_norm", "mixed_mask"):
        return "risk", _DEVICE_RISKS.get(event.name, "weights wider than the input")
    if event.kind == "kept_narrowed":
        why = "its values overflow it" if event.result is torch.float16 else "it holds too few digits"
        return "fault", f"the model's class keeps this in float32; it is stored in {short(event.result)}, and {why}"
    if event.kind == "first_non_finite":
        return "fault", "the first result that is not finite though its operands are" + _why_not_finite(event)
    return "note", "a wider destination: exact"


def is_of_optimizer(event: Event) -> bool:
    """Whether an operation is torch's own inside ``optimizer.step()``."""
    return event.name.endswith("_") and callee(*event.line).endswith(".step") and bool(event.operands)


def _why_not_finite(event: Event) -> str:
    largest, divides = torch.finfo(event.result).max, event.name != "div" or len(event.operands) > 1
    if largest < event.reach < math.inf:
        times = f"{event.reach / largest:.3g} times the {largest:.5g} at which {short(event.result)} ends"
        bounds = f"it would be up to {event.reach:.3g}, {times}"
        if event.factors:
            bounds += f", of factors up to {' and '.join(f'{size:.3g}' for size in event.factors)}"
        wider = "bfloat16 and float32 reach 3.4e38; or " if event.reach < torch.finfo(torch.bfloat16).max else ""
        remedy = "keep what it divides by larger" if event.name in _OF_ZERO else "scale down what it is computed of"
        if inverse := factor_and_inverse(*event.line):
            remedy += ": {} is multiplied in at line {} and divided out at line {}".format(*inverse)
        return f"; {bounds}: {wider}{remedy}"
    if is_of_optimizer(event) and event.name == "addcdiv_" and event.result is torch.float16:
        return (
            "; it is a step of the optimizer, and what it divides by may be zero: float16 flushes less than 6e-8, as "
            "Adam's eps of 1e-8 and the square of a gradient below 2e-4 are; optimize a float32 copy (master weights), "
            "cast where the model reads it"
        )
    if event.name in ("softmax", "log_softmax") and event.result is torch.float16:
        return (
            "; a row that it is given is −inf: the fill of a mask that is beyond 65504, such as −1e9, is so in float16"
        )
    if event.name in _OF_ZERO and divides and event.result is torch.float16:
        return "; what it divides by may be zero here: float16 flushes less than 6e-8, as an epsilon of 1e-8 is"
    return ""


def finding_of(group: list[Event], severity: Severity, reason: str, base: torch.dtype) -> Finding:
    event = group[0]
    paths = dict.fromkeys(other.call.path if other.call else "" for other in group)
    module = event.call.path if event.call else ""
    return Finding(
        kind=cast(Kind, event.kind),
        severity=severity,
        op=event.name,
        module=module,
        module_class=type(event.call.module).__name__ if event.call else "",
        place=place_of(event.line),
        operands=operands_of(event, base),
        result="" if event.kind == "raise" else short(event.result),
        count=len(group),
        also_in=tuple(path for path in paths if path != module),
        reason=reason,
    )


def operands_of(event: Event, base: torch.dtype) -> tuple[OperandHistory, ...]:
    keys = [key for key, _, _ in event.operands]
    names = operand_names(event.name, event.sort, keys)
    written = written_operands(event)
    return tuple(
        OperandHistory(
            name=name,
            dtype=short(record.dtype),
            shape=shape,
            expression=text,
            brought_by=_bringer(record, base),
            history=history_of(record, base),
        )
        for name, (_, shape, record), text in zip(names, event.operands, written, strict=True)
    )


def written_operands(event: Event, *, arguments: bool = False) -> list[str]:
    """How the operands are written at an event's line, or only those that the line gives to a module."""
    keys = [key for key, _, _ in event.operands]
    if is_internal(event.line[0].co_filename):
        return [""] * len(keys)
    if event.sort is OperationKind.SKIP:
        names = names_at(*event.line)
        return [str(key[0]) if event.caller or str(key[0]) in names else "" for key in keys]
    if event.of_module:
        own = [record.kind in ("parameter", "buffer") for _, _, record in event.operands]
        keys = [("",) if is_own and at else key for at, (key, is_own) in enumerate(zip(keys, own, strict=True))]
    texts = expressions(*event.line, event.name, keys, of_module=event.of_module)
    if event.of_module and not arguments:
        owner = owner_of(callee(*event.line), event.call.path if event.call else "")
        for index, (_, _, record) in enumerate(event.operands):
            if owner and not texts[index] and record.kind in ("parameter", "buffer"):
                texts[index] = f"{owner}.{record.name.rpartition('.')[2]}"
    return texts


def owner_of(expression: str, path: str) -> str:
    """Write the module at a path, of which a line calls the expression: ``self.net`` and ``a.net.0`` →
    ``self.net[0]``.
    """
    last = re.split(r"\.|\[", expression)[-1].rstrip("]")
    parts = path.split(".")
    if last not in parts:
        return expression
    rest = parts[len(parts) - parts[::-1].index(last) :]
    return expression + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


_DECLARED = (
    "dtype", "torch_dtype", "compute_dtype", "precision", "mixed_precision", "weight_dtype", "param_dtype",
    "model_dtype", "autocast_dtype", "amp_dtype",
)  # fmt: skip
_CONFIGS = ("config", "cfg", "args", "hparams")
_SHORT_NAMES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_HALVES = (torch.float16, torch.bfloat16)


def declared_formats(model: nn.Module) -> Iterator[tuple[str, torch.dtype]]:
    """Yield the half formats that attributes of a model's modules and its config name."""
    holders: list[tuple[str, Any]] = [(f"{path}." if path else "", module) for path, module in model.named_modules()]
    holders[1:1] = [(f"{name}.", getattr(model, name, None)) for name in _CONFIGS]
    for prefix, holder in holders:
        for name in _DECLARED:
            value = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
            word = value.removeprefix("torch.").removesuffix("-mixed") if isinstance(value, str) else ""
            dtype = _SHORT_NAMES.get(word, getattr(torch, word, None)) if word else value
            if isinstance(dtype, torch.dtype) and dtype in _HALVES:
                yield f"{prefix}{name}", dtype


def left_faults(observer: DtypeFlow, outputs: tuple[torch.Tensor, ...]) -> list[str]:
    findings, _ = findings_of(observer, outputs, None, broken=False)
    return [f"{finding.kind} at {finding.place}" for finding in findings if finding.severity == "fault"]


def _bringer(record: Provenance, base: torch.dtype) -> str:
    """Name what brought a dtype; where nearly every weight has it, none of them did by itself."""
    origin = origin_of(record)
    is_usual = origin.kind == "parameter" and origin.dtype is base and origin is not record
    cast = next((at for at in dtype_chain(record)[::-1] if choices_of(at.frames) and at.kept_by is None), None)
    if is_usual or cast is None or cast.kind == "made":
        return "the model's weights" if is_usual else _words_of(origin)
    named, at = choices_of(cast.frames), place_of(cast.frames[0][:2])
    which = "" if cast is origin and cast.kind == "cast" else ", which is cast"
    return ", ".join(filter(None, (f"{_words_of(origin)}{which} to {named[0].text} at {at}", words_of(named))))


def _words_of(record: Provenance) -> str:
    if record.is_stored and record.kept_by is not None:
        code, instruction, other = record.kept_by
        return f"{record.kind} {record.name}, which is cast to the dtype of {other} at {place_of((code, instruction))}"
    if record.is_stored:
        cast = "" if record.code is None else f", which the call casts at {place_of((record.code, record.instruction))}"
        return f"{record.kind} {record.name}{cast}"
    if record.kind == "made":
        choices = choices_of(record.frames)
        named = f"{record.name} with dtype={choices[0].text}" if choices else f"{record.name}, a new tensor"
        at = f"{named} at {place_of(record.frames[0][:2])}" if len(choices) > 1 else named
        return ", ".join(filter(None, (at, words_of(choices))))
    if record.kind == "cast":
        return record.name
    if record.kind == "op" and record.parents and dtype_bringer(record) is None:
        return f"{record.name} of {' and '.join(dict.fromkeys(short(parent.dtype) for parent in record.parents))}"
    stored = [parent.name for parent in record.parents if parent.kind == "parameter"]
    return f"{record.name} with {stored[0]}" if stored else record.name


def history_of(record: Provenance, base: torch.dtype) -> tuple[HistoryStep, ...]:
    chain = dtype_chain(record)
    steps = [_step(chain[0])]
    if chain[0].kind in ("op", "cast"):
        steps = [_step(origin_of(parent)) for parent in chain[0].parents] + steps
    for at in chain[1:]:
        with_stored = at.dtype is not base and any(p.kind == "parameter" and p.dtype is at.dtype for p in at.parents)
        if (
            at is record
            or at.kind == "cast"
            or with_stored
            or any(parent.dtype is not at.dtype for parent in at.parents)
        ):
            steps.append(_step(at))
    return tuple(steps[:LONGEST_HISTORY])


def _step(record: Provenance) -> HistoryStep:
    place = None if record.code is None else source_line(record.code, record.instruction)
    return HistoryStep(
        what=_words_of(record), dtype=short(record.dtype), module=record.call.path if record.call else "", place=place
    )


def autocast_of(observer: DtypeFlow) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"op": op, "operands": list(operands), "result": result, "count": count}
        for (op, operands, result), count in observer.autocast.most_common()
    )


def recast_of(observer: DtypeFlow, model: nn.Module) -> dict[str, Any] | None:
    """Parameters that autocast casts at each call: how many, what they take stored, and what their copies take."""
    parameters = dict(model.named_parameters())
    recast = [(parameters[name], dtype) for name, dtype in observer.recast.items() if name in parameters]
    if not recast:
        return None
    return {
        "parameters": len(recast),
        "stored_bytes": sum(p.numel() * p.element_size() for p, _ in recast),
        "copies_bytes": sum(p.numel() * dtype.itemsize for p, dtype in recast),
        "to": sorted({short(dtype) for _, dtype in recast}),
    }


def backends_of(observer: DtypeFlow) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"backend": backend, "operands": list(dtypes), "count": count}
        for (backend, dtypes), count in observer.attention.most_common()
    )


def dead_casts_of(observer: DtypeFlow) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"from": source, "to": target, "place": str(source_line(code, instruction)), "count": count}
        for (source, target, code, instruction), count in observer.dead.most_common()
    )


def _where(record: Provenance | None) -> str:
    if record is None or record.code is None:
        return ""
    path = record.call.path if record.call else ""
    return f"{path or 'the model'} at {source_line(record.code, record.instruction)}"


def ranges_of(observer: DtypeFlow) -> tuple[Ranges, ...]:
    if observer.numbers is None:
        return ()
    return tuple(
        Ranges(
            dtype=short(dtype),
            total=count.total,
            near_overflow=count.near_overflow,
            subnormal=count.subnormal,
            non_finite=count.non_finite,
            first_near_overflow=_where(count.first_near),
            first_subnormal=_where(count.first_subnormal),
        )
        for dtype, count in sorted(observer.numbers.counts.items(), key=lambda item: str(item[0]))
    )


def lost_of(observer: DtypeFlow) -> tuple[dict[str, Any], ...]:
    """Casts that turn values into infinity, zero or subnormals."""
    lost = []
    for (code, instruction, path, source, target), accounts in (
        observer.numbers.casts.items() if observer.numbers else ()
    ):
        sums = {
            name: sum(getattr(account, name) for account in accounts)
            for name in ("total", "overflowed", "flushed", "subnormal")
        }
        if sums["overflowed"] or sums["flushed"] or sums["subnormal"]:
            place = str(source_line(code, instruction))
            lost.append({"from": source, "to": target, "module": path, "place": place, **sums})
    return tuple(lost)
