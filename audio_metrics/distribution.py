"""Distances between recordings that are not aligned frame by frame.

Conventions: a recording is described by the mean and covariance (n − 1) of its mel-cepstra c0 to c24 (natural-log
band power) and by its long-term average spectrum; windows of digital silence and frames that a non-finite sample
touches are left out. These distances shrink with length and are never zero between two honest readings: use 60 s or
more, and read them as a ratio to the distance of two references.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.errors import UndefinedMetricError
from audio_metrics.frames import FrameGrid, Wanted, blocks
from audio_metrics.signal import Source, checked_pair, refuse_bad_samples
from audio_metrics.spectra import FLOOR, N_CEPSTRA, Spectra, product


class Moments:
    """Running mean power spectrum, and mean and scatter of the mel-cepstra, of one signal."""

    def __init__(self, n_bins: int, *, cepstra: bool) -> None:
        self.n_frames = 0
        self.mean_cepstrum = np.zeros(N_CEPSTRA)
        self._power_sum = np.zeros(n_bins)
        self._scatter = np.zeros((N_CEPSTRA, N_CEPSTRA))
        self._cepstra = cepstra

    def add(self, spectra: Spectra, signal: int, frames: np.ndarray) -> None:
        cepstra = spectra.cepstra[signal] if self._cepstra else None
        if frames.all():
            self._merge(spectra.power_sum[signal], cepstra, len(frames))
        else:
            self.add_values(spectra.power[signal], cepstra, frames)

    def add_values(self, power: np.ndarray, cepstra: np.ndarray | None, frames: np.ndarray) -> None:
        """As :meth:`add`, of power, shape (n_frames, n_bins), and cepstra, shape (n_frames, 25), themselves."""
        power_sum = power[frames].sum(axis=0, dtype=np.float64)
        self._merge(power_sum, None if cepstra is None else cepstra[frames], int(np.count_nonzero(frames)))

    def _merge(self, power_sum: np.ndarray, cepstra: np.ndarray | None, n_new: int) -> None:
        if n_new == 0:
            return
        self._power_sum += power_sum
        if cepstra is not None:
            self._add_cepstra(cepstra)
        self.n_frames += n_new

    def _add_cepstra(self, cepstra: np.ndarray) -> None:
        # Chan, Golub, LeVeque: merge two sets by their means, without cancellation
        n_old, n_new = self.n_frames, len(cepstra)
        mean = cepstra.mean(axis=0)
        centred = cepstra - mean
        shift = mean - self.mean_cepstrum
        total = n_old + n_new
        self._scatter += product(centred.T, centred) + np.outer(shift, shift) * (n_old * n_new / total)
        self.mean_cepstrum = self.mean_cepstrum + shift * (n_new / total)

    @property
    def mean_power(self) -> np.ndarray:
        """Long-term average spectrum, shape (n_bins,)."""
        if self.n_frames == 0:
            raise UndefinedMetricError("no frame outside digital silence; a long-term average spectrum has no value")
        return self._power_sum / self.n_frames

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of the mel-cepstra over n − 1, shape (25, 25)."""
        if self.n_frames < 2:
            raise UndefinedMetricError(f"{self.n_frames} frames outside digital silence; a covariance needs 2 or more")
        return self._scatter / (self.n_frames - 1)


def signal_moments(source: Source, *, floor: float, cepstra: bool) -> Moments:
    refuse_bad_samples(source)
    moments = Moments(FrameGrid(source.sample_rate_hz, source.n_samples).n_bins, cepstra=cepstra)
    wanted = Wanted(attributes=("power_sum", "cepstra") if cepstra else ("power_sum",))
    for _, block in blocks([source], floor=floor, wanted=wanted):
        moments.add(block.spectra, 0, block.outside_silence(0))
    return moments


def frechet_distance_of(reference: Moments, estimate: Moments) -> float:
    """Fréchet distance ‖μ − μ̂‖² + tr(C + Ĉ − 2·(C^½ Ĉ C^½)^½) of two sets of moments."""
    first, second = reference.covariance, estimate.covariance
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    product = np.linalg.eigvalsh(root @ second @ root)
    shift = reference.mean_cepstrum - estimate.mean_cepstrum
    cross = np.sqrt(np.maximum(product, 0.0)).sum()
    distance = shift @ shift + np.trace(first) + np.trace(second) - 2.0 * cross
    return max(0.0, float(distance))


def frechet_distance(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR
) -> float:
    """Fréchet distance of the mel-cepstra c0 to c24 of two recordings.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,) each
        Same dtype; neither alignment nor equal length is needed.
    sample_rate_hz : int
    floor : float
        Smallest band power that a logarithm sees.

    Returns
    -------
    float
        Squared nepers (of power), lower is better; 0 for equal moments. Meaningful as a ratio to the distance of two
        references of the same length.

    Raises
    ------
    AudioParameterError
        The signals cannot be compared, or a sample is not finite.
    UndefinedMetricError
        Fewer than two frames outside digital silence.

    References
    ----------
    .. [1] D. Dowson, B. Landau, "The Fréchet distance between multivariate normal distributions", J. Multivariate
       Analysis 12(3), 1982.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=False)
    first, second = (signal_moments(source, floor=floor, cepstra=True) for source in pair)
    return frechet_distance_of(first, second)
