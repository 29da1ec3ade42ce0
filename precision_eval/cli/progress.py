"""Progress: one bar with what is under way and the time left on a terminal; of a run a few plain lines elsewhere.

Conventions: what is counted of a run is records, one per fix and measure. The time left comes from the rough durations
of the measures, corrected by how long cells of the same measure and mode have taken so far. While a timed cell runs,
nothing is redrawn: nothing observes while timing.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from precision_eval.core.table import print_lines
from precision_eval.measure.registry import Measure, measure_by_name

if TYPE_CHECKING:
    from precision_eval.core.cells import Cell
    from precision_eval.core.records import Record
    from precision_eval.run.plan import Plan
    from precision_eval.run.runner import Progress as RunProgress

_TICK_S = 0.5
_PLAIN_STEP_S = 60.0
"""Seconds between two plain lines."""

Kind = tuple[str, str]
"""Measure and mode: what takes about as long."""

Show = Callable[[float, float | None, str], None]
"""Takes how much is done, of how much, and what is under way."""


@contextmanager
def bar_on(console: Console | None = None) -> Iterator[Show]:
    """Yield what redraws a bar in place, which nothing else does: no thread, and nothing while something is timed."""
    described = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns, console = (BarColumn(20), MofNCompleteColumn(), described), console or Console(stderr=True)
    disable = not console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=disable) as bar:
        task = bar.add_task("", total=None)

        def show(done: float, total: float | None, what: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(what), refresh=True)

        yield show


class Tally:
    """Counts what is settled and estimates the time left."""

    def __init__(self, plan: Plan) -> None:
        self.measures: dict[str, Measure] = {
            cell.measure: measure_by_name(cell.measure, plan.measures) for cell in plan.cells
        }
        self.total = sum(len(cell.fixes) for cell in plan.cells)
        self.settled = 0
        self.resumed = 0
        self._left_s: defaultdict[Kind, float] = defaultdict(float)
        for cell in plan.cells:
            self._left_s[cell.measure, cell.mode] += self._cost_s(cell)
        self._seen_s: defaultdict[Kind, float] = defaultdict(float)  # expected of what was measured
        self._took_s: defaultdict[Kind, float] = defaultdict(float)
        self._started = time.monotonic()

    def _cost_s(self, cell: Cell) -> float:
        return self.measures[cell.measure].expected_s(cell)

    def add(self, cell: Cell, records: int, *, wall_s: float, resumed: bool = False) -> None:
        """Count records of a cell that took so long; only what was measured, above 0, tells how fast the run is."""
        part = records / len(cell.fixes)
        share_s = self._cost_s(cell) * part
        kind = cell.measure, cell.mode
        self.settled += records
        self.resumed += records if resumed else 0
        self._left_s[kind] = max(0.0, self._left_s[kind] - share_s)
        if wall_s > 0.0:
            self._seen_s[kind] += share_s
            self._took_s[kind] += wall_s * part

    def resumed_text(self) -> str:
        """Say how much of the plan was recorded by an earlier run under the same conditions."""
        return f"{self.resumed} of {self.total} already measured"

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    def left(self) -> str:
        """Return the time left as text; unknown at first."""
        if self.settled >= self.total:
            return f"done in {clock(self.elapsed_s)}"
        left_s = self._left()
        if left_s is None:
            return f"{clock(self.elapsed_s)} elapsed"
        return f"{clock(self.elapsed_s)} elapsed, about {clock(left_s)} left"

    def _left(self) -> float | None:
        """Expected duration of what is left: each kind at its own pace, one not yet seen at that of all."""
        seen_s, took_s = sum(self._seen_s.values()), sum(self._took_s.values())
        if seen_s <= 0.0:
            return None
        side_by_side = max(1.0, took_s / self.elapsed_s) if self.elapsed_s > 0.0 else 1.0
        left_s = 0.0
        for kind, rough_s in self._left_s.items():
            pace = self._took_s[kind] / self._seen_s[kind] if self._seen_s.get(kind) else took_s / seen_s
            left_s += rough_s * pace / (1.0 if self.measures[kind[0]].timed else side_by_side)
        return left_s


def _wall_s(records: tuple[Record, ...], *, resumed: bool) -> float:
    """Return what a cell took now: all its records say the same, or 0 where an earlier status was taken over."""
    return 0.0 if resumed else max(record.wall_s for record in records)


def clock(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class PlainProgress:
    """A line now and then for logs and pipes; with `verbose`, one per settled cell."""

    def __init__(self, console: Console, plan: Plan, *, verbose: bool = False) -> None:
        self._console = console
        self._tally = Tally(plan)
        self._verbose = verbose
        self._said = False
        self._last_s = 0.0

    def started(self, cell: Cell) -> None:
        """Say nothing: the line comes with the result."""

    def say_what_was_there(self) -> None:
        """Print once how many records were there before, if any."""
        if not self._said and self._tally.resumed:
            self._console.print(Text(self._tally.resumed_text()))
        self._said = True

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        """Count the records of a cell, and print a line where one is due."""
        self._tally.add(cell, len(records), wall_s=_wall_s(records, resumed=resumed), resumed=resumed)
        if resumed:
            return
        self.say_what_was_there()
        if self._verbose:
            self._print_records(records)
        done, elapsed_s = self._tally.settled >= self._tally.total, self._tally.elapsed_s
        if self._verbose or done or elapsed_s - self._last_s >= _PLAIN_STEP_S:
            self._last_s = elapsed_s
            self._console.print(Text(f"[{self._tally.settled}/{self._tally.total}] {self._tally.left()}"))

    def _print_records(self, records: tuple[Record, ...]) -> None:
        for record in records:
            reason = f": {record.reason}" if record.reason else ""
            line = f"{record.cell} {record.status} ({record.wall_s:.1f} s){reason}"
            self._console.print(Text(line), soft_wrap=True)


class LiveProgress:
    """A bar and the running cells, redrawn in place; it leaves nothing behind."""

    def __init__(self, show: Show, plan: Plan) -> None:
        self.tally = Tally(plan)
        self._show = show
        self._running: dict[Cell, None] = {}

    def started(self, cell: Cell) -> None:
        """Show a cell as running."""
        self._running[cell] = None
        self._draw()

    def finished(self, cell: Cell, records: tuple[Record, ...], *, resumed: bool) -> None:
        """Count the records of a cell."""
        self._running.pop(cell, None)
        self.tally.add(cell, len(records), wall_s=_wall_s(records, resumed=resumed), resumed=resumed)
        if not resumed:
            self._draw()

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Redraw now and then for the time of a block, except while something is timed."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(_TICK_S):
                if not any(self.tally.measures[cell.measure].timed for cell in list(self._running)):
                    self._draw()

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()

    def _draw(self) -> None:
        names = ", ".join(map(_name, list(self._running)))
        self._show(self.tally.settled, self.tally.total, f"{self.tally.left()}\n{names}")


def _name(cell: Cell) -> str:
    """Name a running cell in few words."""
    fix = cell.fixes[0] if len(cell.fixes) == 1 else f"{len(cell.fixes)} fixes"
    return f"{cell.measure} of {fix} on {cell.case}"


@contextmanager
def progress_on(console: Console, plan: Plan, *, verbose: bool = False) -> Iterator[RunProgress]:
    """Show the progress of a plan in the way that suits the console."""
    if verbose or not console.is_terminal:
        plain = PlainProgress(console, plan, verbose=verbose)
        yield plain
        plain.say_what_was_there()
        return
    with bar_on(console) as show:
        live = LiveProgress(show, plan)
        with live.ticking():
            yield live
    before = f"{live.tally.resumed_text()}; " if live.tally.resumed else ""
    console.print(f"{before}{live.tally.left()}", highlight=False)


class ConsoleListener:
    """Prints the notes and the progress of a run."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose

    def note(self, line: str) -> None:
        """Print a line."""
        print_lines([line], self._console)

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show what takes a while."""
        return self._console.status(what)

    def progress(self, plan: Plan) -> AbstractContextManager[RunProgress]:
        """Show the progress of a plan."""
        return progress_on(self._console, plan, verbose=self._verbose)
