"""Drift of the spectrum's statistics over a long recording.

Conventions: per window of 60 s (a last one is kept from half its length), the mean and the standard deviation of each
of the 80 mel bands' level in dB over the active frames (absolute gate). *Drift* is the distance of a window from the
same file's first minute; *difference* is the distance from the same window of a reference, which needs no alignment
within the window. Both are the RMS over bands, in dB; a change of level counts. A window with fewer than two active
frames has no value. A steady fault shows in the difference only, a creeping one in the drift.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.distribution import checked_mean, long_windows
from audio_metrics.errors import UndefinedMetricError
from audio_metrics.frames import FLOOR, Block, FrameGrid, Wanted, blocks
from audio_metrics.mel import N_MELS
from audio_metrics.signal import ArraySource, Source, checked_pair, refuse_bad_samples

STATISTICS_WINDOW_S = 60.0
_DB_PER_NEPER_OF_POWER = 10.0 / np.log(10.0)


class WindowStatistics:
    """Running sums per window of one signal of the pass."""

    def __init__(self, grid: FrameGrid, signal: int = 0) -> None:
        self._signal = signal
        self._hop_samples = grid.hop_samples
        self.window_samples, n_windows = long_windows(grid, STATISTICS_WINDOW_S)
        self._frames = np.zeros(n_windows)
        self._sums = np.zeros((2, n_windows, N_MELS))

    def add(self, block: Block) -> None:
        """Add the active frames of a block."""
        starts = (block.first_frame + np.arange(len(block.half_of_frame))) * self._hop_samples
        windows = starts // self.window_samples
        used = block.spectra.active[self._signal] & block.outside_silence(self._signal)
        for window in np.unique(windows[used]):
            if window < len(self._frames):
                level_db = _DB_PER_NEPER_OF_POWER * block.spectra.log_bands[self._signal][used & (windows == window)]
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
    ParameterError
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
        dB, lower is better; |g| for a gain of g dB that moves no frame across the gate.

    Raises
    ------
    ParameterError
        The signals cannot be compared, or a sample is not finite.
    UndefinedMetricError
        No window has two active frames in both.
    """
    return _difference_db(reference, estimate, 0, sample_rate_hz=sample_rate_hz, floor=floor)


def mel_spread_difference_db(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR
) -> float:
    """As :func:`mel_mean_difference_db`, of the standard deviation of each band's level: 0 for a pure gain."""
    return _difference_db(reference, estimate, 1, sample_rate_hz=sample_rate_hz, floor=floor)
