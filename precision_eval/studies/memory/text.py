"""A plan as text: the table of the fixes, notes on it, and the format to take on a device.

Sizes are shown in powers of 1024; what is read accepts both kinds of units, ``GiB`` = 2³⁰ and ``GB`` = 10⁹.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import MISSING, memory_text, yes_no
from precision_eval.core.table import Table
from precision_eval.studies.memory.devices import FormatChoice
from precision_eval.studies.memory.models import PlannedCall, PlannedModel
from precision_eval.studies.memory.plan import FixPlan

_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_bytes(text: str) -> int:
    """Read a size."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ParameterError(f"device memory '{text}' is no size; write a number and a unit, such as 16GiB or 15.8GB")
    size = int(float(match[1]) * unit)
    if size < 1:
        raise ParameterError(f"device memory '{text}' is nothing; give the memory of the device, such as 16GiB")
    return size


def _longest(plan: FixPlan) -> str:
    if plan.largest_length is None:
        return MISSING
    marks = {"positions": f"{plan.largest_length}*", "search": f">{plan.largest_length}"}
    return marks.get(plan.limited_by, str(plan.largest_length))


def plan_table(
    model: PlannedModel, call: PlannedCall, plans: Sequence[FixPlan], *, device_memory_bytes: int | None
) -> Table:
    """Lay the plans out, one row per fix."""
    within = f", in {memory_text(device_memory_bytes)}" if device_memory_bytes else ""
    columns = ["fix", "weights", "cache", "call", "casts", "total", "at most"]
    rows = []
    for plan in plans:
        sizes = (plan.weights_bytes, plan.self_cache_bytes + plan.cross_cache_bytes, plan.call_bytes, plan.casts_bytes)
        total = "raises" if plan.status == "raises" else memory_text(plan.total_bytes)
        row = [plan.fix, *map(memory_text, sizes), total, memory_text(plan.total_high_bytes)]
        rows.append((*row, yes_no(plan.fits), _longest(plan)) if device_memory_bytes else tuple(row))
    if device_memory_bytes:
        columns += ["fits", "longest"]
    return Table(
        title=f"{model.name}, batch {call.batch}, length {call.length}{within}",
        columns=tuple(columns),
        rows=tuple(rows),
        align="l" + "r" * (len(columns) - 1),
        notes=(
            "call: the least that one call holds at its peak; casts: the part of it that is copies into another dtype; "
            "at most: with all the scratch memory that its kernels may take",
        ),
    )


def plan_notes(
    model: PlannedModel, call: PlannedCall, plans: Sequence[FixPlan], *, device_memory_bytes: int | None
) -> list[str]:
    """Say what the table cannot: why a fix does not run, what the model asks for, what to do where nothing fits."""
    lines = [f"{plan.fix} {plan.status}: {plan.reason}" for plan in plans if plan.status != "runs"]
    if any(plan.limited_by == "positions" for plan in plans):
        lines.append(f"* all {model.longest} learned positions")
    if model.keeps_wide:
        lines.append(
            f"the fix float16, or .half(), also stores the projection '{model.keeps_wide}' in float16, which the "
            "source keeps in float32 because it overflows (cogvideo-t5-encoder ends in NaN): on a device whose format "
            "is float16 take --dtype float16 with the fix as_shipped, which keeps it"
        )
    lines += model.notes
    if call.length > model.default_length:
        lines.append(f"length {call.length} is beyond the configuration's longest, {model.default_length}")
    running = [plan for plan in plans if plan.fits is not None]
    if running and not any(plan.fits for plan in running):
        best = min(running, key=lambda plan: plan.total_high_bytes or 0)
        remedy = (
            f"shorten to {best.largest_length}" if best.largest_length else "use a smaller batch or a larger device"
        )
        lines.append(
            f"nothing is sure to fit in {memory_text(device_memory_bytes)}: {best.fix} needs least, "
            f"{memory_text(best.total_bytes)} to {memory_text(best.total_high_bytes)}; {remedy}"
        )
    return lines


def device_lines(choices: Sequence[FormatChoice]) -> list[str]:
    """Say for each device which format is its own, and which are native; :func:`plan_notes` speaks of the model."""
    lines = []
    for choice in choices:
        kinds = ", ".join(f"{name} {support.kind}" for name, support in choice.formats.items())
        lines.append(f"{choice.device}: its format is {choice.dtype}; {kinds}")
    if len(choices) == 1:
        lines += [f"  {reason}" for reason in choices[0].reasons]
    return lines
