"""What ``choose`` prints: the fix to take under the limits given, why, and what would change that.

Conventions: the first line is the answer, and everything fits one screen. Exit code 0 with an answer or a tie, 1 where
for some case no fix keeps the limits or none cures it, 4 where a case's records cannot be compared; bad input is 2.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from precision_eval.cli import EXIT_COULD_NOT_TELL, EXIT_VERDICT
from precision_eval.core.formatting import one_line

if TYPE_CHECKING:
    from precision_eval.results.choose import Answer, Choice, Question

NARROW = 105
"""Columns below which the table leaves out what it can."""


@dataclass(frozen=True, kw_only=True)
class ChooseRequest:
    """What the command line asks for; None leaves an axis free or takes all there is."""

    run_dir: Path
    policy: str = "balanced"
    max_drift: float | None = None
    max_memory: str | None = None
    min_speed: float | None = None
    cases: tuple[str, ...] = ("*",)
    sizes: tuple[str, ...] = ("*",)
    modes: tuple[str, ...] = ("*",)
    device: str | None = None
    threads: int | None = None
    length: int | None = None
    batch: int | None = None
    sweep: Path | None = None
    plan: Path | None = None
    as_json: bool = False

    def question(self) -> Question:
        """Work the request out."""
        from precision_eval.results.choose import Constraints, Question, parse_memory

        limits: dict[str, Any] = {} if self.max_memory is None else parse_memory(self.max_memory)
        names = ("cases", "sizes", "modes", "device", "threads", "length", "batch", "sweep", "plan", "policy")
        return Question(
            constraints=Constraints(max_drift=self.max_drift, min_speed=self.min_speed, **limits),
            **{name: getattr(self, name) for name in names},
        )


def choose_command(request: ChooseRequest, *, console: Console | None = None) -> None:
    """Choose and print."""
    from precision_eval.results.choose import answer, groups_of
    from precision_eval.results.reading import load_run

    question = request.question()
    run = load_run(request.run_dir)
    for line in run.damage:
        print(f"Not counted: {one_line(line)}", file=sys.stderr)
    found = answer(groups_of(run.records, run=str(request.run_dir)), question)
    if request.as_json:
        print(json.dumps(found.to_dict(), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        _show(found, console or Console(emoji=False))
    if found.refused:
        raise typer.Exit(EXIT_VERDICT)
    if not found.found:
        raise typer.Exit(EXIT_COULD_NOT_TELL)


def _show(found: Answer, console: Console) -> None:
    """Print one group in full, or several in short."""
    from precision_eval.report.choice_text import overview, rest_lines

    running = [choice for choice in found.choices if choice.group.curing]
    if len(running) == 1 or len(found.choices) == 1:
        _show_one((running or found.choices)[0], console)
        for line in rest_lines(found) if running or found.unanswered else ():
            _line(console, line)
        return
    first, *rest = overview(found)
    console.print(first, style="bold", highlight=False, markup=False)
    for line in rest:
        _line(console, line)
    console.print("One of them in full: --case NAME --size NAME --mode NAME", style="dim", highlight=False)


def _show_one(choice: Choice, console: Console) -> None:
    from precision_eval.report.choice_text import change_lines, doubt_lines, facts, headline, not_running

    console.print(headline(choice), style="bold", highlight=False, markup=False)
    console.print(f"{choice.group.title}; policy {choice.policy}", style="dim", highlight=False, markup=False)
    if choice.fix is not None:
        _line(console, f"{choice.fix}: {facts(choice.group, choice.fix)}")
    if choice.group.curing:
        console.print(_table(choice, short=console.width < NARROW))
    parts = {
        "would change it": change_lines(choice),
        "does not run": [text] if (text := not_running(choice)) else [],
        "doubt": doubt_lines(choice),
        "note": list(choice.group.notes),
    }
    for name, lines in parts.items():
        for line in lines:
            _line(console, f"{name}: {line}")


def _line(console: Console, text: str) -> None:
    """Print a line with what stands before its first colon in bold."""
    name, colon, rest = text.partition(": ")
    console.print(f"[bold]{escape(name)}[/bold]{colon}{escape(rest)}" if colon else escape(text), highlight=False)


def _table(choice: Choice, *, short: bool) -> Table:
    from precision_eval.report.choice_text import COLUMNS, table_rows

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=bool(name))
    for row in table_rows(choice, short=short):
        chosen = row[0] == choice.fix
        table.add_row(*map(escape, row), style="bold" if chosen else "")
    return table
