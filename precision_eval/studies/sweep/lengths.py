"""Runs a sweep: jobs in, lines out, one worker at a time; loads no torch itself.

Conventions: a job runs while nothing else does. Its lines are appended when it has finished, so a stopped sweep goes on
with the jobs that are missing. A worker that crashes, hangs or runs out of memory is tried once more length by length;
what is lost again is recorded with its reason, and a *crashed* line is measured anew by the next run. A time limit
stops between jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Protocol

from precision_eval.core.cells import failed
from precision_eval.run.executor import WorkerError, WorkerOutOfMemoryError, WorkerStoppedError, WorkerTimedOutError
from precision_eval.stats.crossover import Crossing
from precision_eval.studies.sweep.findings import findings_of
from precision_eval.studies.sweep.lines import Line, Series, line_of, series_of
from precision_eval.studies.sweep.plan import FIXES, Configuration, Job, Sweep, split

_NARROW = 1.02  # of a gap: its ends are 2 % apart


class LineFile(Protocol):
    """Where lines are kept, such as :class:`precision_eval.core.trials.TrialFile`."""

    def read(self) -> list[Line]:
        """Return every whole line."""

    def append(self, trial: Line, /) -> None:
        """Append one line."""


@dataclass
class TimeLimit:
    """Says whether another job may start: it may if, taking as long per length as the longest so far, it
    ends in time.
    """

    limit_s: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _began_s: float = field(init=False)
    _longest_s: float = field(init=False, default=0.0)  # per length

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def allows(self, lengths: int) -> bool:
        """Say whether a job of so many lengths may start."""
        return self.clock() - self._began_s + self._longest_s * lengths < self.limit_s

    def timed(self, lengths: int, job: Callable[[], list[Line] | None]) -> list[Line] | None:
        """Run a job and learn from it."""
        began_s = self.clock()
        lines = job()
        self._longest_s = max(self._longest_s, (self.clock() - began_s) / lengths)
        return lines


def run_sweep(
    sweep: Sweep,
    file: LineFile,
    executor: Executor,
    *,
    environment: str,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    limit: TimeLimit | None = None,
) -> int:
    """Measure what is missing."""
    pending = sweep.jobs(environment, done=_settled(file))
    total = len(sweep.configurations()) * len(sweep.lengths) * sweep.processes
    return _run_jobs(
        pending, file, executor, total=total, processes=sweep.processes, progress=progress, limit=limit or TimeLimit()
    )


def refine(
    sweep: Sweep,
    file: LineFile,
    executor: Executor,
    *,
    environment: str,
    rounds: int,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    limit: TimeLimit | None = None,
) -> int:
    """Measure in the bracket of every crossing, again and again; see :func:`middles`."""
    for _ in range(rounds):
        jobs = sweep.jobs(environment, done=_settled(file), lengths=middles(series_of(file.read())))
        total = sum(len(job.lengths) for job in jobs)
        if not jobs:
            break
        left = _run_jobs(
            jobs, file, executor, total=total, processes=sweep.processes, progress=progress, limit=limit or TimeLimit()
        )
        if left:
            return left
    return 0


def middles(series: Sequence[Series]) -> dict[Configuration, tuple[int, ...]]:
    """Return where to measure next, by configuration."""
    found = {}
    for finding in findings_of(series):
        crossings = finding.crossover.crossings if finding.crossover else ()
        measured = [point.length for point in finding.series.points]
        gaps = {_gap(one, measured) for one in crossings}
        lengths = {round(math.sqrt(low * high)) for low, high in gaps if high > _NARROW * low}
        found[finding.series.configuration] = tuple(sorted(lengths - set(measured)))
    return found


def _gap(crossing: Crossing, measured: Sequence[int]) -> tuple[int, int]:
    """Return the neighbouring measured lengths that hold a crossing; the widest gap of a jump over several."""
    low, high = crossing.jump or crossing.between
    gaps = [(a, b) for a, b in pairwise(measured) if low <= a and b <= high]
    if crossing.jump is None:
        gaps = [gap for gap in gaps if gap[0] <= crossing.length <= gap[1]]
    return max(gaps, key=lambda gap: gap[1] / gap[0])


def _settled(file: LineFile) -> set[str]:
    """Return the keys that need not be measured again."""
    return {line["key"] for line in file.read() if "crashed" not in line["status"].values()}


def _run_jobs(
    pending: list[Job],
    file: LineFile,
    executor: Executor,
    *,
    total: int,
    processes: int,
    progress: Callable[[int, int, str], None],
    limit: TimeLimit,
) -> int:
    """Run jobs one after the other, append their lines, return how many the time limit left out."""
    done = total - sum(len(job.lengths) for job in pending)
    while pending and limit.allows(len(pending[0].lengths)):
        job = pending.pop(0)
        progress(done, total, f"{job.configuration.title}, process {job.process + 1} of {processes}")
        lines = limit.timed(len(job.lengths), partial(_lines, job, executor))
        if lines is None:
            pending = split(job) + pending
            continue
        for line in lines:
            file.append(line)
        done += len(lines)
    left = sum(len(job.lengths) for job in pending)
    progress(done, total, "out of time" if left else "done")
    return left


def measure_in_worker(job: Job) -> list[Line]:
    """Measure a job in this process; torch is loaded here, in the worker, and not where the job is handed out."""
    from precision_eval.studies.sweep.measuring import measure_job

    return measure_job(job)


def _lines(job: Job, executor: Executor) -> list[Line] | None:
    """Run a job; None where its worker was lost and its lengths can be tried one by one."""
    try:
        lines: list[Line] = executor.submit(measure_in_worker, job).result()
    except WorkerStoppedError:
        raise
    except WorkerError as error:
        if len(job.lengths) > 1:
            return None
        status = _status_of(error)
        return [line_of(job, job.lengths[0], {fix: failed(fix, status, str(error)) for fix in FIXES})]
    return lines


def _status_of(error: WorkerError) -> str:
    if isinstance(error, WorkerTimedOutError):
        return "timed_out"
    return "out_of_memory" if isinstance(error, WorkerOutOfMemoryError) else "crashed"
