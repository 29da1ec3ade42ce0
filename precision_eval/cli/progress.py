"""Progress: a bar with what runs and the time left on a terminal; a few plain lines elsewhere.

A run counts records, one per fix and measure. The time left is the rough duration of what is left, at the pace of what
was measured so far. The bar is redrawn only when a cell starts or ends: nothing observes while timing.
"""

from __future__ import annotations

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
_PLAIN_STEP_S = 60.0

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
    def __init__(self, plan: Plan) -> None:
        self._measures = {cell.measure: measure_by_name(cell.measure, plan.measures) for cell in plan.cells}
        self.total = sum(len(cell.fixes) for cell in plan.cells)
        self.settled = 0
        self.resumed = 0
        self._left_s = sum(map(self._expected_s, plan.cells))
        self._measured_s = 0.0  # the rough duration of what was measured
        self._began_s = time.monotonic()

    def _expected_s(self, cell: Cell) -> float:
        return self._measures[cell.measure].expected_s(cell)

    def add(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        """Count records; only those that were measured now, in more than no time, set the pace."""
        expected_s = self._expected_s(cell) * len(records) / len(cell.fixes)
        self.settled += len(records)
        self._left_s -= expected_s
        if resumed:
            self.resumed += len(records)
        elif any(record.wall_s > 0.0 for record in records):
            self._measured_s += expected_s

    def resumed_text(self) -> str:
        return f"{self.resumed} of {self.total} already measured"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def left_text(self) -> str:
        if self.settled >= self.total:
            return f"done in {clock(self.elapsed_s)}"
        if not self._measured_s:
            return f"{clock(self.elapsed_s)} elapsed"
        left_s = self.elapsed_s * self._left_s / self._measured_s
        return f"{clock(self.elapsed_s)} elapsed, about {clock(left_s)} left"


def clock(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class PlainProgress:
    """A line a minute for logs and pipes; with `verbose`, one per record."""

    def __init__(self, console: Console, plan: Plan, *, verbose: bool) -> None:
        self._console = console
        self._tally = Tally(plan)
        self._verbose = verbose
        self._printed_resumed = False
        self._last_s = 0.0

    def started(self, cell: Cell) -> None:
        """Print nothing: the line comes with the result."""

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
        self._running: dict[Cell, None] = {}

    def started(self, cell: Cell) -> None:
        self._running[cell] = None
        self._draw()

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        self._running.pop(cell, None)
        self.tally.add(cell, records, resumed=resumed)
        if not resumed:
            self._draw()

    def _draw(self) -> None:
        names = ", ".join(map(_name, self._running))
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
    before = f"{live.tally.resumed_text()}; " if live.tally.resumed else ""
    console.print(f"{before}{live.tally.left_text()}", highlight=False)


class ConsoleListener:
    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose

    def note(self, line: str) -> None:
        print_lines([line], self._console)

    def waiting(self, what: str) -> AbstractContextManager[object]:
        return self._console.status(what)

    def progress(self, plan: Plan) -> AbstractContextManager[RunProgress]:
        return progress_on(self._console, plan, verbose=self._verbose)
