"""Human speech to transcribe: recordings of a wheel, or a folder of one's own with what is said in them.

Conventions: an utterance is 16 kHz mono of at most 30 s, which is what Whisper hears at once. In a folder each WAV or
FLAC has what is said in a ``.txt`` of its name, or in LibriSpeech's ``*.trans.txt``; one without is heard all the same,
and counts for the divergence of tokens and words alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precision_eval.cases.adapters.wheels import Wheel
from precision_eval.core.errors import ParameterError

SAMPLE_RATE_HZ = 16_000
LONGEST_S = 30.0
_TALE, _BECKETT = (f"moonshine_voice/assets/{name}.wav" for name in ("two_cities", "beckett"))

WHEEL = Wheel(
    name="moonshine-voice",
    version="0.1.5",
    extra="speech",
    licence="MIT",
    files=(
        (_TALE, "f3348494d77cb74a02862f5e685ed09faf3e75832c5cc5c80703282c2cd8b52e"),
        (_BECKETT, "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61"),
    ),
)

#: Where each clause of the opening of Dickens's "A Tale of Two Cities" (1859) ends in the reading, in seconds.
TALE: tuple[tuple[float, str], ...] = (
    (4.71, "It was the best of times, it was the worst of times,"),
    (8.5, "it was the age of wisdom, it was the age of foolishness,"),
    (13.03, "it was the epoch of belief, it was the epoch of incredulity,"),
    (17.2, "it was the season of Light, it was the season of Darkness,"),
    (20.95, "it was the spring of hope, it was the winter of despair,"),
    (24.4, "we had everything before us, we had nothing before us,"),
    (28.6, "we were all going direct to Heaven, we were all going direct the other way –"),
    (32.33, "in short, the period was so far like the present period,"),
    (36.85, "that some of its noisiest authorities insisted on its being received,"),
    (38.64, "for good or for evil,"),
    (44.4, "in the superlative degree of comparison only."),
)


@dataclass(frozen=True)
class Utterance:
    """A recording, and what is said in it where that is known."""

    name: str
    samples: np.ndarray
    said: str | None

    @property
    def duration_s(self) -> float:
        """How long it is."""
        return len(self.samples) / SAMPLE_RATE_HZ


def utterances(folder: str | None = None) -> list[Utterance]:
    """Return the utterances of a folder, in the order of their names; of the wheel where none is given."""
    spoken = _of_wheel() if folder is None else _of_folder(Path(folder))
    for one in spoken:
        if not 0.1 <= one.duration_s <= LONGEST_S or not np.isfinite(one.samples).all():
            raise ParameterError(
                f"{one.name} lasts {one.duration_s:.2f} s or is not finite; expected finite speech of 0.1 to "
                f"{LONGEST_S:g} s: cut it at its pauses"
            )
    return spoken


def digest_of(spoken: Sequence[Utterance]) -> str:
    """Hash of recordings and texts: sha256, 16 hex digits."""
    total = hashlib.sha256()
    for one in spoken:
        total.update(f"{one.name} {one.said}".encode())
        total.update(np.round(one.samples * 2**15).astype("<i2").tobytes())
    return total.hexdigest()[:16]


def _of_wheel() -> list[Utterance]:
    tale, spoken, first_s = _samples(WHEEL.path(_TALE)), [], 0.0
    for number, (last_s, said) in enumerate(TALE, start=1):
        piece = tale[round(first_s * SAMPLE_RATE_HZ) : round(last_s * SAMPLE_RATE_HZ)]
        spoken.append(Utterance(f"two_cities {number}", piece, said))
        first_s = last_s
    return [*spoken, Utterance("beckett", _samples(WHEEL.path(_BECKETT)), None)]


def _of_folder(folder: Path) -> list[Utterance]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".wav", ".flac"))
    if not paths:
        raise ParameterError(f"no WAV or FLAC in {folder}; give a folder of recordings of up to {LONGEST_S:g} s")
    said = {}
    for path in folder.rglob("*.trans.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, text = line.partition(" ")
            said[name] = text
    for path in paths:
        if (text_file := path.with_suffix(".txt")).is_file():
            said[path.stem] = text_file.read_text(encoding="utf-8").strip()
    return [Utterance(path.stem, _samples(path), said.get(path.stem)) for path in paths]


def _samples(path: Path) -> np.ndarray:
    import librosa
    import soundfile

    try:
        samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ParameterError(f"{path} does not read: {error.error_string}; expected WAV or FLAC") from error
    if samples.shape[1] != 1:
        raise ParameterError(f"{path} has {samples.shape[1]} channels; expected mono")
    mono = samples[:, 0]
    same = rate_hz == SAMPLE_RATE_HZ
    return mono if same else librosa.resample(mono, orig_sr=rate_hz, target_sr=SAMPLE_RATE_HZ, res_type="soxr_hq")
