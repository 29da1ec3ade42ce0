"""Runs a sweep on the suite's executor: jobs in, lines out, one worker at a time; loads no torch itself.

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
from dataclasses import dataclass, field, replace
from itertools import pairwise

from precision_eval.core.cells import failed
from precision_eval.core.files import TrialFile
from precision_eval.run.executor import WorkerError, WorkerOutOfMemoryError, WorkerStoppedError, WorkerTimedOutError
from precision_eval.stats.crossover import Crossing
from precision_eval.studies.sweep.curves import LengthCurve, Line, curves_of, line_of
from precision_eval.studies.sweep.plan import FIXES, Sweep, SweepConfiguration, SweepJob

_NARROW = 1.02  # of a gap: its ends are 2 % apart


@dataclass
class TimeLimit:
    """Says whether another job may start: would it end in time, each length taking as long as the slowest so far?"""

    limit_s: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _began_s: float = field(init=False)
    _longest_s: float = field(init=False, default=0.0)  # per length

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def allows(self, lengths: int) -> bool:
        """Say whether a job of so many lengths may start."""
        return self.clock() - self._began_s + self._longest_s * lengths < self.limit_s

    def note(self, lengths: int, *, began_s: float) -> None:
        """Learn from a job that has ended."""
        self._longest_s = max(self._longest_s, (self.clock() - began_s) / lengths)


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A sweep under way: where its jobs run and where their lines go."""

    sweep: Sweep
    file: TrialFile
    executor: Executor
    environment: str
    progress: Callable[[int, int, str], None] = lambda done, total, what: None
    limit: TimeLimit = field(default_factory=TimeLimit)

    def measure_missing(self) -> int:
        """Measure what is not on file, and return how many lines the time limit left out."""
        total = len(self.sweep.configurations()) * len(self.sweep.lengths) * self.sweep.processes
        return self._run_jobs(self.sweep.jobs(self.environment, done=self._settled()), total=total)

    def refine(self, rounds: int) -> int:
        """Measure in the bracket of every crossing, again and again; return how many lines were left out."""
        for _ in range(rounds):
            lengths = middles(curves_of(self.file.read()))
            jobs = self.sweep.jobs(self.environment, done=self._settled(), lengths=lengths)
            if not jobs:
                break
            left = self._run_jobs(jobs, total=_count(jobs))
            if left:
                return left
        return 0

    def _settled(self) -> set[str]:
        """Return the keys that need not be measured again."""
        return {line["key"] for line in self.file.read() if "crashed" not in line["status"].values()}

    def _run_jobs(self, jobs: Sequence[SweepJob], *, total: int) -> int:
        pending = list(jobs)
        done = total - _count(pending)
        while pending and self.limit.allows(len(pending[0].lengths)):
            job = pending.pop(0)
            process = f"process {job.process + 1} of {self.sweep.processes}"
            self.progress(done, total, f"{job.configuration.title}, {process}")
            began_s = self.limit.clock()
            lines = self._lines(job)
            self.limit.note(len(job.lengths), began_s=began_s)
            if lines is None:
                pending = [replace(job, lengths=(length,)) for length in job.lengths] + pending
                continue
            for line in lines:
                self.file.append(line)
            done += len(lines)
        self.progress(done, total, "out of time" if pending else "done")
        return _count(pending)

    def _lines(self, job: SweepJob) -> list[Line] | None:
        """Run a job; None where its worker was lost and its lengths can be tried one by one."""
        try:
            lines: list[Line] = self.executor.submit(measure_in_worker, job).result()
        except WorkerStoppedError:
            raise
        except WorkerError as error:
            if len(job.lengths) > 1:
                return None
            outcomes = {fix: failed(fix, _status_of(error), str(error)) for fix in FIXES}
            return [line_of(job, job.lengths[0], outcomes)]
        return lines


def measure_in_worker(job: SweepJob) -> list[Line]:
    """Measure a job in this process; torch is loaded here, in the worker, and not where the job is handed out."""
    from precision_eval.studies.sweep.measuring import measure_job

    return measure_job(job)


def middles(curves: Sequence[LengthCurve]) -> dict[SweepConfiguration, tuple[int, ...]]:
    """Return where to measure next, by configuration: half-way, in logarithms, in the gap that holds each crossing."""
    middle_lengths = {}
    for curve in curves:
        measured = [point.length for point in curve.points]
        gaps = {_gap(crossing, measured) for crossing in (curve.crossover.crossings if curve.crossover else ())}
        lengths = {round(math.sqrt(low * high)) for low, high in gaps if high > _NARROW * low}
        middle_lengths[curve.configuration] = tuple(sorted(lengths - set(measured)))
    return middle_lengths


def _gap(crossing: Crossing, measured: Sequence[int]) -> tuple[int, int]:
    """Return the neighbouring measured lengths that hold a crossing; the widest gap of a jump over several."""
    low, high = crossing.jump or crossing.between
    gaps = [(a, b) for a, b in pairwise(measured) if low <= a and b <= high]
    if crossing.jump is None:
        gaps = [gap for gap in gaps if gap[0] <= crossing.length <= gap[1]]
    return max(gaps, key=lambda gap: gap[1] / gap[0])


def _count(jobs: Sequence[SweepJob]) -> int:
    return sum(len(job.lengths) for job in jobs)


def _status_of(error: WorkerError) -> str:
    if isinstance(error, WorkerTimedOutError):
        return "timed_out"
    return "out_of_memory" if isinstance(error, WorkerOutOfMemoryError) else "crashed"
