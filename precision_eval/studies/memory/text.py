"""A plan as text: the table of the fixes, the format to take on a device, and sizes as people write them.

Conventions: sizes are shown with three digits and K, M, G for 2¹⁰, 2²⁰, 2³⁰ bytes; what is read accepts both kinds of
units, ``GiB`` = 2³⁰ and ``GB`` = 10⁹.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from precision_eval.core.errors import ParameterError
from precision_eval.studies.memory.devices import Choice
from precision_eval.studies.memory.plan import FixPlan, Request

_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_bytes(text: str) -> int:
    """Read a size."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ParameterError(f"device memory '{text}' is no size; write a number and a unit, such as 16GiB or 15.8GB")
    size = int(float(found[1]) * unit)
    if size < 1:
        raise ParameterError(f"device memory '{text}' is nothing; give the memory of the device, such as 16GiB")
    return size


def shown_bytes(nbytes: int | None) -> str:
    """Write a size with three digits and a binary unit; a dash for ``None``."""
    if nbytes is None:
        return "–"
    value, unit = float(nbytes), ""
    for unit in ("", "K", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            break
        value /= 1024
    return f"{value:#.3g}{unit}".replace(".G", "G").replace(".M", "M").replace(".K", "K") if unit else f"{nbytes}"


def _longest(plan: FixPlan) -> str:
    if plan.largest_length is None:
        return "–"
    marks = {"positions": f"{plan.largest_length}*", "search": f">{plan.largest_length}"}
    return marks.get(plan.limited_by, str(plan.largest_length))


def plan_table(request: Request, plans: Sequence[FixPlan]) -> Table:
    """Lay the plans out, one row per fix, in 80 columns."""
    memory = request.device_memory_bytes
    title = f"{request.config.name}, batch {request.batch}, length {request.length}"
    table = Table(
        title=title + (f", in {shown_bytes(memory)}" if memory else ""),
        caption="bytes, K M G = 2¹⁰ 2²⁰ 2³⁰; activations, workspace, casts: alive together",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("fix", no_wrap=True)
    for column in ("weights", "cache", "activ.", "work", "casts", "total"):
        table.add_column(column, justify="right", no_wrap=True)
    if memory:
        table.add_column("fits", justify="right", no_wrap=True)
        table.add_column("longest", justify="right", no_wrap=True)
    for plan in plans:
        cells = [plan.fix, shown_bytes(plan.weights_bytes)]
        cells.append(shown_bytes(plan.self_cache_bytes + plan.cross_cache_bytes))
        cells += [shown_bytes(part) for part in (plan.activations_bytes, plan.workspace_bytes, plan.casts_bytes)]
        cells.append("raises" if plan.status == "raises" else shown_bytes(plan.total_bytes))
        if memory:
            cells += [{True: "yes", False: "no", None: "–"}[plan.fits], _longest(plan)]
        table.add_row(*cells)
    return table


def notes(request: Request, plans: Sequence[FixPlan]) -> list[str]:
    """Say what the table cannot: why a fix does not run, what the model asks for, and what to do where nothing fits."""
    lines = [f"{plan.fix} {plan.status}: {plan.reason}" for plan in plans if plan.status != "runs"]
    if any(plan.limited_by == "positions" for plan in plans):
        lines.append(f"* all {request.config.main.max_length} learned positions")
    lines += _of_the_model(request)
    longest = request.config.main.max_length
    if request.length > longest:
        lines.append(f"length {request.length} is beyond the configuration's longest, {longest}")
    running = [plan for plan in plans if plan.fits is not None]
    if running and not any(plan.fits for plan in running):
        best = min(running, key=lambda plan: plan.total_bytes or 0)
        lines.append(
            f"nothing fits in {shown_bytes(request.device_memory_bytes)}: {best.fix} needs least, "
            f"{shown_bytes(best.total_bytes)}; "
            + (f"shorten to {best.largest_length}" if best.largest_length else "use a smaller batch or a larger device")
        )
    return lines


def _of_the_model(request: Request) -> list[str]:
    """What this model asks for beyond its sizes: a layer kept wide, pinned attention, and what runs beside it."""
    config, lines = request.config, []
    wide = config.float16_mlp_out
    if wide not in ("", "float16"):
        lines.append(
            f"the fix float16, or .half(), also stores the MLP's output projection in float16, which the source keeps "
            f"in {wide} because it overflows (cogvideo-t5-encoder ends in NaN): on a device whose format is float16 "
            "take --dtype float16 with the fix as_shipped, which keeps it"
        )
    if config.pins_math and config.decoder and request.tokens == 1 and not request.math_attention:
        lines.append(
            "planned with fused attention; the source pins plain attention around each decode step, which "
            "--math-attention plans"
        )
    if config.beside:
        lines.append(f"not in this plan: {config.beside}")
    return lines


def device_lines(choices: Sequence[Choice]) -> list[str]:
    """Say for each device which format is its own, and which are native; :func:`notes` says what a model asks for."""
    lines = []
    for choice in choices:
        kinds = ", ".join(f"{name} {found.kind}" for name, found in choice.formats.items())
        lines.append(f"{choice.device}: its format is {choice.dtype}; {kinds}")
    if len(choices) == 1:
        lines += [f"  {reason}" for reason in choices[0].reasons]
    return lines
