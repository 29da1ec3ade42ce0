"""The commands that measure, and their options; each command's work is in a module that it imports when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from precision_eval.cli.application import app, flowing, split

_RUN_HELP = """Measure fixes on cases, record the results, and write the report.

A run that was stopped goes on where it stopped: give the same command again.

A cell that crashes, hangs or runs out of memory costs that cell only and is recorded with its reason.

[bold]Examples[/bold]

[cyan]precision-eval run --out runs/first[/cyan]  everything, one minute of audio per fix

[cyan]precision-eval run my_case.py:factory[/cyan]  your own model: the factory returns (model, inputs)

[cyan]precision-eval run my_case.py:factory --candidate mine.py:half_kv[/cyan]  and your own fix, which gets the model

[cyan]precision-eval run --case 'attention-*' --fix kv_to_query,query_to_half --out runs/casts[/cyan]

[cyan]precision-eval run --case voice --minutes 10 --streams 128 --out runs/long[/cyan]

[cyan]precision-eval run --mode eager,compiled --device cuda:0 --budget 20 --out runs/gpu[/cyan]

[cyan]precision-eval run --case dia-decode --sdpa-backend any,math,flash --out runs/pinned[/cyan]
"""


_AUDIO_HELP = """Compare a recording with its aligned reference, second by second; inspect one; or compare two folders.

EST is what a fix, a codec or a vocoder made of the very sound in REF: same length, same sample rate, mono. Nothing is
resampled, normalised, trimmed or warped. An hour takes under half a minute, and no more memory than a minute does.

The first line says what is wrong: samples that are not finite, digital silence, dropouts, clipping, jumps, repeats or a
lag. Exit code 1 where a recording is not finite, or dead where its reference is not.

Every metric stands with its unit; ↓ is closer when lower, ↑ when higher. [bold]p95[/bold] is what 95 % of the seconds
are no worse than, [bold]worst[/bold] the worst second and when it was, [bold]slope/min[/bold] whether it gets worse.
A distance alone says little: give [cyan]--noise-floor[/cyan] a second rendering of REF that is just as good (another
noise seed), and every distance is also shown as a multiple of what chance does.

[bold]Examples[/bold]

[cyan]precision-eval audio original.wav float16.wav[/cyan]

[cyan]precision-eval audio original.wav float16.wav --noise-floor other-seed.wav --plot pair.png[/cyan]

[cyan]precision-eval audio float16.wav[/cyan]  one recording by itself

[cyan]precision-eval audio originals/ float16/[/cyan]  pairs by name, the worst first

[cyan]precision-eval audio original.wav float16.wav --json > pair.json[/cyan]  strict JSON, NaN and infinity as null
"""


class What(StrEnum):
    """What ``list`` can list."""

    fixes = "fixes"
    cases = "cases"
    devices = "devices"
    measures = "measures"


class CheckpointDtype(StrEnum):
    """Format that the voice's weights are rounded to before anything is measured."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Tf32(StrEnum):
    """Whether float32 may be computed in TF32."""

    on = "on"
    off = "off"


class Align(StrEnum):
    """What ``audio`` may take out before it compares."""

    lag = "lag"


Globs = list[str]


@app.command(help=flowing(_RUN_HELP))
def run(
    target: Annotated[
        Globs | None,
        typer.Argument(
            metavar="[FACTORY]...",
            help="Your own case: file.py:function or package.module:function, which returns (model, inputs) or an "
            "OwnCase.",
        ),
    ] = None,
    candidate: Annotated[
        Globs | None,
        typer.Option(
            metavar="PLACE",
            help="Your own fix: file.py:name, a callable that changes a model or a Fix, beside those of --fix.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run; an existing one is resumed.")] = Path("runs/latest"),
    case: Annotated[
        Globs | None,
        typer.Option(help="Names or globs; repeat or separate by commas; [dim]default: attention-* and voice[/dim]"),
    ] = None,
    fix: Annotated[Globs, typer.Option(help="Names or globs; repeat or separate by commas.")] = ["*"],  # noqa: B006
    mode: Annotated[
        str | None,
        typer.Option(help="eager, compiled or both; [dim]default: eager, and what exists only compiled[/dim]"),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:i or mps; auto is CUDA where there is one.")
    ] = "auto",
    size: Annotated[
        Globs | None,
        typer.Option(help="Sizes of the cases, names or globs; [dim]default: each case's own[/dim]"),
    ] = None,
    measure: Annotated[Globs, typer.Option(help="Names or globs; see [cyan]list measures[/cyan].")] = ["*"],  # noqa: B006
    minutes: Annotated[float, typer.Option(min=0.01, help="Audio per fix.")] = 1.0,
    streams: Annotated[int, typer.Option(min=1, help="Parallel streams of drift and divergence.")] = 50,
    steps: Annotated[int, typer.Option(min=1, help="Frames of 20 ms per stream.")] = 100,
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of timing per latency group.")] = 2.0,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes per latency group. One draws its memory layout once, worth a few per cent; with 5 or more "
            "that is part of the intervals.",
        ),
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads per worker, as torch uses them.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Untimed cells at a time; [dim]default: cores / threads, 1 on a GPU and at size full[/dim]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, inputs, noise and order.")] = 0,
    sdpa_backend: Annotated[
        Globs | None,
        typer.Option(
            help="Pin attention to math, flash, efficient or cudnn; any is torch's choice. Repeat or separate by "
            "commas to have each. What has no such kernel is unsupported; where one is pinned, measures of the voice "
            "alone are left out."
        ),
    ] = None,
    tf32: Annotated[
        Tf32 | None,
        typer.Option(
            help="TF32 for float32 on CUDA; where it is set, measures of the voice alone are left out. "
            "[dim]Default: as torch has it.[/dim]"
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that one cell may take.")] = 900.0,
    checkpoint_dtype: Annotated[
        CheckpointDtype, typer.Option(help="float32 as shipped; bfloat16 makes half storage lossless.")
    ] = CheckpointDtype.float32,
) -> None:
    """Measure, record, report."""
    from precision_eval.cli.run import RunRequest, run_command
    from precision_eval.core.cells import Options

    run_command(
        RunRequest(
            out=out,
            cases=split([*(target or []), *(case or [])]) or None,
            candidates=split(candidate or []),
            fixes=split(fix),
            measures=split(measure),
            modes=None if mode is None else split([mode]),
            sizes=None if size is None else split(size),
            device=device,
            threads=threads,
            workers=workers,
            timeout_s=timeout,
            checkpoint_dtype=checkpoint_dtype.value,
            options=Options(
                minutes=minutes,
                streams=streams,
                steps=steps,
                budget_s=budget,
                processes=processes,
                seed=seed,
                tf32=None if tf32 is None else tf32.value,
            ),
            sdpa_backends=split(sdpa_backend or []),
        )
    )


@app.command(
    help=(
        "Print the table of a run and write its figures and its HTML report, report.html, from the records alone.\n\n"
        "The HTML report is one file that needs no network: the answer first, then charts that show their records, "
        "players of every fix where the audio files are there, statuses and messages.\n\n"
        "[bold]Examples[/bold]\n\n[cyan]precision-eval report runs/first[/cyan]\n\n"
        "[cyan]precision-eval report runs/first --versions results/torch-versions[/cyan]  and what versions change"
    )
)
def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run; holds records.jsonl.")],
    versions: Annotated[
        Path | None,
        typer.Option(
            metavar="RESULTS",
            help="asv's results_dir over torch versions, for the HTML report; default: torch-versions beside the run.",
        ),
    ] = None,
) -> None:
    """Report a run."""
    from rich.console import Console

    from precision_eval.core.errors import RecordError

    if not (run_dir / "records.jsonl").exists():
        raise RecordError(f"{run_dir} holds no records.jsonl; give the folder named by `precision-eval run --out`")
    from precision_eval.cli.report import write_reports

    write_reports(run_dir, console=Console(emoji=False), versions_dir=versions)


@app.command(
    name="list",
    help=(
        "Explain the fixes, cases, devices or measures, each with its source.\n\n"
        "[bold]Examples[/bold]\n\n[cyan]precision-eval list fixes[/cyan]\n\n"
        "[cyan]precision-eval list devices[/cyan]  which formats are native and which are only emulated"
    ),
)
def list_(what: Annotated[What, typer.Argument(help="What to list.")]) -> None:
    """List a registry."""
    from rich.console import Console

    from precision_eval.cli.listing import LISTINGS

    LISTINGS[what.value](Console(emoji=False))


@app.command(help=flowing(_AUDIO_HELP))
def audio(
    reference: Annotated[
        Path, typer.Argument(metavar="REF", help="Audio file, mono: what it should sound like. Or a folder of such.")
    ],
    estimate: Annotated[
        Path | None,
        typer.Argument(
            metavar="EST",
            help="Audio file of the same length and sample rate, or a folder with the same names. Without it, REF is "
            "inspected by itself.",
        ),
    ] = None,
    noise_floor: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="REF again with another noise seed: the scale of distances.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print strict JSON instead of tables.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw both spectrograms and the metrics to this .png or .svg.")
    ] = None,
    align: Annotated[
        Align | None, typer.Option(help="Take the lag out first, to a fraction of a sample; else nothing is moved.")
    ] = None,
) -> None:
    """Compare two recordings."""
    from precision_eval.cli.audio import audio_command

    shift: Literal["lag"] | None = None if align is None else "lag"
    audio_command(reference, estimate, noise_floor=noise_floor, as_json=as_json, plot=plot, align=shift)
