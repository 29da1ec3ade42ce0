"""What ``sensitivity`` does: map, search, prove what is missing, then write tables, figures and a document's block."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from precision_eval.cli import EXIT_INTERRUPTED
from precision_eval.core.files import check_own_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from precision_eval.studies.sensitivity.plan import Plan

CSV_NAME = "sensitivity.csv"
TEXT_NAME = "sensitivity.md"
BLOCK = "sensitivity"
SITES_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for."""

    out: Path
    targets: tuple[str, ...] | None = None
    formats: tuple[str, ...] | None = None
    size: str = "cpu"
    seed: int = 0
    policies: bool = True
    processes: int = 6
    budget_s: float = 1.5
    report_only: bool = False

    def plan(self) -> Plan:
        """Work the request out."""
        from precision_eval.studies.sensitivity.plan import Plan

        chosen: dict[str, Any] = {"targets": self.targets, "formats": self.formats}
        named = {name: value for name, value in chosen.items() if value}
        return Plan(
            size=self.size,
            seed=self.seed,
            policies=self.policies,
            processes=self.processes,
            budget_s=self.budget_s,
            **named,
        ).checked()


def sensitivity_command(request: Request) -> None:
    """Run, print, draw and write."""
    check_own_folder(request.out, "runs.jsonl")
    console = Console()
    plan = request.plan()  # bad names end here, before anything heavy is loaded
    if not request.report_only:
        try:
            _run(plan, request.out, console)
        except KeyboardInterrupt:
            console.print("Stopped. Runs that were finished are kept; the same command goes on from there.")
            sys.exit(EXIT_INTERRUPTED)
    _report(request, console)


def _run(plan: Plan, out: Path, console: Console) -> None:
    """Run under a bar that is redrawn between runs only: nothing observes while timing."""
    from precision_eval.studies.sensitivity.campaign import run_campaign

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        run_campaign(plan, out, progress=_shown(bar))


def _shown(bar: Progress) -> Callable[[int, int, str], None]:
    task = bar.add_task("starting", total=None)

    def show(done: int, total: int, what: str) -> None:
        bar.update(task, completed=done, total=total, description=what[:60], refresh=True)

    return show


def _report(request: Request, console: Console) -> None:
    """Write tables and figures from the runs alone."""
    from precision_eval.studies.sensitivity.campaign import write_summary
    from precision_eval.studies.sensitivity.plots import draw
    from precision_eval.studies.sensitivity.text import answer, csv_text, markdown

    summary = write_summary(request.out)
    (request.out / CSV_NAME).write_text(csv_text(summary), encoding="utf-8")
    (request.out / TEXT_NAME).write_text(markdown(summary) + "\n", encoding="utf-8")
    drawn = draw(summary, request.out / "figures")
    for one in summary["maps"]:
        console.print(_table(one))
    for line in answer(summary):
        console.print(line, style="bold", highlight=False)
    written = [request.out / TEXT_NAME, request.out / CSV_NAME, *drawn]
    console.print(f"written: {', '.join(str(path) for path in written)}", style="dim", highlight=False)


def _table(one: dict[str, Any]) -> Table:
    """Return the first ranks of a map."""
    from precision_eval.studies.sensitivity.text import number, percent

    title = f"{one['target']} · {one['size']} · {one['format']} · uniform {number(one['uniform_drift'])}"
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in ("rank", "site", "added alone", "95 %", "carried"):
        table.add_column(name, justify="left" if name == "site" else "right")
    for effect in [effect for effect in one["effects"] if effect["kind"] == "site"][:SITES_SHOWN]:
        tied = " =" if effect["tied_with_next"] else ""
        interval = f"{number(effect['added_low'])} … {number(effect['added_high'])}"
        cells = (effect["name"], number(effect["added"]), interval, percent(effect["carried"]))
        table.add_row(f"{effect['rank']}{tied}", *cells)
    return table
