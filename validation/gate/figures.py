"""Rates of false alarms and of faults found, over pairs of sets.

A rate is over all pairs drawn (and cells, where a fault is in one); its 95 % Wilson interval is that of as many trials
as pairs can be formed without a common set, since pairs that share one are not independent. A false alarm of a *gate*
is any cell called worse in A/A; of a *cell*, one of them. A fault is found where its own cell is called worse. Targets
are fixed here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from precision_eval.gate import Margins
from precision_eval.stats import wilson_interval
from precision_eval.stats.families import GATE_ERROR, decide_all, paired_tests
from validation.gate.measuring import CELLS, PLAIN, SLOWER, TIMED
from validation.gate.rules import ASV_RULES, FACTORS, Cell, Fault, Sets, asv_says, gate_says

MOST_FALSE_ALARMS = 0.01
LEAST_RECALL = 0.95
OTHER_MARGINS = (0.005, 0.002)
"""Of latency, beside the gate's own; looked at after the first full trial, and so without a target."""

PROCESS_COUNTS = (3, 5, 10, 20, 40, 80)

Says = Callable[[int, int, Fault], set[Cell]]


def drawn_pairs(sets: int, most: int, *, seed: int = 0) -> list[tuple[int, int]]:
    """Draw ordered pairs of unlike sets, without repetition."""
    pairs = list(itertools.permutations(range(sets), 2))
    order = np.random.default_rng(seed).permutation(len(pairs))
    return [pairs[index] for index in order[:most]]


def all_figures(sets: Sets, count: int, processes: int, pairs: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return every figure."""
    return [
        figure
        for name, says, faults, judged in _rules(sets, processes)
        for figure in rates(name, says, faults, pairs, count, judged=judged)
    ]


def _rules(sets: Sets, processes: int) -> Iterator[tuple[str, Says, tuple[str, ...], bool]]:
    """Yield name, rule, the faults it is asked to find, and whether it is the one with targets."""
    for n in sorted({*(n for n in PROCESS_COUNTS if n < processes), processes}):
        gate = partial(gate_says, sets, processes=n)
        yield f"gate, {n} processes a side", gate, (*SLOWER, "drift", "memory"), n == processes
    for margin in OTHER_MARGINS:
        narrow = partial(gate_says, sets, processes=processes, margins=Margins(latency=margin))
        yield f"gate, all processes, margin {100 * margin:g} %", narrow, SLOWER, False
    for rule, factor in itertools.product(ASV_RULES, FACTORS):
        faults = {"track_drift": ("drift",), "track_peak_bytes": ("memory",)}.get(rule.method, SLOWER)
        yield f"{rule.name}, factor {factor:g}", partial(asv_says, sets, rule=rule, factor=factor), faults, False


def rates(
    rule: str, says: Says, faults: Sequence[str], pairs: Sequence[tuple[int, int]], sets: int, *, judged: bool
) -> list[dict[str, Any]]:
    """Return a rule's false alarms, of gates and of cells, and how often it finds each fault."""
    alarms, in_cells = [len(says(base, head, None)) for base, head in pairs], len(pairs) * len(CELLS)
    gates = _rate(rule, "false alarms of a gate, A/A", sum(map(bool, alarms)), len(pairs), sets)
    if judged:
        gates |= {"target": f"≤ {MOST_FALSE_ALARMS:g}", "met": gates["rate"] <= MOST_FALSE_ALARMS}
    figures = [gates, _rate(rule, "false alarms of a cell, A/A", sum(alarms), in_cells, sets)]
    for variant in faults:
        hits = {cell: sum(cell in says(base, head, (cell, variant)) for base, head in pairs) for cell in CELLS}
        recall = _rate(rule, f"found, {variant} in one cell", sum(hits.values()), in_cells, sets)
        recall["by_cell"] = {"/".join(cell): round(count / len(pairs), 4) for cell, count in hits.items()}
        if judged:
            recall |= {"target": f"≥ {LEAST_RECALL:g}", "met": recall["rate"] >= LEAST_RECALL}
        figures.append(recall)
    return figures


def _rate(rule: str, what: str, count: int, trials: int, sets: int) -> dict[str, Any]:
    rate = count / trials
    low, high = wilson_interval(rate, max(sets // 2, 1))
    numbers = {"count": count, "trials": trials, "independent_pairs": sets // 2}
    return {"rule": rule, "what": what, "rate": round(rate, 5), "low": round(low, 5), "high": round(high, 5), **numbers}


def spreads(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return per cell and ratio the spread between processes, and how much more sets differ than that explains."""
    result = {}
    for (case, fix), ratio in itertools.product(CELLS, ("to_baseline", "to_anchor")):
        logs = {
            variant: np.log([[one[f"{case}|{fix}|{variant}"][ratio] for one in line["processes"]] for line in lines])
            for variant in TIMED
        }  # each (sets, processes)
        plain = logs.pop(PLAIN)
        within = float(plain.var(axis=1, ddof=1).mean())
        between = float(plain.mean(axis=1).var(ddof=1)) if len(lines) > 1 else 0.0
        result[f"{case}/{fix} {ratio}"] = {
            "process_sd": round(within**0.5, 5),
            "sets_over_processes": round(plain.shape[1] * between / within, 2),
            **{name: round(float(np.exp((slower - plain).mean())), 4) for name, slower in logs.items()},
        }
    return result


# ---- simulated, and named so

SIMULATED_CELLS, SIMULATED_PROCESSES = 100, (3, 5)
_MARGIN = 0.01
_PRIOR_DEGREES, _SPREAD = 6.0, 0.005


def simulated(*, seed: int = 0, gates: int) -> list[dict[str, Any]]:
    """Return the rate of gates with any false regression where every cell's true change equals the margin.

    Processes of a cell are independent draws of a log-ratio, normal or Student's t of 3 degrees of freedom, with
    standard deviations spread over the cells as an inverse χ² does, alike on both sides: what the machine does between
    them is not in it. Three processes a side (asv's default) stand beside five (what the gate asks for).
    """
    figures = []
    noises = (("normal", None), ("Student's t, 3", 3.0))
    for processes, (name, tails) in itertools.product(SIMULATED_PROCESSES, noises):
        rng = np.random.default_rng(seed)
        rate = sum(_fires(rng, tails, processes) for _ in range(gates)) / gates
        low, high = wilson_interval(rate, gates)
        where = f"{SIMULATED_CELLS} cells, {processes} processes a side, {name}"
        numbers = {"rate": rate, "low": round(low, 5), "high": round(high, 5), "trials": gates}
        verdict = {"target": f"≤ {GATE_ERROR:g}", "met": rate <= GATE_ERROR}
        figures.append({"what": f"simulated: {where}, all true changes at the margin", **numbers, **verdict})
    return figures


def _fires(rng: np.random.Generator, tails: float | None, processes: int) -> bool:
    spread = _SPREAD * np.sqrt(_PRIOR_DEGREES / rng.chisquare(_PRIOR_DEGREES, SIMULATED_CELLS))
    shape = (2, processes, SIMULATED_CELLS)
    noise = (
        rng.standard_normal(shape) if tails is None else rng.standard_t(tails, shape) / math.sqrt(tails / (tails - 2))
    )
    logs = noise * spread
    logs[1] += math.log1p(_MARGIN)
    base, head = np.exp(logs)  # each (processes, cells)
    cells: dict[int, Any] = {cell: (base[:, cell], head[:, cell]) for cell in range(SIMULATED_CELLS)}
    tests, _ = paired_tests(cells, margin=_MARGIN)
    return any(one.verdict == "regression" for one in decide_all(tests).values())
