"""What this machine gives a run: its device, the cells that fit beside one another, the memory that each may take.

Sizes are bytes. A worker on a CPU is limited to a share of what is available at the start; one that uses CUDA maps far
more than it uses and has no limit.
"""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell
from precision_eval.core.environment import resolved_device, usable_cores
from precision_eval.core.workers import WorkerRaisedError, call_isolated
from precision_eval.fixes.catalog import ALL_FIXES
from precision_eval.run.executor import GPU_NODES
from precision_eval.run.plan import Plan, checked_device

MEMORY_SHARE = 0.85  # the rest keeps the system alive

_PARAMETER_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
# Bytes per parameter of the float64 copy that these measures make.
FLOAT64_COPY_BYTES = {"drift": 8.0}


def resolve_device(name: str) -> str:
    """Return the device that a name stands for here; a process of its own asks torch where that is needed."""
    if checked_device(name) == "cpu" or (name == "auto" and not any(node.exists() for node in GPU_NODES)):
        return "cpu"
    try:
        device = call_isolated(resolved_device, name)
    except WorkerRaisedError as error:
        raise error.__cause__ or error from None
    return "cuda:0" if device == "cuda" else str(device)


def default_workers(plan: Plan) -> int:
    """Return how many cells may run at a time; one at full size, where two would share the memory."""
    if any(cell.size == "full" for cell in plan.cells):
        return 1
    return max(1, usable_cores() // plan.cells[0].threads)


def memory_limit_bytes(device: str) -> int | None:
    """Return what a worker may take; None where it has no limit."""
    return int(psutil.virtual_memory().available * MEMORY_SHARE) if device == "cpu" else None


def check_fits(plan: Plan) -> None:
    """Refuse sizes that cannot be built here."""
    available_bytes = psutil.virtual_memory().available
    storages = {fix.id: fix.storage for fix in ALL_FIXES}
    for cell in plan.cells:
        if cell.device.startswith("cuda"):  # there weights are drawn, and what does not fit is an outcome
            continue
        case = case_by_id(cell.case)
        case.check_fits(cell.size, available_bytes=available_bytes)
        if cell.device == "cpu":
            case.check_fits(
                cell.size,
                available_bytes=int(available_bytes * MEMORY_SHARE),
                copies=copied_bytes(cell, case.bytes_per_parameter, storages),
                holder=f"{cell.measure} of {' and '.join(cell.fixes)}",
                remedy="--size cpu, leave that out with --fix and --measure",
            )


def copied_bytes(cell: Cell, shipped: float, storages: Mapping[str, str]) -> float:
    """Return the bytes per parameter that a cell holds at least besides the model as shipped."""
    widths = [_PARAMETER_BYTES.get(storages.get(fix, ""), 0.0) for fix in cell.fixes]
    wider = [width if width > shipped else 0.0 for width in widths]
    if cell.measure == "latency":
        return sum(wider) + shipped * len(wider)  # each candidate has a model of its own
    copy = FLOAT64_COPY_BYTES.get(cell.measure, 0.0)
    return max(wider) + copy + (2 * shipped if copy else 0.0)  # the fix has a copy, and the float64 one is made of one
