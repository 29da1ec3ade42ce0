"""What the cells that asv follows ask of a gate: their spread between processes, and how many processes find 2 %.

A cell here is a fix on a case at the size that is tracked, timed as the tracking times it, in as many
fresh processes as one asks for; the spread is the standard deviation of a process's log-ratio to ``full_float32``, of
this machine in its state. The number of processes a side follows from the gate's own test, for a family of as many
cells as there are here; it is a calculation, not a trial, and knows nothing of what the machine does between two sides.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from precision_eval.core.cells import Cell
from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import WorkerError, call_each
from precision_eval.stats.families import GATE_ERROR
from precision_eval.stats.moderated import upper_quantile
from precision_eval.studies.tracking import FULL, TIMED_CASES, TrackedCell, sizes_of
from precision_eval.studies.tracking.outcomes import preload
from precision_eval.studies.tracking.timing import over_processes, timed_in_process

CHANGE, RECALL, MOST_PROCESSES = 0.02, 0.95, 10_000
LIMIT_S = 240.0


def needed_processes(
    spread: float, *, margin: float, cells: int, change: float = CHANGE, recall: float = RECALL
) -> int:
    """Return how many processes a side the gate needs to call a change a regression that often."""
    beyond = math.log1p(change) - math.log1p(margin)
    if beyond <= 0.0:
        raise ParameterError(
            f"a change of {change:g} lies within the margin of {margin:g}; no number of processes tells"
        )

    def enough(count: int) -> bool:
        degrees = 2.0 * count - 2.0
        quantiles = upper_quantile(GATE_ERROR / cells, degrees) + upper_quantile(1.0 - recall, degrees)
        return quantiles * spread * math.sqrt(2.0 / count) <= beyond

    counts = range(2, MOST_PROCESSES)  # more processes never ask for more, so a bisection finds the fewest
    return counts.start + bisect_left(counts, True, key=enough)


def tracked_cases() -> list[tuple[str, str]]:
    """Return case and size of what asv follows."""
    return [
        (case, size)
        for case in TIMED_CASES
        for size in sizes_of(TrackedCell(case=case, mode="eager", size="").entry, "eager")
    ]


def measured(case: str, size: str, processes: int) -> list[dict[str, Any]]:
    """Time a tracked case in so many processes: one entry per fix, with the ratios of its processes."""
    preload()
    place, effort = TrackedCell(case=case, mode="eager", size=size), replace(FULL.options, processes=processes)
    fixes = tuple(fix.id for fix in place.fixes(replace(FULL, options=effort)))
    shared: dict[str, Any] = {"mode": "eager", "device": "cpu", "threads": 1, "options": effort}
    cell = Cell(case=case, size=size, fixes=fixes, measure="latency", **shared)
    answers = call_each(timed_in_process, [(cell, n) for n in range(processes)], timeout_s=LIMIT_S)
    rows = []
    if not any(isinstance(answer, WorkerError) for answer in answers):
        for fix, outcome in over_processes(answers).items():
            ratios = (outcome.data or {}).get("ratio_to_baseline")
            if outcome.status == "passed" and ratios:
                rows.append({"case": case, "size": size, "fix": fix, "ratios": [float(f"{r:.7g}") for r in ratios]})
    return rows


def figures(cells: Sequence[Mapping[str, Any]], *, margin: float) -> list[dict[str, Any]]:
    """Return each cell's spread and the processes a side that 2 % asks for."""
    rows = []
    for cell in cells:
        spread = float(np.log(cell["ratios"]).std(ddof=1))
        needed = needed_processes(spread, margin=margin, cells=len(cells))
        rows.append({**cell, "spread": round(spread, 5), "needed_processes": needed})
    return rows
