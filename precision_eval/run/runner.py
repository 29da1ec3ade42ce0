"""Runs a plan on an executor: cells in, records out.

Conventions: untimed cells run side by side. A timed cell runs while nothing else does, unless each worker has a device
of its own. Cells run case by case, the timed ones of a case last, so that each case answers early. A cell waits for
those that come before it; where one of them did not pass, the cell is not run and takes over its status and reason.
Every result is recorded as soon as it is there, so that stopping at any moment loses nothing that was measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from precision_eval.core.cells import Cell, Outcome, failed, failure_of, is_out_of_memory, passed, with_doubts
from precision_eval.core.errors import OtherNumbersError, ParameterError, RecordError
from precision_eval.core.files import intact
from precision_eval.core.records import Record, RecordFile, latest
from precision_eval.core.targets import is_target
from precision_eval.core.workers import WorkerCrashedError, WorkerError
from precision_eval.measure.isolation import IsolationError
from precision_eval.measure.registry import CASE_BITS, CellResult, log_path, measure_by_name, run_cell
from precision_eval.run.executor import KeptExecutor
from precision_eval.run.plan import Plan


class Progress(Protocol):
    """What a run tells while it goes on; each method is called from the thread that runs the plan."""

    def started(self, cell: Cell) -> None:
        """Tell that a cell has been handed to a worker."""

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        """Tell that a cell is settled: measured now, or found in the records (`resumed`)."""


class Silent:
    """Progress that nobody watches."""

    def started(self, cell: Cell) -> None:
        """Tell nobody."""

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        """Tell nobody."""


def run_plan(
    plan: Plan,
    executor: Executor,
    records: RecordFile,
    progress: Progress | None = None,
    *,
    environment: str,
    max_parallel: int = 1,
    timed_alone: bool = True,
    timeout_s: float | None = None,
) -> tuple[Record, ...]:
    """Run every cell of a plan that is not recorded yet, on any executor, `max_parallel` at a time."""
    run = _Run(plan, executor, records, progress or Silent(), environment, timed_alone=timed_alone)
    run.take_over(latest(records.read().records), timeout_s)
    try:
        while run.pending or run.running:
            waiting = len(run.pending)
            run.launch(max_parallel)
            assert run.running or len(run.pending) < waiting, "cells wait for cells that are not in the plan"
            run.collect()
    except KeyboardInterrupt:
        run.collect_what_is_done()
        raise
    return tuple(run.settled)


class _Run:
    """State of one run."""

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        records: RecordFile,
        progress: Progress,
        environment: str,
        *,
        timed_alone: bool,
    ) -> None:
        self.timed_alone = timed_alone
        self.plan = plan
        self.kept = executor if isinstance(executor, KeptExecutor) else None
        self.executor = executor
        self.records = records
        self.progress = progress
        self.environment = environment
        self.pending: list[Cell] = list(plan.cells)
        self.running: dict[Future[CellResult], tuple[Cell, float, str]] = {}
        self.settled: list[Record] = []
        self._status: dict[str, Record] = {}  # by record id
        self._done: set[str] = set()  # ids of cells
        self._alone: dict[str, tuple[str, ...]] = {}  # what is to be said of cells that were one, by id
        self._bits: dict[tuple[str, str, str], str] = {}  # of each case that was built
        self._after: dict[str, tuple[str, ...]] = dict(plan.after)
        self._timed = {measure.name: measure.timed for measure in plan.measures}

    @property
    def run_dir(self) -> Path:
        return self.records.path.parent

    def take_over(self, known: Mapping[str, Record], timeout_s: float | None) -> None:
        """Settle the cells that are recorded already."""
        for cell in list(self.pending):
            found = [known.get(cell.fix_id(fix)) for fix in cell.fixes]
            fitting = [record for record in found if record is not None and self._fits(cell, record)]
            if len(fitting) == len(cell.fixes) and all(self._stands(cell, record, timeout_s) for record in fitting):
                self.pending.remove(cell)
                for record in fitting:
                    self._compared(cell, passed(record.fix, record.data or {}))
                self._settle(cell, tuple(fitting), resumed=True)

    def launch(self, max_parallel: int) -> None:
        """Hand out what may begin now; a timed cell that is ready keeps later cases waiting."""
        place = worker_name if self.kept else attrgetter("case")
        turns = {name: turn for turn, name in enumerate(dict.fromkeys(map(place, self.plan.cells)))}
        for cell in sorted(self.pending, key=lambda cell: (turns[place(cell)], self._timed[cell.measure])):
            if not self._ready(cell):
                continue
            if self._occupied(self._timed[cell.measure], max_parallel):
                break
            self.pending.remove(cell)
            self._begin(cell)

    def collect(self) -> None:
        """Wait for the next results and record them."""
        if self.running:
            done, _ = wait(self.running, return_when=FIRST_COMPLETED)
            self._record_done(done)

    def collect_what_is_done(self) -> None:
        """Record what has finished meanwhile, without waiting."""
        self._record_done([future for future in self.running if future.done() and not future.cancelled()])

    def _occupied(self, timed: bool, max_parallel: int) -> bool:
        """Say whether a further cell has to wait for room."""
        is_timed = timed or any(self._timed[cell.measure] for cell, _, _ in self.running.values())
        alone = self.timed_alone and is_timed
        return bool(self.running) if alone else len(self.running) >= max_parallel

    def _ready(self, cell: Cell) -> bool:
        return all(before in self._done for before in self._after[cell.id])

    def _begin(self, cell: Cell) -> None:
        """Settle the fixes that cannot be measured, and hand out the rest."""
        blocked = {fix: outcome for fix in cell.fixes if (outcome := self._blocked(cell, fix)) is not None}
        if blocked:
            self._record(replace(cell, fixes=tuple(blocked)), CellResult(tuple(blocked.values()), _now(), 0.0))
        left = replace(cell, fixes=tuple(fix for fix in cell.fixes if fix not in blocked))
        if not left.fixes:
            self._finish(cell)
            return
        arguments = (left, self.run_dir.resolve(), self.plan.measures)
        if self.kept is not None:
            future = self.kept.submit_to(worker_name(left), "precision_eval.measure.kept:run_kept_cell", *arguments)
        else:
            future = self.executor.submit(run_cell, *arguments)
        self.running[future] = (left, time.perf_counter(), _now())
        self._after[left.id] = self._after[cell.id]
        if left.id != cell.id:
            self._replace_cell(cell, (left,))
        self.progress.started(left)

    def _blocked(self, cell: Cell, fix: str) -> Outcome | None:
        """Return the outcome of a fix that cannot be measured, or whose earlier measure did not pass."""
        if fix in self.plan.refused:
            return failed(fix, "raised", self.plan.refused[fix])
        measure = measure_by_name(cell.measure, self.plan.measures)
        for name in measure.after:
            earlier = replace(cell, measure=name)
            ids = [earlier.fix_id(fix)]
            if name in measure.needs:
                ids += [replace(earlier, mode="eager").fix_id(other) for other in ("reference", "noise_floor")]
            for record in (self._status[found] for found in ids if found in self._status):
                if record.status != "passed":
                    whose = "" if record.fix == fix else f" of {record.fix}"
                    return failed(fix, record.status, f"{name}{whose}: {record.reason}")
        return None

    def _record_done(self, futures: Iterable[Future[CellResult]]) -> None:
        """Record results, one cell after the other."""
        for future in list(futures):
            cell, started, started_at = self.running[future]
            is_given_up = future.cancelled()  # where a cluster is gone
            error = WorkerCrashedError("the call was given up") if is_given_up else future.exception()
            if isinstance(error, ParameterError | RecordError):  # a node unlike the first, or that cannot keep results
                raise error
            if error is not None and isinstance(error.__cause__, IsolationError):
                raise error.__cause__
            result = future.result() if error is None else None
            if len(cell.fixes) > 1 and (result is None or _is_one_fixs_doing(result)):
                self._split(cell, next((o.status for o in result.outcomes), "") if result else "worker lost")
            else:
                if result is None:
                    outcomes = tuple(_lost(fix, error, log_path(cell, self.run_dir)) for fix in cell.fixes)
                    result = CellResult(outcomes, started_at, time.perf_counter() - started)
                self._record(cell, result)
                self._finish(cell)
            del self.running[future]  # last: Ctrl-C before it costs nothing, the result is then recorded once more

    def _split(self, cell: Cell, why: str) -> None:
        """Run the fixes of a lost group one by one, so that only the one at fault is lost."""
        parts = tuple(replace(cell, fixes=(fix,)) for fix in cell.fixes)
        doubt = f"run one by one: {len(parts)} fixes together gave no result ({why}), so each was compared alone"
        self._alone |= {part.id: (doubt,) for part in parts}
        for part in parts:
            self._after[part.id] = self._after[cell.id]
        self._replace_cell(cell, parts)
        self.pending = [*parts, *self.pending]

    def _replace_cell(self, cell: Cell, parts: tuple[Cell, ...]) -> None:
        """Let what waits for a cell wait for its parts."""
        ids = tuple(part.id for part in parts)
        for waiting, before in self._after.items():
            if cell.id in before:
                self._after[waiting] = tuple(name for name in before if name != cell.id) + ids

    def _record(self, cell: Cell, result: CellResult) -> None:
        """Append the records of a cell in one write."""
        alone = self._alone.get(cell.id, ())
        outcomes = [self._compared(cell, outcome) for outcome in result.outcomes]
        records = tuple(self._as_record(cell, with_doubts(outcome, alone), result) for outcome in outcomes)
        self.records.append(records)
        self._settle(cell, records, resumed=False)

    def _compared(self, cell: Cell, outcome: Outcome) -> Outcome:
        """Refuse figures of a case that holds other numbers than under the fixes before."""
        bits = (outcome.data or {}).get(CASE_BITS)
        before = self._bits.setdefault((cell.case, cell.size, cell.device), bits) if bits else None
        if bits == before:
            return outcome
        place = f"{cell.case} at size {cell.size} on {cell.device}"
        message = f"{place} holds other numbers ({bits}) than under the fixes before ({before}); give a new --out"
        return failure_of(outcome.fix, OtherNumbersError(message))

    def _settle(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        for record in records:
            self._status[record.cell] = record
        self.settled.extend(records)
        if resumed:
            self._finish(cell)
        self.progress.finished(cell, records, resumed=resumed)

    def _finish(self, cell: Cell) -> None:
        self._done.add(cell.id)

    def _fits(self, cell: Cell, record: Record) -> bool:
        """Say whether a record is what this cell would measure."""
        return (
            record.environment == self.environment
            and record.case_digest == self.plan.digests[cell.case]
            and record.threads == cell.threads
            and record.options == self.plan.options_of(cell, record.fix)
        )

    def _stands(self, cell: Cell, record: Record, timeout_s: float | None) -> bool:
        """Say whether a fitting record need not be measured again."""
        if record.status == "passed":
            return intact(self.run_dir, (record.data or {}).get("files", ()))
        if record.status == "crashed" or not self._ready(cell):  # not ready: it may be what an earlier one's loss left
            return False
        waited_s = record.wall_s  # 0 where it took over the status of an earlier cell, which then stands
        return record.status != "timed_out" or timeout_s is None or not 0 < waited_s < timeout_s

    def _as_record(self, cell: Cell, outcome: Outcome, result: CellResult) -> Record:
        return Record(
            cell=cell.fix_id(outcome.fix),
            case=cell.case,
            case_digest=self.plan.digests[cell.case],
            fix=outcome.fix,
            role=outcome.role,
            mode=cell.mode,
            device=cell.device,
            size=cell.size,
            threads=cell.threads,
            measure=cell.measure,
            status=outcome.status,
            reason=outcome.reason,
            data=outcome.data,
            options=self.plan.options_of(cell, outcome.fix),
            wall_s=round(result.wall_s, 3),
            started_at=result.started_at,
            environment=self.environment,
        )


def worker_name(cell: Cell) -> str:
    """Name the worker that keeps a cell's case; a user's candidate, which may change anything, has one of its own."""
    own = filter(is_target, cell.fixes)
    return "+".join((f"{cell.case}@{cell.device}:{cell.size}", *own))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_one_fixs_doing(result: CellResult) -> bool:
    """Say whether a measure of several fixes was lost as a whole, for a reason that need not be common to all."""
    if result.is_lost:
        return True
    return result.raised and any(outcome.status != "unsupported" for outcome in result.outcomes)


def _lost(fix: str, error: BaseException | None, log: Path) -> Outcome:
    """Outcome of a fix whose worker gave no result."""
    assert error is not None  # what a fix raises comes as a result
    status = error.status if isinstance(error, WorkerError) else "crashed"
    if is_out_of_memory(error):
        status = "out_of_memory"
    where = f" (its output: {log.parent.name}/{log.name})" if log.exists() and log.stat().st_size else ""
    return failed(fix, status, f"{error}{where}")
