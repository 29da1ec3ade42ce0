"""Metrics on samples.

Conventions: sums in float64 whatever the dtype of the signal; full scale = 1.0; ratios in dB. SNR and SI-SDR use the
residual itself, never a difference of energies, so that they stay true to 150 dB. The mean is not removed unless
asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from audio_metrics.errors import AudioParameterError, UndefinedMetricError
from audio_metrics.frames import FrameBlock, FrameGrid, blocks
from audio_metrics.signal import ArraySource, check_aligned_samples, check_samples, clean, refuse_bad_samples
from audio_metrics.spectra import Workspace, row_products

CLIP_LEVEL = 1.0
_CHUNK_SAMPLES = 1 << 16
_STRETCH_SAMPLES = 1 << 13
_STRETCHES = 4


@dataclass(frozen=True)
class ProjectionSums:
    """Energies of stretches of a reference r and an estimate e, each of shape (..., n_stretches)."""

    reference: np.ndarray
    estimate: np.ndarray
    product: np.ndarray
    noise: np.ndarray
    residual: np.ndarray

    def pooled(self) -> ProjectionSums:
        reference, product = self.reference.sum(axis=-1), self.product.sum(axis=-1)
        apart = _ratio(self.product, self.reference) - _ratio(product, reference)[..., None]
        residual = (self.residual + apart**2 * self.reference).sum(axis=-1)
        return ProjectionSums(reference, self.estimate.sum(axis=-1), product, self.noise.sum(axis=-1), residual)

    @property
    def snr_db(self) -> np.ndarray:
        """10·log10(‖r‖² / ‖e − r‖²); inf where equal, NaN where r is zero."""
        return _decibels(self.reference, self.noise, defined=self.reference > 0.0)

    @property
    def si_sdr_db(self) -> np.ndarray:
        """10·log10(‖α r‖² / ‖e − α r‖²); inf for a scaled copy, −inf where orthogonal, NaN where r or e is zero."""
        target = _ratio(self.product, self.reference) * self.product
        return _decibels(target, self.residual, defined=(self.reference > 0.0) & (self.estimate > 0.0))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    zeros = np.zeros(np.shape(numerator))
    return np.divide(numerator, denominator, out=zeros, where=np.asarray(denominator) > 0.0)


def _decibels(signal: np.ndarray, noise: np.ndarray, *, defined: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(defined, 10.0 * (np.log10(signal) - np.log10(noise)), np.nan))


def projection_sums(
    reference: np.ndarray, estimate: np.ndarray, starts: np.ndarray, *, workspace: Workspace | None = None
) -> ProjectionSums:
    workspace = Workspace() if workspace is None else workspace
    edges = np.append(starts, len(reference))
    lengths = np.diff(edges)
    sums = np.empty((5, len(starts)))
    first = 0
    while first < len(starts):
        next_lengths = np.append(lengths[first : first + _STRETCHES], -1)
        alike = int(np.argmax(next_lengths != lengths[first]))  # stretches of one length are summed together
        part = slice(int(edges[first]), int(edges[first + alike]))
        pair = (samples[part].reshape(alike, -1) for samples in (reference, estimate))
        sums[:, first : first + alike] = _stretch_sums(*pair, workspace=workspace)
        first += alike
    return ProjectionSums(*sums)


def _stretch_sums(reference: np.ndarray, estimate: np.ndarray, *, workspace: Workspace) -> np.ndarray:
    """The five sums of stretches of equal length, shape (5, n_stretches), of signals of shape (n_stretches, n)."""
    r, e = workspace.wide("wide_reference", reference), workspace.wide("wide_estimate", estimate)
    energy, product = row_products(r, r), row_products(e, r)
    difference = np.subtract(e, r, out=workspace.array("wide_difference", r.shape, np.float64))
    noise = row_products(difference, difference)
    np.multiply(r, _ratio(product, energy)[:, None], out=difference)
    np.subtract(e, difference, out=difference)
    return np.stack([energy, row_products(e, e), product, noise, row_products(difference, difference)])


def _chunks(*signals: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    for start in range(0, len(signals[0]), _CHUNK_SAMPLES):
        chunk = tuple(samples[start : start + _CHUNK_SAMPLES].astype(np.float64) for samples in signals)
        for _, bad, _ in map(clean, chunk):
            if bad is not None:
                sample = start + int(np.argmax(bad))
                raise AudioParameterError(f"sample {sample} is not finite; cut or repair the signal first")
        yield chunk


def _whole_sums(reference: np.ndarray, estimate: np.ndarray, *, zero_mean: bool) -> ProjectionSums:
    check_aligned_samples(reference, estimate)
    means = (0.0, 0.0)
    if zero_mean:
        totals = np.sum([[r.sum(), e.sum()] for r, e in _chunks(reference, estimate)], axis=0)
        means = (float(totals[0]) / len(reference), float(totals[1]) / len(reference))
    parts = []
    for r, e in _chunks(reference, estimate):
        parts.append(projection_sums(r - means[0], e - means[1], np.arange(0, len(r), _STRETCH_SAMPLES)).pooled())
    sums = ProjectionSums(*np.array([[*vars(part).values()] for part in parts]).T).pooled()
    for name, energy in (("reference", sums.reference), ("estimate", sums.estimate)):
        if energy == 0.0:
            raise UndefinedMetricError(f"the {name} has zero energy; the ratio has no value")
    return sums


def snr_db(reference: np.ndarray, estimate: np.ndarray) -> float:
    """Signal-to-noise ratio 10·log10(Σ r² / Σ (e − r)²) over the whole signal.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,)
        Same rate, dtype and alignment; full scale = 1.0.

    Returns
    -------
    float
        dB, higher is better; ``inf`` for equal signals. A gain counts as noise.

    Raises
    ------
    AudioParameterError
        Lengths or dtypes differ, or a sample is not finite.
    UndefinedMetricError
        Either signal has zero energy.
    """
    return float(_whole_sums(reference, estimate, zero_mean=False).snr_db)


def si_sdr_db(reference: np.ndarray, estimate: np.ndarray, *, zero_mean: bool) -> float:
    """Scale-invariant signal-to-distortion ratio over the whole signal.

    Signals and errors as in :func:`snr_db`.

    Parameters
    ----------
    zero_mean : bool
        Remove each mean first. No default: papers differ.

    Returns
    -------
    float
        dB, higher is better; a perfect estimate gives ``inf``, a scaled copy ``inf`` or the rounding of its samples.

    References
    ----------
    .. [1] J. Le Roux et al., "SDR - half-baked or well done?", ICASSP 2019.
    """
    return float(_whole_sums(reference, estimate, zero_mean=zero_mean).si_sdr_db)


def _checked_signal(signal: np.ndarray) -> np.ndarray:
    check_samples(signal, "signal")
    return signal


def rms_dbfs(signal: np.ndarray) -> float:
    """Root mean square of a signal in dB re full scale (a full-scale square wave is 0 dB, a sine −3.01 dB).

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)

    Raises
    ------
    AudioParameterError
        Unusable signal, or a sample is not finite.
    UndefinedMetricError
        The signal is digital silence.
    """
    energy = sum(float(np.sum(np.square(x))) for (x,) in _chunks(_checked_signal(signal)))
    if energy == 0.0:
        raise UndefinedMetricError("the signal is digital silence; its level in dB has no value")
    return float(10.0 * np.log10(energy / len(signal)))


def dc_offset(signal: np.ndarray) -> float:
    """Mean of the samples, full scale = 1.0; errors as in :func:`rms_dbfs` but for silence, whose offset is 0."""
    return sum(float(x.sum()) for (x,) in _chunks(_checked_signal(signal))) / len(signal)


def clipping_fraction(signal: np.ndarray) -> float:
    """Fraction of samples of magnitude 1.0 or more; errors as in :func:`dc_offset`."""
    clipped = sum(int(np.count_nonzero(np.abs(x) >= CLIP_LEVEL)) for (x,) in _chunks(_checked_signal(signal)))
    return clipped / len(signal)


class SilenceRuns:
    """Counts silent frames and their longest run over blocks that arrive in order."""

    def __init__(self) -> None:
        self.n_silent = self.n_frames = self.longest = 0
        self._open = 0

    def add(self, block: FrameBlock) -> None:
        """Add the frames of the next block: silent where finite and under the absolute gate."""
        silent = block.finite[0] & ~block.spectra.active[0]
        self.n_frames += len(silent)
        self.n_silent += int(np.count_nonzero(silent))
        sounding = np.flatnonzero(~silent)
        if len(sounding) == 0:
            self._open += len(silent)
            self.longest = max(self.longest, self._open)
            return
        inner = int(np.max(np.diff(sounding), initial=1)) - 1
        self.longest = max(self.longest, self._open + int(sounding[0]), inner)
        self._open = len(silent) - 1 - int(sounding[-1])
        self.longest = max(self.longest, self._open)


def _silence_runs(signal: np.ndarray, sample_rate_hz: int) -> tuple[SilenceRuns, float]:
    source = ArraySource(signal, sample_rate_hz=sample_rate_hz, name="signal")
    refuse_bad_samples(source)
    runs, grid = SilenceRuns(), FrameGrid(sample_rate_hz, source.n_samples)
    for _, block in blocks([source]):
        runs.add(block)
    return runs, grid.hop_samples / grid.sample_rate_hz


def silence_fraction(signal: np.ndarray, *, sample_rate_hz: int) -> float:
    """Fraction of frames whose windowed mean square is under −60 dB re full scale.

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)
    sample_rate_hz : int

    Raises
    ------
    AudioParameterError
        Unusable signal, shorter than a frame, or a sample is not finite.
    """
    runs, _ = _silence_runs(signal, sample_rate_hz)
    return runs.n_silent / runs.n_frames


def longest_silence_s(signal: np.ndarray, *, sample_rate_hz: int) -> float:
    """Longest run of frames under −60 dB re full scale, in seconds (frames × hop); as :func:`silence_fraction`."""
    runs, hop_s = _silence_runs(signal, sample_rate_hz)
    return runs.longest * hop_s
