"""Measure every metric on every rung.

Conventions: the reference is read whole (a few minutes; the ladder is no streaming job), as float64. Only plain
numbers are kept, so that the result is small enough to commit; NaN and infinities are None in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audio_metrics.comparison import compare
from audio_metrics.errors import ParameterError
from audio_metrics.flags import json_number
from audio_metrics.free_running import Description, describe, free_running_distances
from audio_metrics.inspection import inspect
from audio_metrics.signal import FileSource
from validation.audio_ladder.divergence import firing, half_windows
from validation.audio_ladder.rungs import RUNGS, Rung

NOISE_FLOOR = "noise_floor"
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


def climb(
    reference_path: Path | str,
    *,
    null_path: Path | str | None = None,
    rungs: Sequence[Rung] = RUNGS,
    seconds: float | None = None,
    pitch: bool = False,
    on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> dict[str, Any]:
    """Degrade one recording in every way and measure each result against it."""
    reference, rate = _read(reference_path, seconds)
    original = Original(reference, rate, describe(reference, sample_rate_hz=rate), BESIDES + PITCH * pitch)
    total = len(rungs) + (null_path is not None)
    found = []
    for number, rung in enumerate(rungs):
        on_progress(number, total, rung.name)
        estimate = rung.apply(reference, sample_rate_hz=rate)
        found.append(_entry(rung, original, estimate))
    if null_path is not None:
        on_progress(total - 1, total, NOISE_FLOOR)
        noise_floor, noise_floor_rate = _read(null_path, seconds)
        if noise_floor_rate != rate or len(noise_floor) != len(reference):
            raise ParameterError(
                f"the noise floor has {len(noise_floor)} samples at {noise_floor_rate} Hz, the reference "
                f"{len(reference)} at {rate} Hz; "
                "give two recordings of one length and rate"
            )
        words = Rung(kind=NOISE_FLOOR, function=np.copy)
        found.append(_entry(words, original, noise_floor))
    return {
        "reference": {
            "name": Path(reference_path).name,
            "noise_floor": None if null_path is None else Path(null_path).name,
            "duration_s": len(reference) / rate,
            "sample_rate_hz": rate,
        },
        "inspect": _numbers(inspect(reference, sample_rate_hz=rate).to_dict()),
        "rungs": found,
    }


def _read(path: Path | str, seconds: float | None) -> tuple[np.ndarray, int]:
    with FileSource(path, dtype="float64", name="reference") as source:
        stop = source.n_samples if seconds is None else min(source.n_samples, round(seconds * source.sample_rate_hz))
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
