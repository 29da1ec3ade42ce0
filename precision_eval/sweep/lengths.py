"""Runs a sweep: jobs in, lines out, one worker at a time; loads no torch itself.

Conventions: a job runs while nothing else does. Its lines are appended when it has finished, so a stopped sweep goes on
with the jobs that are missing. A worker that crashes, hangs or runs out of memory is tried once more length by length;
what is lost again is recorded with its reason, and a *crashed* line is measured anew by the next run.

Contents: :class:`LineFile`, :func:`run_sweep`, :func:`refine`, :func:`middles`, :func:`measure_in_worker`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

from precision_eval.experiment.cells import failed
from precision_eval.experiment.executor import (
    WorkerError,
    WorkerOutOfMemoryError,
    WorkerStoppedError,
    WorkerTimedOutError,
)

from .findings import findings_of
from .lines import Line, Series, line_of, series_of
from .plan import FIXES, Configuration, Job, Sweep, split

_NARROW = 1.02  # of a bracket: its ends are 2 % apart


class LineFile(Protocol):
    """Where lines are kept, such as :class:`precision_eval.proof.trials.TrialFile`."""

    def read(self) -> list[Line]:
        """Return every whole line."""

    def append(self, trial: Line, /) -> None:
        """Append one line."""


def run_sweep(
    sweep: Sweep,
    file: LineFile,
    executor: Executor,
    *,
    environment: str,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> None:
    """Measure what is missing.

    Parameters
    ----------
    sweep : Sweep
    file : LineFile
        Read for what is there already, and appended to.
    executor : concurrent.futures.Executor
        Gives every call a process of its own; see :class:`precision_eval.experiment.executor.IsolatedExecutor`.
    environment : str
        SHA-256 of the environment; lines measured in another one are measured again.
    progress : callable
        Called as ``progress(done, total, what)`` before every job and at the end; counts lines.

    Raises
    ------
    RecordError
        The file cannot be read or written.
    KeyboardInterrupt
        As it came; finished jobs are on file.
    """
    pending = sweep.jobs(environment, done=_settled(file))
    total = len(sweep.configurations()) * len(sweep.lengths) * sweep.processes
    _run_jobs(pending, file, executor, total=total, processes=sweep.processes, progress=progress)


def refine(
    sweep: Sweep,
    file: LineFile,
    executor: Executor,
    *,
    environment: str,
    rounds: int,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> None:
    """Measure in the middle of every bracket of a crossing, again and again.

    A bracket needs no shape of the curve between its ends, unlike the place on a straight line; a jump is found only by
    making it narrow.

    Parameters
    ----------
    sweep : Sweep
        As it was run.
    file, executor, environment, progress
        As for :func:`run_sweep`.
    rounds : int
        Halvings, in the logarithm of the length; fewer where every bracket is narrower than 2 %.
    """
    for _ in range(rounds):
        jobs = sweep.jobs(environment, done=_settled(file), lengths=middles(series_of(file.read())))
        if not jobs:
            return
        total = sum(len(job.lengths) for job in jobs)
        _run_jobs(jobs, file, executor, total=total, processes=sweep.processes, progress=progress)


def middles(series: Sequence[Series]) -> dict[Configuration, tuple[int, ...]]:
    """Return the middle of every bracket that is wider than 2 %, by configuration."""
    found = {}
    for finding in findings_of(series):
        brackets = [one.between for one in finding.crossover.crossings] if finding.crossover else []
        lengths = {round(math.sqrt(low * high)) for low, high in brackets if high > _NARROW * low}
        found[finding.series.configuration] = tuple(sorted(lengths))
    return found


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
) -> None:
    """Run jobs one after the other and append their lines."""
    done = total - sum(len(job.lengths) for job in pending)
    while pending:
        job = pending.pop(0)
        progress(done, total, f"{job.configuration.title}, process {job.process + 1} of {processes}")
        lines = _lines(job, executor)
        if lines is None:
            pending = split(job) + pending
            continue
        for line in lines:
            file.append(line)
        done += len(lines)
    progress(done, total, "done")


def measure_in_worker(job: Job) -> list[Line]:
    """Measure a job in this process; torch is loaded here, in the worker, and not where the job is handed out."""
    from .measuring import measure_job

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
