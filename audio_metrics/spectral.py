"""Spectral and mel-cepstral metrics on the shared frames, and the multi-resolution STFT distance on its own.

Conventions: bins are averaged over the whole band, 0 Hz to half the sample rate; decibels are of power; a logarithm
sees ``max(P, floor)``. Kernels take the :class:`~audio_metrics.frames.Spectra` of a block and give one float64 value
per frame; plain functions take whole signals, leave windows of digital silence out (as ``compare`` does) and raise
where nothing is left.

``mel_mcd_db`` is named so because it is not comparable with SPTK's or the literature's mel-cepstral distortions: with
the constant (10/ln 10)/√M it is the RMS level difference of the smoothed mel spectrum in dB, level removed. c0, the
level, is reported apart.

The multi-resolution distance has three resolutions in *samples*, as in auraloss, no padding at the ends, power divided
by Σ w². Per resolution: spectral convergence (pooled over the frames) plus the mean absolute difference of natural-log
magnitudes; then the mean over resolutions. A frame belongs to the 1 s window of its first sample; frames that a
non-finite sample touches are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.fft

from audio_metrics.distribution import signal_moments
from audio_metrics.errors import AudioParameterError, UndefinedMetricError
from audio_metrics.frames import WINDOW_S, taper
from audio_metrics.signal import Source, checked_pair, clean, refuse_bad_samples
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


@dataclass(frozen=True, kw_only=True)
class Resolution:
    n_fft: int
    hop_samples: int
    window_samples: int

    def __post_init__(self) -> None:
        if not (self.hop_samples > 0 and 0 < self.window_samples <= self.n_fft):
            raise AudioParameterError(
                f"{self} cannot be used; expected 0 < hop_samples and 0 < window_samples <= n_fft"
            )


RESOLUTIONS = (
    Resolution(n_fft=1024, hop_samples=120, window_samples=600),
    Resolution(n_fft=2048, hop_samples=240, window_samples=1200),
    Resolution(n_fft=512, hop_samples=50, window_samples=240),
)


@dataclass(frozen=True)
class ResolutionSums:
    """Sums per 1 s window and resolution, each of shape (n_resolutions, n_started_windows)."""

    error: np.ndarray
    energy: np.ndarray
    log_l1: np.ndarray
    frames: np.ndarray

    def distance(self) -> np.ndarray:
        """Distance per window, shape (n_started_windows,); NaN where a resolution has no frame or no energy."""
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.sqrt(self.error / self.energy) + self.log_l1 / self.frames
        defined = (self.energy > 0.0) & (self.frames > 0.0)
        return np.asarray(np.where(defined, each, np.nan).mean(axis=0))

    def pooled(self) -> float:
        whole = ResolutionSums(*(part.sum(axis=1, keepdims=True) for part in vars(self).values()))
        return float(whole.distance()[0])


class _Transform:
    def __init__(self, resolution: Resolution, *, dtype: np.dtype[np.floating], floor: float) -> None:
        self._taper = taper(resolution.window_samples).astype(dtype)
        self._resolution = resolution
        self._floor = dtype.type(floor)

    def values(self, pair: Sequence[np.ndarray], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(A − Â)², A² and |ln A − ln Â| of each frame, summed, summed and averaged over bins, each (n_frames,)."""
        power = np.stack([self._power(samples, starts) for samples in pair])
        magnitude = np.sqrt(power)
        error = np.square(magnitude[0] - magnitude[1]).sum(axis=-1, dtype=np.float64)
        logs = np.log(np.maximum(power, self._floor, out=power), out=power)
        l1 = np.abs(logs[0] - logs[1]).mean(axis=-1, dtype=np.float64)
        return error, np.square(magnitude[0]).sum(axis=-1, dtype=np.float64), 0.5 * l1

    def _power(self, samples: np.ndarray, starts: np.ndarray) -> np.ndarray:
        views = np.lib.stride_tricks.sliding_window_view(samples, self._resolution.window_samples)
        spectrum = scipy.fft.rfft(views[starts] * self._taper, self._resolution.n_fft, axis=-1)
        return np.asarray(np.square(spectrum.real) + np.square(spectrum.imag))


def resolution_sums(
    reference: Source,
    estimate: Source,
    *,
    resolutions: Sequence[Resolution] = RESOLUTIONS,
    floor: float = FLOOR,
    centred: bool = False,
) -> ResolutionSums:
    longest = max(resolution.window_samples for resolution in resolutions)
    if reference.n_samples < longest:
        raise AudioParameterError(f"the signals have {reference.n_samples} samples; expected at least {longest}")
    if not (np.isfinite(floor) and floor > 0.0):
        raise AudioParameterError(f"floor is {floor!r}; expected a finite power above 0")
    pad = max(resolution.n_fft for resolution in resolutions) // 2 if centred else 0
    if reference.n_samples <= pad:
        raise AudioParameterError(
            f"the signals have {reference.n_samples} samples; centered frames need more than {pad}"
        )
    window_samples = round(WINDOW_S * reference.sample_rate_hz)
    n_windows = -(-reference.n_samples // window_samples)
    sums = np.zeros((4, len(resolutions), n_windows))
    transforms = [_Transform(resolution, dtype=reference.dtype, floor=floor) for resolution in resolutions]
    for window in range(n_windows):
        start = window * window_samples
        stop = min(start + window_samples, reference.n_samples)
        last = stop + pad if centred else min(stop + longest - 1, reference.n_samples)
        cleaned = [clean(_read_reflected(source, start - pad, last)) for source in (reference, estimate)]
        if not any(samples[pad : pad + stop - start].any() for samples, _, _ in cleaned):
            continue  # digital silence in both
        for index, (resolution, transform) in enumerate(zip(resolutions, transforms, strict=True)):
            starts = pad + _frame_starts(resolution, start, stop, reference.n_samples, centred=centred)
            starts = starts[_untouched(starts, resolution, [bad for _, bad, _ in cleaned])]
            if len(starts):
                error, energy, log_l1 = transform.values([samples for samples, _, _ in cleaned], starts)
                sums[:, index, window] = error.sum(), energy.sum(), log_l1.sum(), len(starts)
    return ResolutionSums(*sums)


def _read_reflected(source: Source, start: int, stop: int) -> np.ndarray:
    """Samples of a source, mirrored at its ends as ``torch.stft`` does."""
    samples = source.read(max(start, 0), min(stop, source.n_samples))
    before, after = max(-start, 0), max(stop - source.n_samples, 0)
    if before:
        samples = np.concatenate([source.read(1, before + 1)[::-1], samples])
    if after:
        n = source.n_samples
        samples = np.concatenate([samples, source.read(n - after - 1, n - 1)[::-1]])
    return samples


def _frame_starts(resolution: Resolution, start: int, stop: int, n_samples: int, *, centred: bool) -> np.ndarray:
    """First samples, from `start` on, of the frames of a window; of centred ones their middles lie in the window."""
    first = -(-start // resolution.hop_samples) * resolution.hop_samples
    if centred:
        last = n_samples + 1 if stop == n_samples else stop  # torch has 1 + n // hop frames
        return np.arange(first, last, resolution.hop_samples) - start - (resolution.window_samples + 1) // 2
    last = min(stop, n_samples - resolution.window_samples + 1)
    return np.arange(first, max(first, last), resolution.hop_samples) - start


def _untouched(starts: np.ndarray, resolution: Resolution, bad: Sequence[np.ndarray | None]) -> np.ndarray:
    free = np.ones(len(starts), bool)
    for where in bad:
        if where is not None:
            before = np.concatenate(([0], np.cumsum(where)))
            free &= before[starts + resolution.window_samples] == before[starts]
    return free


def multi_resolution_stft_distance(
    reference: np.ndarray,
    estimate: np.ndarray,
    *,
    sample_rate_hz: int,
    resolutions: Sequence[Resolution] = RESOLUTIONS,
    floor: float = FLOOR,
    centred: bool = False,
) -> float:
    """Multi-resolution STFT distance: spectral convergence plus L1 of natural-log magnitudes, averaged.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Same dtype (float32 or float64) and alignment; full scale = 1.0.
    sample_rate_hz : int
    resolutions : sequence of Resolution
    floor : float
        Smallest power that a logarithm sees, above 0.
    centred : bool
        Frames as ``torch.stft(center=True)`` and so auraloss take them: the window in the middle of `n_fft` samples
        around every `hop_samples`-th sample, the signal mirrored at its ends. The default begins with the first
        sample, zero-pads the window behind and mirrors nothing; the two are up to 1 % apart, most in short signals.

    Returns
    -------
    float
        Lower is better; 0 for equal signals, ``|1 − k| + |ln k|`` for an estimate that is k times the reference.

    Raises
    ------
    AudioParameterError
        The signals cannot be compared, a sample is not finite, or they are shorter than the longest window.
    UndefinedMetricError
        Either signal is digital silence in every window.

    References
    ----------
    .. [1] R. Yamamoto et al., "Parallel WaveGAN", ICASSP 2020; sizes as in ``auraloss.freq.MultiResolutionSTFTLoss``.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=True)
    refuse_bad_samples(*pair)
    for source, samples in zip(pair, (reference, estimate), strict=True):
        if not samples.any():
            raise UndefinedMetricError(f"the {source.name} is digital silence; the distance has no value")
    value = resolution_sums(*pair, resolutions=resolutions, floor=floor, centred=centred).pooled()
    if np.isnan(value):
        raise UndefinedMetricError("the reference or the estimate is digital silence; the distance has no value")
    return value
