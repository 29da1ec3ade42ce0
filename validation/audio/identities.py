"""What must hold to rounding, measured on the sound of the bench."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from audio_metrics import compare, log_spectral_distance_db, mel_mcd_db, si_sdr_db
from validation.audio.ratio import Ratio
from validation.audio.signals import SAMPLE_RATE_HZ, speech_like

EXACT = 1e-12
SI_SDR_EXACT = 1e-3


def figures() -> list[Ratio]:
    """Errors of the identities in float64, each against its target."""
    signal = speech_like(20, seed=3, dtype="float64")
    return [
        _error("LSD of a gain of −3.7 dB, error", _gain_error(signal, metric="lsd")),
        _error("mel MCD of a gain, error", _gain_error(signal, metric="mcd")),
        _error("SI-SDR of orthogonal noise at 120 dB, error", _si_sdr_error(signal), most=SI_SDR_EXACT),
        _error("block sizes of 1 to 20 s, largest difference of any figure", _block_error(signal), unit="relative"),
    ]


def _error(name: str, value: float, *, most: float = EXACT, unit: str = "dB") -> Ratio:
    return Ratio(name=name, value=value, low=value, high=value, most=most, unit=unit)


def _gain_error(signal: np.ndarray, *, metric: str, gain_db: float = -3.7) -> float:
    louder = signal * 10.0 ** (gain_db / 20.0)
    if metric == "lsd":
        found = log_spectral_distance_db(signal, louder, sample_rate_hz=SAMPLE_RATE_HZ, floor=0.0)
        return abs(found - abs(gain_db))
    return abs(mel_mcd_db(signal, louder, sample_rate_hz=SAMPLE_RATE_HZ, floor=0.0))


def _si_sdr_error(signal: np.ndarray, *, ratio_db: float = 120.0) -> float:
    noise = np.random.default_rng(4).standard_normal(len(signal))
    noise -= signal * (noise @ signal) / (signal @ signal)
    noise *= np.sqrt((signal @ signal) / (noise @ noise)) * 10.0 ** (-ratio_db / 20.0)
    return abs(si_sdr_db(signal, signal + noise, zero_mean=False) - ratio_db)


def _block_error(signal: np.ndarray) -> float:
    estimate = signal + 1e-3 * np.random.default_rng(5).standard_normal(len(signal))
    *others, whole = (
        np.array([*_numbers(compare(signal, estimate, sample_rate_hz=SAMPLE_RATE_HZ, block_windows=size).to_dict())])
        for size in (1, 3, 4, 20)
    )
    scale = np.maximum(np.abs(whole), 1.0)
    return float(max(np.max(np.abs(other - whole) / scale) for other in others))


def _numbers(value: Any) -> Iterator[float]:
    """Yield every number of nested dictionaries and lists, in order."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
