"""The command ``report``, and what ``run`` does at its end: write a run's files and print its answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.files import to_json
from precision_eval.core.table import print_lines, print_table

if TYPE_CHECKING:
    from precision_eval.report.writer import TerminalAnswer
    from precision_eval.results.reading import Run

HELP = """\
The HTML report is one file that needs no network: the answer first, then figures, players of the recordings where the
audio files are there, statuses and every table.

[bold]Examples[/bold]

[cyan]precision-eval report runs/first --open[/cyan]

[cyan]precision-eval report runs/laptop runs/server[/cyan]  several machines side by side, a column for each

[cyan]precision-eval report runs/first --verbose[/cyan]  every table and note
"""


@dataclass(frozen=True, kw_only=True)
class Printing:
    verbose: bool = False
    as_json: bool = False
    open_report: bool = False
    silent: bool = False

    def __post_init__(self) -> None:
        if self.verbose and self.as_json:
            raise ParameterError("--verbose and --json were given; give one of them")

    def notes(self) -> Console:
        """Return where progress and notes go: standard error where standard output holds JSON alone."""
        return Console(stderr=self.as_json, quiet=self.silent, emoji=False)


def report(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs; each holds records.jsonl.")
    ],
    verbose: options.Verbose = False,
    as_json: options.Json = False,
    open_report: options.OpenReport = False,
) -> None:
    printing = Printing(verbose=verbose, as_json=as_json, open_report=open_report)
    for run_dir in run_dirs:
        if not (run_dir / "records.jsonl").exists():
            raise RecordError(f"{run_dir} holds no records.jsonl; give the folder named by `precision-eval run --out`")
    if len(run_dirs) > 1:
        _print_side_by_side(run_dirs, as_json=as_json)
        return
    run_dir = run_dirs[0]
    write_reports(run_dir, printing)


def _print_side_by_side(run_dirs: list[Path], *, as_json: bool) -> None:
    """Print the runs of several machines, with a column for each; nothing is written."""
    from precision_eval.report.side_by_side import machine_tables, machines_to_dict
    from precision_eval.results.machines import load_machines

    machines = load_machines(run_dirs)
    if as_json:
        print(to_json(machines_to_dict(machines), what="the answer", indent=1))
        return
    for table in machine_tables(machines):
        print_table(table, Console(emoji=False))


def write_reports(
    run_dir: Path,
    printing: Printing,
    *,
    measured_s: float | None = None,
    answer: TerminalAnswer | None = None,
    left_out: str = "",
) -> None:
    """Write the files of a report and print the answer, or what of it is not printed yet."""
    from precision_eval.report.writer import write_report
    from precision_eval.results.reading import load_run

    notes, began = printing.notes(), time.monotonic()
    with notes.status("writing the report"):
        write_report(run_dir, console=notes if printing.verbose else None)
    seconds = {"measured_s": measured_s, "reported_s": round(time.monotonic() - began, 1)}
    path = run_dir / "report.html"
    _print_answer(load_run(run_dir), path, printing, seconds, answer=answer, left_out=left_out)
    if printing.open_report:
        typer.launch(str(path.resolve()))  # what takes no relative path for a file takes it for a host


def _print_answer(
    run: Run, path: Path, printing: Printing, seconds: dict[str, Any], *, answer: TerminalAnswer | None, left_out: str
) -> None:
    from precision_eval.report.writer import TerminalAnswer, answer_dicts, print_next

    if printing.silent:
        return
    if printing.as_json:
        seconds["busy_s"] = run.busy_s
        data = {"run": str(run.directory), "html_report": str(path), **seconds, "groups": answer_dicts(run)}
        print(to_json(data, what="the answer", indent=1))
        return
    console = Console(emoji=False)
    if not printing.verbose:
        (answer or TerminalAnswer(console)).print_rest(run)
    took = "" if seconds["measured_s"] is None else f" (measured in {seconds['measured_s']:.0f} s)"
    print_lines([f"HTML report{took}: {path}", *([left_out] if left_out else [])], console, soft_wrap=True)
    print_next(run, console)
