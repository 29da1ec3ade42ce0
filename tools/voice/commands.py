"""The commands ``train-voice``, ``ship-voice``, ``check-voice`` and ``judge-voice``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typer import Argument, Option

from precision_eval.core.files import write_json
from precision_eval.core.table import make_table, print_table


def train(
    out: Annotated[Path, Option(help="Folder of corpus, checkpoint, log and weights.")] = Path("voice-training"),
    hours: Annotated[float, Option(min=0.01, help="Hours of speech to synthesise.")] = 24.0,
    million_frames: Annotated[float, Option(min=0.001, help="Frames to train on, in millions.")] = 10.0,
    seed: Annotated[int, Option(min=0, help="Of corpus, initial weights and batches.")] = 0,
    ranks: Annotated[int, Option(min=1, help="Single-threaded processes that train together.")] = 2,
    speech: Annotated[str, Option(help="Who speaks: espeak, or hibari, which sounds natural.")] = "espeak",
    qk_norm: Annotated[bool, Option("--qk-norm", help="Cap the attention: normalise queries and keys.")] = False,
    number_format: Annotated[
        str, Option("--format", help="Of the layers under autocast: bfloat16, float16 with a scaled loss, or float32.")
    ] = "bfloat16",
    resume: Annotated[bool, Option("--resume/--fresh", help="Go on from the checkpoint, or begin anew.")] = True,
    install: Annotated[
        bool, Option("--install", help="Then put it with scripts and hashes into the package, or OUT/voice.")
    ] = False,
) -> None:
    """Train the voice behind a progress bar, and say where the weights are."""
    from tools.voice import packaging
    from tools.voice.training import TrainingPlan, train_voice

    plan = TrainingPlan(
        out_dir=str(out),
        million_frames=million_frames,
        corpus_hours=hours,
        ranks=ranks,
        seed=seed,
        speech=speech,
        qk_norm=qk_norm,
        number_format=number_format,
    )
    console = Console()
    with _bar(console) as progress:
        tasks = {stage: progress.add_task(stage, total=1.0, figures="") for stage in ("corpus", "train")}

        def show(stage: str, fraction: float, row: dict[str, float]) -> None:
            figures = "  ".join(f"{name} {value:.4g}" for name, value in row.items())
            progress.update(tasks[stage], completed=fraction, figures=figures)

        path = train_voice(plan, fresh=not resume, on_progress=show)
    console.print(f"float32 weights: {path}", highlight=False)
    if install:
        console.print(f"installed: {packaging.install(out)}", highlight=False)


def ship(
    folder: Annotated[Path, Argument(help="Folder that --install wrote.")],
    case: Annotated[str, Argument(help="The case that it becomes.")],
    shares: Annotated[str, Option(help="Folder of the voice whose codec, vocoder and scripts it has.")] = "",
) -> None:
    """Put a trained voice into the package, weights packed, and say how large its folder is."""
    from tools.voice import packaging

    shipped = packaging.ship(folder, case, shares=shares).parent
    size = sum(path.stat().st_size for path in shipped.iterdir())
    Console().print(f"{shipped}: {size / 1e6:.2f} MB", highlight=False)


def check(
    folder: Annotated[
        Path | None, Argument(help="Folder that --install wrote; [dim]default: the shipped voice[/dim]")
    ] = None,
    minutes: Annotated[float, Option(min=0.1, help="Speech per stream.")] = 10.0,
    streams: Annotated[int, Option(min=1, max=12, help="Speakers.")] = 12,
    seed: Annotated[int, Option(min=0, help="Of the sampling noise.")] = 0,
    out: Annotated[Path | None, Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Let the recogniser hear a voice behind a progress bar, print what it heard, and store it as JSON."""
    from tools.voice.listening import check_voice

    console = Console()
    with _bar(console) as progress:
        task = progress.add_task("listening", total=1.0, figures="")
        show = partial(progress.update, task)
        quality = check_voice(
            folder,
            minutes=minutes,
            n_streams=streams,
            seed=seed,
            on_progress=lambda fraction: show(completed=fraction),
        )
    named = [("original, stream 0", quality["original"])]
    for index, pair in enumerate(zip(quality["resynthesised"], quality["free_running"], strict=True)):
        named += zip((f"original tokens, stream {index}", f"the voice, stream {index}"), pair, strict=True)
    rows = [(name, *(f"{100 * part:.1f} %" for part in heard.values())) for name, heard in named]
    title = f"phoneme accuracy, {quality['minutes']:g} minutes per stream"
    print_table(make_table(("speech", "whole", "first third", "last third"), rows, title=title, align="lrrr"), console)
    if out is not None:
        write_json(out, {"seed": seed, **quality})
    console.print(f"below the original speech of stream 0: {quality['gap_points']:.1f} points")
    console.print(f"below the original tokens, mean of {streams} streams: {quality['mean_gap_points']:.1f} points")
    lost = quality["decline_points"]
    console.print(f"lost from the first third to the last, less the script's own: {lost:.1f} points")


def judge(
    folder: Annotated[
        Path | None, Argument(help="Folder that --install wrote; [dim]default: the shipped voice[/dim]")
    ] = None,
    minutes: Annotated[float, Option(min=0.5, help="Free-running speech.")] = 10.0,
    seed: Annotated[int, Option(min=0, help="Of the sampling noise.")] = 0,
    out: Annotated[Path | None, Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Let Whisper and DistillMOS hear a voice beside its original, and hold it to float64 under each fix."""
    from tools.voice.judging import HEARD, heard_texts, judge_voice, sound_table

    console = Console()
    found = judge_voice(folder, minutes=minutes, seed=seed)
    rows = [(name, *heard_texts(heard)) for name, heard in found["heard"].items()]
    if rows:
        print_table(make_table(("speech", *HEARD), rows, title="what judges hear", align="lrrrr"), console)
    rows = [
        (
            fix,
            f"{row['drift']['relative_error']:.2e}",
            f"{row['divergence']['diverged']} of {row['divergence']['streams']}",
            f"{row['max_abs_logit']:.1f}",
            f"{row['attention_entropy_nats']:.2f}",
        )
        for fix, row in found["precision"].items()
    ]
    header = ("fix", "relative error", "diverged", "largest logit", "entropy, nats")
    print_table(make_table(header, rows, title="against float64", align="lrrrr"), console)
    print_table(sound_table(found["sound"], title="sound beside the reference's"), console)
    if out is not None:
        write_json(out, found)


def _bar(console: Console) -> Progress:
    """Return a bar with the share done, the time left and the newest figures."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:5.1f} %"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[figures]}"),
        console=console,
    )
