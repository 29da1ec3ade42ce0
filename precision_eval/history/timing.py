"""Paired latency of all fixes of a cell: to ``full_float32`` and to a fixed computation, from the same rounds.

A ratio to ``full_float32`` cannot show what slows every fix alike. So one more candidate is timed in every round: the
*anchor*, a numpy computation that no torch version and no commit of a case changes. It is as fixed as numpy and its
BLAS: keep those pinned. Ratios below 1 are faster; the baseline's own ratio is that of a copy of it.
"""

from __future__ import annotations

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
from precision_eval.core.errors import UnsupportedError
from precision_eval.history.tracking import (
    FULL,
    ON_CUDA,
    THREADS,
    Effort,
    NotApplicableError,
    TrackedCell,
    numbers_of_processes,
    raise_unless_passed,
)
from precision_eval.measure import generic
from precision_eval.measure.generic import BASELINE, MARGIN, call_once, in_process, prepare_candidate
from precision_eval.measure.graphs import CudaDevice, capture_candidate
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.stats.paired import PairedRatio

ANCHOR = "\0anchor"  # cannot collide with a fix
MIN_ROUNDS = 15
_ROWS, _WIDTH, _LAYERS, _SLOTS = 16, 512, 4, 2048

Array = NDArray[np.float32]


def latency(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Time the fixes of a cell side by side, in one process after the other; a measure, run in a worker.

    On a GPU as a run does, by its two clocks: the anchor is of the CPU.
    """
    if cell.device != "cpu":
        return generic.latency(cell, run_dir)
    numbers = numbers_of_processes(cell.options.processes)
    timed = [in_process(timed_once, cell, number) for number in numbers]  # type: ignore[arg-type]
    return [_gathered(fix, [outcomes[fix] for outcomes in timed]) for fix in cell.fixes]  # type: ignore[misc]


def timed_once(cell: Cell, process: int) -> dict[str, Outcome]:
    torch.set_num_threads(cell.threads)
    built = case_by_id(cell.case).build(cell.size, device=cell.device, seed=cell.options.seed)
    with ExitStack() as stack:
        ready = {fix: prepare_candidate(cell, fix, built, stack) for fix in dict.fromkeys((*cell.fixes, BASELINE))}
        candidates = {fix: candidate for fix, candidate in ready.items() if isinstance(candidate, Candidate)}
        outcomes = {fix: outcome for fix, outcome in ready.items() if isinstance(outcome, Outcome)}
        twin = prepare_candidate(cell, BASELINE, built, stack) if BASELINE in candidates else None
        if candidates:
            ratios = compare_latency(
                candidates | {ANCHOR: Candidate(anchor_call())},
                baseline=BASELINE if twin is not None else ANCHOR,
                budget_s=cell.options.budget_s,
                margin=MARGIN,
                seed=cell.options.seed + process,
                noise_floor=twin if isinstance(twin, Candidate) else None,
                stop_early=False,
                check=False,  # a step may write its cache
                threads=cell.threads,
                min_rounds=MIN_ROUNDS,
                redraw=False,  # each process draws by itself
            )
            outcomes |= {fix: passed(fix, ratio_data(ratios, fix)) for fix in candidates}
    return {fix: outcomes[fix] for fix in cell.fixes}


def ratio_data(ratios: Mapping[str, PairedRatio], fix: str) -> dict[str, Any]:
    """Return both ratios of a fix; without a baseline, all ratios are to the anchor."""
    anchor = ratios.get(ANCHOR)
    timed = ratios[fix]
    if anchor is None:
        to_baseline, to_anchor = None, timed.ratio
    else:
        to_baseline, to_anchor = timed.ratio, (1.0 if fix == BASELINE else timed.ratio) / anchor.ratio
    return {
        "ratio_to_baseline": to_baseline,
        "ratio_to_anchor": to_anchor,
        "clock": timed.clock,
        "blocks": timed.blocks,
    }


def _gathered(fix: str, outcomes: Sequence[Outcome]) -> Outcome:
    """Return the figures of all processes of a fix; one that failed in any has that outcome."""
    broken = next((outcome for outcome in outcomes if outcome.status != "passed"), None)
    if broken is not None:
        return failed(fix, broken.status, broken.reason or "")
    names = outcomes[0].data or {}
    data: dict[str, Any] = {name: [(outcome.data or {})[name] for outcome in outcomes] for name in names}
    if None in data["ratio_to_baseline"]:
        missing = {"ratio_to_baseline": f"the baseline {BASELINE} cannot be timed here"}
        data |= {"ratio_to_baseline": None, "missing": missing}
    return passed(fix, data)


def anchor_call() -> Callable[[], Array]:
    rng = np.random.default_rng(0)
    x, cache, weights = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in ((_ROWS, _WIDTH), (_SLOTS, _WIDTH), (_LAYERS, _WIDTH, _WIDTH))
    )
    return partial(_anchor, x, cache, weights)


def _anchor(x: Array, cache: Array, weights: Array) -> Array:
    """Products with weights, a look into a cache, an elementwise function: x (rows, width) → (rows, width)."""
    for weight in weights:  # (width, width)
        x = np.tanh(x @ weight / np.float32(_WIDTH**0.5))
    scores = x @ cache.T / np.float32(_WIDTH**0.5)  # (rows, slots)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended: Array = (scores / scores.sum(axis=1, keepdims=True)) @ cache
    return attended


def ready(place: TrackedCell, label: str, *, stack: ExitStack, effort: Effort = FULL) -> Callable[[], object]:
    """Build a case, put a fix on it and call it once; return the call that the benchmarking tool times by itself.

    On a GPU it is the replay of the captured call, to the end of its work: some 10 µs of the host are in it.
    """
    fix, where = place.checked_fix(label, effort), place.at(effort)
    torch.set_num_threads(THREADS)
    cell = Cell(
        case=where.case, fixes=(fix.id,), mode=where.mode, device=where.device, size=where.size, threads=THREADS,
        measure="latency", options=effort.options,
    )  # fmt: skip
    try:
        built = where.entry.build(where.size, device=where.device, seed=effort.options.seed)
        candidate = call_once(cell, fix.id, built, stack)
    except Exception as error:  # whatever a model raises under a fix is that fix's result
        raise_unless_passed(failure_of(fix.id, error))
        raise
    if isinstance(candidate, Outcome):
        raise_unless_passed(candidate)
    assert isinstance(candidate, Candidate)
    if where.mode != ON_CUDA:
        stack.enter_context(candidate.block())
        return candidate.call
    try:
        replay = capture_candidate(fix.id, candidate, CudaDevice(where.device)).replay
    except UnsupportedError as error:
        raise NotApplicableError(f"no device time: {error}") from error

    def replay_to_its_end() -> None:
        replay()
        torch.cuda.synchronize(where.device)

    return replay_to_its_end
