"""What a set is made of, cells with more work, drift or memory, and how one is measured.

A call repeats its fix's call :data:`UNITS` times; a slowed one does so (1 + delta) times as often, so that delta is
exact in work. Ratios are to ``full_float32``, repeated as often, or to the anchor. (Shorter calls with counted extra
work were tried: they slowed by 3 to 5 % where 2 was meant, for whatever follows a call costs it more than its own
time.)

A set is measured by the interpreter that calls :func:`measured_set`, which should be fresh. As in
:mod:`precision_eval.history.timing`: a process's figure is the median of its ratios within rounds, on the
clock judged for the pair; every process is a fork of this interpreter, which has imported torch and run nothing. asv's
times are taken by asv_runner's own ``TimeBenchmark`` with asv's default settings: two rounds, each in a process.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell, Options
from precision_eval.core.errors import CandidateError
from precision_eval.core.workers import WorkerError, call_each
from precision_eval.fixes import fix_by_id
from precision_eval.history.outcomes import preload
from precision_eval.history.timing import anchor_call
from precision_eval.measure.blocks import Candidate, Rounds, judged_clock
from precision_eval.measure.drift import tensor_drift
from precision_eval.measure.generic import _built, prepared
from precision_eval.measure.latency import take_random_memory
from precision_eval.measure.memory import call_memory
from precision_eval.measure.system_drift import attention_drift, exact_attention
from precision_eval.measure.timers import HostTimer
from validation.latency.calls import repeated
from validation.latency.rivals import installed

BASELINE = "full_float32"
MODE = "eager"
DESIGN = 1
"""Of the sets; raised when what is measured changes, so that old sets and new ones never meet in a pair."""

SIZE = "tiny"
UNITS = 100
DELTAS = (0.02, 0.05)
DRIFT_FACTOR = 1.5
MEMORY_FACTOR = 1.05

GROUPS: Mapping[str, tuple[str, ...]] = {
    "attention-decode": ("kv_to_query", "query_to_half", "bfloat16"),
    "attention-prefill": ("kv_to_query", "query_to_half"),
}
"""Case to the fixes that are timed beside each other."""
CELLS = tuple((case, fix) for case, fixes in GROUPS.items() for fix in fixes)

PLAIN = "plain"
SLOWER = tuple(f"slower_{round(100 * delta)}" for delta in DELTAS)
TIMED = {PLAIN: UNITS} | {name: UNITS + round(UNITS * delta) for name, delta in zip(SLOWER, DELTAS, strict=True)}
"""Timed variants of a fix, with their units."""

Call = Callable[..., Any]


def drifting(call: Call, exact: torch.Tensor, factor: float) -> Call:
    """Return a call whose error is larger by a factor: exact + factor · (output − exact)."""
    return lambda *inputs: (exact + factor * (call(*inputs).double() - exact)).float()


def holding(call: Call, extra_bytes: int) -> Call:
    """Return a call that holds so many bytes more while it runs."""

    def held(*inputs: Any) -> Any:
        extra = torch.empty(extra_bytes, dtype=torch.uint8)
        output = call(*inputs)
        del extra
        return output

    return held


# ---- a set

ROUNDS_OF_ASV = 2
MIN_ROUNDS = 8
LIMIT_S = 120.0


def measured_set(seed: int, processes: int, budget_s: float) -> dict[str, Any]:
    """Measure a set in children of this process."""
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    preload()
    paired = [(seed * processes + number, budget_s) for number in range(processes)]
    jobs: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]]
    jobs = {"processes": (_paired, paired), "asv": (_by_asv, [()] * ROUNDS_OF_ASV), "exact": (_exact, [()])}
    answers: dict[str, Any] = {}
    for name, (function, arguments) in jobs.items():
        answers[name] = call_each(function, arguments, timeout_s=LIMIT_S)
        broken = [answer for answer in answers[name] if isinstance(answer, WorkerError)]
        if broken:
            raise CandidateError(f"{name} of set {seed}: {broken[0]}")
    return answers


@contextmanager
def _units(case: str) -> Iterator[dict[str, Candidate]]:
    """Yield the calls of a case, each a :class:`Candidate` of one unit, ``full_float32`` among them."""
    torch.set_num_threads(1)
    shared: dict[str, Any] = {"mode": MODE, "device": "cpu", "size": SIZE, "threads": 1, "options": Options()}
    cell = Cell(case=case, fixes=(BASELINE, *GROUPS[case]), measure="latency", **shared)
    with ExitStack() as stack, torch.no_grad():
        built = _built(cell)
        units = {fix: prepared(cell, fix, built, stack) for fix in cell.fixes}
        timed = {fix: unit for fix, unit in units.items() if isinstance(unit, Candidate)}
        if failed := units.keys() - timed.keys():
            raise CandidateError(f"{case}: {', '.join(sorted(failed))} cannot be timed here")
        yield timed


def _paired(seed: int, budget_s: float) -> dict[str, dict[str, float]]:
    """Return this process's ratios: ``case|fix|variant`` to those to the baseline and to the anchor."""
    padding = take_random_memory(seed)
    ratios: dict[str, dict[str, float]] = {}
    for case in GROUPS:
        with _units(case) as units:
            rounds = _rounds(units, seed, budget_s)
        for name in rounds.candidates:
            if name != "anchor":
                ratios[f"{case}|{name}"] = {"to_anchor": _median_ratio(rounds, name, "anchor")}
                if not name.startswith(BASELINE):
                    ratios[f"{case}|{name}"]["to_baseline"] = _median_ratio(rounds, name, f"{BASELINE}|{PLAIN}")
    del padding
    return ratios


def _rounds(units: dict[str, Candidate], seed: int, budget_s: float) -> Rounds:
    candidates = {"anchor": Candidate(anchor_call())}
    for fix, unit in units.items():
        for variant, count in TIMED.items():
            if fix != BASELINE or variant == PLAIN:
                candidates[f"{fix}|{variant}"] = Candidate(repeated(unit.call, count), unit.block)
    for candidate in candidates.values():
        with candidate.block():
            candidate.call()
    rounds = Rounds(candidates, HostTimer(), dict.fromkeys(candidates, 1), seed)
    rounds.run_until(budget_s, min_rounds=MIN_ROUNDS)
    return rounds


def _median_ratio(rounds: Rounds, name: str, base: str) -> float:
    taken = rounds.times_s[judged_clock(rounds, name, base)]
    return float(f"{np.median(np.asarray(taken[name]) / np.asarray(taken[base])):.7g}")


def _by_asv() -> dict[str, list[float]]:
    """Return one of asv's rounds: ``case|fix|variant`` to its samples, seconds per call."""
    kind = installed("asv_runner.benchmarks.time").TimeBenchmark
    times_s = {}
    for case, fixes in GROUPS.items():
        with _units(case) as units:
            for fix in fixes:
                for variant, count in TIMED.items():
                    with units[fix].block():
                        benchmark = kind("call", repeated(units[fix].call, count), [])
                        benchmark.do_setup()
                        samples = benchmark.do_run()["samples"]
                    times_s[f"{case}|{fix}|{variant}"] = [float(f"{value:.7g}") for value in samples]
    return times_s


def _exact() -> dict[str, dict[str, float]]:
    """Return drift and bytes of the plain calls, and of those that are made worse."""
    figures = {}
    for case, fixes in GROUPS.items():
        built = case_by_id(case).build(SIZE, device="cpu", seed=0)
        for fix in fixes:
            model = copy.deepcopy(built.model)
            with fix_by_id(fix).applied(model, mode=MODE) as applied:
                figures[f"{case}|{fix}"] = _exact_figures(built, model, applied)
    return figures


def _exact_figures(built: Any, model: Any, applied: Any) -> dict[str, float]:
    exact = exact_attention(built)
    inputs = applied.prepare(built.inputs)
    memory = partial(call_memory, inputs=inputs, model=model, device="cpu")
    plain = memory(applied)
    extra = math.ceil((MEMORY_FACTOR - 1.0) * plain.allocated_peak_bytes)
    worse = drifting(applied, exact, DRIFT_FACTOR)(*inputs)
    return {
        "drift": attention_drift(built, applied).relative_error,
        "drift_worse": tensor_drift(worse, exact, yardstick=exact).relative_error,
        "peak_bytes": plain.allocated_peak_bytes,
        "peak_bytes_worse": memory(holding(applied, extra)).allocated_peak_bytes,
        "stored_bytes": plain.storage_bytes,
    }
