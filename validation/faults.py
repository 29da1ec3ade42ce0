"""Planted numeric faults and honest variations of attention, judged by this suite's rule and by those of others.

Conventions: a line of ``OUT/faults.jsonl`` is one fault or honest variation × input family × dtype, over all seeds;
see :mod:`validation.numerics.trials`. Every rule sees the same candidate, the same float64 reference and the
same yardstick. Seeds are below 10 000; those of the judge's calibration are not. Some faults and variations are *held
out*: the suite's rule was developed without them. They count in every figure and have figures of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from precision_eval.core.json_lines import TrialFile
from validation.catalog import Figure, Progress, Size
from validation.numerics.families import DTYPES, FAMILIES
from validation.numerics.faults import FAULTS, Fault
from validation.numerics.held_out import HELD_OUT_FAULTS, HELD_OUT_HONEST
from validation.numerics.honest import HONEST, Variation
from validation.numerics.rivals import RIVALS
from validation.numerics.scoring import Bools, Judged, Rate, collect
from validation.numerics.trials import OURS, POOL, POOLED, Judge, Key, fault_trial, honest_trial, stands, suite_judge

NAME = "faults"
SEEDS: dict[Size, int] = {"quick": 4, "full": 100}
CAUGHT, CAUGHT_FROM_A_QUARTER, FALSE_ALARMS = 0.97, 0.70, 0.005
"""Targets: at least, at least, at most."""
HARDEST = 8

Candidate = Fault | Variation


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cells(seeds: int) -> Iterator[tuple[str, str, torch.dtype, Candidate]]:
    """Key, family, dtype and candidate of every line, those that share their inputs together."""
    for dtype, family in product(DTYPES, FAMILIES):
        for kind, candidates in (("honest", HONEST + HELD_OUT_HONEST), ("fault", FAULTS + HELD_OUT_FAULTS)):
            for candidate in candidates:
                if dtype in candidate.dtypes:
                    yield str(Key(kind, candidate.id, family, _name(dtype), seeds)), family, dtype, candidate


def run(out: Path, *, size: Size, progress: Progress, judge: Judge = suite_judge) -> None:
    """Run the trials that are missing in ``out/faults.jsonl``."""
    trials, seeds = TrialFile(out / f"{NAME}.jsonl"), SEEDS[size]
    cells, done = list(_cells(seeds)), trials.keys()
    held: tuple[str, torch.dtype] | None = None
    on = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small that a second thread costs more than it brings
    try:
        for count, (key, family, dtype, candidate) in enumerate(cells, start=1):
            if key not in done:
                if held != (family, dtype):
                    held, on = (family, dtype), stands(family, dtype, seeds)
                held_out = candidate in HELD_OUT_FAULTS or candidate in HELD_OUT_HONEST
                trials.append({"key": key, "held_out": held_out, **_judged(candidate, on, judge)})
            progress(count, len(cells), key)
    finally:
        torch.set_num_threads(threads)


def _judged(candidate: Candidate, on: list[Any], judge: Judge) -> dict[str, Any]:
    if isinstance(candidate, Fault):
        return fault_trial(candidate, on, judge=judge)
    return honest_trial(candidate, on, judge=judge)


def _lines(out: Path) -> list[dict[str, Any]]:
    """The trials of the largest size in the file, so that a quick run in the same place is not mixed in."""
    lines = TrialFile(out / f"{NAME}.jsonl").read()
    most = max((Key.of(line).seeds for line in lines), default=0)
    return [line for line in lines if Key.of(line).seeds == most]


def figures(out: Path) -> list[Figure]:
    """Make the figures from the trials alone; empty where there are none."""
    lines = _lines(out)
    if not lines:
        return []
    faults, honest = collect(lines, "fault"), collect(lines, "honest")
    return [
        *_main_figures(faults, honest),
        *_held_out_figures(faults, honest),
        *_pooled_figures(lines),
        *_by_part(faults, honest),
        *_fault_figures(faults),
        _cost(lines),
    ]


def _figure(name: str, judged: Judged, where: Bools | None, *, at_least: float = 0.0, at_most: float = 1.0) -> Figure:
    """One rate of every rule; a target where a bound is given."""
    found = judged.rate(OURS, where)
    target = f"≥ {100 * at_least:g} %" if at_least else f"≤ {100 * at_most:g} %" if at_most < 1 else ""
    met = at_least <= found.value <= at_most if target and found.trials else None
    rivals = {rule: str(judged.rate(rule, where)) for rule in RIVALS}
    return Figure(name=name, target=target, found=str(found), met=met, rivals=rivals)


def _main_figures(faults: Judged, honest: Judged) -> list[Figure]:
    return [
        _figure(
            "faults caught, effect at least the format's own error",
            faults,
            faults.between(1.0, float("inf")),
            at_least=CAUGHT,
        ),
        _figure(
            "faults caught, effect from a quarter of it to it",
            faults,
            faults.between(0.25, 1.0),
            at_least=CAUGHT_FROM_A_QUARTER,
        ),
        _figure("false alarms, honest variations", honest, None, at_most=FALSE_ALARMS),
        _figure("faults caught, effect from one to four of it", faults, faults.between(1.0, 4.0)),
        _figure("faults caught, effect below a quarter of it", faults, faults.between(0.0, 0.25)),
    ]


def _held_out_figures(faults: Judged, honest: Judged) -> list[Figure]:
    """The first three on what the suite's rule was developed without."""
    large, small = (faults.between(*bounds) & faults.held_out for bounds in ((1.0, float("inf")), (0.25, 1.0)))
    return [
        _figure("held-out faults caught, effect at least the format's own error", faults, large, at_least=CAUGHT),
        _figure(
            "held-out faults caught, effect from a quarter of it to it", faults, small, at_least=CAUGHT_FROM_A_QUARTER
        ),
        _figure("false alarms, held-out honest variations", honest, honest.held_out, at_most=FALSE_ALARMS),
    ]


def _pooled_figures(lines: list[dict[str, Any]]) -> list[Figure]:
    faults, honest = (collect(lines, kind, pooled=True) for kind in ("fault", "honest"))
    pool = partial(Figure, rivals={})

    def rated(name: str, rate: Rate, *, at_least: float = 0.0, at_most: float = 1.0) -> Figure:
        target = f"≥ {100 * at_least:g} %" if at_least else f"≤ {100 * at_most:g} %"
        met = at_least <= rate.value <= at_most if rate.trials else None
        return pool(name=f"{name}, {POOL} calls pooled", target=target, found=str(rate), met=met)

    return [
        rated("faults caught at ≥ 1", faults.rate(POOLED, faults.between(1.0, float("inf"))), at_least=CAUGHT),
        rated(
            "faults caught at ¼ to 1", faults.rate(POOLED, faults.between(0.25, 1.0)), at_least=CAUGHT_FROM_A_QUARTER
        ),
        rated("false alarms", honest.rate(POOLED), at_most=FALSE_ALARMS),
    ]


def _by_part(faults: Judged, honest: Judged) -> list[Figure]:
    """False alarms and detection per family and per dtype."""
    found = []
    for name in FAMILIES:
        found.append(_figure(f"false alarms, {name}", honest, honest.family == name))
        found.append(
            _figure(f"caught at ≥ 1, {name}", faults, faults.between(1.0, float("inf")) & (faults.family == name))
        )
        found.append(_figure(f"caught at ¼ to 1, {name}", faults, faults.between(0.25, 1.0) & (faults.family == name)))
    for dtype in map(_name, DTYPES):
        found.append(_figure(f"false alarms, {dtype}", honest, honest.dtype == dtype))
        found.append(
            _figure(f"caught at ≥ 1, {dtype}", faults, faults.between(1.0, float("inf")) & (faults.dtype == dtype))
        )
        found.append(_figure(f"caught at ¼ to 1, {dtype}", faults, faults.between(0.25, 1.0) & (faults.dtype == dtype)))
    return found


def _fault_figures(faults: Judged) -> list[Figure]:
    def worst(low: float, high: float) -> str:
        rates = [pair for pair in faults.by_name(OURS, faults.between(low, high)) if pair[1].value < 1.0]
        return (
            "; ".join(f"{name} {100 * rate.value:.0f} % of {rate.trials}" for name, rate in rates[:HARDEST]) or "none"
        )

    nothing = Rate(int((faults.effect == 0.0).sum()), len(faults.effect))
    size = f"{len(set(faults.id.tolist()))} faults, {len(faults.effect):,} trials"
    return [
        Figure(name="hardest faults, effect ≥ 1", target="", found=worst(1.0, float("inf")), met=None, rivals={}),
        Figure(name="hardest faults, effect ¼ to 1", target="", found=worst(0.25, 1.0), met=None, rivals={}),
        Figure(
            name=f"trials in which a fault changed nothing ({size})", target="", found=str(nothing), met=None, rivals={}
        ),
    ]


def _cost(lines: list[dict[str, Any]]) -> Figure:
    one, pool = (sum(line["assess_ms"][at] for line in lines) / len(lines) for at in (0, 1))
    found = f"one call judged in {one:.1f} ms; a pool needs {POOL} calls of the candidate and {pool:.1f} ms"
    return Figure(name="cost of a judgement", target="", found=found, met=None, rivals={})


def plot(out: Path) -> list[Path]:
    """Draw ``out/faults*.png`` from the trials alone."""
    from validation.numerics.drawing import draw_by_fault, draw_rules

    lines = _lines(out)
    if not lines:
        return []
    faults, honest = collect(lines, "fault"), collect(lines, "honest")
    return [*draw_rules(out, faults, honest, collect(lines, "fault", pooled=True)), *draw_by_fault(out, faults, honest)]
