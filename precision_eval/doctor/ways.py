"""The ways to cure one fault: each takes an event and returns edits of the source, or what to store otherwise.

Conventions: there are four ways. *At the meeting*: the operand that strays is cast where the dtypes meet. *At the
origin*: what brought the stray dtype is cast where it is made. *Stored*: the parameter, buffer or input is kept in the
other dtype. *Widened*: the operation whose result loses digits or range works in float32, and what then meets another
dtype is cast at that meeting. Nothing is written.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable

import torch

from precision_eval.core.formats import short
from precision_eval.doctor.accuracy import LOSSES
from precision_eval.doctor.choices import as_path, change_of, choices_of, dtype_in, with_cast_argument, words_of
from precision_eval.doctor.findings import INDEX_OF, asks_integers, is_of_optimizer, owner_of, written_operands
from precision_eval.doctor.source import (
    Insertion,
    autocasts_elsewhere,
    callee,
    dtype_of,
    expressions,
    imports_torch,
    is_returned,
    source_line,
    variables,
    with_argument,
    with_calls,
    with_cast_for_numpy,
    with_cast_to,
    with_casts,
    with_dtype,
    with_factor,
    with_gradient_cast,
    with_keyword_cast,
    with_number_that_fits,
    with_result_cast,
    with_scale_first,
    with_small_fill,
    with_wide_cast,
    within,
    without_autocast,
    without_call,
)
from precision_eval.trace.dtype_flow import HALVES, CodeLine, Event, inside_event, is_internal
from precision_eval.trace.observer import ModuleCall
from precision_eval.trace.operations import (
    ASSIGNMENTS,
    EIGHT_BITS,
    SLOTS,
    WITH_WEIGHTS,
    OperationKind,
    kind_by_name,
    loses,
    operand_names,
)
from precision_eval.trace.provenance import CallFrame, Provenance, ancestors, dtype_chain, maker_of, origin_of
from precision_eval.trace.replay import rounding

# Faults that are cured one after the other before a way is given up.
MOST_STEPS = 16

# Kind and name of a stored tensor → the dtype it is kept in.
Stored = dict[tuple[str, str], torch.dtype]


# At the meeting -------------------------------------------------------------------------------------------------------


def at_meeting(event: Event, base: torch.dtype, *, late: bool = False) -> tuple[Insertion, ...]:
    path = event.call.path if event.call else ""
    if is_internal((event.caller or event.line)[0].co_filename):
        return ()  # torch's own modules one after the other: there is no line of anybody's to change
    if event.kind in ("kept_narrowed", "first_non_finite", "bits"):
        return ()
    if event.kind == "raise" and (local := _of_no_meeting(event)):
        return local
    if event.caller is not None:
        return _around_module(event, event.caller, path="", cast_result=False)
    if event.of_module:
        of_norm = event.sort is OperationKind.NORM and event.kind != "raise"
        if by_keyword := _cast_keyword(event, base):
            return by_keyword
        if not of_norm and (others := _cast_arguments(event, base)):
            return others
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


def at_error(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    return at_meeting(event, base) if event.kind == "raise" else ()


_INTEGER_MASK = re.compile(r"attn_mask.dtype: (long|int|short|unsigned char)")


def _of_no_meeting(event: Event) -> tuple[Insertion, ...]:
    """Cure what raised where no formats meet: a consumer or kernel that takes no half, a number beyond it, an index."""
    for local in (with_cast_for_numpy, with_number_that_fits, with_gradient_cast):
        if change := local(*event.line):
            return change
    keys = [key for key, _, _ in event.operands]
    at = (INDEX_OF.get(event.name, -1),)
    if at in keys and asks_integers(event):
        (text,) = expressions(*event.line, event.name, [at], of_module=event.of_module)
        return with_calls(*event.line, {text: ".long()"}) if text else ()
    if event.sort is OperationKind.ATTENTION and _INTEGER_MASK.search(event.message):
        masks = expressions(*event.line, event.name, [(3,), ("attn_mask",)], of_module=False)
        return with_calls(*event.line, {text: ".bool()" for text in masks if text})
    return _in_float32(event) if lacks_kernel(event) else ()


def lacks_kernel(event: Event) -> bool:
    """Whether an operation raised that was given one format, and a half one."""
    dtypes = {record.dtype for _, _, record in event.operands}
    return event.kind == "raise" and dtypes in ({torch.float16}, {torch.bfloat16})


_MAKES_COMPLEX = re.compile(r"fft_|stft|view_as_complex|polar|complex")


def _in_float32(event: Event) -> tuple[Insertion, ...]:
    """Compute an operation in float32, and cast its result, or each of its results, back."""
    keys = [key for key, _, _ in event.operands]
    if event.caller is not None or ("out",) in keys or event.sort is OperationKind.WRITE:
        return ()
    if event.of_module:
        if event.call is None or next(event.call.module.parameters(), None) is not None:
            return ()
        written = [text for text in expressions(*event.line, "", keys, of_module=True) if text]
    else:
        written = variables(*event.line, event.name, keys)
    if not written or any(record.is_complex for _, _, record in event.operands):
        return ()
    dtype = _dtype_text(written[0], event.operands[0][2].dtype, event.line[0].co_filename)
    result = "" if _MAKES_COMPLEX.match(event.name) else f".to({dtype})"
    return with_calls(*event.line, dict.fromkeys(written, ".float()"), result=result)


def _cast_arguments(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    """Cast what a module is given, if any of it behind the first strays, to its weight's format or to the model's."""
    own = dict(event.call.module.named_parameters(recurse=False)) if event.call else {}
    name, parameter = next(iter(own.items()), ("", None))
    dtypes = [record.dtype for _, _, record in event.operands]
    to = parameter.dtype if parameter is not None else base if base in dtypes else dtypes[0]
    pairs = list(zip(written_operands(event, arguments=True), event.operands, strict=True))
    strays = {text: key for text, (key, _, record) in pairs if text and record.dtype is not to}
    if not set(strays.values()) - {(0,)} or not (owner := callee(*event.line)):
        return ()
    kept = next((text for text, (_, _, record) in pairs if text and record.dtype is to), "")
    dtype = f"{owner}.{name}.dtype" if name.isidentifier() else _dtype_text(kept, to, event.line[0].co_filename)
    return with_casts(*event.line, dict.fromkeys(strays, dtype))


def at_entry(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    """Cast what the outermost module is given whose weights are all in one format, and it in another."""
    call, line = _entry(event)
    if call is None or line is None:
        return at_meeting(event, base, late=True)
    (text,) = expressions(*line, "", [(0,)], of_module=True)
    name = next(name for name, parameter in call.module.named_parameters() if parameter.is_floating_point())
    dtype = f"{path_of(name).replace('model', callee(*line), 1)}.dtype"
    return with_casts(*line, {text: dtype}) if text else ()


def at_argument(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    """Cast what a function is given that is narrower than the model, which loses nothing, where it is called."""
    written = zip(written_operands(event), event.operands, strict=True)
    names = [text for text, (_, _, record) in written if text.isidentifier() and loses(base, record.dtype)]
    if not imports_torch(event.line[0].co_filename):
        return ()
    return with_cast_argument(event.line[0], names, f"torch.{short(base)}") or at_meeting(event, base)


def _entry(event: Event) -> tuple[ModuleCall | None, CodeLine | None]:
    for call, line, given in event.entries:
        formats = {parameter.dtype for parameter in call.module.parameters() if parameter.is_floating_point()}
        if len(formats) == 1 and given not in formats:
            return call, line
    return None, None


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


# What is written into a copy of the first operand, which keeps its format.
_WRITES_INTO_A_COPY = frozenset(
    ("index_put", "masked_scatter", "index_copy", "index_add", "scatter", "scatter_add", "scatter_reduce", "lerp")
)


def _index_to_keep(event: Event, base: torch.dtype, *, late: bool) -> int:
    """Which operand's dtype the others are cast to; late, a query that the code widened is cast and no cache."""
    dtypes = [record.dtype for _, _, record in event.operands]
    widened = late and event.operands[0][2].event
    if widened and widened.deliberate and event.sort is OperationKind.ATTENTION and dtypes[1:3] == [base, base]:
        return 1
    if event.sort is OperationKind.WRITE or event.sort is OperationKind.ATTENTION or event.name in _WRITES_INTO_A_COPY:
        return 0
    if base in dtypes and not (_MAKES_COMPLEX.match(event.name) and torch.float32 in dtypes):
        return dtypes.index(base)
    if torch.float32 in dtypes and _MAKES_COMPLEX.match(event.name):
        return dtypes.index(torch.float32)  # few of these take half
    return 1 if event.sort is OperationKind.PRODUCT and len(dtypes) > 1 else 0


# Widened --------------------------------------------------------------------------------------------------------------

WIDE = "torch.float32"
INSIDE = ("drift", "first_non_finite")
UNTIL_IT_RAISES = "widened until it raises"
OF_NUMBERS = ("scaled", "undone", "widened", UNTIL_IT_RAISES)  # ways that also cure what the numbers say


def scale_first(event: Event, base: torch.dtype) -> tuple[Insertion, ...] | Stored:
    """Have a product that overflows before it is scaled be one of scaled factors."""
    return with_scale_first(*event.line) if event.kind == "first_non_finite" else ()


def fit_fill(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    """Have what overflows to −inf in float16, as the fill of a mask does, be a number that it holds."""
    if event.kind != "first_non_finite" or event.result is not torch.float16:
        return ()
    records = [record for _, _, at in event.operands for record in (at, *ancestors(at))]
    for code, instruction in dict.fromkeys([event.line, *((r.code, r.instruction) for r in records)]):
        if code is not None and not is_internal(code.co_filename) and (fill := with_small_fill(code, instruction)):
            return fill
    least = ".clamp(min=torch.finfo(torch.float16).min)"
    if event.name not in ("softmax", "log_softmax"):
        return with_calls(*event.line, {}, result=least)
    (text,) = expressions(*event.line, event.name, [(0,)], of_module=False)
    return with_calls(*event.line, {text: least}) if text else ()


def rescale(event: Event, base: torch.dtype, *, undone: bool) -> tuple[Insertion, ...]:
    """Scale a factor of a product that overflows by a power of two, which rounds nothing."""
    if event.kind != "first_non_finite" or not event.factors or not event.reach < math.inf:
        return ()
    beyond = event.reach / torch.finfo(event.result).max
    return with_factor(*event.line, 2.0 ** -(math.ceil(math.log2(beyond)) + 2), undone=undone)


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


def widen(event: Event, base: torch.dtype) -> tuple[Insertion, ...] | Stored:
    """Have an operation that loses digits or range keep them; what is wrong by its dtypes is cast where they meet."""
    if event.kind == "raise" and not event.of_module and event.caller is None:
        return _wide(event)  # it stays wide until a module with weights of its own
    if event.kind not in INSIDE:
        return at_meeting(event, base)
    pending = [event]
    for at in pending:
        if change := _wide(at):
            return change
        pending += _producers(at)[: MOST_STEPS - len(pending)]
    return ()


def widen_function(event: Event, made: Iterable[Provenance]) -> tuple[Insertion, ...]:
    """Widen all that a function computes in half with a result, each part of it from where it enters."""
    inside = [at for at in made if at.code is event.line[0] and at.dtype in HALVES]
    inside = [at for at in inside if kind_by_name(at.name) not in WITH_WEIGHTS]
    users: dict[Provenance, list[Provenance]] = {at: [] for at in inside}
    for at in inside:
        for parent in at.parents:
            users.get(parent, []).append(at)
    after = _reachable([at for at in inside if (at.code, at.instruction) == event.line], users)
    related = _reachable(after, {at: [parent for parent in at.parents if parent in users] for at in inside})
    change: dict[Insertion, None] = {}
    for at in related:
        assert at.code is not None
        if not any(parent in users for parent in at.parents):
            cast = with_wide_cast(at.code, at.instruction) if at.kind in ("cast", "made") else ()
            edits = cast or _wide(inside_event("drift", at, 0))
            change |= dict.fromkeys(edits if isinstance(edits, tuple) else ())
    return tuple(change)


def _reachable(start: Iterable[Provenance], edges: dict[Provenance, list[Provenance]]) -> list[Provenance]:
    reached = dict.fromkeys(start)
    pending = list(reached)
    for at in pending:
        more = [other for other in edges[at] if other not in reached]
        reached |= dict.fromkeys(more)
        pending += more
    return list(reached)


class Widen:
    """Widens an operation, and all after it that a cast back would overflow before: weights, and what is carried on."""

    def __init__(self, *, undoes: bool = False) -> None:
        self.undoes = undoes  # takes out the casts ahead of it first
        self.refused: set[str] = set()
        self.overflows = self.ends_wide = False

    def __call__(self, event: Event, base: torch.dtype) -> tuple[Insertion, ...] | Stored:
        if self.undoes and (undone := _without_narrowing(event, {torch.float32, torch.float64})):
            return undone
        records = [record for _, _, record in event.operands[1:] if record.kind == "parameter"]
        weights = {("parameter", record.name): torch.float32 for record in records}
        is_broken, last, place = (
            event.kind == "first_non_finite",
            event.last,
            f"{event.name} {source_line(*event.line)}",
        )
        self.overflows |= is_broken and event.sort is OperationKind.CAST
        if weights and (is_broken or place in self.refused):
            return weights
        self.refused |= {place} if event.kind == "raise" else set()
        if last is None or not (event.kind == "promotion" and self.overflows):
            return widen(event, base)
        if last.event is not None and last.event.last is not None:  # where what it went into ends
            last = last.event.last
        assert last.code is not None
        end = f"end {last.name} {source_line(last.code, last.instruction)}"
        self.ends_wide, self.refused = end in self.refused, self.refused | {end}
        return () if self.ends_wide else with_result_cast(last.code, last.instruction, f"torch.{short(base)}")


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


# Wide on purpose ---------------------------------------------------------------------------------------------------


def _is_choice(record: Provenance) -> bool:
    """Whether a format was chosen: by a cast in the code, or for a parameter."""
    origin = origin_of(record)
    return origin.kind == "parameter" or (origin.kind == "cast" and origin.deliberate)


def _widest(event: Event) -> torch.dtype:
    return min((record.dtype for _, _, record in event.operands), key=rounding)


def narrowest_of(event: Event) -> torch.dtype:
    return max((record.dtype for _, _, record in event.operands), key=rounding)


def is_wide_on_purpose(event: Event, base: torch.dtype) -> bool:
    """Whether what is wider than the model at a meeting was chosen to be, and autocast leaves it so."""
    wide = _widest(event) if event.operands and not event.autocast else base
    return (
        wide is torch.float32
        and base.itemsize < 4
        and any(_is_choice(r) for _, _, r in event.operands if r.dtype is wide)
    )


def at_wide(event: Event, base: torch.dtype) -> tuple[Insertion, ...] | Stored:
    """Keep what was widened on purpose: widen what it meets, stored or there; and what no kernel takes in half."""
    if wide := stored_without_kernel(event):
        return wide
    narrow = [record for _, _, record in event.operands if record.dtype is not _widest(event)]
    if not narrow or not is_wide_on_purpose(event, base) or event.sort is OperationKind.WRITE:
        return at_meeting(event, base, late=True)
    call, _ = _entry(event)
    if call is not None:  # all of a part, as of a norm in half that takes float32 too
        names = [name for name, parameter in call.module.named_parameters() if parameter.is_floating_point()]
        return {("parameter", f"{call.path}.{name}" if call.path else name): _widest(event) for name in names}
    if all(record.kind in ("parameter", "buffer") for record in narrow):
        return {(record.kind, record.name): _widest(event) for record in narrow}
    written = written_operands(event)
    keep = next(i for i, (_, _, r) in enumerate(event.operands) if r.dtype is _widest(event))
    dtype = _dtype_text(written[keep], _widest(event), event.line[0].co_filename)
    casts = {t: dtype for t, (_, _, r) in zip(written, event.operands, strict=True) if t and r in narrow}
    return with_casts(*event.line, casts) if len(casts) == len(narrow) and not event.of_module else ()


def stored_without_kernel(event: Event) -> Stored:
    """Keep in float32 what an operation takes no half of, where that is what is stored."""
    origins = [origin_of(record) for _, _, record in event.operands] if lacks_kernel(event) else []
    return {(origin.kind, origin.name): torch.float32 for origin in origins if origin.kind in ("parameter", "buffer")}


def drops_choice(event: Event, change: tuple[Insertion, ...] | Stored, base: torch.dtype, *, late: bool) -> bool:
    """Whether a change takes out a cast up that is computed in, or narrows a parameter that no autocast would."""
    records = [record for _, _, record in event.operands]
    if isinstance(change, dict):
        return any(
            ("parameter", r.name) in change and loses(r.dtype, change["parameter", r.name]) for r in _of_all(records)
        )
    lines = {}  # of casts up → whether that is to hand on, and nothing is computed in it
    for origin in map(origin_of, records):
        is_up = origin.kind == "cast" and origin.parents and origin.dtype.itemsize > origin.parents[0].dtype.itemsize
        if is_up and origin.code is not None:
            at = origin.code, origin.instruction
            lines[origin.code.co_filename, source_line(*at).line] = is_returned(*at)
    taken_out = [(inserted.file, inserted.line) for inserted in change if inserted.removed]
    if known := [lines[line] for line in taken_out if line in lines]:
        return not all(known)
    if event.autocast:  # what it narrows is narrow on purpose
        return base is torch.float32 and any(WIDE in inserted.text for inserted in change)
    if event.kind == "promotion" and event.deliberate:
        return any(record.deliberate and record.dtype.itemsize > base.itemsize for record in records)
    if not records or event.of_module or taken_out:
        return False
    to = records[_index_to_keep(event, base, late=late)].dtype
    to = base if to in EIGHT_BITS else to
    return any(record.kind == "parameter" and record.dtype.itemsize > to.itemsize for record in records)


def _of_all(records: list[Provenance]) -> list[Provenance]:
    return [at for record in records for at in (record, *dtype_chain(record), *record.parents)]


def with_cast_elsewhere(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    """Have a cast to the format of a parameter that what is cast does not meet be one to the format that it meets."""
    for _, _, record in event.operands:
        others = {other.dtype for _, _, other in event.operands} - {record.dtype}
        if record.kept_by is not None and len(others) == 1:
            return with_argument(*record.kept_by[:2], f"torch.{short(others.pop())}")
    return at_meeting(event, base, late=True)


def policies_of(event: Event) -> list[tuple[Insertion, ...]]:
    """List ways to run what raises under an autocast of another method of its class, the outermost module first."""
    lines = dict.fromkeys(line for _, line, _ in event.entries) if event.kind == "raise" and not event.autocast else ()
    under = [within(*line, context) for line in lines for context in autocasts_elsewhere(line[0])]
    return [change for change in under if change]


def under_policy(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    return next(iter(policies_of(event)), ()) or at_meeting(event, base, late=True)


def fold_of(event: Event) -> Provenance | None:
    """Find what autocast made of parameters alone, such as a fold of two: no input gains by its format."""
    origins = [origin_of(record) for _, _, record in event.operands] if event.kind == "raise" else []
    for record in origins:
        stored = [at for at in ancestors(record) if at.is_stored]
        narrows = record.kind == "op" and all(loses(at.dtype, record.dtype) for at in record.parents)
        if narrows and stored and all(at.kind == "parameter" for at in stored):
            return record
    return None


def with_wide_fold(event: Event, base: torch.dtype) -> tuple[Insertion, ...]:
    fold = fold_of(event)
    if fold is None or fold.code is None:
        return ()
    return without_autocast(fold.code, fold.instruction, event.device)


# At the origin, and as stored -----------------------------------------------------------------------------------------


def _stray(event: Event, base: torch.dtype) -> Provenance | None:
    """What brought the dtype that is not the model's."""
    if event.kind == "downcast" and event.stored is not None and event.stored.dtype is not base:
        return event.stored
    return next((origin_of(record) for _, _, record in event.operands if record.dtype is not base), None)


def at_origin(event: Event, base: torch.dtype, *, takes_out: bool = True) -> tuple[Insertion, ...]:
    """Take out the cast that brought the stray dtype; else cast what is narrower where it is made, and what is wider
    as late as possible, after what is computed in it.
    """
    if event.kind == "raise" and with_gradient_cast(*event.line):
        return ()  # what it was computed in was chosen
    if asks_integers(event):
        cast = next(
            (r for _, _, r in event.operands[::-1] if r.kind == "cast" and not r.parents and _is_written(r)), None
        )
        return () if cast is None or cast.code is None else without_call(cast.code, cast.instruction)
    met = {torch.float32, torch.float64} if lacks_kernel(event) else {record.dtype for _, _, record in event.operands}
    if undone := _without_narrowing(event, met):
        return undone
    stray = _stray(event, base)
    operand = next((record for _, _, record in event.operands if record.dtype is not base), stray)
    if stray is None or operand is None:
        return ()
    rounded = stray.kind == "cast" and stray.parents and stray.parents[0].dtype is base
    line_of_cast = (stray.code, stray.instruction) if rounded and stray.code and _is_written(stray) else None
    if takes_out and line_of_cast and (taken_out := without_call(*line_of_cast)):
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
    """Write the model's dtype as that of a parameter or a tensor that a line has a name for, else by its name."""
    return dtype_in(_frame_of(stray), _met(operands, base), base) or f"torch.{short(base)}"


def _frame_of(record: Provenance) -> CallFrame:
    assert record.code is not None
    if record.frames:
        return record.frames[0]
    call, code = record.call, record.code
    forward = getattr(type(call.module), "forward", None) if call is not None else None
    is_forward = getattr(forward, "__code__", None) == code and code.co_varnames[0] == "self"
    return CallFrame(code, record.instruction, {"self": call} if call is not None and is_forward else {}, {})


def _met(operands: list[Provenance], dtype: torch.dtype) -> list[str]:
    """Name the parameters of a dtype that operands are, or are made of."""
    made = [at for record in operands for at in (record, *ancestors(record))]
    return [at.name for at in made if at.kind == "parameter" and at.dtype is dtype]


def sources_of(event: Event, base: torch.dtype) -> list[tuple[tuple[Insertion, ...] | Stored, str]]:
    """List changes where the dtype of what strays was chosen, the one nearest to the source first, and in words where
    that is; a format that widens the model's was chosen.
    """
    records = [record for _, _, record in event.operands]
    strays = [record for record in records if record.dtype is not base]
    chain = dtype_chain(strays[0])[::-1] if strays else []
    casts = [at for at in chain if at.kind == "cast" and at.parents]
    is_up = any(at.parents[0].dtype is base and loses(at.dtype, base) for at in casts)
    choices = next((found for at in chain if (found := choices_of(at.frames))), [])
    if is_up or (len(choices) == 1 and choices[0].text == WIDE):
        return []
    changes = [(change_of(choice, _met(records, base), base), words_of(choices)) for choice in choices[::-1]]
    return [(change, words) for change, words in changes if change]


def at_source(event: Event, base: torch.dtype, *, rank: int) -> tuple[Insertion, ...] | Stored:
    sources = sources_of(event, base)
    return sources[min(rank, len(sources) - 1)][0] if sources else at_meeting(event, base, late=True)


def as_stored(event: Event, base: torch.dtype) -> Stored:
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


def path_of(name: str) -> str:
    """Write the path of a module's tensor as code: ``layers.0.keys`` → ``model.layers[0].keys``."""
    return "model" + as_path(name.split("."))
