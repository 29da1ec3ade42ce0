"""Mel-cepstral metrics on the shared frames.

Conventions: 80 mel bands (Slaney), natural log of band power floored on the band, orthonormal DCT-II. The metric is
named ``mel_mcd_db`` because it is not comparable with SPTK's or the literature's mel-cepstral distortions: with the
constant (10/ln 10)/√M it is the RMS level difference of the smoothed mel spectrum in dB, level removed. c0, the
level, is reported apart.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.frames import FLOOR, Spectra
from audio_metrics.mel import N_MELS
from audio_metrics.signal import checked_pair
from audio_metrics.sums import row_products
from audio_metrics.table import file_mean

DB_PER_CEPSTRAL_UNIT = 10.0 / np.log(10.0) / np.sqrt(N_MELS)


def frame_mel_mcd_db(spectra: Spectra) -> np.ndarray:
    """(10/ln 10)·√(Σ_{i=1..24} Δc_i² / M), shape (n_frames,)."""
    shape = spectra.cepstra[..., 1:]  # c0 is level
    difference = shape[0] - shape[1]
    return np.asarray(DB_PER_CEPSTRAL_UNIT * np.sqrt(row_products(difference, difference)))


def frame_level_error_db(spectra: Spectra) -> np.ndarray:
    """(10/ln 10)·|Δc0| / √M, shape (n_frames,)."""
    level = spectra.cepstra[..., 0]
    return np.asarray(DB_PER_CEPSTRAL_UNIT * np.abs(level[0] - level[1]))


def mel_mcd_db(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR) -> float:
    """Mel-cepstral distortion on 24 coefficients, c0 excluded, the mean over frames.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Same dtype (float32 or float64) and alignment; full scale = 1.0.
    sample_rate_hz : int
    floor : float
        Smallest band power that a logarithm sees.

    Returns
    -------
    float
        dB, lower is better; 0 for equal signals and for a pure gain.

    Raises
    ------
    ParameterError
        The signals cannot be compared, or a sample is not finite.
    UndefinedMetricError
        Either signal is digital silence in every window.

    References
    ----------
    .. [1] R. Kubichek, "Mel-cepstral distance measure for objective speech quality assessment", IEEE PacRim 1993; with
       the constant (10/ln 10)/√M in place of 10√2/ln 10, so that at full order it is the mean-removed log-spectral
       distance of the mel spectrum.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    return file_mean(pair, frame_mel_mcd_db, floor=floor)


def level_error_db(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR) -> float:
    """Absolute difference of the mean log band level, the mean over frames; |g| for a gain of g dB.

    Parameters, returns and errors as in :func:`mel_mcd_db`.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    return file_mean(pair, frame_level_error_db, floor=floor)
