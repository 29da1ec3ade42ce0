"""A ladder of known degradations: the scale on which to read a metric.

What is a mel-cepstral distortion of 0.05 dB? A twentieth of what storing in 12 bits does to the same speech. The
ladder applies degradations of known size (:mod:`.degrade`, :mod:`.rungs`) to one recording, measures each against the
undamaged one, and writes the answers as a table, a figure and JSON. It takes about 20 s of processor time per minute of
speech; 5 minutes let drifts and clocks show::

    python -m validation audio-ladder --out DIR --set reference=speech.wav --set noise_floor=same-words-again.wav
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validation.frame import Data, Experiment, Figure, Options, Trial

_SHOWN = ("mel_mcd_db", "log_spectral_distance_db", "si_sdr_db")


def _trials(options: Options) -> list[Trial]:
    import numpy as np

    from validation.audio_ladder.rungs import NOISE_FLOOR, RUNGS, Rung

    last = (Rung(kind=NOISE_FLOOR, function=np.copy),) if options["noise_floor"] else ()
    suffix = f"{options['reference']}/{options['seconds']:g}s/{options['pitch']}"
    return [Trial(f"about/{suffix}", None), *(Trial(f"{rung.name}/{suffix}", rung) for rung in (*RUNGS, *last))]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    from validation.audio_ladder.climb import Climb

    climb = Climb(options["reference"], options["noise_floor"], seconds=options["seconds"], pitch=options["pitch"])
    for key, rung, _ in trials:
        yield {"key": key, **({"about": climb.about()} if rung is None else {"rung": climb.rung(rung)})}


def _summary(lines: list[Data], options: Options) -> Data | None:
    abouts = [line for line in lines if "about" in line]
    if not abouts:
        return None
    suffix = str(abouts[-1]["key"]).removeprefix("about")
    rungs = [line["rung"] for line in lines if "rung" in line and str(line["key"]).endswith(suffix)]
    return {**abouts[-1]["about"], "rungs": rungs}


def _figures(content: Data) -> list[Figure]:
    """A line per rung; the table that is written says more."""
    from validation.audio_ladder.table import COLUMNS, cell, response

    titles = dict(COLUMNS)
    return [
        Figure(rung["name"], ", ".join(f"{titles[name].split(',')[0]} {cell(response(rung, name))}" for name in _SHOWN))
        for rung in content["rungs"]
    ]


def _plots(content: Data, out: Path) -> list[Path]:
    from validation.audio_ladder.figure import draw
    from validation.audio_ladder.table import write_table

    return [write_table(content, out / "table.md"), *draw(content, out)]


EXPERIMENT = Experiment(
    name="audio-ladder",
    title="what known degradations do to each audio metric",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_plots,
    summary=_summary,
    settings={
        "reference": ("", ""),
        "noise_floor": ("", ""),
        "seconds": (float("inf"), float("inf")),
        "pitch": (False, False),
    },
    stored="ladder.json",
)
