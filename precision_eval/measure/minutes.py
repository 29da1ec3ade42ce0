"""A long recording of the voice minute by minute: what is heard of each, and what went wrong in it.

Every full minute is heard against the original speech of its place in the script, which starts over at its end, as the
short streams of :mod:`precision_eval.measure.sound` are; judges hear it in parts of 20 s, and a minute has their mean.
Only a minute is in memory, and the original once through the script. A figure that a minute does not have (silence,
samples that are not finite) is None and in no mean; what is wrong with such a minute stands among its flags.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.cases.voice.assets import asset_path, load_streams
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, SAMPLE_RATE_HZ, load_codec, log_mel
from precision_eval.cases.voice.recogniser import SILENCE_ID, Recogniser
from precision_eval.cases.voice.vocoder import vocode
from precision_eval.measure.judges import Panel

DISTANCES = ("mel_mcd_db", "log_spectral_distance_db", "level_error_db")
MINUTE_FRAMES = 60 * FRAME_RATE_HZ
_PART_SAMPLES = 20 * SAMPLE_RATE_HZ
_LOOP = "loop_score"
_STUCK = 0.5
"""Of the autocorrelation of a minute's courses over time above the original's: clean speech lies within 0.2 of it."""
_MISSED = 0.5  # of a minute's speech frames, heard as silence
_HELD_S = 5.0
"""Of silence beyond the original's longest: a stream that stops; of a spectrum that stands still: one that repeats a
token."""
_STILL = 0.25  # of how much the original's moves; a repeated token's moves by 0.07 of that


def minutes_not_finite(wav_path: Path) -> list[int]:
    """Which minutes of a recording, from 1, hold samples that are not finite."""
    import soundfile

    with soundfile.SoundFile(wav_path) as file:
        minutes = file.blocks(60 * file.samplerate, dtype="float32")
        return [number for number, samples in enumerate(minutes, start=1) if not np.isfinite(samples).all()]


class MinuteListener:
    """Hears minute after minute; the original and what judges hear of it are kept for the next recording."""

    def __init__(self, panel: Panel | None = None, *, prompt_frames: int) -> None:
        self._prompt_frames = prompt_frames
        self._panel = panel
        self._recogniser = Recogniser.load(asset_path("recogniser.safetensors"))
        self._truths: dict[int, list[dict[str, Any]]] = {}
        (self._script,) = load_streams(1, n_frames=0)
        self._original = np.zeros(0, dtype=np.float32)

    def original(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Samples and phonemes per frame of what the script says in a minute after the prompt."""
        labels = self._script.conditioning.phoneme
        frames = (self._prompt_frames + index * MINUTE_FRAMES + np.arange(MINUTE_FRAMES)) % len(labels)
        return self._original.reshape(-1, HOP_SAMPLES)[frames].reshape(-1), labels[frames]

    def heard(self, wav_path: Path) -> dict[str, list[Any]]:
        """Return each figure's values, one per full minute, and the ``flags`` of each."""
        return _by_name([self._minute(index, samples) for index, samples in self._minutes(wav_path)])

    def judged(self, wav_path: Path) -> dict[str, list[Any]]:
        """Return what the judges alone say of each full minute."""
        rows = []
        for index, samples in self._minutes(wav_path):
            rows.append(self._judged(index, samples) if np.isfinite(samples).all() else {})
        return _by_name(rows)

    def _minutes(self, wav_path: Path) -> Iterator[tuple[int, np.ndarray]]:
        import soundfile

        n_samples = MINUTE_FRAMES * HOP_SAMPLES
        with soundfile.SoundFile(wav_path) as file:
            count = file.frames // n_samples
            needed = min(self._prompt_frames + count * MINUTE_FRAMES, len(self._script.tokens))
            if len(self._original) < needed * HOP_SAMPLES:
                self._original = vocode(load_codec().decode(self._script.tokens[:needed]))
            for index in range(count):
                yield index, file.read(n_samples, dtype="float32")

    def _minute(self, index: int, samples: np.ndarray) -> dict[str, Any]:
        import audio_metrics

        original, labels = self.original(index)
        alone = audio_metrics.inspect(samples, sample_rate_hz=SAMPLE_RATE_HZ)
        flags = {flag.kind for flag in alone.flags}
        if not np.isfinite(samples).all():
            return {"flags": sorted(flags)}
        own = audio_metrics.inspect(original, sample_rate_hz=SAMPLE_RATE_HZ)
        summaries = audio_metrics.compare(original, samples, sample_rate_hz=SAMPLE_RATE_HZ).summaries
        named, speech = self._recogniser.recognise(samples), labels != SILENCE_ID
        row: dict[str, Any] = {name: _number(summaries[name].mean) for name in DISTANCES}
        row["phonemes_right"] = float((named == labels)[speech].mean())
        row["speech_missed"] = float((named == SILENCE_ID)[speech].mean())
        row["longest_silence_s"] = _number(alone.longest_silence_s)
        row[_LOOP] = _number(alone.loop_score)
        still = _movement(samples) < _STILL * np.median(_movement(original))
        held = (np.count_nonzero(still) - 0.5) * _HELD_S > alone.longest_silence_s  # or it is the silence that stands
        if alone.loop_score > own.loop_score + _STUCK or held:
            flags.add("stuck")
        if row["speech_missed"] > _MISSED or alone.longest_silence_s > own.longest_silence_s + _HELD_S:
            flags.add("stopped")
        return row | {"flags": sorted(flags - {flag.kind for flag in own.flags})}

    def _judged(self, index: int, samples: np.ndarray) -> dict[str, float | None]:
        if self._panel is None:
            return {}
        if index not in self._truths:
            original, _ = self.original(index)
            self._truths[index] = [self._panel.hear(part) for part in _parts(original)]
        parts = zip(self._truths[index], _parts(samples), strict=True)
        scores = [self._panel.scores(truth, self._panel.hear(part)) for truth, part in parts]
        return {name: _number(float(np.mean([score[name] for score in scores]))) for name in scores[0]}


def _by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _movement(samples: np.ndarray) -> np.ndarray:
    """Standard deviation of the log-mel bands over each stretch of time, mean of the bands."""
    length = min(round(_HELD_S * FRAME_RATE_HZ), MINUTE_FRAMES)
    bands = log_mel(samples)[: MINUTE_FRAMES // length * length]
    return np.asarray(bands.reshape(-1, length, bands.shape[1]).std(axis=1).mean(axis=1))


def _parts(samples: np.ndarray) -> list[np.ndarray]:
    return np.split(samples, range(_PART_SAMPLES, len(samples), _PART_SAMPLES))


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
