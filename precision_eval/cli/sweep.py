"""What ``sweep`` does: measure the lengths that are missing, then write what all of them found."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from precision_eval.cli import EXIT_INTERRUPTED
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.files import check_own_folder
from precision_eval.core.trials import TrialFile

if TYPE_CHECKING:
    from precision_eval.studies.sweep.plan import Sweep

CROSSOVER_NAME = "crossover.json"
SUMMARY_NAME = "summary.md"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for; None leaves a choice to the sweep."""

    out: Path
    shapes: tuple[str, ...] | None = None
    lengths: tuple[int, ...] | None = None
    modes: tuple[str, ...] | None = None
    threads: tuple[int, ...] | None = None
    cache_dtypes: tuple[str, ...] | None = None
    memory: tuple[str, ...] | None = None
    batch: int | None = None
    budget_s: float | None = None
    processes: int | None = None
    seed: int | None = None
    refine: int = 0
    minutes: float | None = None
    quick: bool = False
    report_only: bool = False

    def sweep(self) -> Sweep:
        """Work the request out."""
        from precision_eval.studies.sweep.plan import FULL, QUICK

        names = ("shapes", "lengths", "modes", "threads", "cache_dtypes", "memory", "batch", "budget_s")
        chosen: dict[str, Any] = {name: getattr(self, name) for name in (*names, "processes", "seed")}
        return replace(QUICK if self.quick else FULL, **{name: one for name, one in chosen.items() if one is not None})


def sweep_command(request: Request) -> None:
    """Measure, print, draw and write."""
    check_own_folder(request.out, "lengths.jsonl")
    if request.minutes is not None and not 0.0 < request.minutes < math.inf:
        raise ParameterError(f"--minutes {request.minutes:g}; give a finite number above 0, or leave it out")
    console = Console()
    file = TrialFile(request.out / "lengths.jsonl")
    sweep = request.sweep()  # bad names end here, before anything is started
    if not request.report_only:
        try:
            left = _measure(sweep, request, file, console)
        except KeyboardInterrupt:
            console.print("Stopped. Jobs that were finished are kept; the same command goes on from there.")
            sys.exit(EXIT_INTERRUPTED)
        if left:
            console.print(f"Out of time with {left} lines to measure; the same command goes on from there.")
            if not file.read():
                return
    _report(request.out, file, console)


def _measure(sweep: Sweep, request: Request, file: TrialFile, console: Console) -> int:
    """Run what is missing and return how many lines the time limit left out."""
    from precision_eval.core.environment import collect, store_environment
    from precision_eval.run.executor import IsolatedExecutor
    from precision_eval.studies.sweep.lengths import TimeLimit, refine, run_sweep

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    columns_left = (*columns, TimeRemainingColumn(elapsed_when_finished=False))
    limit = TimeLimit() if request.minutes is None else TimeLimit(60.0 * request.minutes)
    worker_limit_s = 120.0 + len(sweep.lengths) * (60.0 + 4.0 * sweep.budget_s)
    with (
        IsolatedExecutor(1, timeout_s=worker_limit_s, preload=_preload(sweep)) as executor,
        Progress(*columns_left, console=console, auto_refresh=False, disable=not console.is_terminal) as progress,
    ):
        environment = executor.submit(collect, "cpu").result()  # in a worker, so that torch is not loaded here
        sha = store_environment(environment, file.path.parent)
        task = progress.add_task("starting", total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what[:64], refresh=True)
            if not console.is_terminal:
                console.print(f"{done}/{total} {what}", highlight=False, soft_wrap=True)

        left = run_sweep(sweep, file, executor, environment=sha, progress=show, limit=limit)
        if left:
            return left
        return refine(sweep, file, executor, environment=sha, rounds=request.refine, progress=show, limit=limit)


def _preload(sweep: Sweep) -> tuple[str, ...]:
    """Return what the fork server imports once; not the compiler where that might wake up CUDA before a fork."""
    if Path("/dev/nvidiactl").exists():
        return ("torch",)
    compiler = ("precision_eval.run.warm_compiler",) if "compiled" in sweep.modes else ()
    return ("torch", "torch._dynamo", *compiler)


def _report(out: Path, file: TrialFile, console: Console) -> None:
    """Write crossovers, figure and text from the lines alone."""
    lines = file.read()
    if not lines:
        raise RecordError(f"{file.path} holds no lines; run `precision-eval sweep --out {out}` first")
    from precision_eval.studies.sweep.findings import findings_of, sentence
    from precision_eval.studies.sweep.lines import series_of
    from precision_eval.studies.sweep.plots import draw
    from precision_eval.studies.sweep.text import answer, crossover_json, summary_markdown

    findings = findings_of(series_of(lines))
    campaign = str(lines[-1]["campaign"])
    (out / CROSSOVER_NAME).write_text(crossover_json(findings, campaign=campaign), encoding="utf-8")
    (out / SUMMARY_NAME).write_text(summary_markdown(findings, campaign=campaign), encoding="utf-8")
    drawn = draw(findings, out)
    for one in findings:
        console.print(f"{one.series.configuration.title}: {sentence(one.crossover)}", highlight=False)
    for line in answer(findings):
        console.print(line, style="bold", highlight=False)
    written = [out / SUMMARY_NAME, out / CROSSOVER_NAME, *drawn]
    console.print(f"written: {', '.join(str(path) for path in written)}", style="dim", highlight=False)
