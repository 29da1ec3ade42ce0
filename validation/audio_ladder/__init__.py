"""A ladder of known degradations: the scale on which to read a metric.

What is a mel-cepstral distortion of 0.05 dB? A twentieth of what storing in 12 bits does to the same speech. The
ladder applies degradations of known size (:mod:`.degrade`, :mod:`.rungs`) to one recording, held whole in float64, and
measures each against the undamaged one. It takes about 20 s of processor time per minute of speech::

    python -m validation audio-ladder --out DIR --set reference=speech.wav --set noise_floor=same-words-again.wav
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from precision_eval.core.table import make_table, to_markdown
from validation.frame import Data, Experiment, Figure, Options, Trial

if TYPE_CHECKING:
    import numpy as np

# Metric to its column; those that were not measured are left out.
COLUMNS = {
    "log_spectral_distance_db": "LSD, dB", "log_magnitude_l1_db": "log L1, dB", "spectral_convergence": "SC",
    "mel_mcd_db": "mel MCD, dB", "level_error_db": "level error, dB", "snr_db": "SNR, dB", "si_sdr_db": "SI-SDR, dB",
    "ltas_distance_db": "LTAS, dB", "frechet_distance": "Fréchet, Np²", "lag_s": "lag, s", "t_div_s": "t_div, s",
}  # fmt: skip
SHOWN = ("mel_mcd_db", "log_spectral_distance_db", "si_sdr_db")
NOISE_FLOOR = "noise_floor"  # no degradation: the same words again, from another seed


def _trials(options: Options) -> list[Trial]:
    from validation.audio_ladder.rungs import RUNGS

    suffix = f"{options['reference']}/{options['seconds']:g}s"
    names = [rung.name for rung in RUNGS] + [NOISE_FLOOR] * bool(options["noise_floor"])
    return [Trial(f"{name}/{suffix}", name) for name in names]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    from audio_metrics.errors import AudioParameterError
    from validation.audio_ladder.rungs import rung_by_name

    if not options["reference"]:
        raise AudioParameterError("no reference; give --set reference=speech.wav, or --report with an earlier --out")
    original, rate = _read(options, "reference")
    about = {"duration_s": len(original) / rate, "sample_rate_hz": rate, "name": Path(options["reference"]).name}
    for key, name, _ in trials:
        if name != NOISE_FLOOR:
            estimate = rung_by_name(name).apply(original, sample_rate_hz=rate)
        else:
            estimate, other_rate = _read(options, NOISE_FLOOR)
            if (other_rate, len(estimate)) != (rate, len(original)):
                raise AudioParameterError(
                    f"the noise floor has {len(estimate)} samples at {other_rate} Hz, the reference {len(original)} at "
                    f"{rate} Hz; give two recordings of one length and rate"
                )
        measured = _measured(original, estimate, rate)
        yield {"key": key, "reference": about, "rung": {"name": name, **measured}}


def _read(options: Options, name: str) -> tuple[np.ndarray, int]:
    from audio_metrics.signal import FileSource

    with FileSource(options[name], dtype="float64", name=name) as source:
        stop = min(source.n_samples, round(min(options["seconds"], 1e9) * source.sample_rate_hz))
        return source.read(0, stop), source.sample_rate_hz


def _measured(original: np.ndarray, estimate: np.ndarray, rate: int) -> Data:
    from audio_metrics import compare
    from audio_metrics.flags import json_number

    compared = compare(original, estimate, sample_rate_hz=rate).to_dict()
    found = {name: value.get("whole_file") if isinstance(value, dict) else value for name, value in compared.items()}
    kept = {name: found[name] for name in COLUMNS if name in found}
    return {name: None if value is None else json_number(float(f"{value:.6g}")) for name, value in kept.items()}


def _summary(lines: list[Data], options: Options) -> Data:
    """The rungs of the last line's recording."""
    suffix = lines[-1]["key"].partition("/")[2]
    rungs = [line["rung"] for line in lines if line["key"].partition("/")[2] == suffix]
    return {"reference": lines[-1]["reference"], "rungs": rungs}


def cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _figures(content: Data) -> list[Figure]:
    return [
        Figure(rung["name"], ", ".join(f"{COLUMNS[name].split(',')[0]} {cell(rung[name])}" for name in SHOWN))
        for rung in content["rungs"]
    ]


def _plots(content: Data, out: Path) -> list[Path]:
    """Write ``table.md``: one row per rung, one column per metric of the whole file."""
    about, rungs = content["reference"], content["rungs"]
    names = [name for name in COLUMNS if name in rungs[0]]
    rows = [[rung["name"], *(cell(rung.get(name)) for name in names)] for rung in rungs]
    parts = [
        "# The ladder of known degradations",
        f"Each degradation of `{about['name']}` ({about['duration_s']:g} s at {about['sample_rate_hz']} Hz) against "
        "the recording itself, float64, whole file. `noise_floor` is the same words again with another noise seed.",
        to_markdown(make_table(["rung", *(COLUMNS[name] for name in names)], rows, align="l" + "r" * len(names))),
    ]
    path = out / "table.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return [path]


EXPERIMENT = Experiment(
    name="audio-ladder", title="what known degradations do to each audio metric", trials=_trials, run=_run,
    figures=_figures, plots=_plots, summary=_summary,
    settings={"reference": ("", ""), "noise_floor": ("", ""), "seconds": (float("inf"), float("inf"))},
    stored="ladder.json",
)  # fmt: skip
