"""One set, measured by this interpreter: ``python -m validation.gate.measuring '{"seed": 0, ...}'``.

As in :mod:`precision_eval.studies.tracking.paired`: a process's figure is the median of its ratios within
rounds, on the clock judged for the pair; every process is a fork of this interpreter, which has imported torch and
run nothing. asv's times are taken by asv_runner's own ``TimeBenchmark`` with asv's default settings: two rounds,
each in a process. The result is one JSON object on the last line of standard output.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from validation.gate.cells import (
    BASELINE,
    DRIFT_FACTOR,
    GROUPS,
    MEMORY_FACTOR,
    MODE,
    PLAIN,
    SIZE,
    Drifting,
    Group,
    Holding,
    variants,
)

ROUNDS_OF_ASV = 2
MIN_ROUNDS = 8
LIMIT_S = 120.0


def measured_set(*, seed: int, processes: int, budget_s: float) -> dict[str, Any]:
    """Measure a set in children of this process."""
    from precision_eval.core.workers import WorkerError, call_each

    paired = [(seed * processes + number, budget_s) for number in range(processes)]
    jobs = {"processes": (_paired, paired), "asv": (_by_asv, [()] * ROUNDS_OF_ASV), "exact": (_exact, [()])}
    found: dict[str, Any] = {}
    for name, (function, arguments) in jobs.items():
        found[name] = call_each(function, arguments, timeout_s=LIMIT_S)
        broken = [one for one in found[name] if isinstance(one, WorkerError)]
        if broken:
            raise SystemExit(f"{name} of set {seed}: {broken[0]}")
    return found


@contextmanager
def _group(group: Group) -> Any:
    """Yield the calls of a group, each a :class:`Candidate` of one unit, ``full_float32`` among them."""
    import torch

    from precision_eval.core.cells import Cell, Options
    from precision_eval.measure.blocks import Candidate
    from precision_eval.measure.generic import _built, prepared

    torch.set_num_threads(1)
    cell = Cell(
        case=group.case,
        fixes=(BASELINE, *group.fixes),
        mode=MODE,
        device="cpu",
        size=SIZE,
        threads=1,
        measure="latency",
        options=Options(),
    )
    with ExitStack() as stack, torch.no_grad():
        built = _built(cell)
        found = {fix: prepared(cell, fix, built, stack) for fix in cell.fixes}
        failed = [fix for fix, one in found.items() if not isinstance(one, Candidate)]
        if failed:
            raise SystemExit(f"{group.case}: {', '.join(failed)} cannot be timed here")
        yield found


def _paired(seed: int, budget_s: float) -> dict[str, dict[str, float]]:
    """Return this process's ratios: ``case|fix|variant`` to those to the baseline and to the anchor."""
    from precision_eval.measure.latency import take_random_memory

    padding = take_random_memory(seed)
    found: dict[str, dict[str, float]] = {}
    for group in GROUPS:
        with _group(group) as units:
            found |= _ratios(group, _rounds(units, seed, budget_s))
    del padding
    return found


def _rounds(units: dict[str, Any], seed: int, budget_s: float) -> Any:
    from precision_eval.measure.blocks import Candidate, Rounds
    from precision_eval.measure.timers import HostTimer
    from precision_eval.studies.tracking.paired import anchor_call
    from validation.latency.calls import repeated

    candidates = {"anchor": Candidate(anchor_call())}
    for fix, unit in units.items():
        for variant, count in variants().items():
            if fix != BASELINE or variant == PLAIN:
                candidates[f"{fix}|{variant}"] = Candidate(repeated(unit.call, count), unit.block)
    for candidate in candidates.values():
        with candidate.block():
            candidate.call()
    rounds = Rounds(candidates, HostTimer(), dict.fromkeys(candidates, 1), seed)
    rounds.run_until(budget_s, min_rounds=MIN_ROUNDS)
    return rounds


def _ratios(group: Group, rounds: Any) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name in rounds.candidates:
        if name != "anchor":
            found[f"{group.case}|{name}"] = {"to_anchor": _median_ratio(rounds, name, "anchor")}
            if not name.startswith(BASELINE):
                found[f"{group.case}|{name}"]["to_baseline"] = _median_ratio(rounds, name, f"{BASELINE}|{PLAIN}")
    return found


def _median_ratio(rounds: Any, name: str, base: str) -> float:
    import numpy as np

    from precision_eval.measure.blocks import judged_clock

    taken = rounds.times_s[judged_clock(rounds, name, base)]
    return float(f"{np.median(np.asarray(taken[name]) / np.asarray(taken[base])):.7g}")


def _by_asv() -> dict[str, list[float]]:
    """Return one of asv's rounds: ``case|fix|variant`` to its samples, seconds per call."""
    from validation.latency.calls import repeated
    from validation.latency.rivals import installed

    kind = installed("asv_runner.benchmarks.time").TimeBenchmark
    found = {}
    for group in GROUPS:
        with _group(group) as units:
            for fix in group.fixes:
                for variant, count in variants().items():
                    with units[fix].block():
                        benchmark = kind("call", repeated(units[fix].call, count), [])
                        benchmark.do_setup()
                        samples = benchmark.do_run()["samples"]
                    found[f"{group.case}|{fix}|{variant}"] = [float(f"{value:.7g}") for value in samples]
    return found


def _exact() -> dict[str, dict[str, float]]:
    """Return drift and bytes of the plain calls, and of those that are made worse."""
    import copy

    from precision_eval.cases.systems import case_by_id
    from precision_eval.fixes import fix_by_id

    found = {}
    for group in GROUPS:
        built = case_by_id(group.case).build(SIZE, device="cpu", seed=0)
        for fix in group.fixes:
            model = copy.deepcopy(built.model)
            with fix_by_id(fix).applied(model, mode=MODE) as applied:
                found[f"{group.case}|{fix}"] = _exact_figures(built, model, applied)
    return found


def _exact_figures(built: Any, model: Any, applied: Any) -> dict[str, float]:
    from precision_eval.measure.drift import tensor_drift
    from precision_eval.measure.memory import call_memory
    from precision_eval.measure.system_drift import attention_drift, exact_attention

    exact = exact_attention(built)
    drifting = Drifting(applied, exact, DRIFT_FACTOR)
    inputs = applied.prepare(built.inputs)
    memory = partial(call_memory, inputs=inputs, model=model, device="cpu")
    plain = memory(applied)
    extra = math.ceil((MEMORY_FACTOR - 1.0) * plain.allocated_peak_bytes)
    return {
        "drift": attention_drift(built, applied).relative_error,
        "drift_worse": tensor_drift(drifting(*inputs), exact, yardstick=exact).relative_error,
        "peak_bytes": plain.allocated_peak_bytes,
        "peak_bytes_worse": memory(Holding(applied, extra)).allocated_peak_bytes,
        "stored_bytes": plain.storage_bytes,
    }


def main() -> None:
    options = json.loads(sys.argv[1])
    import warnings

    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    from precision_eval.studies.tracking import preload

    preload()
    print(json.dumps(measured_set(**options), allow_nan=False))


if __name__ == "__main__":
    main()
