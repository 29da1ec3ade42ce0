"""Multi-resolution STFT distance, block by block.

Conventions: three resolutions in *samples*, as in auraloss (transform 1024, 2048 and 512; hop 120, 240 and 50; window
600, 1200 and 240), periodic Hann window, no padding at the ends, power divided by Σ w² and floored inside logarithms
only. Per resolution: spectral convergence (pooled over the frames) plus the mean absolute difference of natural-log
magnitudes; then the mean over resolutions. A frame belongs to the 1 s window of its first sample; windows in which
both signals are exactly zero are left out with all their frames, and so are frames that a non-finite sample touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.fft

from audio_metrics.errors import ParameterError, UndefinedMetricError
from audio_metrics.frames import FLOOR, WINDOW_S
from audio_metrics.signal import Source, checked_pair, clean, refuse_bad_samples


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """One transform of the set, in samples."""

    n_fft: int
    hop_samples: int
    window_samples: int

    def __post_init__(self) -> None:
        if not (self.hop_samples > 0 and 0 < self.window_samples <= self.n_fft):
            raise ParameterError(f"{self} cannot be used; expected 0 < hop_samples and 0 < window_samples <= n_fft")


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
        """Distance of all windows together."""
        whole = ResolutionSums(*(part.sum(axis=1, keepdims=True) for part in vars(self).values()))
        return float(whole.distance()[0])


class _Transform:
    def __init__(self, resolution: Resolution, *, dtype: np.dtype[np.floating], floor: float) -> None:
        n = resolution.window_samples
        hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(n) / n)
        self._taper = (hann / np.sqrt(np.sum(hann**2))).astype(dtype)
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
    """Sums of an aligned pair, read in windows of 1 s."""
    longest = max(resolution.window_samples for resolution in resolutions)
    if reference.n_samples < longest:
        raise ParameterError(f"the signals have {reference.n_samples} samples; expected at least {longest}")
    if not (np.isfinite(floor) and floor > 0.0):
        raise ParameterError(f"floor is {floor!r}; expected a finite power above 0")
    pad = max(resolution.n_fft for resolution in resolutions) // 2 if centred else 0
    if reference.n_samples <= pad:
        raise ParameterError(f"the signals have {reference.n_samples} samples; centred frames need more than {pad}")
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
    ParameterError
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
