"""The command ``run``: what is asked for on the command line, measured and reported."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precision_eval.cli import options
from precision_eval.cli.application import EXIT_INTERRUPTED, EXIT_SUITE_FAILED, split
from precision_eval.cli.progress import ConsoleListener
from precision_eval.cli.report import Printing, write_reports
from precision_eval.cli.settings import RUN, read_settings, set_option, settings_help
from precision_eval.core.cells import SUITE_FAILED
from precision_eval.core.errors import RecordError
from precision_eval.core.formatting import command_line
from precision_eval.core.records import Record, RecordFile
from precision_eval.core.table import print_lines
from precision_eval.run.plan import Selection, checked_device
from precision_eval.run.session import Execution, run_selection
from precision_eval.run.tiers import cell_limit_s, tier_of

if TYPE_CHECKING:
    from rich.console import Console

HELP = """\
To resume a stopped run, repeat the command.

The output is one table per case (result, time ratio, memory, drift, sound), printed as soon as the case is measured,
with the fix to take in bold and ties marked ≈. The default measures every shipped case in about a minute on two quiet
cores: attention at one step and over a whole prompt, and a small voice with 16 streams of its speech. It leaves out
compiled calls and what only the HTML report shows: when free-running streams diverge, and a recording of each fix.
[cyan]--case voice[/cyan] with the same [cyan]--out[/cyan] adds the last two. [cyan]--quick[/cyan] takes about twenty
seconds and skips sound. [cyan]--thorough[/cyan] takes half an hour or more and is what the published results use:
every size of each case, ten minutes of audio.

A cell that crashes, hangs or runs out of memory ends only that cell, and its reason is recorded.

[bold]Examples[/bold]

[cyan]precision-eval run --out runs/first[/cyan]  every fix on every shipped case

[cyan]precision-eval run --case voice --out runs/first[/cyan]  and a recording of every fix

[cyan]precision-eval run my_case.py:factory[/cyan]  your own model: the factory returns (model, inputs)

[cyan]precision-eval run my_case.py:factory --candidate mine.py:half_kv[/cyan]  and your own fix, which gets the model

[cyan]precision-eval run --case 'attention-*' --fix kv_to_query,query_to_half --out runs/casts[/cyan]

[cyan]precision-eval run --case voice --set minutes=10 --set streams=128 --out runs/long[/cyan]

[cyan]precision-eval run --mode eager,compiled --device cuda:0 --set budget=20 --out runs/gpu[/cyan]

[cyan]precision-eval run --case dia-decode --set sdpa_backend=any,math,flash --out runs/pinned[/cyan]

"""
HELP += settings_help(RUN)


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FACTORY]...",
        help="Your own case: file.py:function or package.module:function, which returns (model, inputs) or an OwnCase.",
    ),
]
Candidates = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Your own fix: file.py:name, a callable that changes a model, or a Fix; measured with those of --fix.",
    ),
]
MeasureNames = Annotated[
    list[str] | None, typer.Option(help="Names or globs; see [cyan]list measures[/cyan]; [dim]default: all[/dim]")
]
Settings = Annotated[list[str] | None, set_option(RUN)]
# Settings that are options of a cell.
_EFFORT = ("minutes", "streams", "steps", "processes", "seed", "seeds", "tf32", "memory", "isolation", "clock")

CompileMode = Annotated[
    str | None,
    typer.Option(
        "--compile-mode",
        metavar="MODE",
        help="torch.compile's mode on CUDA: default, reduce-overhead or max-autotune; the last two replay CUDA graphs.",
    ),
]
Thorough = Annotated[bool, typer.Option("--thorough", help="Every size and more of everything, for publication.")]


def run(
    target: Targets = None,
    candidate: Candidates = None,
    out: options.Out = Path("runs/latest"),
    case: options.Case = None,
    fix: options.Fix = None,
    mode: options.Mode = None,
    compile_mode: CompileMode = None,
    device: options.Device = "auto",
    size: options.Size = None,
    measure: MeasureNames = None,
    quick: options.Quick = False,
    thorough: Thorough = False,
    setting: Settings = None,
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    tier, cases = tier_of(quick=quick, thorough=thorough), split([*(target or []), *(case or [])]) or None
    settings = read_settings(setting, RUN)
    given = {name: settings[name] for name in _EFFORT}
    effort = tier.options(cases, budget_s=settings["budget"], compile_mode=compile_mode, **given)
    selection = Selection(
        cases=cases,
        fixes=split(fix, ("*",)),
        without=() if cases or measure else tier.leaves_out_unasked,
        measures=split(measure, tier.measures(cases)),
        modes=split(mode) if mode is not None else tier.modes,
        sizes=None if size is None else split(size),
        device=checked_device(device),
        threads=settings["threads"],
        sdpa_backends=settings["sdpa_backend"],
        options=effort,
    )
    execution = Execution(
        out=out,
        workers=settings["workers"],
        timeout_s=settings["timeout"] or cell_limit_s(effort.minutes),
        candidates=split(candidate),
        executor=settings["executor"],
    )
    run_of_tier = partial(run_selection, selection, execution, tier=tier, checkpoint_dtype=settings["checkpoint_dtype"])
    printing = Printing(verbose=verbose, as_json=as_json)
    _run_and_report(run_of_tier, execution, printing, default_measures=measure is None, default_modes=mode is None)


def _run_and_report(
    run_of_tier: Callable[..., Sequence[Record]],
    execution: Execution,
    printing: Printing,
    *,
    default_measures: bool,
    default_modes: bool,
) -> None:
    """Run, printing the table of each case as soon as it is complete, then write the report."""
    from precision_eval.report.writer import TerminalAnswer
    from precision_eval.results.reading import load_run

    console, began = printing.notes(), time.monotonic()
    answer = None if printing.verbose or printing.as_json else TerminalAnswer(console)

    def print_case(case: str) -> None:
        with suppress(RecordError):  # what is wrong with the records is said at the end
            if answer is not None:
                answer.print_groups(load_run(execution.out), case)

    listener = ConsoleListener(console, verbose=printing.verbose, answer=print_case)
    try:
        records = run_of_tier(listener=listener)
        if records:
            measured_s = round(time.monotonic() - began, 1)
            left_out = _left_out_text(listener.left_out if default_measures else (), default_modes=default_modes)
            write_reports(execution.out, printing, measured_s=measured_s, answer=answer, left_out=left_out)
    except KeyboardInterrupt:
        _print_how_to_resume(RecordFile(execution.out / "records.jsonl"), console)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _check_suite_failures(records)


def _left_out_text(measures: Sequence[str], *, default_modes: bool) -> str:
    """Say what the default did not measure, and what adds it."""
    parts = [f"{', '.join(measures)} (--measure '*')"] if measures else []
    parts += ["compiled (--mode eager,compiled)"] if default_modes else []
    return f"Left out: {'; '.join(parts)}" if parts else ""


def _check_suite_failures(records: Sequence[Record]) -> None:
    """End with a code of its own where the suite failed to measure something, which says nothing about a fix."""
    lost = [record for record in records if (record.reason or "").startswith(SUITE_FAILED)]
    if lost:
        first = (lost[0].reason or "").removeprefix(SUITE_FAILED)
        typer.echo(
            f"precision-eval: {len(lost)} of {len(records)} measurements failed in the suite itself, the first "
            f"{lost[0].cell}: {first}; all others are valid; please report it",
            err=True,
        )
        raise typer.Exit(EXIT_SUITE_FAILED)


def _print_how_to_resume(records: RecordFile, console: Console) -> None:
    """Say what is kept after a stop, and how to go on."""
    count = len(records.read().records)
    print_lines([f"\nStopped. {count} records are kept in {records.path}. To go on:"], console)
    print_lines([f"  {command_line(*sys.argv[1:])}"], console, soft_wrap=True)
