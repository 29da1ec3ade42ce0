"""The command ``report``, and what ``run`` does at its end: write a run's files and print its answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from precision_eval.cli import options
from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError
from precision_eval.core.files import to_json
from precision_eval.core.table import print_lines

if TYPE_CHECKING:
    from precision_eval.results.reading import Run

VERSIONS_NAME = "torch-versions"
"""Folder beside a run where ``torch-sweep`` leaves its results unless told otherwise."""

HELP = """\
The HTML report is one file that needs no network: the answer first, then charts that show their records, players of
every fix where the audio files are there, statuses and messages.

[bold]Examples[/bold]

[cyan]precision-eval report runs/first --open[/cyan]

[cyan]precision-eval report runs/first --verbose[/cyan]  every table, finding and note

[cyan]precision-eval report runs/first --torch-versions results/torch-versions[/cyan]  and what versions change
"""


@dataclass(frozen=True, kw_only=True)
class Printing:
    """How much is printed, and whether the HTML report is opened."""

    verbose: bool = False
    quiet: bool = False
    as_json: bool = False
    open_report: bool = False
    silent: bool = False

    def __post_init__(self) -> None:
        flags = {"--verbose": self.verbose, "--quiet": self.quiet, "--json": self.as_json}
        given = [name for name, value in flags.items() if value]
        if len(given) > 1:
            raise ParameterError(f"{' and '.join(given)} were given; give one of them")

    def notes(self) -> Console:
        """Return where progress and notes go: standard error where standard output holds a path or JSON alone."""
        return Console(stderr=self.quiet or self.as_json, quiet=self.silent, emoji=False)


def report(
    run_dir: options.RunFolder,
    torch_versions: Annotated[
        Path | None,
        typer.Option(
            metavar="RESULTS",
            help="asv's results over torch versions, for the HTML report; by default torch-versions beside the run.",
        ),
    ] = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    open_report: options.OpenReport = False,
) -> None:
    """Report a run."""
    printing = Printing(verbose=verbose, quiet=quiet, as_json=as_json, open_report=open_report)
    if not (run_dir / "records.jsonl").exists():
        raise RecordError(f"{run_dir} holds no records.jsonl; give the folder named by `precision-eval run --out`")
    write_reports(run_dir, printing, versions_dir=torch_versions)


def write_reports(
    run_dir: Path, printing: Printing, *, versions_dir: Path | None = None, measured_s: float | None = None
) -> None:
    """Write the report's files and print the answer."""
    from precision_eval.report.html import write_html
    from precision_eval.report.writer import write_report
    from precision_eval.results.reading import load_run

    notes, began = printing.notes(), time.monotonic()
    with notes.status("writing the report"):
        write_report(run_dir, console=notes if printing.verbose else None)
        path = write_html(run_dir, versions=_versions(run_dir, versions_dir, notes))
    seconds = {"measured_s": measured_s, "reported_s": round(time.monotonic() - began, 1)}
    _print_answer(load_run(run_dir), path, printing, seconds)
    if printing.open_report:
        typer.launch(str(path.resolve()))  # what takes no relative path for a file takes it for a host


def _print_answer(run: Run, path: Path, printing: Printing, seconds: dict[str, Any]) -> None:
    """Print what was asked for: JSON, the path alone, or the answer and where the HTML report is."""
    from precision_eval.report.summary import print_summary, summaries_of

    if printing.silent:
        return
    if printing.as_json:
        groups = [summary.to_dict() for summary in summaries_of(run.sections)]
        seconds["busy_s"] = run.busy_s
        answer = {"run": str(run.directory), "html_report": str(path), **seconds, "groups": groups}
        print(to_json(answer, what="the answer", indent=1))
        return
    if printing.quiet:
        print(path)
        return
    console = Console(emoji=False)
    if not printing.verbose:
        print_summary(run, console)
    took = "" if seconds["measured_s"] is None else f" (measured in {seconds['measured_s']:.0f} s)"
    print_lines([f"HTML report{took}: {path}"], console, soft_wrap=True)


def _versions(run_dir: Path, versions_dir: Path | None, notes: Console) -> Any:
    """Sum up the results over torch versions that were asked for, or that lie beside the run; None without any."""
    from precision_eval.history.html_report import versions_summary
    from precision_eval.report.html import path_in_commands

    folder = versions_dir or versions_beside(run_dir)
    if folder is None:
        return None
    try:
        return versions_summary(folder, run_dir=run_dir, name=path_in_commands(run_dir))
    except PrecisionEvalError as error:
        if versions_dir is not None:
            raise
        # nobody asked for them: they must not cost the run its HTML report
        print_lines([f"The HTML report goes without torch versions: {error}"], notes, soft_wrap=True)
        return None


def versions_beside(run_dir: Path) -> Path | None:
    """Return the folder of results over torch versions beside a run; None where there is none."""
    folder = (run_dir if run_dir.name else run_dir.resolve()).parent / VERSIONS_NAME
    return folder if folder.is_dir() else None
