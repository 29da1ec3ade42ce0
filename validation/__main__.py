"""Trials of the instrument and of its rivals: ``python -m validation``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from precision_eval.cli.application import EXIT_INTERRUPTED, run_application
from precision_eval.core.errors import ParameterError, PrecisionEvalError
from precision_eval.core.table import print_table
from validation import frame
from validation.frame import Experiment, Figure, Options
from validation.report import figure_table, write_page, write_report

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_EPILOG = """
Trials are appended to OUT/NAME.jsonl as they end; the same command goes on from there. Without a name, or with
"prove", the experiments on the measuring itself run: latency, memory, overhead and divergence; quick takes about
ten minutes, full some hours on two cores, most of them for latency, which wants a machine that does nothing
else. --list names every experiment and its settings."""


def main(arguments: Sequence[str] | None = None) -> None:
    for name in _THREADS:
        os.environ.setdefault(name, "1")  # before numpy is loaded, here and in every process that measures
    given, console = _parser().parse_args(arguments), Console()
    if given.list:
        _list(console)
        return
    if given.page:
        write_page(frame.ROOT / "docs" / "validation.md", frame.ROOT / "results")
        return
    names = frame.PROOF if given.names in ([], ["prove"]) else given.names
    chosen = {name: frame.experiment_by_name(name) for name in names}
    options = {name: _options(experiment, given, alone=len(chosen) == 1) for name, experiment in chosen.items()}
    try:
        for name, experiment in () if given.report else chosen.items():
            _run(experiment, options[name], given.limit_s, console)
        figures = {name: _report(experiment, options[name], console) for name, experiment in chosen.items()}
    except KeyboardInterrupt:
        console.print("Stopped. Trials that ended are kept; the same command goes on from there.")
        sys.exit(EXIT_INTERRUPTED)
    if not any(figures.values()):
        raise PrecisionEvalError(f"{given.out} holds no trials of {', '.join(chosen)}; run without --report first")
    if any(experiment.path(given.out).exists() for experiment in chosen.values()):
        write_report(figures, given.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validation", description=__doc__, epilog=_EPILOG)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--size", choices=frame.SIZES, default="quick", help="how many trials (default: quick)")
    parser.add_argument("--out", type=Path, default=Path("runs/proof"), help="folder of trials and figures")
    parser.add_argument("--report", action="store_true", help="run nothing; report the trials on file")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no trial after so many seconds")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; see --list")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/validation.md from results/")
    parser.add_argument("--list", action="store_true", help="name the experiments and their settings")
    return parser


def _options(experiment: Experiment, given: argparse.Namespace, *, alone: bool) -> Options:
    pairs = [text.partition("=") for text in given.set]
    for name, equals, _ in pairs:
        if not equals or not alone:
            raise ParameterError(f"--set {name}: give NAME=VALUE, for one experiment at a time")
    settings = {name: value for name, _, value in pairs}
    return experiment.options(settings, out=given.out, size=given.size, report=given.report)


def _list(console: Console) -> None:
    for name in frame.NAMES:
        experiment = frame.experiment_by_name(name)
        console.print(f"[bold]{name}[/bold]: {experiment.title}", highlight=False)
        for setting, (quick, full) in experiment.settings.items():
            values = _value(quick) if quick == full else f"{_value(quick)} (full: {_value(full)})"
            console.print(f"    {setting}={values}", style="dim", highlight=False, soft_wrap=True)


def _value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _run(experiment: Experiment, options: Options, limit_s: float, console: Console) -> None:
    """Run one experiment under a progress bar; without a terminal, only its title is printed."""
    console.print(f"[bold]{experiment.name}[/bold]: {experiment.title}")
    bars = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    columns = (TextColumn("  {task.description}"), *bars)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def show(done: int, total: int, key: str) -> None:
            progress.update(task, completed=done, total=total, description=key[:40])

        frame.run(experiment, options, limit_s=limit_s, progress=show)


def _report(experiment: Experiment, options: Options, console: Console) -> list[Figure]:
    figures, files = frame.report(experiment, options)
    if not figures:
        return []
    title = f"{experiment.name}: {experiment.title}"
    print_table(figure_table(figures, title=title), console, styles={"yes": "green", "no": "red"})
    if files:
        console.print(f"  written: {', '.join(map(str, files))}", style="dim", highlight=False, markup=False)
    return figures


if __name__ == "__main__":
    run_application(main, "validation")
