"""asv classes from the registries: one per case, one method per metric, fixes and sizes as parameters.

``benchmarks/eager.py`` and ``benchmarks/compiled.py`` hold the result. Nothing is defined here: names, units, versions
and figures come from :mod:`precision_eval.history.tracking`.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from precision_eval.cases.systems import Case
from precision_eval.core.workers import BLAS_THREADS
from precision_eval.history.outcomes import figure, preload
from precision_eval.history.tracking import (
    FULL,
    QUICK,
    Effort,
    FixFailedError,
    NotApplicableError,
    TrackedCell,
    TrackedMetric,
    fix_labels,
    metrics_of,
    sizes_of,
    tracked_cases,
    version_of,
)

for variable in BLAS_THREADS:
    os.environ.setdefault(variable, "1")  # read when numpy is loaded: the anchor is timed in one thread
if sys.argv[1:2] == ["run_server"]:  # asv's fork server; finding benchmarks and the shared folder need none of it
    preload()  # torch and what every measuring imports, before asv forks
    gc.collect()
    gc.freeze()  # a fork that collects would copy the pages of all that was imported

MEASURING_TIMEOUT_S = 900
TIMING_TIMEOUT_S = 120
QUICK_PARAMETERS = {"number": 1, "repeat": 1, "warmup_time": 0, "rounds": 1}
"""What ``asv run --quick`` sets for every benchmark."""

QUICK_NOTE = "it runs; asv keeps what --quick finds as if it were a measurement, so it is not given"


def class_name(case: Case) -> str:
    return case.id.replace("-", "_")


def classes_of(mode: str, module: str) -> dict[str, type]:
    """Return the classes of a mode by name; each says that it is from the module that shows it."""
    return {class_name(case): _class_of(case, mode, module) for case in tracked_cases(mode)}


def effort_asked_for() -> Effort:
    """Tell ``asv run --quick`` from a real run; where asv comes to say it differently, every run is a full one."""
    return effort_of(of_asv("extra_params") or {})


def of_asv(name: str) -> Any:
    """Read a variable of the runner that called; None outside asv."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "asv_runner.run" and name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return None


def end_as_failed(error: FixFailedError) -> None:
    """End this process with the message and, as its result, asv's sign for a failed cell; outside asv, raise."""
    result_file = of_asv("result_file")
    if result_file is None:
        raise error
    print(f"failed: {error}", file=sys.stderr, flush=True)
    Path(result_file).write_text("null", encoding="utf-8")
    os._exit(0)


def effort_of(parameters: Mapping[str, Any]) -> Effort:
    quick = all(parameters.get(name) == value for name, value in QUICK_PARAMETERS.items())
    return QUICK if quick else FULL


def shared_folder(self: object) -> None:
    """asv's ``setup_cache``: a folder for all benchmarks; what is measured comes to lie there."""


def _class_of(case: Case, mode: str, module: str) -> type:
    members: dict[str, Any] = {
        "__module__": module,
        "__doc__": f"{case.title}, {mode}.",
        "params": (list(fix_labels(case)), list(sizes_of(case, mode))),
        "param_names": ["fix", "size"],
        "setup_cache": shared_folder,
    }
    for metric in metrics_of(case, mode):
        method = (_timed if metric.timed else _tracked)(case, mode, metric)
        method.__module__, method.__name__ = module, metric.method
        method.__qualname__ = f"{class_name(case)}.{metric.method}"
        method.version = version_of(case, mode, metric)
        method.unit = metric.unit
        method.pretty_name = f"{case.id}, {mode}: {metric.title}"
        method.pretty_source = _shown(case, mode, metric)
        members[metric.method] = method
    return type(class_name(case), (), members)


def _shown(case: Case, mode: str, metric: TrackedMetric) -> str:
    """What asv's page shows in place of the generated method's source."""
    measure = metric.measure_of(case.measures)
    run = "" if measure is None else f"\nprecision-eval run --case {case.id} --mode {mode} --measure {measure}"
    return f"# {case.title}, {mode}: {metric.title} ({metric.unit}){run}"


def _tracked(case: Case, mode: str, metric: TrackedMetric) -> Any:
    def track(self: object, fix: str, size: str) -> Any:
        place = TrackedCell(case=case.id, mode=mode, size=size)
        effort = effort_asked_for()
        try:
            found = figure(place, fix, metric, folder=Path.cwd(), effort=effort)
            if effort is QUICK:
                raise NotApplicableError(f"{QUICK_NOTE}; found {found}")
        except NotApplicableError as reason:
            print(f"n/a: {reason}", file=sys.stderr)
            return math.nan
        except FixFailedError as error:
            print(f"failed: {error}", file=sys.stderr)
            return None  # asv's sign for a failed cell, without failing the run
        return {"samples": list(found), "number": 1} if isinstance(found, tuple) else found

    track.timeout = MEASURING_TIMEOUT_S  # type: ignore[attr-defined]
    return track


def _timed(case: Case, mode: str, metric: TrackedMetric) -> Any:
    """A method that asv times or weighs, and the set-up that puts the fix on, once per process."""
    held: dict[tuple[str, str], Callable[[], object]] = {}
    stack = ExitStack()

    def setup(fix: str, size: str) -> None:
        if (fix, size) not in held:  # asv sets up again before each sample
            place = TrackedCell(case=case.id, mode=mode, size=size)
            from precision_eval.history.timing import ready

            try:
                held[fix, size] = ready(place, fix, stack=stack, effort=effort_asked_for())
            except FixFailedError as error:
                end_as_failed(error)
            if effort_asked_for() is QUICK:
                raise NotApplicableError(QUICK_NOTE)

    def call(self: object, fix: str, size: str) -> None:
        held[fix, size]()

    call._stack = stack  # type: ignore[attr-defined]
    call.setup = setup  # type: ignore[attr-defined]
    call.timeout = TIMING_TIMEOUT_S  # type: ignore[attr-defined]
    call.rounds = 1  # type: ignore[attr-defined]
    call.repeat = (5, 50, 0.15)  # type: ignore[attr-defined]
    call.warmup_time = 0.03  # type: ignore[attr-defined]
    return call
