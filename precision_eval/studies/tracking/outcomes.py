"""Outcomes of a place, measured once and kept in a folder; figures read from them.

Conventions: one JSON file per case, mode, size and measure holds the outcomes of all fixes, written whole or not at
all. A fix whose earlier measure did not pass takes over that status and reason, as in a run. Each fix is measured in a
child of its own, two at a time where nothing is timed; the paired latency runs alone, one child per process.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from precision_eval.core.cells import Outcome, failed
from precision_eval.core.files import written_whole
from precision_eval.core.workers import WorkerError, call_each
from precision_eval.measure.registry import CellResult, Measure, measure_by_name, run_cell
from precision_eval.studies.tracking.effort import Effort, process_numbers
from precision_eval.studies.tracking.metrics import Figure, Metric
from precision_eval.studies.tracking.place import Place, raise_unless_passed

AT_ONCE = min(2, os.cpu_count() or 1)

COMPARATORS: Mapping[str, tuple[str, ...]] = {"streams": ("reference",), "synthesis": ("reference", "noise_floor")}
"""What is made beside the fixes because a later measure holds them to it."""


PRELOADED: Mapping[str, tuple[str, ...]] = {
    "trace": ("precision_eval.measure.generic", "precision_eval.trace.capture", "torch._dynamo"),
    "drift": ("precision_eval.measure.drift", "precision_eval.measure.system_drift"),
    "memory": ("precision_eval.measure.memory",),
    "latency": ("precision_eval.studies.tracking.paired",),
    "teacher_forced_drift": ("precision_eval.measure.teacher_forced", "scipy.stats"),
    "streams": ("precision_eval.measure.streams",),
    "synthesis": ("precision_eval.measure.synthesis", "soundfile"),
    "audio": ("precision_eval.measure.audio", "scipy.signal"),
}
"""What a measure imports while it runs: done once before forking, instead of in every child."""


def preload(measure: str = "trace") -> None:
    """Import what a measure imports while it runs; nothing of it is called."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compiling processes beside a timed one
    for name in ("trace", measure):
        for module in PRELOADED.get(name, ()):
            importlib.import_module(module)


def figure(place: Place, label: str, metric: Metric, *, folder: Path, effort: Effort) -> Figure:
    """Return one figure of one fix, measuring all fixes of the place if nobody has asked before."""
    fix = place.checked_fix(label, effort)
    measure = metric.measure_of(place.entry.measures)
    assert measure is not None, f"{place.case} has no measure for {metric.id}"
    outcome = outcomes_of(place, measure, folder=folder, effort=effort)[fix.id]
    if metric.path:
        raise_unless_passed(outcome)
    return metric.read(outcome)


def outcomes_of(place: Place, measure: str, *, folder: Path, effort: Effort) -> dict[str, Outcome]:
    """Return the outcomes of all fixes of a place, and of the references that the measure needs."""
    place = place.at(effort)
    path = folder / f"{place.case}.{place.mode}.{place.size}.{measure}.{effort.name}.json"
    if path.exists():
        return {fix: Outcome(**one) for fix, one in json.loads(path.read_text(encoding="utf-8")).items()}
    found = _measured(place, measure_by_name(measure), folder, effort)
    with written_whole(path) as partial:
        partial.write_text(json.dumps({fix: asdict(one) for fix, one in found.items()}), encoding="utf-8")
    return found


def _measured(place: Place, measure: Measure, folder: Path, effort: Effort) -> dict[str, Outcome]:
    """Measure every fix that the earlier measures leave."""
    conditions = (*COMPARATORS.get(measure.name, ()), *(fix.id for fix in place.fixes(effort)))
    stopped: dict[str, Outcome] = {}
    for earlier in measure.after:
        before = outcomes_of(place, earlier, folder=folder, effort=effort)
        stopped |= {fix: one for fix, one in before.items() if one.status != "passed" and fix not in stopped}
        missing = next((one for fix, one in before.items() if fix in stopped and one.role != "fix"), None)
        if missing is not None:
            why = f"its reference {missing.fix} {missing.status}: {missing.reason}"
            stopped = {fix: failed(fix, "crashed", why) for fix in conditions} | stopped
    left = tuple(fix for fix in conditions if fix not in stopped)
    if left:
        preload(measure.name)
        if place.mode == "compiled":  # what every child would find out about the machine anew
            importlib.import_module("precision_eval.run.warm_compiler")
    take = _timed if measure.grouped else _one_by_one
    found = take(place, measure, left, folder, effort) if left else {}
    return {fix: found.get(fix) or failed(fix, stopped[fix].status, stopped[fix].reason or "") for fix in conditions}


def _one_by_one(
    place: Place, measure: Measure, fixes: tuple[str, ...], folder: Path, effort: Effort
) -> dict[str, Outcome]:
    run_dir = folder / f"run.{effort.name}"
    cells = [(place.cell((fix,), measure.name, effort.options), run_dir) for fix in fixes]
    answers = call_each(run_cell, cells, at_once=AT_ONCE, timeout_s=effort.limit_s)
    return {fix: _outcome(fix, answer) for fix, answer in zip(fixes, answers, strict=True)}


def _outcome(fix: str, answer: CellResult | WorkerError) -> Outcome:
    if isinstance(answer, WorkerError):
        return failed(fix, answer.status, str(answer))
    return answer.outcomes[0]


def _timed(place: Place, measure: Measure, fixes: tuple[str, ...], folder: Path, effort: Effort) -> dict[str, Outcome]:
    """Time the fixes side by side, in one child after the other."""
    from precision_eval.studies.tracking.paired import over_processes, timed_in_process

    cell = place.cell(fixes, measure.name, effort.options)
    runs = [(cell, process) for process in process_numbers(effort)]
    answers = call_each(timed_in_process, runs, timeout_s=effort.limit_s)
    broken = next((answer for answer in answers if isinstance(answer, WorkerError)), None)
    if broken is not None:
        return {fix: failed(fix, broken.status, f"while all fixes were timed: {broken}") for fix in fixes}
    return over_processes(answers)
