"""The gate's error where it is largest: every cell's true change equals the margin. Simulated, and named so.

Conventions: processes of a cell are independent draws of a log-ratio, normal or Student's t of 3 degrees of freedom,
with standard deviations spread over the cells as an inverse χ² does, alike on both sides: what the machine does between
them is not in it. Three processes a side (asv's default) stand beside five (what the gate asks for).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from precision_eval.stats import wilson_interval
from precision_eval.stats.families import GATE_ERROR, decide_all, paired_tests

CELLS, PROCESSES, GATES = 100, (3, 5), 5000
MARGIN = 0.01
_PRIOR_DEGREES, _SPREAD = 6.0, 0.005


def figures(*, seed: int = 0, gates: int = GATES) -> list[dict[str, Any]]:
    """Return the rate of gates with any false regression, for both distributions and each number of processes."""
    noises = (("normal", None), ("Student's t, 3", 3.0))
    return [_figure(name, tails, processes, seed, gates) for processes in PROCESSES for name, tails in noises]


def _figure(name: str, tails: float | None, processes: int, seed: int, gates: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    fired = sum(_fires(rng, tails, processes) for _ in range(gates))
    low, high = wilson_interval(fired / gates, gates)
    return {
        "what": f"simulated: {CELLS} cells, {processes} processes a side, {name}, all true changes at the margin",
        "rate": fired / gates,
        "low": round(low, 5),
        "high": round(high, 5),
        "trials": gates,
        "target": f"≤ {GATE_ERROR:g}",
        "met": fired / gates <= GATE_ERROR,
    }


def _fires(rng: np.random.Generator, tails: float | None, processes: int) -> bool:
    spread = _SPREAD * np.sqrt(_PRIOR_DEGREES / rng.chisquare(_PRIOR_DEGREES, CELLS))
    shape = (2, processes, CELLS)
    noise = (
        rng.standard_normal(shape) if tails is None else rng.standard_t(tails, shape) / math.sqrt(tails / (tails - 2))
    )
    logs = noise * spread
    logs[1] += math.log1p(MARGIN)
    cells = {cell: (np.exp(logs[0, :, cell]), np.exp(logs[1, :, cell])) for cell in range(CELLS)}
    tests, _ = paired_tests(cells, margin=MARGIN)
    return any(one.verdict == "regression" for one in decide_all(tests).values())
