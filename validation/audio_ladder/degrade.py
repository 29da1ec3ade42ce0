"""Known degradations of a signal, each with a size that can be worked out by hand.

Mono float64 in and out, same length, full scale = 1.0, time in seconds from the first sample; nothing is
normalised. Filters have no phase: they multiply the spectrum by a real gain, so nothing moves in time. Whatever is
random is seeded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.fft

from audio_metrics.errors import AudioParameterError

TILT_PIVOT_HZ = 1000.0
TILT_LOWEST_HZ = 62.5  # a tilt is level below this: a slope per octave has no value at 0 Hz

_LOW_PASS_WIDTH = 0.1  # of the cut-off: width of the raised-cosine edge


def add_noise(signal: np.ndarray, *, snr_db: float, seed: int = 0) -> np.ndarray:
    """Add white Gaussian noise, scaled so that the SNR of the whole signal is `snr_db` to rounding."""
    noise = np.random.default_rng(seed).standard_normal(len(signal))
    scale = np.sqrt(np.sum(signal**2) / np.sum(noise**2)) * 10.0 ** (-snr_db / 20.0)
    return np.asarray(signal + scale * noise)


def quantise(signal: np.ndarray, *, bits: int) -> np.ndarray:
    """Round to multiples of 2^(1 − bits), without dither; a full-scale sine keeps 6.02·bits + 1.76 dB."""
    step = 2.0 ** (1 - bits)
    return np.asarray(np.clip(np.round(signal / step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * step)


def round_to_half(signal: np.ndarray) -> np.ndarray:
    """Store as float16: 11 significant bits at any level."""
    return signal.astype(np.float16).astype(np.float64)


def low_pass(signal: np.ndarray, *, cutoff_hz: float, sample_rate_hz: int) -> np.ndarray:
    """Keep what is below `cutoff_hz`, drop what is above 1.1 times that, with half a raised cosine between."""

    def gain(hz: np.ndarray) -> np.ndarray:
        position = np.clip((hz / cutoff_hz - 1.0) / _LOW_PASS_WIDTH, 0.0, 1.0)
        return np.asarray(0.5 + 0.5 * np.cos(np.pi * position))

    return _filtered(signal, gain, sample_rate_hz)


def tilt_db(hz: np.ndarray, *, db_per_octave: float) -> np.ndarray:
    """Gain of a tilt in dB: ``slope · log2(f / 1 kHz)``, level below 62.5 Hz."""
    return np.asarray(db_per_octave * np.log2(np.maximum(hz, TILT_LOWEST_HZ) / TILT_PIVOT_HZ))


def tilt(signal: np.ndarray, *, db_per_octave: float, sample_rate_hz: int) -> np.ndarray:
    """Tilt the spectrum about 1 kHz."""
    return _filtered(signal, lambda hz: 10.0 ** (tilt_db(hz, db_per_octave=db_per_octave) / 20.0), sample_rate_hz)


def _filtered(signal: np.ndarray, gain: Callable[[np.ndarray], np.ndarray], sample_rate_hz: int) -> np.ndarray:
    n_fft = scipy.fft.next_fast_len(2 * len(signal), real=True)
    spectrum = scipy.fft.rfft(signal, n_fft)
    spectrum *= gain(np.arange(len(spectrum)) * (sample_rate_hz / n_fft))
    return np.asarray(scipy.fft.irfft(spectrum, n_fft)[: len(signal)])


def drift_gain(signal: np.ndarray, *, db_per_min: float, sample_rate_hz: int) -> np.ndarray:
    """Change the level steadily, from 0 dB at the first sample."""
    minutes = np.arange(len(signal)) / (60.0 * sample_rate_hz)
    return np.asarray(signal * 10.0 ** (db_per_min * minutes / 20.0))


def clip(signal: np.ndarray, *, share: float) -> np.ndarray:
    """Cut off at the level that a `share` of the samples exceeds."""
    level = float(np.quantile(np.abs(signal), 1.0 - share))
    return np.asarray(np.clip(signal, -level, level))


def drop_out(
    signal: np.ndarray, *, per_minute: float, length_s: float, sample_rate_hz: int, seed: int = 0
) -> np.ndarray:
    """Replace stretches by zeros, one at a random place in each equal slot, so that none overlap."""
    slot, length = round(60.0 * sample_rate_hz / per_minute), round(length_s * sample_rate_hz)
    if length >= slot:
        raise AudioParameterError(
            f"{per_minute:g} drop-outs of {length_s:g} s fill a minute; ask for fewer or shorter ones"
        )
    rng = np.random.default_rng(seed)
    result = signal.copy()
    for start in range(0, len(signal) - slot + 1, slot):
        first = start + int(rng.integers(slot - length))
        result[first : first + length] = 0.0
    return result


def unrelated(signal: np.ndarray) -> np.ndarray:
    """Return the second half before the first: the same voice, level and spectrum, saying other words."""
    return np.roll(signal, len(signal) // 2)
