"""Progress: a bar with what runs and the time left on a terminal; a few plain lines elsewhere.

A run counts records, one per fix and measure. The time left follows from what has been measured so far. The bar is
redrawn only when a cell starts or ends: nothing observes while timing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from precision_eval.core.table import print_lines
from precision_eval.measure.registry import measure_by_name

if TYPE_CHECKING:
    from precision_eval.core.cells import Cell
    from precision_eval.core.records import Record
    from precision_eval.run.plan import Plan
    from precision_eval.run.runner import Progress as RunProgress

# Seconds between two plain lines.
_PLAIN_STEP_S = 30.0
# Cells that say how long the next ones take: the machine may be busier, or quieter, than it was before.
_RECENT = 7
_UNTIMED = ("every cell that is not timed",)

# Takes how much is done, of how much, and what is under way.
Show = Callable[[float, float | None, str], None]


@contextmanager
def bar_on(console: Console | None = None) -> Iterator[Show]:
    """Yield a function that redraws a bar in place; no thread does."""
    described = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns, console = (BarColumn(20), MofNCompleteColumn(), described), console or Console(stderr=True)
    disable = not console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=disable) as bar:
        task = bar.add_task("", total=None)

        def show(done: float, total: float | None, what: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(what), refresh=True)

        yield show


class Tally:
    """Counts the records of a run, and estimates the time left: from cells alike where there were any, else roughly."""

    def __init__(self, plan: Plan) -> None:
        self.measures = {cell.measure: measure_by_name(cell.measure, plan.measures) for cell in plan.cells}
        self._open = {cell.fix_id(fix): (cell, fix) for cell in plan.cells for fix in cell.fixes}
        self.total = len(self._open)
        self.resumed = 0
        self._lost: set[tuple[str, str, str, str]] = set()  # fixes of which nothing more is measured
        self._paces: dict[tuple[str, ...], list[float]] = {}  # how many times its rough duration a kind of cell took
        self.running: dict[Cell, float] = {}  # when each began
        self._worked_s = {True: 0.0, False: 0.0}  # of timed cells, which run alone, and of those side by side
        self._began_s = time.monotonic()

    @property
    def settled(self) -> int:
        return self.total - len(self._open)

    def start(self, cell: Cell) -> None:
        fixes = set(map(cell.fix_id, cell.fixes))
        lost = [other for other in self.running if fixes.intersection(map(other.fix_id, other.fixes))]
        for other in lost:  # a group that gave no result, whose fixes now run one by one
            del self.running[other]
        self.running[cell] = time.monotonic()

    def add(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        """Count records; only those that were measured now, in more than no time, say how long others take."""
        self.running.pop(cell, None)
        for record in records:
            self._open.pop(record.cell, None)
            if record.status != "passed":
                self._lost.add((cell.case, cell.size, cell.mode, record.fix))
        wall_s = max((record.wall_s for record in records), default=0.0)
        if resumed:
            self.resumed += len(records)
        elif wall_s > 0.0:
            measure = self.measures[cell.measure]
            self._worked_s[measure.timed] += wall_s
            for kind in (*_kinds(cell), *(() if measure.timed else (_UNTIMED,))):
                self._paces.setdefault(kind, []).append(
                    wall_s / measure.expected_s(cell) * len(cell.fixes) / len(records)
                )

    def resumed_text(self) -> str:
        return f"{self.resumed} of {self.total} already measured"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def left_text(self) -> str:
        if not self._open:
            return f"done in {clock(self.elapsed_s)}"
        if not any(self._worked_s.values()):
            return f"{clock(self.elapsed_s)} elapsed"
        return f"{clock(self.elapsed_s)} elapsed, about {clock(self.left_s())} left"

    def left_s(self) -> float:
        """Estimate at the rate at which cells have run side by side, the time so far of those that run now included."""
        left_s = {True: 0.0, False: 0.0}
        for cell, fix in self._open.values():
            if (cell.case, cell.size, cell.mode, fix) not in self._lost:
                left_s[self.measures[cell.measure].timed] += self._estimate_s(cell)
        running_s = sum(time.monotonic() - began_s for began_s in self.running.values())
        side_by_side_s = self._worked_s[False] + running_s
        rate = max(0.0, self.elapsed_s - self._worked_s[True]) / side_by_side_s if side_by_side_s else 1.0
        return rate * max(0.0, left_s[False] - running_s) + left_s[True]

    def _estimate_s(self, cell: Cell) -> float:
        """Return the likely seconds of one record: its rough duration, at the pace of the last cells like it.

        A median, since the first cell of a kind also loads what the others find loaded.
        """
        measure = self.measures[cell.measure]
        general = [1.0] if measure.timed else self._paces.get(_UNTIMED, [1.0])[-_RECENT:]  # timing has a fixed budget
        known = [self._paces[kind][-_RECENT:] for kind in _kinds(cell) if kind in self._paces]
        alike = next((paces for paces in known if len(paces) > 1), [])
        pace = statistics.median(alike or [statistics.median(general), *(known[0] if known else [])])
        return measure.expected_s(cell) * pace / len(cell.fixes)


def _kinds(cell: Cell) -> tuple[tuple[str, ...], ...]:
    """Return what cells at the same pace have in common, the most alike first."""
    return ((cell.measure, cell.case, cell.size, cell.mode), (cell.measure, cell.mode))


def clock(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class PlainProgress:
    """A line every half minute for logs and pipes; with `verbose`, one per record."""

    def __init__(self, console: Console, plan: Plan, *, verbose: bool) -> None:
        self._console = console
        self._tally = Tally(plan)
        self._verbose = verbose
        self._printed_resumed = False
        self._last_s = 0.0

    def started(self, cell: Cell) -> None:
        """Print nothing: the line comes with the result."""
        self._tally.start(cell)

    def print_resumed(self) -> None:
        if not self._printed_resumed and self._tally.resumed:
            print_lines([self._tally.resumed_text()], self._console)
        self._printed_resumed = True

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        self._tally.add(cell, records, resumed=resumed)
        if resumed:
            return
        self.print_resumed()
        if self._verbose:
            print_lines(map(_record_line, records), self._console, soft_wrap=True)
        is_done, elapsed_s = self._tally.settled >= self._tally.total, self._tally.elapsed_s
        if self._verbose or is_done or elapsed_s - self._last_s >= _PLAIN_STEP_S:
            self._last_s = elapsed_s
            print_lines([f"[{self._tally.settled}/{self._tally.total}] {self._tally.left_text()}"], self._console)


def _record_line(record: Record) -> str:
    reason = f": {record.reason}" if record.reason else ""
    return f"{record.cell} {record.status} ({record.wall_s:.1f} s){reason}"


class LiveProgress:
    """A bar and the running cells, redrawn in place; it leaves nothing behind."""

    def __init__(self, show: Show, plan: Plan) -> None:
        self.tally = Tally(plan)
        self._show = show

    def started(self, cell: Cell) -> None:
        self.tally.start(cell)
        self._draw()

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        self.tally.add(cell, records, resumed=resumed)
        if not resumed:
            self._draw()

    def _draw(self) -> None:
        names = ", ".join(map(_name, self.tally.running))
        self._show(self.tally.settled, self.tally.total, f"{self.tally.left_text()}\n{names}")


def _name(cell: Cell) -> str:
    fix = cell.fixes[0] if len(cell.fixes) == 1 else f"{len(cell.fixes)} fixes"
    return f"{cell.measure} of {fix} on {cell.case}"


@contextmanager
def progress_on(console: Console, plan: Plan, *, verbose: bool = False) -> Iterator[RunProgress]:
    if verbose or not console.is_terminal:
        plain = PlainProgress(console, plan, verbose=verbose)
        yield plain
        plain.print_resumed()
        return
    with bar_on(console) as show:
        live = LiveProgress(show, plan)
        yield live
    if live.tally.resumed:
        console.print(live.tally.resumed_text(), highlight=False)


class CaseByCase:
    """Passes on what it hears, and calls `answer` with each case once every record of it is there."""

    def __init__(self, progress: RunProgress, plan: Plan, answer: Callable[[str], None]) -> None:
        self._progress = progress
        self._answer = answer
        self._open: dict[str, set[str]] = {}
        for cell in plan.cells:
            self._open.setdefault(cell.case, set()).update(map(cell.fix_id, cell.fixes))

    def started(self, cell: Cell) -> None:
        self._progress.started(cell)

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        self._progress.finished(cell, records, resumed=resumed)
        left = self._open.get(cell.case, set())
        left.difference_update(record.cell for record in records)
        if not left and self._open.pop(cell.case, None) is not None:
            self._answer(cell.case)


class ConsoleListener:
    """Prints how a run goes on; `answer` is called with each case that is complete."""

    def __init__(self, console: Console, *, verbose: bool, answer: Callable[[str], None]) -> None:
        self._console = console
        self._verbose = verbose
        self._answer = answer
        self.left_out: tuple[str, ...] = ()

    def note(self, line: str) -> None:
        print_lines([line], self._console)

    def waiting(self, what: str) -> AbstractContextManager[object]:
        return self._console.status(what)

    @contextmanager
    def progress(self, plan: Plan) -> Iterator[RunProgress]:
        self.left_out = plan.left_out
        with progress_on(self._console, plan, verbose=self._verbose) as progress:
            yield CaseByCase(progress, plan, self._answer)
