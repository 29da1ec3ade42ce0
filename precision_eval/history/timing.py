"""Paired latency of all fixes of a cell: to ``full_float32`` and to a fixed computation, from the same rounds.

A paired ratio to ``full_float32`` cannot see what slows every fix alike; a time in seconds sees it, and every other
change of the machine too. So one more candidate is timed in every round: the *anchor*, a numpy computation that no
torch version and no commit of a case changes. It is as fixed as numpy and its BLAS: keep those pinned.

Conventions: ratios, below 1 = faster. The blocks are those of :func:`precision_eval.measure.latency.compare_latency`,
and so is the estimate: a process's figure is the location of its log-ratios within rounds
(:func:`precision_eval.stats.student_location`). The baseline's own ratio is that to a twin of it on a copy of the
model, so it is a noise floor and not 1 by definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell, Outcome, failed, failure_of, passed
from precision_eval.core.workers import WorkerError, call_each
from precision_eval.history.tracking import (
    DEVICE,
    FULL,
    THREADS,
    Effort,
    TrackedCell,
    numbers_of_processes,
    raise_unless_passed,
)
from precision_eval.measure.allocator import GROWN, memory_held
from precision_eval.measure.blocks import Candidate, Rounds, judged_clock
from precision_eval.measure.generic import BASELINE, called, prepared
from precision_eval.measure.latency import sized_rounds, take_random_memory
from precision_eval.measure.timers import HostTimer
from precision_eval.stats import paired_log_ratios, student_location

ANCHOR = "\0anchor"  # cannot collide with a fix
TWIN = "\0twin"
MIN_ROUNDS = 15

Array = NDArray[np.float32]

_ROWS, _WIDTH, _LAYERS, _SLOTS = 16, 512, 4, 2048


def latency(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Time the fixes of a cell side by side, in one process after the other; a measure, run in a worker."""
    answers = call_each(timed_in_process, [(cell, number) for number in numbers_of_processes(cell.options.processes)])
    lost = next((answer for answer in answers if isinstance(answer, WorkerError)), None)
    if lost is not None:
        raise lost
    return list(over_processes(answers).values())


def timed_in_process(cell: Cell, process: int) -> dict[str, Outcome]:
    """Time the fixes of a cell beside each other and the anchor, in this process."""
    padding = take_random_memory(process)
    torch.set_num_threads(cell.threads)
    with ExitStack() as stack:
        outcomes: dict[str, Outcome] = {}
        candidates: dict[str, Candidate] = {}
        try:
            built = case_by_id(cell.case).build(cell.size, device=cell.device, seed=cell.options.seed)
        except Exception as error:  # noqa: BLE001 - whatever building raises is the result of all of them
            return {fix: failure_of(fix, error) for fix in cell.fixes}
        for name in dict.fromkeys((*cell.fixes, BASELINE, *([TWIN] if BASELINE in cell.fixes else []))):
            ready = prepared(cell, BASELINE if name == TWIN else name, built, stack)
            if isinstance(ready, Candidate):
                candidates[name] = ready
            else:
                outcomes[name] = ready
        if candidates:
            rounds = _rounds(candidates | {ANCHOR: Candidate(anchor_call())}, cell, process)
            outcomes |= {fix: passed(fix, _ratios(rounds, fix)) for fix in cell.fixes if fix in candidates}
    del padding
    return {fix: outcomes[fix] for fix in cell.fixes}


def _rounds(candidates: Mapping[str, Candidate], cell: Cell, process: int) -> Rounds:
    """Run the rounds of one process, as ``compare_latency`` does; a model's call is long beside any clock's step."""
    baseline = BASELINE if BASELINE in candidates else ANCHOR
    with memory_held(GROWN):
        rounds = sized_rounds(candidates, HostTimer(), baseline=baseline, seed=cell.options.seed + process)
        rounds.run_until(cell.options.budget_s, min_rounds=MIN_ROUNDS)
    return rounds


def _ratios(rounds: Rounds, fix: str) -> dict[str, Any]:
    baseline = BASELINE if fix != BASELINE else TWIN
    to_baseline = _ratio(rounds, fix, baseline) if baseline in rounds.candidates else None
    return {
        "ratio_to_baseline": to_baseline,
        "ratio_to_anchor": _ratio(rounds, fix, ANCHOR),
        "clock": judged_clock(rounds, fix, ANCHOR),
        "blocks": len(rounds.order),
    }


def _ratio(rounds: Rounds, name: str, baseline: str) -> float:
    """Location over rounds of the ratio of two candidates' block times, on the clock that suits the pair."""
    times_s = rounds.times_s[judged_clock(rounds, name, baseline)]
    return math.exp(student_location(paired_log_ratios(times_s[name], times_s[baseline])).estimate)


def over_processes(processes: Sequence[Mapping[str, Outcome]]) -> dict[str, Outcome]:
    """Gather the processes' figures, fix by fix; a fix that failed in one has that outcome."""
    return {fix: _gathered(fix, [results[fix] for results in processes]) for fix in processes[0]}


def _gathered(fix: str, results: Sequence[Outcome]) -> Outcome:
    broken = next((result for result in results if result.status != "passed"), None)
    if broken is not None:
        return failed(fix, broken.status, broken.reason or "")
    data: dict[str, Any] = {name: [(result.data or {})[name] for result in results] for name in (results[0].data or {})}
    if None in data["ratio_to_baseline"]:
        data |= {
            "ratio_to_baseline": None,
            "missing": {"ratio_to_baseline": f"the baseline {BASELINE} cannot be timed here"},
        }
    return passed(fix, data)


def anchor_call() -> Callable[[], Array]:
    """Draw the anchor's arrays and return the computation."""
    rng = np.random.default_rng(0)
    x, cache, weights = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in ((_ROWS, _WIDTH), (_SLOTS, _WIDTH), (_LAYERS, _WIDTH, _WIDTH))
    )
    return partial(_anchored, x, cache, weights)


def _anchored(x: Array, cache: Array, weights: Array) -> Array:
    """Products with weights, a look into a cache, an elementwise function: x (rows, width) → (rows, width)."""
    for weight in weights:  # (width, width)
        x = np.tanh(x @ weight / np.float32(_WIDTH**0.5))
    scores = x @ cache.T / np.float32(_WIDTH**0.5)  # (rows, slots)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended: Array = (scores / scores.sum(axis=1, keepdims=True)) @ cache
    return attended


def ready(place: TrackedCell, label: str, *, stack: ExitStack, effort: Effort = FULL) -> Callable[[], object]:
    """Build a case, put a fix on it and call it once."""
    fix, where = place.checked_fix(label, effort), place.at(effort)
    torch.set_num_threads(THREADS)
    cell = Cell(
        case=where.case, fixes=(fix.id,), mode=where.mode, device=DEVICE, size=where.size, threads=THREADS,
        measure="latency", options=effort.options,
    )  # fmt: skip
    try:
        built = where.entry.build(where.size, device=DEVICE, seed=effort.options.seed)
        candidate = called(cell, fix.id, built, stack)
    except Exception as error:  # whatever a model raises under a fix is that fix's result
        raise_unless_passed(failure_of(fix.id, error))
        raise
    if isinstance(candidate, Outcome):
        raise_unless_passed(candidate)
    assert isinstance(candidate, Candidate)
    stack.enter_context(candidate.block())
    return candidate.call
