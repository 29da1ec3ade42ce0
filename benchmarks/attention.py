"""asv benchmarks of the attention workloads, one class per workload × fix, generated from the registries.

``Time_…`` times one call; it is skipped, with the reason, where the fix does not run. ``Track_…`` shows the status, so
that a fix that raises is a point in the graph and not a gap, and the drift of the call. The version of each is computed
from its workload's digest and its fix, so a changed definition starts a new series. asv's verdict on two commits is
coarse; for a verdict with an interval use ``precision-eval run``.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from dataclasses import asdict
from pathlib import Path

from precision_eval.errors import UnsupportedError
from precision_eval.experiment.cells import Cell, Options, Outcome
from precision_eval.experiment.measures import run_cell
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.record import STATUSES
from precision_eval.workloads import WORKLOADS, Workload

DEVICE = "cpu"
SEED = 0
THREADS = 1


class Skipped(NotImplementedError):  # noqa: N818 - asv shows the name
    """What asv takes for *not applicable*; only this module raises it, so that a library's own stays a failure."""


def version_of(workload: Workload, fix: Fix) -> str:
    text = json.dumps([workload.digest, asdict(fix), SEED, THREADS], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def measured(workload: Workload, fix: Fix, size: str, measure: str) -> Outcome:
    cell = Cell(
        workload=workload.id,
        fixes=(fix.id,),
        mode=fix.modes[0],
        device=DEVICE,
        size=size,
        threads=THREADS,
        measure=measure,
        options=Options(seed=SEED),
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_cell(cell, Path(folder)).outcomes[0]
    if outcome.status == "unsupported":
        raise Skipped(outcome.reason)
    return outcome


def timing_class(workload: Workload, fix: Fix) -> type:
    class Time:
        version = version_of(workload, fix)
        params = (workload.default_sizes,)
        param_names = ("size",)
        timeout = 300

        def setup(self, size: str) -> None:
            import torch

            torch.set_num_threads(THREADS)
            try:
                case = workload.build(size, device=DEVICE, seed=SEED)
                self.call = fix.applied(case.model, mode=fix.modes[0]).__enter__()
                self.inputs = self.call.prepare(case.inputs)
                self.call(*self.inputs)
            except UnsupportedError as error:
                raise Skipped(f"unsupported: {error}") from error
            except NotImplementedError as error:
                raise RuntimeError(f"a library lacks an implementation: {error}") from error
            except RuntimeError as error:
                raise Skipped(f"raised, so there is no time: {str(error)[:300]}") from error

        def teardown(self, size: str) -> None:
            call = getattr(self, "call", None)
            if call is not None:
                call.__exit__(None, None, None)

        def time_call(self, size: str) -> None:
            self.call(*self.inputs)

        time_call.pretty_name = f"{workload.id}, {fix.id}: time of a call"

    return Time


def tracking_class(workload: Workload, fix: Fix) -> type:
    class Track:
        version = version_of(workload, fix)
        params = (workload.default_sizes,)
        param_names = ("size",)
        timeout = 300

        def track_status(self, size: str) -> int:
            return STATUSES.index(measured(workload, fix, size, "witness").status) + 1

        track_status.unit = ", ".join(f"{number} {status}" for number, status in enumerate(STATUSES, start=1))
        track_status.pretty_name = f"{workload.id}, {fix.id}: status"

        def track_drift(self, size: str) -> float:
            if measured(workload, fix, size, "witness").status != "passed":
                return math.nan  # asv's sign for n/a; the status is tracked beside it
            outcome = measured(workload, fix, size, "drift")
            if outcome.data is None:
                raise RuntimeError(f"the fix runs and its drift does not: {outcome.status}: {outcome.reason}")
            return float(outcome.data["relative_error"])

        track_drift.unit = "relative error to float64"
        track_drift.pretty_name = f"{workload.id}, {fix.id}: drift"

    return Track


def generate() -> dict[str, type]:
    classes = {}
    for workload in (entry for entry in WORKLOADS if entry.id.startswith("attention-")):
        for fix in filter(lambda fix: workload.takes(fix.id), FIXES):
            place = f"{workload.id.replace('-', '_')}_{fix.id}"
            for prefix, make in (("Time", timing_class), ("Track", tracking_class)):
                made = make(workload, fix)
                made.__name__ = made.__qualname__ = f"{prefix}_{place}"
                classes[made.__name__] = made
    return classes


globals().update(generate())
