"""Runs a sweep, one worker at a time, and combines its lines over processes to one curve per configuration; no torch.

Conventions: a job runs while nothing else does. Its lines are appended when it has finished, so a stopped sweep goes on
with the jobs that are missing. A worker that crashes, hangs or runs out of memory is tried once more length by length;
what is lost again is recorded with its reason, and a *crashed* line is measured anew by the next run. A ratio over
several processes is their mean log-ratio with the spread between processes as its error
(:func:`~precision_eval.stats.over_processes`). Only lines of the campaign of the *last* line are read: other
environments, budgets or seeds are another measurement. The ratio that crosses is ``kv_to_query`` over
``query_to_half``; above 1 the latter is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

from precision_eval.core.cells import failed
from precision_eval.core.errors import RecordError
from precision_eval.core.files import TrialFile
from precision_eval.core.workers import WorkerError, WorkerStoppedError
from precision_eval.stats import PairedRatio, over_processes
from precision_eval.stats.crossover import Crossing, Crossover, Point, find_crossover, point_of
from precision_eval.studies.sweep.plan import (
    CASTS,
    FIXES,
    NOISE_FLOOR,
    REVISION,
    TO_HALF,
    TO_QUERY,
    Line,
    Sweep,
    SweepConfiguration,
    SweepJob,
    line_of,
)  # fmt: skip

_NARROW = 1.02  # of a gap: its ends are 2 % apart


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A sweep under way: where its jobs run and where their lines go."""

    sweep: Sweep
    file: TrialFile
    executor: Executor
    environment: str
    progress: Callable[[int, int, str], None] = lambda done, total, what: None

    def measure_missing(self) -> None:
        """Measure what is not on file."""
        total = len(self.sweep.configurations()) * len(self.sweep.lengths) * self.sweep.processes
        self._run_jobs(self.sweep.jobs(self.environment, done=self._settled()), total=total)

    def refine(self, rounds: int) -> None:
        """Measure in the bracket of every crossing, again and again."""
        for _ in range(rounds):
            lengths = middles(curves_of(self.file.read()))
            jobs = self.sweep.jobs(self.environment, done=self._settled(), lengths=lengths)
            if not jobs:
                break
            self._run_jobs(jobs, total=_count(jobs))

    def _settled(self) -> set[str]:
        """Return the keys that need not be measured again."""
        return {line["key"] for line in self.file.read() if "crashed" not in line["status"].values()}

    def _run_jobs(self, jobs: Sequence[SweepJob], *, total: int) -> None:
        pending = list(jobs)
        done = total - _count(pending)
        while pending:
            job = pending.pop(0)
            process = f"process {job.process + 1} of {self.sweep.processes}"
            self.progress(done, total, f"{job.configuration.title}, {process}")
            lines = self._lines(job)
            if lines is None:
                pending = [replace(job, lengths=(length,)) for length in job.lengths] + pending
                continue
            for line in lines:
                self.file.append(line)
            done += len(lines)
        self.progress(done, total, "done")

    def _lines(self, job: SweepJob) -> list[Line] | None:
        """Run a job; None where its worker was lost and its lengths can be tried one by one."""
        try:
            lines: list[Line] = self.executor.submit(measure_in_worker, job).result()
        except WorkerStoppedError:
            raise
        except WorkerError as error:
            if len(job.lengths) > 1:
                return None
            outcomes = {fix: failed(fix, error.status, str(error)) for fix in FIXES}
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


_TOGETHER = {CASTS: 1, NOISE_FLOOR: 3, TO_HALF: 3, TO_QUERY: 3}  # ratios that share the error rate of their group


@dataclass(frozen=True, kw_only=True)
class LengthPoint:
    """One length of one configuration, over all processes."""

    length: int
    processes: int
    ratios: Mapping[str, PairedRatio]
    page_faults: Mapping[str, tuple[float, ...]]
    failures: Mapping[str, str]

    def crossover_point(self) -> Point | None:
        """Return the ratio of the two casts as the crossover needs it, None where there is none."""
        ratio = self.ratios.get(CASTS)
        if ratio is None:
            return None
        return point_of(
            self.length,
            ratio=ratio.ratio,
            low=ratio.ratio_low,
            high=ratio.ratio_high,
            confidence=ratio.confidence,
            degrees=self.processes - 1 if self.processes > 1 else ratio.blocks - 1,
        )


@dataclass(frozen=True, kw_only=True)
class LengthCurve:
    """One configuration over its lengths, shortest first."""

    configuration: SweepConfiguration
    points: tuple[LengthPoint, ...]

    @cached_property
    def crossover(self) -> Crossover | None:
        """Where the order of the casts turns; None without any ratio.

        A crossing is read off a straight line, unless page faults jump in its bracket: where the copy of the cache has
        outgrown what the C library uses again, its cost rises at one length, so that only the bracket is known.
        """
        points = [ratio for point in self.points if (ratio := point.crossover_point()) is not None]
        if not points:
            return None
        crossover = find_crossover(points, seed=0)
        crossings = (
            replace(crossing, jump=jump_of_faults(self.points, between=crossing.between))
            for crossing in crossover.crossings
        )
        return replace(crossover, crossings=tuple(crossings))


def jump_of_faults(points: Sequence[LengthPoint], *, between: tuple[int, int]) -> tuple[int, int] | None:
    """Return the lengths between which page faults of ``kv_to_query`` per slot more than double; None if nowhere."""
    low, high = between
    faults = {
        point.length: median(point.page_faults[TO_QUERY])
        for point in points
        if low <= point.length <= high and point.page_faults.get(TO_QUERY)
    }
    jumps = []
    for a, b in pairwise(faults):
        less, more = sorted((faults[a] / a, faults[b] / b))
        if more > 2.0 * less and max(faults[a], faults[b]) >= 1.0:
            jumps.append((a, b))
    return (jumps[0][0], jumps[-1][1]) if jumps else None


def curves_of(lines: Sequence[Line]) -> tuple[LengthCurve, ...]:
    """Combine lines over processes."""
    try:
        own = [line for line in lines if line["campaign"] == lines[-1]["campaign"]]
        grouped: dict[SweepConfiguration, dict[int, list[Line]]] = {}
        for line in own:
            lengths = grouped.setdefault(SweepConfiguration(**line["configuration"]), {})
            lengths.setdefault(line["length"], []).append(line)
        if strange := {line.get("revision", 1) for line in own} - {REVISION}:  # lines of the first revision state none
            raise RecordError(
                f"the sweep was measured by revision {min(strange)}, this reads revision {REVISION}, whose ratios are "
                "made in another way; measure again: precision-eval sweep"
            )
        return tuple(
            LengthCurve(configuration=configuration, points=tuple(_point(n, lengths[n]) for n in sorted(lengths)))
            for configuration, lengths in grouped.items()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"the lines are not those of a length sweep ({error!r}); remove lengths.jsonl and run it again"
        ) from error


def _point(length: int, lines: Sequence[Line]) -> LengthPoint:
    ratios = {name: [_ratio(line["ratios"][name]) for line in lines if name in line["ratios"]] for name in _TOGETHER}
    failures = {
        fix: f"{line['status'][fix]}: {line['reason'].get(fix, 'no reason recorded')}"
        for line in lines
        for fix in FIXES
        if line["status"][fix] != "passed"
    }
    return LengthPoint(
        length=length,
        processes=len(ratios[CASTS]),
        ratios={
            name: measured[0] if len(measured) == 1 else over_processes(measured, candidates=_TOGETHER[name])
            for name, measured in ratios.items()
            if measured
        },
        page_faults={
            fix: tuple(line["page_faults"][fix] for line in lines if fix in line["page_faults"]) for fix in FIXES
        },
        failures=failures,
    )


def _ratio(data: Mapping[str, Any]) -> PairedRatio:
    """Read a ratio back; what a later version adds is ignored."""
    known = {field.name for field in fields(PairedRatio)} & data.keys()
    values: dict[str, Any] = {name: tuple(v) if isinstance(v := data[name], list) else v for name in known}
    return PairedRatio(**values)
