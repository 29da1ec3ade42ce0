"""The command ``run``: what is asked for on the command line, measured and reported."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precision_eval.cli import options
from precision_eval.cli.application import EXIT_INTERRUPTED, EXIT_SUITE_FAILED, split
from precision_eval.cli.progress import ConsoleListener
from precision_eval.cli.report import Printing, write_reports
from precision_eval.core.cells import SUITE_FAILED
from precision_eval.core.formatting import command_line
from precision_eval.core.records import Record, RecordFile
from precision_eval.core.table import print_lines
from precision_eval.run.plan import Selection, checked_device
from precision_eval.run.session import Execution, run_selection
from precision_eval.run.tiers import cell_limit_s, tier_of

if TYPE_CHECKING:
    from rich.console import Console

HELP = """\
A run that was stopped goes on where it stopped: give the same command again.

It ends with one table per case: result, time ratio, memory, drift, sound; the fix to take in bold, ties marked ≈.
The default measures every shipped case in about two minutes on two quiet cores: attention at one step and over a whole
prompt, and a small voice with 16 streams of its speech. It leaves out what only the HTML report shows: how long two
voices stay the same, and a recording of each fix. [cyan]--case voice[/cyan] with the same [cyan]--out[/cyan] adds both.
[cyan]--quick[/cyan] takes half a minute and makes no sound; [cyan]--thorough[/cyan] takes half an hour and more, and is
what the published results use: every size of each case, ten minutes of audio.

A cell that crashes, hangs or runs out of memory costs that cell only and is recorded with its reason.

[bold]Examples[/bold]

[cyan]precision-eval run --out runs/first[/cyan]  every fix on every shipped case

[cyan]precision-eval run --case voice --out runs/first[/cyan]  and a recording of every fix

[cyan]precision-eval run my_case.py:factory[/cyan]  your own model: the factory returns (model, inputs)

[cyan]precision-eval run my_case.py:factory --candidate mine.py:half_kv[/cyan]  and your own fix, which gets the model

[cyan]precision-eval run --case 'attention-*' --fix kv_to_query,query_to_half --out runs/casts[/cyan]

[cyan]precision-eval run --case voice --minutes 10 --streams 128 --out runs/long[/cyan]

[cyan]precision-eval run --mode eager,compiled --device cuda:0 --budget 20 --out runs/gpu[/cyan]

[cyan]precision-eval run --case dia-decode --sdpa-backend any,math,flash --out runs/pinned[/cyan]
"""


class CheckpointDtype(StrEnum):
    """Format that the voice's weights are rounded to before anything is measured."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Tf32(StrEnum):
    """Whether float32 may be computed in TF32."""

    on = "on"
    off = "off"


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
        help="Your own fix: file.py:name, a callable that changes a model or a Fix, beside those of --fix.",
    ),
]
MeasureNames = Annotated[
    list[str] | None, typer.Option(help="Names or globs; see [cyan]list measures[/cyan]; [dim]default: all[/dim]")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Untimed cells at a time; [dim]default: cores / threads, 1 on a GPU and at size full[/dim]"
    ),
]
ExecutorName = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="dask[:ADDRESS]",
        help="Run cells on a dask cluster, of this machine or at an address; see docs/fleet.md.",
    ),
]
SdpaBackends = Annotated[
    list[str] | None,
    typer.Option(
        help="Pin attention to math, flash, efficient or cudnn; any is torch's choice. Repeat or separate by "
        "commas to have each. What has no such kernel is unsupported; where one is pinned, measures of the voice "
        "alone are left out."
    ),
]
PinnedTf32 = Annotated[
    Tf32 | None,
    typer.Option(
        help="TF32 for float32 on CUDA; where it is set, measures of the voice alone are left out. "
        "[dim]Default: as torch has it.[/dim]"
    ),
]
Thorough = Annotated[bool, typer.Option("--thorough", help="Every size, more of everything; for publication.")]
Streams = Annotated[
    int | None, typer.Option(min=1, help="Parallel streams of drift and divergence; [dim]default: 16[/dim]")
]
Speech = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Recordings that Whisper transcribes: WAV or FLAC of up to 30 s, what is said in a .txt of the same name "
        "or in LibriSpeech's .trans.txt; [dim]default: those of the extra speech[/dim]",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, help="Seeded inputs that drift is measured on, eager; [dim]default: 1, thorough 8[/dim]"),
]
Minutes = Annotated[float | None, typer.Option(min=0.01, help="Audio per fix; [dim]default: 0.25[/dim]")]
Steps = Annotated[int | None, typer.Option(min=1, help="Frames of 20 ms per stream; [dim]default: 50[/dim]")]
Isolation = Annotated[
    str,
    typer.Option(
        metavar="warn|error",
        help="Where others used the device of a timed cell: keep it as a doubt, or end the run before it is recorded.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(min=1.0, help="Seconds that one cell may take; [dim]default: 900, with long audio 60 a minute[/dim]"),
]
StoredDtype = Annotated[CheckpointDtype, typer.Option(help="float32 as shipped; bfloat16 makes half storage lossless.")]


def run(
    target: Targets = None,
    candidate: Candidates = None,
    out: options.Out = Path("runs/latest"),
    case: options.Case = None,
    fix: options.Fix = None,
    mode: options.Mode = None,
    device: options.Device = "auto",
    size: options.Size = None,
    measure: MeasureNames = None,
    quick: options.Quick = False,
    thorough: Thorough = False,
    minutes: Minutes = None,
    streams: Streams = None,
    steps: Steps = None,
    budget: options.Budget = None,
    processes: options.Processes = None,
    threads: options.Threads = 1,
    workers: Workers = None,
    executor: ExecutorName = None,
    seed: options.Seed = 0,
    seeds: Seeds = None,
    sdpa_backend: SdpaBackends = None,
    tf32: PinnedTf32 = None,
    memory: options.Memory = None,
    isolation: Isolation = "warn",
    timeout: Timeout = None,
    checkpoint_dtype: StoredDtype = CheckpointDtype.float32,
    speech: Speech = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    open_report: options.OpenReport = False,
) -> None:
    """Measure, record, report."""
    tier, cases = tier_of(quick=quick, thorough=thorough), _cases_of(target, case)
    chosen = tier.options(
        cases, minutes=minutes, streams=streams, steps=steps, budget_s=budget, processes=processes, seed=seed,
        seeds=seeds, tf32=tf32, memory=_joined(memory), speech=speech, isolation=isolation,
    )  # fmt: skip
    selection = Selection(
        cases=cases, fixes=split(fix, ("*",)), without=() if cases or measure else tier.leaves_out_unasked,
        measures=split(measure, tier.measures(cases)), modes=split(mode) if mode is not None else tier.modes,
        sizes=None if size is None else split(size), device=checked_device(device), threads=threads,
        sdpa_backends=split(sdpa_backend), options=chosen,
    )  # fmt: skip
    execution = Execution(
        out=out, workers=workers, timeout_s=cell_limit_s(chosen.minutes) if timeout is None else timeout,
        candidates=split(candidate), executor=executor,
    )  # fmt: skip
    printing = Printing(verbose=verbose, quiet=quiet, as_json=as_json, open_report=open_report)
    console, began = printing.notes(), time.monotonic()
    listener = ConsoleListener(console, verbose=verbose)
    try:
        records = run_selection(
            selection, execution, tier=tier, checkpoint_dtype=checkpoint_dtype.value, listener=listener
        )
        if records:
            write_reports(out, printing, measured_s=round(time.monotonic() - began, 1))
    except KeyboardInterrupt:
        _print_how_to_resume(RecordFile(out / "records.jsonl"), console)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _check_suite_failures(records)


def _cases_of(targets: list[str] | None, cases: list[str] | None) -> tuple[str, ...] | None:
    names = split([*(targets or []), *(cases or [])])
    return names or None


def _joined(states: list[str] | None) -> str | None:
    return ",".join(dict.fromkeys(split(states))) or None


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
