"""How a fix's audio differs from the reference's and from the original speech.

Conventions: 16 kHz, sample-aligned by construction (one script, one frame grid). The prompt is left out on all sides.
"Original" is the espeak speech of the very script, available for the length of ``speech.flac``; it never went through
the codec, so the reference's own distance to it (codec, vocoder and model together) is the floor of that column.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import audio_metrics
from audio_metrics.comparison import SUMMARISED
from precision_eval.cases.voice.assets import asset_path, load_streams, original_speech
from precision_eval.cases.voice.codec import HOP_SAMPLES, SAMPLE_RATE_HZ
from precision_eval.cases.voice.recogniser import Recogniser
from precision_eval.cases.voice.script import Conditioning, segments_of
from precision_eval.core.errors import UnsupportedError
from precision_eval.measure.synthesis import PROMPT_FRAMES

SHORTEST_S = 0.1
"""Less sound than this has too few windows to be compared."""


class NonFiniteAudioError(ArithmeticError):
    """A recording holds samples that are NaN or infinite; nothing measured of it would mean anything."""


def spoken_script(n_frames: int) -> np.ndarray:
    """Segments of what stream 0 says after its prompt, for ``n_frames`` frames (the script starts over at its end)."""
    conditioning = load_streams(1, n_frames=PROMPT_FRAMES + n_frames)[0].conditioning
    frames = (PROMPT_FRAMES + np.arange(n_frames)) % len(conditioning)
    return segments_of(
        Conditioning(conditioning.phoneme[frames], conditioning.next_phoneme[frames], conditioning.progress[frames])
    )


def _read(path: Path) -> tuple[np.ndarray, int]:
    import soundfile

    return soundfile.read(path, dtype="float32")


def _against_reference(
    audio: np.ndarray, reference: np.ndarray, noise_floor: np.ndarray, *, rate_hz: int
) -> dict[str, Any]:
    """Distance of a synthesis from the reference's, with its ratio to that of the noise floor."""
    distance = audio_metrics.compare(reference, audio, sample_rate_hz=rate_hz)
    for flag in distance.flags:
        if flag.kind == "non_finite":
            raise NonFiniteAudioError(flag.message)
    compared = distance.against_null(audio_metrics.compare(reference, noise_floor, sample_rate_hz=rate_hz))
    data = compared.to_dict()
    for name in SUMMARISED:
        data[name]["ratio_to_null"] = data["ratio_to_null"][name]
    return data


def compare_own(wav_path: Path, *, reference_path: Path, null_path: Path) -> dict[str, Any]:
    """Measure one synthesis of a case from outside against the reference's; what one lasts longer is left out."""
    waves = [_read(path) for path in (wav_path, reference_path, null_path)]
    rate_hz = waves[0][1]
    lengths = [len(samples) for samples, _ in waves]
    if min(lengths) < rate_hz * SHORTEST_S:
        raise UnsupportedError(
            f"synthesize made {min(lengths) / rate_hz:.3f} s of sound; expected {SHORTEST_S} s or more"
        )
    cut = [samples[: min(lengths)] for samples, _ in waves]
    texts = ", ".join(f"{length / rate_hz:.2f} s" for length in lengths)
    doubt = f"the sounds of fix, reference and noise floor last {texts}; what they have in common was compared"
    return {
        "duration_s": min(lengths) / rate_hz,
        "against_reference": _against_reference(*cut, rate_hz=rate_hz),
        **({"doubts": [doubt]} if len(set(lengths)) > 1 else {}),
    }


def compare_with_references(wav_path: Path, *, reference_path: Path, null_path: Path) -> dict[str, Any]:
    """Measure one synthesis against the reference's and against the original speech."""
    (audio, _), (reference, _), (noise_floor, _) = (_read(path) for path in (wav_path, reference_path, null_path))
    against_reference = _against_reference(audio, reference, noise_floor, rate_hz=SAMPLE_RATE_HZ)
    original = original_speech()[0][PROMPT_FRAMES * HOP_SAMPLES :]
    n_samples = min(len(original), len(audio))
    from_original = audio_metrics.compare(original[:n_samples], audio[:n_samples], sample_rate_hz=SAMPLE_RATE_HZ)
    n_frames = len(audio) // HOP_SAMPLES
    recogniser = Recogniser.load(asset_path("recogniser.safetensors"))
    segments = spoken_script(n_frames)
    heard = recogniser.phoneme_accuracy(audio, segments)
    original_frames = n_samples // HOP_SAMPLES
    heard_original = recogniser.phoneme_accuracy(
        original[: original_frames * HOP_SAMPLES], spoken_script(original_frames)
    )
    return {
        "duration_s": len(audio) / SAMPLE_RATE_HZ,
        "against_reference": against_reference,
        "against_original": {**from_original.to_dict(), "duration_s": n_samples / SAMPLE_RATE_HZ},
        "phoneme_accuracy": {
            "value": heard.value,
            "first_third": heard.first_third,
            "last_third": heard.last_third,
            "original": heard_original.value,
            "original_first_third": heard_original.first_third,
            "original_last_third": heard_original.last_third,
        },
    }
