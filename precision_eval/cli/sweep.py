"""The command ``sweep``: measure the lengths that are missing, then write the answer that all of them give."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precision_eval.cli import options
from precision_eval.cli.application import MODEL, app, flowing, split
from precision_eval.cli.exit_codes import EXIT_INTERRUPTED
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.files import check_own_folder

if TYPE_CHECKING:
    from rich.console import Console

    from precision_eval.core.files import TrialFile
    from precision_eval.studies.sweep.plan import Sweep

CROSSOVER_NAME = "crossover.json"
SUMMARY_NAME = "summary.md"

Names = list[str]

_HELP = """Time the two casts at decode over the length of the cache, and find where one overtakes the other.

Casting the query copies next to nothing and leaves attention in half, which may itself be slower; casting keys and
values copies the cache at every step and attends in float32. The crossover is given with its interval, or that there
is none in the range. Lines are appended to OUT/lengths.jsonl; the same command goes on from there.

[bold]Examples[/bold]

[cyan]precision-eval sweep --out runs/sweep[/cyan]  both systems' shapes, eager and compiled, one and two threads

[cyan]precision-eval sweep --quick --shape dia --mode eager --out runs/sweep-dia[/cyan]
"""


@app.command(help=flowing(_HELP), rich_help_panel=MODEL)
def sweep(
    out: options.Out = Path("runs/sweep"),
    shape: Annotated[Names | None, typer.Option(help="metavoice, dia.")] = None,
    length: Annotated[Names | None, typer.Option(help="Slots of the cache, such as 64,512,2048.")] = None,
    mode: options.Mode = None,
    threads: Annotated[Names | None, typer.Option(help="Threads per process, such as 1,2.")] = None,
    cache_dtype: Annotated[Names | None, typer.Option(help="float16, bfloat16.")] = None,
    memory: Annotated[
        Names | None, typer.Option(help="untouched, grown, kept, returned: what the C library does with freed blocks.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows; 2 is guidance.")] = None,
    budget: options.Budget = None,
    processes: options.Processes = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of tensors and order.")] = None,
    refine: Annotated[int, typer.Option(min=0, help="Then halve so many times the gap that holds a crossing.")] = 0,
    stop_after: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="Start no job that would end later; the same command goes on."),
    ] = None,
    quick: options.Quick = False,
    report_only: options.ReportOnly = False,
) -> None:
    """Sweep lengths."""
    from precision_eval.studies.sweep.plan import FULL, QUICK

    given: dict[str, Any] = {
        "shapes": shape and split(shape),
        "lengths": length and whole_numbers("length", length),
        "modes": mode and split(mode),
        "threads": threads and whole_numbers("threads", threads),
        "cache_dtypes": cache_dtype and split(cache_dtype),
        "memory": memory and split(memory),
        "batch": batch,
        "budget_s": budget,
        "processes": processes,
        "seed": seed,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    plan = replace(QUICK if quick else FULL, **changes)  # bad names end here, before anything is started
    run_sweep(plan, out, refine=refine, minutes=stop_after, report_only=report_only)


def run_sweep(
    plan: Sweep, out: Path, *, refine: int = 0, minutes: float | None = None, report_only: bool = False
) -> None:
    """Measure, print, draw and write."""
    from rich.console import Console

    from precision_eval.core.files import TrialFile

    check_own_folder(out, "lengths.jsonl")
    if minutes is not None and not 0.0 < minutes < math.inf:
        raise ParameterError(f"--stop-after {minutes:g}; give a finite number above 0, or leave it out")
    console, file = Console(emoji=False), TrialFile(out / "lengths.jsonl")
    if not report_only:
        try:
            left = _measure(plan, file, console, refine=refine, minutes=minutes)
        except KeyboardInterrupt:
            console.print("Stopped. Jobs that were finished are kept; the same command goes on from there.")
            sys.exit(EXIT_INTERRUPTED)
        if left:
            console.print(f"Out of time with {left} lines to measure; the same command goes on from there.")
            if not file.read():
                return
    _report(out, file, console)


def _measure(plan: Sweep, file: TrialFile, console: Console, *, refine: int, minutes: float | None) -> int:
    """Run what is missing and return how many lines the time limit left out."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from precision_eval.core.environment import collect, store_environment
    from precision_eval.run.executor import IsolatedExecutor
    from precision_eval.studies.sweep.running import SweepRun, TimeLimit

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    worker_limit_s = 120.0 + len(plan.lengths) * (60.0 + 4.0 * plan.budget_s)
    with (
        IsolatedExecutor(1, timeout_s=worker_limit_s, preload=_preload(plan)) as executor,
        Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as progress,
    ):
        environment = executor.submit(collect, "cpu").result()  # in a worker, so that torch is not loaded here
        task = progress.add_task("starting", total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what[:64], refresh=True)
            if not console.is_terminal:
                console.print(f"{done}/{total} {what}", highlight=False, soft_wrap=True)

        run = SweepRun(
            sweep=plan,
            file=file,
            executor=executor,
            environment=store_environment(environment, file.path.parent),
            progress=show,
            limit=TimeLimit() if minutes is None else TimeLimit(60.0 * minutes),
        )
        return run.measure_missing() or run.refine(refine)


def _preload(plan: Sweep) -> tuple[str, ...]:
    """Return what the fork server imports once; not the compiler where that might wake up CUDA before a fork."""
    if Path("/dev/nvidiactl").exists():
        return ("torch",)
    compiler = ("precision_eval.run.warm_compiler",) if "compiled" in plan.modes else ()
    return ("torch", "torch._dynamo", "precision_eval.studies.sweep.measuring", *compiler)


def _report(out: Path, file: TrialFile, console: Console) -> None:
    """Write crossovers, figure and text from the lines alone."""
    lines = file.read()
    if not lines:
        raise RecordError(f"{file.path} holds no lines; run `precision-eval sweep --out {out}` first")
    from precision_eval.core.files import worked_out_from
    from precision_eval.core.formatting import one_line, visible
    from precision_eval.studies.sweep.report import answer, crossover_json, draw, sentence, summary_markdown
    from precision_eval.studies.sweep.running import curves_of

    with worked_out_from(file.path, remedy="remove the lines that were edited, or sweep into a new --out"):
        curves = curves_of(lines)
        campaign = str(lines[-1]["campaign"])
        crossover, summary = crossover_json(curves, campaign=campaign), summary_markdown(curves, campaign=campaign)
        drawn = draw(curves, out)
    (out / CROSSOVER_NAME).write_text(crossover, encoding="utf-8")
    (out / SUMMARY_NAME).write_text(visible(summary), encoding="utf-8")
    for curve in curves:
        line = f"{curve.configuration.title}: {sentence(curve.crossover)}"
        console.print(one_line(line), highlight=False, markup=False)
    for line in answer(curves):
        console.print(one_line(line), style="bold", highlight=False, markup=False)
    written = [out / SUMMARY_NAME, out / CROSSOVER_NAME, *drawn]
    console.print(f"written: {', '.join(str(path) for path in written)}", style="dim", highlight=False)


def whole_numbers(name: str, values: Names) -> tuple[int, ...]:
    """Read whole numbers above 0."""
    texts = split(values)
    wrong = [text for text in texts if not text.isdecimal() or int(text) < 1]
    if wrong:
        raise ParameterError(f"--{name}: {', '.join(wrong)} is no whole number above 0; give some, such as 64,512")
    return tuple(map(int, texts))
