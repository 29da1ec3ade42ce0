"""The command ``audio``: inspect a file, compare two, or compare two folders file by file.

Results go to standard output, the first line says whether a recording is faulty; progress goes to standard error, only
where that is a terminal. Everything is read block by block. What cannot be compared ends before any work, with an error
that names both files and the remedy; silence and samples that are not finite are results, and exit code 1.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from precision_eval.cli import options
from precision_eval.cli.application import EXIT_VERDICT
from precision_eval.cli.progress import bar_on
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import to_json

if TYPE_CHECKING:
    from audio_metrics import AudioComparison
    from audio_metrics.comparison import Align
    from precision_eval.cli.audio_table import Headers

PLOT_FORMATS = (".png", ".svg")

HELP = """\
Compare EST with REF; without EST, inspect REF. Files of different lengths are aligned if a lag explains the difference;
nothing else is aligned, resampled or mixed unless you ask for it. Memory does not grow with the length.

The first line says how far apart the two are, and names the change to EST if measuring shows it: another level,
inverted polarity, a limited band, a lossy codec, a filter, samples that wrap, clicks, missing samples, a growing lag,
another order, another recording, a wrong sample rate, bytes read in another width, aliases, a buzz, lost parts. Then
it lists faults: samples that are not finite, silence, dropouts, clipping, jumps, repeats. The exit code is 1 if a
recording is not finite, is silent where its reference is not, or differs: a change is named, SI-SDR or SNR is below 20
dB, or SI-SDR is below 40 dB with a log-spectral distance above 10 dB.

↓ is closer when lower, ↑ when higher; 95 % of the seconds are no worse than [bold]p95[/bold]. Pass a second rendering
of REF with another noise seed as [cyan]--noise-floor[/cyan] to see every distance as a multiple of chance.

[bold]Examples[/bold]

[cyan]precision-eval audio original.wav float16.wav --noise-floor other-seed.wav --plot pair.png[/cyan]

[cyan]precision-eval audio float16.wav[/cyan]  one recording by itself

[cyan]precision-eval audio originals/ float16/[/cyan]  pairs by name, the worst first
"""


class Alignment(StrEnum):
    lag = "lag"


class Fitting(TypedDict):
    """How files are made to fit, as ``compare_files`` takes it."""

    align: Align
    resample: bool
    mono: bool


def audio(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="Reference audio file, or a folder of them.")],
    estimate: Annotated[
        Path | None,
        typer.Argument(
            metavar="EST",
            help="Audio file to compare, or a folder with the same names. Without it, REF is inspected by itself.",
        ),
    ] = None,
    noise_floor: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="REF with another noise seed: the scale of distances.")
    ] = None,
    as_json: options.Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw both spectrograms and the metrics to this .png or .svg.")
    ] = None,
    align: Annotated[Alignment | None, typer.Option(help="Remove the lag first, to a fraction of a sample.")] = None,
    resample: Annotated[bool, typer.Option("--resample", help="Resample EST to the sample rate of REF.")] = False,
    mono: Annotated[bool, typer.Option("--mono", help="Mix the channels of each file to their mean.")] = False,
) -> None:
    """Do what the paths ask for, and end with exit code 1 where a recording is not finite or dead or a pair differs."""
    fitting = Fitting(align="length" if align is None else "lag", resample=resample, mono=mono)
    if plot is not None:
        check_plot_path(plot)
    pairwise = reference.is_dir() and estimate is not None and estimate.is_dir()
    if estimate is None or pairwise:
        pair_options: dict[str, object] = {"--noise-floor": noise_floor, "--plot": plot}
        if not pairwise:
            pair_options |= {"--align": align, "--resample": resample or None}
        for option in (name for name, value in pair_options.items() if value is not None):
            raise ParameterError(f"{option} is for a pair of files; give REF and EST as files")
    if estimate is None:
        failed = _inspect(reference, as_json=as_json, mono=mono)
    elif pairwise:
        failed = _compare_folders(reference, estimate, as_json=as_json, fitting=fitting)
    else:
        failed = _compare(reference, estimate, noise_floor=noise_floor, as_json=as_json, plot=plot, fitting=fitting)
    if failed:
        raise typer.Exit(EXIT_VERDICT)


def _inspect(path: Path, *, as_json: bool, mono: bool) -> bool:
    from audio_metrics import inspect_file
    from precision_eval.cli.audio_table import headers_of, print_inspection

    headers = headers_of({"signal": path}, mono=mono)
    with bar_on() as show:
        inspection = inspect_file(path, mono=mono, on_progress=lambda fraction: show(fraction, 1, "inspecting"))
    if as_json:
        _print_json({"file": headers["signal"], "headline": inspection.headline, **inspection.to_dict()})
    else:
        print_inspection(inspection, headers)
    return inspection.failed


def _compare(
    reference: Path, estimate: Path, *, noise_floor: Path | None, as_json: bool, plot: Path | None, fitting: Fitting
) -> bool:
    from audio_metrics import compare_files
    from precision_eval.cli.audio_table import headers_of, print_comparison

    headers = headers_of(
        {"reference": reference, "estimate": estimate, "noise floor": noise_floor}, mono=fitting["mono"]
    )
    pictures = None
    if plot is not None:
        from precision_eval.report.figures.pair import Spectrograms

        pictures = Spectrograms()
    with bar_on() as show:
        comparison = compare_files(
            reference,
            estimate,
            null_path=noise_floor,
            **fitting,
            inspect_each=True,
            on_block=None if pictures is None else pictures.add,
            on_progress=lambda fraction: show(fraction, 1, "comparing"),
        )
    if plot is not None and pictures is not None:
        from precision_eval.report.drawing import save_as
        from precision_eval.report.figures.pair import draw_pair

        save_as(draw_pair(comparison, pictures, names=(reference.name, estimate.name)), plot)
    if as_json:
        _print_json(as_dict(comparison, headers))
    else:
        print_comparison(comparison, headers, plot=plot)
    return comparison.failed or comparison.differs


def _compare_folders(reference: Path, estimate: Path, *, as_json: bool, fitting: Fitting) -> bool:
    from audio_metrics import compare_files
    from audio_metrics.errors import AudioMetricsError
    from precision_eval.cli.audio_table import pairs_of, print_folder

    pairs, alone = pairs_of(reference, estimate)
    results: list[tuple[str, AudioComparison | str]] = []
    with bar_on() as show:
        for number, (name, first, second) in enumerate(pairs):

            def on_progress(fraction: float, number: int = number, name: str = name) -> None:
                show(number + fraction, len(pairs), name)

            try:
                result: AudioComparison | str = compare_files(
                    first, second, **fitting, inspect_each=True, on_progress=on_progress
                )
            except AudioMetricsError as error:  # one pair that cannot be compared does not end the others
                result = str(error)
            results.append((name, result))
    if as_json:
        listed = [
            {"name": name, "error": result}
            if isinstance(result, str)
            else {"name": name, "headline": result.headline, "comparison": result.to_dict()}
            for name, result in results
        ]
        _print_json({"pairs": listed, "without_partner": alone})
    else:
        print_folder(results, alone)
    return any(isinstance(result, str) or result.failed or result.differs for _, result in results)


def _print_json(content: dict[str, Any]) -> None:
    print(to_json(content, what="the measures", indent=1))


def check_plot_path(path: Path) -> None:
    if path.suffix.lower() not in PLOT_FORMATS:
        raise ParameterError(f"--plot {path} ends in {path.suffix!r}; expected {' or '.join(PLOT_FORMATS)}")
    if path.is_dir():
        raise ParameterError(f"--plot {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise ParameterError(f"--plot {path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ParameterError(f"--plot {path} cannot be written; choose another place or change its permissions")


def as_dict(comparison: AudioComparison, headers: Headers) -> dict[str, Any]:
    """The whole result as plain data for strict JSON."""
    result = comparison.to_dict()
    signals = result.pop("signals")
    for content in signals.values():
        content.pop("flags")
    return {
        "headline": comparison.headline,
        "differs": comparison.differs,
        "files": headers,
        "flags": result.pop("flags"),
        "comparison": result,
        "signals": signals,
    }
