"""The change that a finding suggests: the line with its cast, and the place where the dtype comes from; imports torch.

Conventions: where one operand has the dtype of most of the model, the others are cast to it; else a product's operands
are cast to its weight's dtype, attention's keys and values to the query's, and all else to the first operand's. A write
into a stored tensor is cast already: there the line that raised later is changed. A suggestion is not applied, nor run.
"""

from __future__ import annotations

import torch

from precision_eval.diagnose.doctor.diagnosis import Patch
from precision_eval.diagnose.doctor.findings import owner_of, written_operands
from precision_eval.diagnose.doctor.source import (
    called,
    cast_of,
    dtype_of,
    expressions,
    source_line,
    with_casts,
)
from precision_eval.trace.dtype_flow import CodeLine, Event, is_internal
from precision_eval.trace.operations import OperationKind, short
from precision_eval.trace.provenance import Provenance, origin_of


def suggested(first: Event, raised: Event | None, base: torch.dtype) -> Patch:
    """Suggest a change."""
    event = raised if first.sort is OperationKind.WRITE and first.kind == "downcast" and raised is not None else first
    line = event.caller or event.line
    return Patch(place=source_line(*line), diff=_diff(event, base), origin=_origin(first, base))


def _diff(event: Event, base: torch.dtype) -> str:
    path = event.call.path if event.call else ""
    if is_internal((event.caller or event.line)[0].co_filename):
        return ""  # torch's own modules one after the other: there is no line of anybody's to change
    if event.caller is not None:
        return _around_module(event.caller, path="", cast_result=False)
    if event.sort is OperationKind.NORM and event.kind != "raise" and event.of_module:
        return _around_module(event.line, path=path, cast_result=True)
    if event.kind in ("kept_narrowed", "first_non_finite"):
        return ""
    if event.of_module:
        return _around_module(event.line, path=path, cast_result=False)
    written = written_operands(event)
    keep = _kept(event, base)
    name = dtype_of(written[keep]) if written[keep] else f"torch.{short(event.operands[keep][2].dtype)}"
    casts = {
        text: cast_of(text, name)
        for text, (_, _, record) in zip(written, event.operands, strict=True)
        if text and record.dtype is not event.operands[keep][2].dtype
    }
    return with_casts(*event.line, casts) if casts else ""


def _around_module(line: CodeLine, *, path: str, cast_result: bool) -> str:
    """Cast what a module is given to its weight's dtype, or what it returns to its input's."""
    code, instruction = line
    (given,) = expressions(code, instruction, "", [(0,)], of_module=True)
    owner = called(code, instruction)
    if not given or not owner:
        return ""
    if cast_result:
        whole = f"{owner}({given})"
        return with_casts(code, instruction, {whole: cast_of(whole, dtype_of(given))})
    return with_casts(code, instruction, {given: cast_of(given, f"{owner_of(owner, path)}.weight.dtype")})


def _kept(event: Event, base: torch.dtype) -> int:
    """Index of the operand whose dtype the others are cast to."""
    dtypes = [record.dtype for _, _, record in event.operands]
    if event.sort is OperationKind.WRITE or event.sort is OperationKind.ATTENTION:
        return 0
    if base in dtypes:
        return dtypes.index(base)
    return 1 if event.sort is OperationKind.PRODUCT and len(dtypes) > 1 else 0


def _origin(event: Event, base: torch.dtype) -> str:
    """Say what to change where the stray dtype comes from."""
    records = [record for _, _, record in event.operands]
    stray = next((record for record in records if record.dtype is not base), None)
    if event.kind == "downcast" and event.stored is not None:
        other = next((record for record in records[1:] if record.dtype is not event.stored.dtype), None)
        if event.stored.dtype is not base and other is not None:
            return f"make {event.stored.kind} {event.stored.name} in {short(other.dtype)}, or cast it where it is read"
    if event.kind == "kept_narrowed":
        return (
            f"load {records[-1].name} in float32, and do not call .half() or .to(float16) on the whole model afterwards"
        )
    return "" if stray is None else _where(origin_of(stray), base)


def _where(origin: Provenance, base: torch.dtype) -> str:
    name = short(base)
    if origin.kind in ("parameter", "buffer", "attribute"):
        return f"store {origin.kind} {origin.name} in {name}; it is in {short(origin.dtype)}"
    if origin.kind == "input":
        return f"give input {origin.name} in {name}; it is in {short(origin.dtype)}"
    place = "" if origin.code is None else f" at {source_line(origin.code, origin.instruction)}"
    if origin.kind == "cast":
        return f"cast the result back to {name} after the cast to {short(origin.dtype)}{place}"
    if origin.kind == "made":
        return f"make it in {name}: {origin.name}{place} makes {short(origin.dtype)}"
    return f"{origin.name}{place} brings {short(origin.dtype)}"
