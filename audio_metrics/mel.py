"""Mel filter bank and cosine transform, as plain tables.

Slaney's scale (linear to 1 kHz, logarithmic above) and area normalisation, 80 bands from 0 Hz to half the sample
rate, in float64; orthonormal DCT-II, of which rows 0 to 24 are kept. Written out here because the import of librosa
alone would cost more than measuring ten minutes of audio; the tests hold the tables against librosa's and scipy's.
"""

from __future__ import annotations

import numpy as np

N_MELS = 80
N_CEPSTRA = 25  # c0 to c24

_HZ_PER_LINEAR_MEL = 200.0 / 3.0
_LOG_START_HZ = 1000.0
_LOG_START_MEL = _LOG_START_HZ / _HZ_PER_LINEAR_MEL
_LOG_STEP = np.log(6.4) / 27.0
_BANDS_PER_GROUP = 8
_SMALL_PRODUCT = 250_000  # multiplications; OpenBLAS starts threads from 262,144


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    log_part = _LOG_START_HZ * np.exp(_LOG_STEP * np.maximum(mel - _LOG_START_MEL, 0.0))
    return np.where(mel < _LOG_START_MEL, mel * _HZ_PER_LINEAR_MEL, log_part)


def _hz_to_mel(hz: float) -> float:
    if hz < _LOG_START_HZ:
        return hz / _HZ_PER_LINEAR_MEL
    return _LOG_START_MEL + float(np.log(hz / _LOG_START_HZ)) / _LOG_STEP


def mel_filter_bank(sample_rate_hz: int, n_fft: int) -> np.ndarray:
    """Triangular mel filters."""
    bin_hz = np.arange(n_fft // 2 + 1) * (sample_rate_hz / n_fft)
    edge_hz = _mel_to_hz(np.linspace(0.0, _hz_to_mel(sample_rate_hz / 2), N_MELS + 2))
    step_hz = np.diff(edge_hz)
    ramp = edge_hz[:, None] - bin_hz[None, :]  # (M + 2, n_bins)
    rising = -ramp[:-2] / step_hz[:-1, None]
    falling = ramp[2:] / step_hz[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edge_hz[2:] - edge_hz[:-2]))[:, None])


def band_centres_hz(sample_rate_hz: int) -> np.ndarray:
    """Frequency of the peak of each filter, shape (80,)."""
    return _mel_to_hz(np.linspace(0.0, _hz_to_mel(sample_rate_hz / 2), N_MELS + 2))[1:-1]


def cosine_basis(n_bands: int = N_MELS, n_coefficients: int = N_CEPSTRA) -> np.ndarray:
    """First rows of the orthonormal DCT-II over `n_bands` values, shape (n_coefficients, n_bands)."""
    angle = np.pi / n_bands * np.outer(np.arange(n_coefficients), np.arange(n_bands) + 0.5)
    basis = np.sqrt(2.0 / n_bands) * np.cos(angle)
    basis[0] = np.sqrt(1.0 / n_bands)
    return np.asarray(basis)


def product(rows: np.ndarray, matrix: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
    """Matrix product in pieces so small that BLAS starts no threads for them."""
    result = np.empty((*rows.shape[:-1], matrix.shape[1])) if out is None else out
    step = max(1, _SMALL_PRODUCT // matrix.size)
    for start in range(0, rows.shape[-2], step):
        piece = slice(start, start + step)
        np.matmul(rows[..., piece, :], matrix, out=result[..., piece, :])  # BLAS is called once per signal
    return result


class MelBands:
    """The filter bank cut into groups of neighbouring bands, each a product over the few bins it touches."""

    def __init__(self, sample_rate_hz: int, n_fft: int) -> None:
        bank = mel_filter_bank(sample_rate_hz, n_fft)
        self._groups: list[tuple[slice, slice, np.ndarray]] = []
        for first in range(0, N_MELS, _BANDS_PER_GROUP):
            bands = slice(first, first + _BANDS_PER_GROUP)
            touched = np.flatnonzero(bank[bands].any(axis=0))
            bins = slice(int(touched[0]), int(touched[-1]) + 1)
            self._groups.append((bands, bins, np.ascontiguousarray(bank[bands, bins].T)))

    def power(self, power: np.ndarray) -> np.ndarray:
        """Band power, shape (..., n, 80), of bin power, shape (..., n, n_bins), both float64."""
        bands_power = np.empty((*power.shape[:-1], N_MELS))
        for bands, bins, weights in self._groups:
            product(power[..., bins], weights, out=bands_power[..., bands])
        return bands_power
