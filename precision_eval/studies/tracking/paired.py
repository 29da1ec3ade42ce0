"""Paired latency of all fixes of a place in one process: to ``full_float32`` and to the anchor, from the same rounds.

Conventions: ratios, below 1 = faster. The blocks are those of :func:`precision_eval.measure.latency.compare_latency`
(:mod:`precision_eval.measure.blocks`: random order in every round, sizes by the baseline, clock judged per pair), with
the anchor as one more candidate; a process's figure is the median of its ratios within rounds. The baseline's own ratio
is that to a twin of it on a copy of the model, so it is a noise floor and not 1 by definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell, Outcome, failed, failure_of, passed
from precision_eval.measure.blocks import Candidate, Rounds, block_sizes, judged_clock
from precision_eval.measure.generic import BASELINE, prepared
from precision_eval.measure.latency_processes import take_random_memory
from precision_eval.measure.timers import CPU_PER_CALL_UP_TO, HostTimer
from precision_eval.studies.tracking.anchor import anchor_call

ANCHOR = "\0anchor"  # cannot collide with a fix
TWIN = "\0twin"
MIN_ROUNDS = 15


def timed_in_process(cell: Cell, process: int) -> dict[str, Outcome]:
    """Time the fixes of a cell beside each other and the anchor, in this process."""
    padding = take_random_memory(process)
    torch.set_num_threads(cell.threads)
    with ExitStack() as stack:
        found: dict[str, Outcome] = {}
        candidates: dict[str, Candidate] = {}
        try:
            built = case_by_id(cell.case).build(cell.size, device=cell.device, seed=cell.options.seed)
        except Exception as error:  # noqa: BLE001 - whatever building raises is the result of all of them
            return {fix: failure_of(fix, error) for fix in cell.fixes}
        for name in (*cell.fixes, *([TWIN] if BASELINE in cell.fixes else [])):
            one = prepared(cell, BASELINE if name == TWIN else name, built, stack)
            if isinstance(one, Candidate):
                candidates[name] = one
            else:
                found[name] = one
        if candidates:
            rounds = _rounds(candidates | {ANCHOR: Candidate(anchor_call())}, cell, process)
            found |= {fix: passed(fix, _ratios(rounds, fix)) for fix in cell.fixes if fix in candidates}
    del padding
    return {fix: found[fix] for fix in cell.fixes}


def _rounds(candidates: Mapping[str, Candidate], cell: Cell, process: int) -> Rounds:
    """Run the rounds of one process, as ``compare_latency`` does; a model's call is long beside any clock's step."""
    timer = HostTimer()
    calls = block_sizes(candidates, timer, baseline=BASELINE if BASELINE in candidates else ANCHOR)
    if max(calls.values()) > CPU_PER_CALL_UP_TO:
        timer = HostTimer(timer.clocks, cpu_per_call=False)  # alike for all: reading a clock disturbs the caches
    rounds = Rounds(candidates, timer, calls, cell.options.seed + process)
    rounds.run_until(cell.options.budget_s, min_rounds=MIN_ROUNDS)
    return rounds


def _ratios(rounds: Rounds, fix: str) -> dict[str, Any]:
    baseline = BASELINE if fix != BASELINE else TWIN
    to_baseline = _median_ratio(rounds, fix, baseline) if baseline in rounds.candidates else None
    return {
        "ratio_to_baseline": to_baseline,
        "ratio_to_anchor": _median_ratio(rounds, fix, ANCHOR),
        "clock": judged_clock(rounds, fix, ANCHOR),
        "blocks": len(rounds.order),
    }


def _median_ratio(rounds: Rounds, name: str, baseline: str) -> float:
    """Median over rounds of the ratio of two candidates' block times, on the clock that suits the pair."""
    times_s = rounds.times_s[judged_clock(rounds, name, baseline)]
    return float(np.median(np.asarray(times_s[name]) / np.asarray(times_s[baseline])))


def over_processes(found: Sequence[Mapping[str, Outcome]]) -> dict[str, Outcome]:
    """Gather the processes' figures, fix by fix; a fix that failed in one has that outcome."""
    return {fix: _gathered(fix, [results[fix] for results in found]) for fix in found[0]}


def _gathered(fix: str, results: Sequence[Outcome]) -> Outcome:
    broken = next((one for one in results if one.status != "passed"), None)
    if broken is not None:
        return failed(fix, broken.status, broken.reason or "")
    data: dict[str, Any] = {name: [(one.data or {})[name] for one in results] for name in (results[0].data or {})}
    if None in data["ratio_to_baseline"]:
        data |= {
            "ratio_to_baseline": None,
            "missing": {"ratio_to_baseline": f"the baseline {BASELINE} cannot be timed here"},
        }
    return passed(fix, data)
