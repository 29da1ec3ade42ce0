"""Measure every metric on every rung.

The reference is read whole (a few minutes; the ladder is no streaming job), as float64. Only plain
numbers are kept, so that the result is small enough to commit; NaN and infinities are None in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from audio_metrics.comparison import compare
from audio_metrics.errors import AudioParameterError
from audio_metrics.flags import json_number
from audio_metrics.free_running import Description, describe, free_running_distances
from audio_metrics.inspection import inspect
from audio_metrics.signal import FileSource
from validation.audio_ladder.divergence import firing, half_windows
from validation.audio_ladder.rungs import NOISE_FLOOR, Rung

BESIDES = (
    "multi_resolution_stft_distance",
    "maximum_mean_discrepancy",
    "mel_mean_difference_db",
    "mel_spread_difference_db",
)
"""Metrics that ``compare`` measures on request and the ladder always."""

PITCH = ("f0_error_cents", "voicing_decision_error", "gross_pitch_error", "f0_frame_error")
_SKIPPED = frozenset({"series", "settings", "flags", "ratio_to_null", "floored_fraction", "active"})
_DIGITS = 6


class Climb:
    """A recording, read once, and the measuring of each rung against it."""

    def __init__(self, reference: str, noise_floor: str, *, seconds: float, pitch: bool) -> None:
        self.paths = (reference, noise_floor)
        self.seconds = seconds
        self.metrics = BESIDES + PITCH * pitch

    @cached_property
    def original(self) -> Original:
        """The undamaged recording."""
        if not self.paths[0]:
            raise AudioParameterError(
                "no reference; give --set reference=speech.wav, or --report with an earlier --out"
            )
        samples, rate = _read(self.paths[0], self.seconds)
        return Original(samples, rate, describe(samples, sample_rate_hz=rate), self.metrics)

    def about(self) -> dict[str, Any]:
        """What recording it is, and what is seen in it."""
        original = self.original
        return {
            "reference": {
                "name": Path(self.paths[0]).name,
                "noise_floor": Path(self.paths[1]).name or None,
                "duration_s": len(original.samples) / original.rate,
                "sample_rate_hz": original.rate,
            },
            "inspect": _numbers(inspect(original.samples, sample_rate_hz=original.rate).to_dict()),
        }

    def rung(self, rung: Rung) -> dict[str, Any]:
        """Degrade the recording and measure the result against it; the noise floor is the other recording."""
        original = self.original
        if rung.kind != NOISE_FLOOR:
            return _entry(rung, original, rung.apply(original.samples, sample_rate_hz=original.rate))
        other, rate = _read(self.paths[1], self.seconds)
        if rate != original.rate or len(other) != len(original.samples):
            raise AudioParameterError(
                f"the noise floor has {len(other)} samples at {rate} Hz, the reference {len(original.samples)} at "
                f"{original.rate} Hz; give two recordings of one length and rate"
            )
        return _entry(rung, original, other)


def _read(path: str, seconds: float) -> tuple[np.ndarray, int]:
    with FileSource(path, dtype="float64", name="reference") as source:
        stop = min(source.n_samples, round(min(seconds, 1e9) * source.sample_rate_hz))
        return source.read(0, stop), source.sample_rate_hz


@dataclass(frozen=True)
class Original:
    """The undamaged recording: float64 samples, their rate, its description, and what is measured besides."""

    samples: np.ndarray
    rate: int
    description: Description
    metrics: tuple[str, ...]


def _entry(rung: Rung, original: Original, estimate: np.ndarray) -> dict[str, Any]:
    rate = original.rate
    onset_s = rung.onset_s(len(estimate) / rate)
    compared = compare(original.samples, estimate, sample_rate_hz=rate, metrics=original.metrics)
    apart = free_running_distances(original.description, describe(estimate, sample_rate_hz=rate))
    halves = half_windows(original.samples, estimate, sample_rate_hz=rate)
    return {
        "name": rung.name,
        "kind": rung.kind,
        "value": rung.value,
        "unit": rung.unit,
        "expected": rung.expected,
        "onset_s": onset_s,
        "compare": _numbers(compared.to_dict()),
        "free_running": {name: json_number(value) for name, value in _numbers(apart).items()},
        "inspect": _numbers(inspect(estimate, sample_rate_hz=rate).to_dict()),
        "t_div": firing(halves, onset_s=onset_s),
    }


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if name in _SKIPPED:
            continue
        if isinstance(value, dict):
            kept[name] = _numbers(value)
        elif value is None or isinstance(value, (int, float)):
            kept[name] = float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
    return kept
