"""Spectral and mel-cepstral metrics on the shared frames.

Conventions: bins are averaged over the whole band, 0 Hz to half the sample rate; decibels are of power; a logarithm
sees ``max(P, floor)``. Kernels take the :class:`~audio_metrics.frames.Spectra` of a block and give one float64 value
per frame; plain functions take whole signals, leave windows of digital silence out (as ``compare`` does) and raise
where nothing is left.

``mel_mcd_db`` is named so because it is not comparable with SPTK's or the literature's mel-cepstral distortions: with
the constant (10/ln 10)/√M it is the RMS level difference of the smoothed mel spectrum in dB, level removed. c0, the
level, is reported apart.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.distribution import signal_moments
from audio_metrics.errors import UndefinedMetricError
from audio_metrics.signal import checked_pair
from audio_metrics.spectra import DB_PER_NEPER_OF_POWER, FLOOR, N_MELS, Spectra, row_products, row_sums
from audio_metrics.table import file_mean, file_sums, signal_mean


def frame_log_spectral_distance_db(spectra: Spectra) -> np.ndarray:
    """LSD_t = √ mean_f (10·log10(P/P̂))², shape (n_frames,)."""
    ratio = spectra.log_ratio
    return np.asarray(DB_PER_NEPER_OF_POWER * np.sqrt(row_products(ratio, ratio) / ratio.shape[-1]))


def frame_log_magnitude_l1_db(spectra: Spectra) -> np.ndarray:
    """Mean over bins of |20·log10(A/Â)|, shape (n_frames,)."""
    ratio = spectra.log_ratio
    ratio = np.abs(ratio, out=spectra.workspace.array("wide_bins", ratio.shape, np.float64))
    return np.asarray(DB_PER_NEPER_OF_POWER / ratio.shape[-1] * row_sums(ratio))


def frame_magnitude_error(spectra: Spectra) -> np.ndarray:
    """Σ_f (A − Â)², shape (n_frames,); the numerator of spectral convergence, squared."""
    power, workspace = spectra.power, spectra.workspace
    magnitude = np.sqrt(power, out=workspace.array("magnitude", power.shape, power.dtype))
    error = workspace.wide("wide_bins", np.subtract(magnitude[0], magnitude[1], out=magnitude[0]))
    return row_products(error, error)


def frame_reference_energy(spectra: Spectra) -> np.ndarray:
    """Σ_f A², shape (n_frames,); the denominator of spectral convergence, squared."""
    return np.asarray(spectra.bin_sum[0])


def frame_flatness_db(spectra: Spectra, signal: int = 0) -> np.ndarray:
    """10·log10 of geometric over arithmetic mean of power of one signal, shape (n_frames,); ≤ 0."""
    n_bins = spectra.power.shape[-1]
    log_mean = np.log(np.maximum(spectra.bin_sum[signal] / n_bins, spectra.floor))
    return np.asarray(DB_PER_NEPER_OF_POWER * (spectra.log_power[signal].mean(axis=-1, dtype=np.float64) - log_mean))


def frame_centroid_hz(spectra: Spectra, signal: int = 0) -> np.ndarray:
    """Σ f·P / Σ P of one signal, shape (n_frames,); NaN for a frame of zeros."""
    power = spectra.wide_power[signal]
    moment = row_products(power, spectra.bin_hz * np.arange(power.shape[-1]))
    total = spectra.bin_sum[signal]
    return np.asarray(np.divide(moment, total, out=np.full_like(total, np.nan), where=total > 0.0))


def log_spectral_distance_db(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR
) -> float:
    """Log-spectral distance, the mean over frames of the RMS over bins of the level difference.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Same dtype (float32 or float64) and alignment; full scale = 1.0.
    sample_rate_hz : int
    floor : float
        Smallest power that a logarithm sees.

    Returns
    -------
    float
        dB, lower is better; 0 for equal signals, |g| for a gain of g dB.

    Raises
    ------
    AudioParameterError
        The signals cannot be compared, or a sample is not finite.
    UndefinedMetricError
        Either signal is digital silence in every window.

    References
    ----------
    .. [1] A. Gray, J. Markel, "Distance measures for speech processing", IEEE Trans. ASSP 24(5), 1976.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    return file_mean(pair, frame_log_spectral_distance_db, floor=floor)


def log_magnitude_l1_db(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR
) -> float:
    """Mean absolute difference of log magnitudes, in dB.

    Parameters and errors as in :func:`log_spectral_distance_db`.

    Returns
    -------
    float
        dB, lower is better; times ln(10)/20 it is auraloss' L1 of natural-log magnitudes.

    References
    ----------
    .. [1] S. Arik et al., "Fast spectrogram inversion using multi-head convolutional neural networks", IEEE SPL 2019.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    return file_mean(pair, frame_log_magnitude_l1_db, floor=floor)


def spectral_convergence(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """Spectral convergence √(Σ(A − Â)² / ΣA²), sums over all frames and bins.

    Parameters and errors as in :func:`log_spectral_distance_db`; no logarithm, so no floor.

    Returns
    -------
    float
        Ratio, lower is better; |1 − k| for an estimate that is k times the reference.

    References
    ----------
    .. [1] S. Arik et al., "Fast spectrogram inversion using multi-head convolutional neural networks", IEEE SPL 2019.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    error, energy = file_sums(pair, (frame_magnitude_error, frame_reference_energy), floor=FLOOR)
    if energy == 0.0:
        raise UndefinedMetricError("the reference has no energy in any frame; spectral convergence has no value")
    return float(np.sqrt(error / energy))


def ltas_distance_of(reference: np.ndarray, estimate: np.ndarray, *, floor: float) -> float:
    """RMS over bins of the level difference of two long-term average spectra (power), its mean removed, in dB."""
    difference = np.log(np.maximum(reference, floor)) - np.log(np.maximum(estimate, floor))
    return float(DB_PER_NEPER_OF_POWER * np.std(difference))


def ltas_distance_db(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR
) -> float:
    """Distance of long-term average spectra: how far timbre, but not level, has moved.

    The signals need neither alignment nor equal length; parameters and errors otherwise as in
    :func:`log_spectral_distance_db`.

    Returns
    -------
    float
        dB, lower is better; 0 for a pure gain. Meaningful as a ratio to the distance of two references.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=False)
    first, second = (signal_moments(source, floor=floor, cepstra=False) for source in pair)
    return ltas_distance_of(first.mean_power, second.mean_power, floor=floor)


def spectral_flatness_db(signal: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR) -> float:
    """Spectral flatness in dB, the mean over frames: 0 for a flat spectrum, −2.51 for white noise.

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)
    sample_rate_hz : int
    floor : float

    Returns
    -------
    float
        dB, ≤ 0; nearer to 0 is noisier.

    Raises
    ------
    AudioParameterError
        Unusable signal, or a sample is not finite.
    UndefinedMetricError
        The signal is digital silence.
    """
    return signal_mean(signal, frame_flatness_db, sample_rate_hz=sample_rate_hz, floor=floor)


def spectral_centroid_hz(signal: np.ndarray, *, sample_rate_hz: int) -> float:
    """Centre of gravity of the power spectrum, the mean over frames that are not all zero, in Hz.

    Parameters and errors as in :func:`spectral_flatness_db`; a quarter of the sample rate for white noise.
    """
    return signal_mean(signal, frame_centroid_hz, sample_rate_hz=sample_rate_hz, floor=FLOOR)


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

    Parameters and errors as in :func:`log_spectral_distance_db`; the floor is that of a band's power.

    Returns
    -------
    float
        dB, lower is better; 0 for equal signals and for a pure gain.

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
