"""Distances between recordings that are not aligned frame by frame.

Conventions: a recording is described by the mean and covariance (n − 1) of its mel-cepstra c0 to c24 (natural-log
band power) and by its long-term average spectrum; windows of digital silence and frames that a non-finite sample
touches are left out. These distances shrink with length and are never zero between two honest readings: use 60 s or
more, and read them as a ratio to the distance of two references.

*Drift* and *difference* are of the mean and the standard deviation of each mel band's level in dB, over the active
frames of windows of 60 s (a last one is kept from half its length). Drift is the distance of a window from the same
file's first minute; difference that from the same window of a reference. Both are the RMS over bands; a change of level
counts. A steady fault shows in the difference only, a creeping one in the drift.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from audio_metrics.errors import AudioParameterError, UndefinedMetricError
from audio_metrics.frames import FrameBlock, FrameGrid, Wanted, blocks
from audio_metrics.signal import ArraySource, Source, checked_pair, refuse_bad_samples
from audio_metrics.spectra import DB_PER_NEPER_OF_POWER, FLOOR, N_CEPSTRA, N_MELS, Spectra, product

DISCREPANCY_WINDOW_S = 60.0
DISCREPANCY_MAX_FRAMES = 200


class Moments:
    """Running mean power spectrum, and mean and scatter of the mel-cepstra, of one signal."""

    def __init__(self, n_bins: int, *, cepstra: bool) -> None:
        self.n_frames = 0
        self.mean_cepstrum = np.zeros(N_CEPSTRA)
        self._power_sum = np.zeros(n_bins)
        self._scatter = np.zeros((N_CEPSTRA, N_CEPSTRA))
        self._cepstra = cepstra

    def add(self, spectra: Spectra, signal: int, frames: np.ndarray) -> None:
        """Add the frames of a block that a mask chooses, shape (n_frames,)."""
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
    """Moments of a whole signal."""
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


def long_windows(grid: FrameGrid | Source, window_s: float) -> tuple[int, int]:
    """Length in samples and number of long windows: a last one counts from half its length, the only one always."""
    n_samples = round(window_s * grid.sample_rate_hz)
    full, rest = divmod(grid.n_samples, n_samples)
    return n_samples, max(1, full + (2 * rest >= n_samples))


def sampled_cepstra(source: Source, *, floor: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every k-th frame's mel-cepstra of each window of 60 s, in order."""
    grid = FrameGrid(source.sample_rate_hz, source.n_samples)
    window_samples, n_windows = long_windows(grid, DISCREPANCY_WINDOW_S)
    firsts = -(-np.arange(n_windows + 1) * window_samples // grid.hop_samples)
    step = -(-min(int(np.diff(firsts).max()), grid.n_frames) // DISCREPANCY_MAX_FRAMES)
    held: list[tuple[np.ndarray, np.ndarray]] = []
    window = 0
    for _, block in blocks([source], floor=floor, wanted=Wanted(attributes=("bin_sum", "cepstra"))):
        frames = block.first_frame + np.arange(len(block.half_of_frame))
        windows = np.searchsorted(firsts, frames, side="right") - 1
        places = frames - firsts[windows]
        wanted = (places % step == 0) & block.outside_silence(0) & (windows < n_windows)
        cepstra = block.spectra.cepstra[0]
        while window < min(n_windows, int(windows[-1]) if len(windows) else 0):
            held.append((places[wanted & (windows == window)], cepstra[wanted & (windows == window)]))
            yield _joined(held)
            held, window = [], window + 1
        held.append((places[wanted & (windows == window)], cepstra[wanted & (windows == window)]))
    if window < n_windows:
        yield _joined(held)


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([places for places, _ in parts]), np.concatenate([cepstra for _, cepstra in parts])


def _squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    inner = product(first, np.ascontiguousarray(second.T))
    sizes = np.square(first).sum(axis=1)[:, None] + np.square(second).sum(axis=1)[None, :]
    return np.asarray(np.maximum(sizes - 2.0 * inner, 0.0))


def discrepancy_of(
    reference: np.ndarray,
    estimate: np.ndarray,
    places: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    kernel_width: float | None = None,
) -> float:
    """Unbiased squared maximum mean discrepancy of two sets of vectors; inf where only the estimate has too few."""
    if len(reference) < 2:
        return float("nan")
    if len(estimate) < 2:
        return float("inf")
    within = _squared_distances(reference, reference)
    apart = ~np.eye(len(reference), dtype=bool)
    scale = float(np.median(np.sqrt(within[apart]))) if kernel_width is None else kernel_width
    if scale == 0.0:
        return float("nan")
    others = _squared_distances(estimate, estimate)[~np.eye(len(estimate), dtype=bool)]
    crosswise = np.ones((len(reference), len(estimate)), bool)
    if places is not None:
        crosswise = places[0][:, None] != places[1][None, :]
    across = _squared_distances(reference, estimate)[crosswise]
    kernel_means = [float(np.exp(values / (-2.0 * scale**2)).mean()) for values in (within[apart], others, across)]
    return kernel_means[0] + kernel_means[1] - 2.0 * kernel_means[2]


def checked_mean(values: np.ndarray, needed: str) -> float:
    """Mean over windows; an error where none has a value, or one only of the reference."""
    if np.isinf(values).any():
        first = int(np.argmax(np.isinf(values)))
        raise UndefinedMetricError(f"the estimate lacks {needed} in window {first}, the reference does not; no value")
    if np.isnan(values).all():
        raise UndefinedMetricError(f"no window has {needed} in both signals; no value")
    return float(np.nanmean(values))


def window_discrepancies(
    reference: Source, estimate: Source, *, floor: float, kernel_width: float | None = None
) -> np.ndarray:
    """Discrepancy of each pair of 60 s windows, shape (n_windows,), as far as both signals reach."""
    pairs = zip(sampled_cepstra(reference, floor=floor), sampled_cepstra(estimate, floor=floor), strict=False)
    return np.array(
        [
            discrepancy_of(first, second, (here, there), kernel_width=kernel_width)
            for (here, first), (there, second) in pairs
        ]
    )


def maximum_mean_discrepancy(
    reference: np.ndarray,
    estimate: np.ndarray,
    *,
    sample_rate_hz: int,
    floor: float = FLOOR,
    kernel_width: float | None = None,
) -> float:
    """Unbiased squared maximum mean discrepancy of the mel-cepstra c0 to c24 of two recordings, mean over windows.

    Parameters
    ----------
    reference, estimate, sample_rate_hz, floor
        As in :func:`frechet_distance`.
    kernel_width : float, optional
        Width of the Gaussian kernel in nepers of power. By default the median distance within the reference's window,
        which differs from reference to reference: give one width to compare values of several.

    Returns
    -------
    float
        Exactly 0 for equal signals, around 0 (also below) for two honest readings, at most 2.

    Raises
    ------
    AudioParameterError
        The signals cannot be compared, or a sample is not finite.
    UndefinedMetricError
        No window of both holds two frames outside digital silence.

    Notes
    -----
    Windows of 60 s by samples, a last one from half its length; in each, every k-th frame so that there are at most
    200. Pairs of frames at the same place in both signals are left out of the cross term: aligned recordings would
    otherwise count as nearer than their distributions are.

    References
    ----------
    .. [1] A. Gretton et al., "A kernel two-sample test", J. Machine Learning Research 13, 2012; mean over windows as in
       W. Zaremba et al., "B-test", NeurIPS 2013.
    """
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=False)
    refuse_bad_samples(*pair)
    if kernel_width is not None and not (np.isfinite(kernel_width) and kernel_width > 0.0):
        raise AudioParameterError(f"kernel_width is {kernel_width!r}; expected a finite number above 0")
    values = window_discrepancies(*pair, floor=floor, kernel_width=kernel_width)
    return checked_mean(values, "two frames outside digital silence")


STATISTICS_WINDOW_S = 60.0


class WindowStatistics:
    """Running sums per window of a pass over one signal."""

    def __init__(self, grid: FrameGrid) -> None:
        self._hop_samples = grid.hop_samples
        self.window_samples, n_windows = long_windows(grid, STATISTICS_WINDOW_S)
        self._frames = np.zeros(n_windows)
        self._sums = np.zeros((2, n_windows, N_MELS))

    def add(self, block: FrameBlock) -> None:
        """Add the active frames of a block."""
        starts = (block.first_frame + np.arange(len(block.half_of_frame))) * self._hop_samples
        windows = starts // self.window_samples
        used = block.spectra.active[0] & block.outside_silence(0)
        for window in np.unique(windows[used]):
            if window < len(self._frames):
                level_db = DB_PER_NEPER_OF_POWER * block.spectra.log_bands[0][used & (windows == window)]
                self._frames[window] += len(level_db)
                self._sums[0, window] += level_db.sum(axis=0)
                self._sums[1, window] += np.square(level_db).sum(axis=0)

    def result(self) -> np.ndarray:
        """Mean and standard deviation per window and band in dB, shape (2, n_windows, 80)."""
        frames = np.where(self._frames >= 2, self._frames, np.nan)[:, None]
        mean = self._sums[0] / frames
        variance = self._sums[1] / frames - np.square(mean)
        return np.stack([mean, np.sqrt(np.maximum(variance, 0.0))])


def window_statistics(source: Source, *, floor: float = FLOOR) -> np.ndarray:
    """Mean and standard deviation of the band levels per window, shape (2, n_windows, 80), in dB."""
    statistics = WindowStatistics(FrameGrid(source.sample_rate_hz, source.n_samples))
    for _, block in blocks([source], floor=floor, wanted=Wanted(attributes=("bin_sum", "log_bands"))):
        statistics.add(block)
    return statistics.result()


def _distance_db(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.mean(np.square(first - second), axis=-1)))


def drifts_of(statistics: np.ndarray) -> np.ndarray:
    """Distance of mean and spread of each window from the first one's, shape (2, n_windows); the first is 0."""
    return _distance_db(statistics, statistics[:, :1])


def differences_of(reference: np.ndarray, estimate: np.ndarray) -> np.ndarray:
    """Distance of mean and spread of each window from the reference's, shape (2, n_windows), as far as both reach;
    inf where only the estimate has too few active frames.
    """
    n_windows = min(reference.shape[1], estimate.shape[1])
    first, second = reference[:, :n_windows], estimate[:, :n_windows]
    lost = np.isnan(second).all(axis=-1) & ~np.isnan(first).all(axis=-1)
    return np.asarray(np.where(lost, np.inf, _distance_db(first, second)))


def _drift_db(signal: np.ndarray, which: int, *, sample_rate_hz: int, floor: float) -> float:
    source = ArraySource(signal, sample_rate_hz=sample_rate_hz, name="signal")
    refuse_bad_samples(source)
    values = drifts_of(window_statistics(source, floor=floor))[which, 1:]
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        raise UndefinedMetricError(
            f"the signal has {source.n_samples / source.sample_rate_hz:.1f} s; a drift from the first minute needs "
            "90 s or more, with active frames in the first minute and after it"
        )
    return float(defined.mean())


def mel_mean_drift_db(signal: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR) -> float:
    """Distance of the mean mel spectrum of later minutes from that of the first, the mean over windows.

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)
        90 s or more.
    sample_rate_hz : int
    floor : float
        Smallest band power that a logarithm sees.

    Returns
    -------
    float
        dB; what another text of the same speaker gives is its null, not 0.

    Raises
    ------
    AudioParameterError
        Unusable signal, or a sample is not finite.
    UndefinedMetricError
        Shorter than 90 s, or no active frames in the first minute or after it.
    """
    return _drift_db(signal, 0, sample_rate_hz=sample_rate_hz, floor=floor)


def mel_spread_drift_db(signal: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR) -> float:
    """As :func:`mel_mean_drift_db`, of the standard deviation of each band's level: 0 for a pure change of level."""
    return _drift_db(signal, 1, sample_rate_hz=sample_rate_hz, floor=floor)


def _difference_db(
    reference: np.ndarray, estimate: np.ndarray, which: int, *, sample_rate_hz: int, floor: float
) -> float:
    pair = checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=False)
    refuse_bad_samples(*pair)
    values = differences_of(*(window_statistics(source, floor=floor) for source in pair))[which]
    return checked_mean(values, "two active frames")


def mel_mean_difference_db(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR
) -> float:
    """Distance of the mean mel spectra of two recordings, minute by minute, the mean over windows.

    Parameters and errors as in :func:`frechet_distance`, and

    Returns
    -------
    float
        dB, lower is better; |g| for a gain of g dB that moves no frame across the gate.

    Raises
    ------
    UndefinedMetricError
        No window has two active frames in both.
    """
    return _difference_db(reference, estimate, 0, sample_rate_hz=sample_rate_hz, floor=floor)


def mel_spread_difference_db(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR
) -> float:
    """As :func:`mel_mean_difference_db`, of the standard deviation of each band's level: 0 for a pure gain."""
    return _difference_db(reference, estimate, 1, sample_rate_hz=sample_rate_hz, floor=floor)
