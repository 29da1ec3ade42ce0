"""What is held in float32 without need, each with its line and bytes; no change of it is tried. Imports torch.

Conventions: bytes are those of one call. What a line asks for may be meant so: these are costs, and no faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from precision_eval.core.formats import short
from precision_eval.core.formatting import grouped, join, memory_text
from precision_eval.doctor.diagnosis import CostKind, SilentCost
from precision_eval.doctor.findings import place_of, written_operands
from precision_eval.doctor.source import cast_target
from precision_eval.trace.dtype_flow import HALVES, CodeLine, Event, Operation
from precision_eval.trace.operations import OperationKind
from precision_eval.trace.provenance import Provenance

# Share of what is stored, and elements, from which an output in float32 is told.
LEAST_OF_STORED, LEAST_ELEMENTS = 0.02, 4096


@dataclass(frozen=True)
class Widened:
    """What a stored tensor in float32 widens, though it is the smaller of the two."""

    event: Event
    stored: Provenance
    narrow: torch.dtype
    elements: int


def widened_by_stored(operation: Operation, result: torch.Tensor, event: Event) -> Widened | None:
    if operation.kind is not OperationKind.PLAIN or result.dtype is not torch.float32:
        return None
    pairs = [(tensor, record) for (_, tensor), record in operation.pairs()]
    narrow = [tensor.dtype for tensor, _ in pairs if tensor.dtype in HALVES and tensor.shape == result.shape]
    wide = [(t, r) for t, r in pairs if t.dtype is torch.float32]
    is_norm = operation.call is not None and "norm" in type(operation.call.module).__name__.lower()
    if not narrow or len(wide) != 1 or is_norm:
        return None
    tensor, record = wide[0]
    if not record.is_stored or record.kind == "input" or tensor.requires_grad or tensor.numel() >= result.numel():
        return None
    return Widened(event, record, narrow[0], result.numel())


def find_wide_scales(seen: list[Widened], most_elements: int) -> Iterator[SilentCost]:
    """Name what is stored in float32 and widens results as large as those of products."""
    large = [one for one in seen if 2 * one.elements >= most_elements]
    for members in grouped((one.event.line, one) for one in large).values():
        event, stored, narrow = members[0].event, members[0].stored, short(members[0].narrow)
        wide = next(i for i, (_, _, record) in enumerate(event.operands) if record is stored)
        text = written_operands(event)[wide] or stored.name
        size = memory_text(sum(4 * one.elements for one in members))
        reason = (
            f"{stored.kind} {stored.name} is float32, so {event.name} gives float32 of what is {narrow}, and what "
            f"follows is float32 until the next cast: {size} a call, half of that in {narrow}; if it need not be "
            f"wide, cast it where it is read, {text}.to(torch.{narrow}), or to the dtype of what it meets"
        )
        yield _cost("widening_scale", reason, event.line, event, len(members))


def find_wide_output(records: list[tuple[torch.Tensor, Provenance]], stored_bytes: int) -> Iterator[SilentCost]:
    """Name a cast to float32 of a large output that was rounded to half before."""
    for output, record in records:
        before = record.parents[0] if record.kind == "cast" and record.parents else None
        large = output.numel() >= LEAST_ELEMENTS and output.nbytes > LEAST_OF_STORED * stored_bytes
        if before is None or before.dtype not in HALVES or output.dtype is not torch.float32 or not large:
            continue
        narrow, size = short(before.dtype), memory_text(output.nbytes)
        reason = (
            f"the output is cast to float32 after {before.name} has rounded it to {narrow}: no digit comes back, and "
            f"{size} are held a call beside the {memory_text(output.nbytes // 2)} of {narrow}; return it as it is, "
            "and cast where a loss is computed, or only the part that is read"
        )
        if record.code is not None:
            yield _cost("wide_output", reason, (record.code, record.instruction), record, 1)


def find_wide_inputs(casts: list[Provenance], stored_bytes: int) -> Iterator[SilentCost]:
    """Name the casts by which inputs in half are widened where all else is in float32 too."""
    written = [(record, cast_target(record.code, record.instruction)) for record in casts if record.code is not None]
    if not written:
        return
    record, target = written[0]
    assert record.code is not None
    narrow, names = short(record.parents[0].dtype), join([one.parents[0].name for one, _ in written[:3]])
    chosen = target in ("", "torch.float32", "torch.float")
    cure = "the line asks for it by name, its author's choice" if chosen else (
        f"if {narrow} was meant, look at what makes {target} float32, such as a mapping or a comparison that does not "
        f"know {narrow}"
    )  # fmt: skip
    reason = (
        f"{names} come in {narrow}, are cast to float32 here, and all runs in float32: {memory_text(stored_bytes)} are "
        f"stored, half of that in {narrow}; {cure}"
    )
    yield _cost("wide_inputs", reason, (record.code, record.instruction), record, len(written))


def _cost(kind: CostKind, reason: str, line: CodeLine, at: Event | Provenance, count: int) -> SilentCost:
    return SilentCost(
        kind=kind, reason=reason, module=at.call.path if at.call else "", place=place_of(line), count=count,
        patch=None, price=None,
    )  # fmt: skip
