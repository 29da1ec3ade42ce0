"""What the measures of speech share: WAV files, arrays kept in a run's folder, and distances between two renderings.

Conventions: samples are mono float32, full scale 1. A file is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precision_eval.core.files import UnwritableFileError, written_whole

if TYPE_CHECKING:
    from audio_metrics import AudioComparison

# One per speaker of the shipped voice.
MAX_TEACHER_FORCED_STREAMS = 12

DISTANCES = ("mel_mcd_db", "log_spectral_distance_db", "level_error_db")
# Less sound than this has too few windows to be compared.
SHORTEST_S = 0.1
DROP_OUT_S = 0.02
_BYTES_PER_SAMPLE = 4


class NonFiniteAudioError(ArithmeticError):
    """A recording holds samples that are NaN or infinite; nothing measured of it would mean anything."""


def keep_arrays(path: Path, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Read arrays back, or make and keep them where there are none or the file is damaged."""
    try:
        with path.open("rb") as file:
            return dict(np.load(file, allow_pickle=False))  # the archive's checksum is compared here
    except (FileNotFoundError, EOFError, ValueError, zipfile.BadZipFile):
        arrays = make()
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return arrays


@contextmanager
def open_wav(path: Path, *, n_samples: int, rate_hz: int) -> Iterator[Any]:
    """Open a WAV for writing; after the block it must read as one of `n_samples`, or it was cut short."""
    import soundfile

    try:
        with soundfile.SoundFile(path, "w", rate_hz, 1, subtype="FLOAT", format="WAV") as file:
            yield file
        frames = soundfile.info(path).frames
    except soundfile.LibsndfileError as error:
        raise UnwritableFileError(f"the WAV cannot be written ({error.error_string}); is the disk full?") from error
    if frames != n_samples or path.stat().st_size < n_samples * _BYTES_PER_SAMPLE:
        raise UnwritableFileError(f"the WAV holds {frames} of {n_samples} samples after writing; is the disk full?")


def append_samples(wav: Any, samples: np.ndarray) -> None:
    """Append samples; soundfile merely asserts that all were taken."""
    try:
        wav.write(samples)
    except AssertionError as error:
        raise UnwritableFileError("the WAV took only part of the samples; is the disk full?") from error


def refuse_non_finite(comparison: AudioComparison) -> None:
    for flag in comparison.flags:
        if flag.kind == "non_finite":
            raise NonFiniteAudioError(flag.message)


def distances(original: np.ndarray, samples: np.ndarray, *, rate_hz: int) -> dict[str, float]:
    """Mean distances of a rendering to an original of the same length, dB."""
    import audio_metrics

    comparison = audio_metrics.compare(original, samples, sample_rate_hz=rate_hz)
    refuse_non_finite(comparison)
    return {name: float(comparison.summaries[name].mean) for name in DISTANCES}


def relate_to_noise_floor(
    comparison: AudioComparison, noise_floor: Callable[[], AudioComparison] | None
) -> dict[str, Any]:
    """Return a comparison with the reference as data, each distance with its ratio to that of the noise floor."""
    from audio_metrics.comparison import SUMMARISED

    refuse_non_finite(comparison)
    if noise_floor is None:
        return comparison.to_dict()
    data = comparison.against_null(noise_floor()).to_dict()
    for name in SUMMARISED:
        data[name]["ratio_to_null"] = data["ratio_to_null"][name]
    return data


def with_drop_outs(wave: np.ndarray, *, rate_hz: int, seed: int) -> np.ndarray:
    """Silence 20 ms at a random place of each second."""
    rng, length, result = np.random.default_rng(seed), round(DROP_OUT_S * rate_hz), wave.copy()
    for start in range(0, len(wave), rate_hz):
        first = start + int(rng.integers(max(1, min(rate_hz, len(wave) - start) - length)))
        result[first : first + length] = 0.0
    return result


def streams_data(
    parts: Sequence[np.ndarray], heard: dict[str, list[float]], *, stream_s: float, length_s: float, cpu_s: float
) -> dict[str, Any]:
    """Return the data of the measure ``sound``: the figures of each stream, and a hash of what each stream is."""
    return {
        "streams": len(parts),
        "stream_s": stream_s,
        "heard": heard,
        "doubts": [],
        "tokens": [hashlib.sha256(part.tobytes()).hexdigest()[:12] for part in parts],
        "real_time_factor": length_s / cpu_s,
        "clock": "process CPU",
    }
