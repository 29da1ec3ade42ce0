"""The plan of what is tracked, and the figures read from its records.

Conventions: a measure of a place is planned and run as any run is: cells, isolated workers, records in a folder, which
each place has for itself, as all of it is read for each figure. What is recorded is not run again, whatever came of it,
so the tool that shows the figures may ask for them one by one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from precision_eval.core.cells import Cell, Outcome
from precision_eval.core.environment import collect, environment_sha, store_environment
from precision_eval.core.errors import RecordError
from precision_eval.core.files import read_json
from precision_eval.core.records import Record, RecordFile, latest
from precision_eval.history.tracking import (
    THREADS,
    Effort,
    Figure,
    TrackedCell,
    TrackedMetric,
    metrics_of,
    numbers_of_processes,
    raise_unless_passed,
)
from precision_eval.measure.registry import MEASURES, Measure, measure_by_name, run_cell
from precision_eval.run.executor import IsolatedExecutor, modules_to_preload
from precision_eval.run.plan import Plan, Selection, make_plan
from precision_eval.run.runner import run_plan

AT_ONCE = min(2, os.cpu_count() or 1)

# What is made in addition to the fixes because a later measure compares with it.
COMPARATORS: Mapping[str, tuple[str, ...]] = {"streams": ("reference",), "synthesis": ("reference", "noise_floor")}

# The paired latency with a fixed computation as one more candidate.
PAIRED = replace(measure_by_name("latency"), place="precision_eval.history.timing:latency")

# The suite's measures without the controls, which no history needs.
TRACKED: tuple[Measure, ...] = tuple(
    replace(PAIRED if measure.name == "latency" else measure, pseudo_fixes=COMPARATORS.get(measure.name, ()))
    for measure in MEASURES
)


def fix_by_fix(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Measure one fix after the other in this process; a fix that crashes it is found by the runner, one by one."""
    results = (run_cell(replace(cell, fixes=(fix,)), run_dir, TRACKED) for fix in cell.fixes)
    return [outcome for result in results for outcome in result.outcomes]


# The same, all fixes of a measure in one worker: for efforts that give no figures.
IN_ONE_WORKER: tuple[Measure, ...] = tuple(
    measure if measure.grouped else replace(measure, grouped=True, place=f"{__name__}:{fix_by_fix.__name__}")
    for measure in TRACKED
)

# What every measure imports while it runs, once before forking.
PRELOADED = ("torch", "precision_eval.measure.generic", "precision_eval.trace.capture", "torch._dynamo")


def preload() -> None:
    """Import what a timed call needs, before the benchmarking tool forks; nothing of it is called."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compiling processes beside a timed one
    for module in PRELOADED:
        importlib.import_module(module)


def figure(place: TrackedCell, label: str, metric: TrackedMetric, *, folder: Path, effort: Effort) -> Figure:
    """Return one figure of one fix, measuring all fixes of the place if nobody has asked before."""
    fix = place.checked_fix(label, effort)
    measure = metric.measure_of(place.entry.measures)
    assert measure is not None, f"{place.case} has no measure for {metric.id}"
    outcome = outcomes_of(place, measure, folder=folder, effort=effort)[fix.id]
    if metric.path:
        raise_unless_passed(outcome)
    return metric.read(outcome)


def outcomes_of(
    place: TrackedCell, measure: str, *, folder: Path, effort: Effort, measures: Sequence[Measure] = TRACKED
) -> dict[str, Record]:
    """Return the records of all fixes of a place, and of the references that the measure needs, by fix."""
    place = place.at(effort)
    plan = plan_of(place, measure, effort, measures)
    run = f"run.{effort.name}" if place.device == "cpu" else f"run.{effort.name}.{place.mode}"
    records = RecordFile(folder / run / f"{place.case}.{place.mode}.{place.size}" / "records.jsonl")
    wanted = {cell.fix_id(fix): fix for cell in plan.cells if cell.measure == measure for fix in cell.fixes}
    recorded = latest(records.read().records)
    if not wanted.keys() <= recorded.keys():
        _run(plan, records, effort, place.device)
        reading = records.read()
        recorded = latest(reading.records)
        if unread := sorted(wanted.keys() - recorded.keys()):
            raise RecordError(f"{records.path} has no record of {unread[0]} that fits: {'; '.join(reading.faults)}")
    return {fix: recorded[cell] for cell, fix in wanted.items()}


def plan_of(place: TrackedCell, measure: str, effort: Effort, measures: Sequence[Measure] = TRACKED) -> Plan:
    """Return the cells of one measure of a place, or of all that is tracked of it, and those that come before."""
    every = (metric.measure_of(place.entry.measures) for metric in metrics_of(place.entry, place.mode))
    wanted = dict.fromkeys((measure, *(filter(None, every) if effort.together else ())))
    selection = Selection(
        cases=(place.case,),
        fixes=tuple(fix.id for fix in place.fixes(effort)),
        measures=tuple(dict.fromkeys(name for own in wanted for name in _with_earlier(own, measures))),
        modes=(place.run_mode,),
        sizes=(place.size,),
        device=place.device,
        threads=THREADS,
        options=place.options(effort),
    )
    return make_plan(selection, measures=IN_ONE_WORKER if effort.together and measures is TRACKED else measures)


def _with_earlier(name: str, measures: Sequence[Measure]) -> Iterator[str]:
    yield name
    for earlier in measure_by_name(name, measures).after:
        yield from _with_earlier(earlier, measures)


def _run(plan: Plan, records: RecordFile, effort: Effort, device: str) -> None:
    """Run what is not recorded yet, under one environment for all places of a device."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    run_dir = records.path.parents[1]
    processes = len(numbers_of_processes(effort.options.processes))
    preload = modules_to_preload(*plan.modules, compiled=plan.compiled)
    with IsolatedExecutor(AT_ONCE, timeout_s=effort.limit_s * processes, preload=preload) as executor:
        stored = run_dir / "environment.json"
        environment = (
            store_environment(collect(device), run_dir) if not stored.exists() else environment_sha(read_json(stored))
        )
        run_plan(plan, executor, records, environment=environment, max_parallel=AT_ONCE)
