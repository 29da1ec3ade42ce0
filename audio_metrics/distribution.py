"""Distances between recordings of the same text that are not aligned frame by frame.

Conventions: a recording is described by the mean and covariance (n − 1) of its mel-cepstra c0 to c24 (natural-log
band power) and by its long-term average spectrum; windows of digital silence and frames that a non-finite sample
touches are left out. These distances shrink with length and are never zero between two honest readings: use 60 s or
more, and read them as a ratio to the distance of two references.

Contents: :class:`Moments`, :func:`signal_moments`, :func:`frechet_distance_of`, :func:`frechet_distance`.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.errors import ParameterError, UndefinedMetricError
from audio_metrics.frames import FLOOR, Spectra, blocks
from audio_metrics.mel import N_CEPSTRA, product
from audio_metrics.signal import Source, checked_pair


class Moments:
    """Running mean power spectrum, and mean and scatter of the mel-cepstra, of one signal.

    Parameters
    ----------
    n_bins : int
    cepstra : bool
        Whether mel-cepstra are wanted too.
    """

    def __init__(self, n_bins: int, *, cepstra: bool) -> None:
        self.n_frames = 0
        self.mean_cepstrum = np.zeros(N_CEPSTRA)
        self._power_sum = np.zeros(n_bins)
        self._scatter = np.zeros((N_CEPSTRA, N_CEPSTRA))
        self._cepstra = cepstra

    def add(self, spectra: Spectra, signal: int, frames: np.ndarray) -> None:
        """Add the frames of a block that a mask chooses, shape (n_frames,)."""
        n_new = int(np.count_nonzero(frames))
        if n_new == 0:
            return
        power = spectra.power[signal] if n_new == len(frames) else spectra.power[signal][frames]
        self._power_sum += power.sum(axis=0, dtype=np.float64)
        if self._cepstra:
            self._add_cepstra(spectra.cepstra[signal][frames])
        self.n_frames += n_new

    def _add_cepstra(self, cepstra: np.ndarray) -> None:
        # Chan, Golub, LeVeque: merge two sets by their means, without cancellation
        n_old, n_new = self.n_frames, len(cepstra)
        mean = cepstra.mean(axis=0)
        centred = cepstra - mean
        shift = mean - self.mean_cepstrum
        total = n_old + n_new
        self._scatter += product(np.ascontiguousarray(centred.T), centred) + np.outer(shift, shift) * (
            n_old * n_new / total
        )
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
    """Moments of a whole signal.

    Parameters
    ----------
    source : Source
    floor : float
    cepstra : bool

    Raises
    ------
    ParameterError
        A sample is not finite, or the signal is shorter than a frame.
    """
    moments: Moments | None = None
    for grid, block in blocks([source], floor=floor):
        if moments is None:
            moments = Moments(grid.n_bins, cepstra=cepstra)
        bad = block.bad[0]
        if bad is not None and bad.any():
            sample = block.first_window * grid.window_samples + int(np.argmax(bad))
            raise ParameterError(f"{source.name}: sample {sample} is not finite; cut or repair the signal first")
        moments.add(block.spectra, 0, block.outside_silence(0))
    assert moments is not None  # a grid has at least one window
    return moments


def frechet_distance_of(reference: Moments, estimate: Moments) -> float:
    """Fréchet distance ‖μ − μ̂‖² + tr(C + Ĉ − 2·(C^½ Ĉ C^½)^½) of two sets of moments.

    The root's trace is the sum of the roots of the eigenvalues of the symmetric product, so no general matrix root is
    needed; eigenvalues that rounding makes negative count as 0.
    """
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
    ParameterError
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
