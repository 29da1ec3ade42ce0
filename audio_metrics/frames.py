"""The one blockwise short-time Fourier pass that every metric shares.

Conventions: periodic Hann window of 42.7 ms and hop of 10.7 ms (1024/256 samples at 24 kHz; at other rates ``hop =
round(256 · fs / 24000)`` and a window of four hops), no padding, transform length = window length. Power is ``P =
|X|² / Σ w²``, so that white noise of variance v has P = v in every bin. A tail that fills no frame is dropped and
counted. Logarithms see ``max(P, floor)``; nothing else is floored. The transform runs in the dtype of the signal
(float32, or float64 for identities); whatever is summed is summed in float64.

Windows over time are 1 s long and start at 0; each has two halves. A frame belongs to the window of its first sample.
A last window is kept from half its length. A block is a whole number of windows with all their frames, so a window's
sums do not depend on the size of the blocks, and memory does not grow with the length.

Contents: :class:`FrameGrid`, :class:`Spectra`, :class:`Block`, :func:`blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.fft

from audio_metrics.errors import ParameterError
from audio_metrics.mel import MelBands, cosine_basis, product
from audio_metrics.signal import Source, clean

FLOOR = 1e-10
"""Smallest power that a logarithm sees: −100 dB re full scale."""

GATE_DB = -60.0
"""A frame is active where its windowed mean square is at least this many dB re full scale. Absolute, so that no frame
depends on another."""

WINDOW_S = 1.0
BLOCK_WINDOWS = 3


@dataclass(frozen=True)
class FrameGrid:
    """Where frames and windows lie in a signal.

    Parameters
    ----------
    sample_rate_hz : int
    n_samples : int

    Raises
    ------
    ParameterError
        The signal is shorter than one frame.
    """

    sample_rate_hz: int
    n_samples: int

    def __post_init__(self) -> None:
        if self.n_samples < self.frame_samples:
            raise ParameterError(
                f"the signal has {self.n_samples} samples; expected at least one frame of {self.frame_samples} "
                f"at {self.sample_rate_hz} Hz"
            )

    @property
    def hop_samples(self) -> int:
        """Distance of neighbouring frames, 10.7 ms."""
        return round(256 * self.sample_rate_hz / 24000)

    @property
    def frame_samples(self) -> int:
        """Length of a frame and of its transform, 42.7 ms."""
        return 4 * self.hop_samples

    @property
    def n_bins(self) -> int:
        """Bins from 0 Hz to half the sample rate, both included."""
        return self.frame_samples // 2 + 1

    @property
    def n_frames(self) -> int:
        """Frames that lie wholly in the signal."""
        return 1 + (self.n_samples - self.frame_samples) // self.hop_samples

    @property
    def dropped_samples(self) -> int:
        """Samples after the last frame."""
        return self.n_samples - (self.n_frames - 1) * self.hop_samples - self.frame_samples

    @property
    def window_samples(self) -> int:
        """Length of a window over time, 1 s."""
        return round(WINDOW_S * self.sample_rate_hz)

    @property
    def n_started_windows(self) -> int:
        """Windows that hold a sample, the last of any length."""
        return -(-self.n_samples // self.window_samples)

    @property
    def n_windows(self) -> int:
        """Windows that are kept: a last one from half its length."""
        full, rest = divmod(self.n_samples, self.window_samples)
        return full + (2 * rest >= self.window_samples)

    def half_starts(self, first_window: int, stop_window: int) -> np.ndarray:
        """First samples of the half windows of some windows, as far as they hold a sample, shape (≤ 2 · windows,)."""
        starts = np.arange(first_window, stop_window)[:, None] * self.window_samples
        halves = (starts + np.array([0, self.window_samples // 2])).ravel()
        return halves[halves < self.n_samples]

    def frame_range(self, start: int, stop: int) -> tuple[int, int]:
        """Frames (first, stop) whose first sample lies from `start` to `stop` (exclusive)."""
        first, last = -(-start // self.hop_samples), -(-stop // self.hop_samples)
        return min(first, self.n_frames), min(last, self.n_frames)


class Spectra:
    """Power spectra of the frames of one block, for one or two signals; what derives from them is computed once.

    Parameters
    ----------
    power : np.ndarray, shape (n_signals, n_frames, n_bins)
        P; with two signals the reference is 0 and the estimate 1.
    floor : float
        Smallest power that a logarithm sees.
    bands : MelBands
    basis : np.ndarray, shape (25, 80)
    bin_hz : float
        Distance of neighbouring bins.
    """

    def __init__(self, power: np.ndarray, *, floor: float, bands: MelBands, basis: np.ndarray, bin_hz: float) -> None:
        self.power = power
        self.floor = floor
        self.bin_hz = bin_hz
        self._bands = bands
        self._basis = basis

    @cached_property
    def log_power(self) -> np.ndarray:
        """Natural log of max(P, floor), shape (n_signals, n_frames, n_bins)."""
        floored = np.maximum(self.power, self.power.dtype.type(self.floor))
        with np.errstate(divide="ignore"):  # a floor of 0 asks for infinities
            return np.asarray(np.log(floored, out=floored))

    @cached_property
    def log_ratio(self) -> np.ndarray:
        """Natural log of P of the reference less that of the estimate, shape (n_frames, n_bins)."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.log_power[0] - self.log_power[1])

    @cached_property
    def bin_sum(self) -> np.ndarray:
        """Σ P over all bins, shape (n_signals, n_frames), float64."""
        return np.asarray(self.power.sum(axis=-1, dtype=np.float64))

    @cached_property
    def mean_square(self) -> np.ndarray:
        """Windowed mean square Σ (w·x)² / Σ w² by Parseval's theorem, shape (n_signals, n_frames), float64."""
        frame_samples = 2 * (self.power.shape[-1] - 1)
        ends = self.power[..., 0].astype(np.float64) + self.power[..., -1]
        return np.asarray((2.0 * self.bin_sum - ends) / frame_samples)

    @cached_property
    def active(self) -> np.ndarray:
        """Whether a frame reaches the absolute gate, shape (n_signals, n_frames)."""
        return np.asarray(self.mean_square >= 10.0 ** (GATE_DB / 10.0))

    @cached_property
    def log_bands(self) -> np.ndarray:
        """Natural log of max(band power, floor), shape (n_signals, n_frames, 80), float64."""
        band_power = np.maximum(self._bands.power(self.power), self.floor)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(band_power, out=band_power))

    @cached_property
    def cepstra(self) -> np.ndarray:
        """Mel-cepstra c0 to c24 of ln band power (floored on the band), shape (n_signals, n_frames, 25), float64."""
        with np.errstate(invalid="ignore"):
            return product(self.log_bands, self._basis.T)

    def floored_bins(self) -> np.ndarray:
        """Number of bins under the floor, shape (n_signals,)."""
        return np.count_nonzero(self.power < self.floor, axis=(1, 2))


@dataclass(frozen=True)
class Block:
    """A whole number of windows of one or two signals, with the frames that start in them.

    Attributes
    ----------
    first_window, stop_window : int
    first_frame : int
        Index in the whole signal of the block's first frame.
    samples : tuple of np.ndarray, each of shape (n,)
        With zeros where a sample was not finite.
    bad : tuple of np.ndarray of bool or None
        Where a sample was not finite; None where nowhere.
    half_starts : np.ndarray, shape (n_halves,)
        First sample of each half window, counted from the block's first sample.
    half_of_frame : np.ndarray, shape (n_frames,)
        Index into `half_starts`.
    nonzero : np.ndarray of bool, shape (n_signals, n_halves)
        Whether a half window holds a sample other than zero.
    finite : np.ndarray of bool, shape (n_signals, n_frames)
        Frames that no bad sample touches.
    peak : tuple of float
        Largest finite magnitude.
    spectra : Spectra
    """

    first_window: int
    stop_window: int
    first_frame: int
    samples: tuple[np.ndarray, ...]
    bad: tuple[np.ndarray | None, ...]
    half_starts: np.ndarray
    half_of_frame: np.ndarray
    nonzero: np.ndarray
    finite: np.ndarray
    peak: tuple[float, ...]
    spectra: Spectra

    def outside_silence(self, signal: int) -> np.ndarray:
        """Frames of a signal that no bad sample touches and whose window is not digital silence, shape (n_frames,)."""
        sounds = self.nonzero[signal]
        if len(sounds) % 2:
            sounds = np.append(sounds, False)  # a last window that ends in its first half
        return np.asarray(self.finite[signal] & sounds.reshape(-1, 2).any(axis=1)[self.half_of_frame // 2])


class _Analyser:
    """Window, scaling and tables for one grid and dtype."""

    def __init__(self, grid: FrameGrid, *, dtype: np.dtype[Any], floor: float) -> None:
        n = grid.frame_samples
        hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(n) / n)
        self.grid = grid
        self._taper = (hann / np.sqrt(np.sum(hann**2))).astype(dtype)  # 1/Σw² folded in
        self._floor = floor
        self._bands = MelBands(grid.sample_rate_hz, n)
        self._basis = cosine_basis()

    def spectra(self, signals: Sequence[np.ndarray], n_frames: int, offset: int) -> Spectra:
        """Spectra of the `n_frames` frames from sample `offset` on."""
        grid = self.grid
        tapered = np.empty((len(signals), n_frames, grid.frame_samples), self._taper.dtype)
        for index, samples in enumerate(signals):
            if n_frames:
                views = np.lib.stride_tricks.sliding_window_view(samples[offset:], grid.frame_samples)
                np.multiply(views[:: grid.hop_samples][:n_frames], self._taper, out=tapered[index])
        power = _squared_magnitude(tapered)
        bin_hz = grid.sample_rate_hz / grid.frame_samples
        return Spectra(power, floor=self._floor, bands=self._bands, basis=self._basis, bin_hz=bin_hz)


def _squared_magnitude(tapered: np.ndarray) -> np.ndarray:
    if tapered.size == 0:
        return np.empty((*tapered.shape[:-1], tapered.shape[-1] // 2 + 1), tapered.dtype)
    spectrum = scipy.fft.rfft(tapered, axis=-1, overwrite_x=True)
    power = np.square(spectrum.real)
    power += np.square(spectrum.imag)
    return power


def blocks(
    sources: Sequence[Source], *, floor: float = FLOOR, block_windows: int = BLOCK_WINDOWS
) -> Iterator[tuple[FrameGrid, Block]]:
    """Read sources of equal length together, block by block.

    Parameters
    ----------
    sources : sequence of Source
        One, or a reference and an estimate; same sample rate, dtype and length.
    floor : float
        Smallest power that a logarithm sees, ≥ 0. With 0, an empty bin gives infinities.
    block_windows : int
        Windows of 1 s read at once.

    Yields
    ------
    FrameGrid, Block

    Raises
    ------
    ParameterError
        Shorter than one frame, or an unusable `floor` or `block_windows`.
    """
    if not (np.isfinite(floor) and floor >= 0.0):
        raise ParameterError(f"floor is {floor!r}; expected a finite power of at least 0")
    if block_windows < 1:
        raise ParameterError(f"block_windows is {block_windows}; expected at least 1")
    grid = FrameGrid(sources[0].sample_rate_hz, sources[0].n_samples)
    analyser = _Analyser(grid, dtype=sources[0].dtype, floor=floor)
    for first in range(0, grid.n_started_windows, block_windows):
        yield grid, _block(sources, analyser, first, min(first + block_windows, grid.n_started_windows))


def _block(sources: Sequence[Source], analyser: _Analyser, first_window: int, stop_window: int) -> Block:
    grid = analyser.grid
    start = first_window * grid.window_samples
    stop = min(stop_window * grid.window_samples, grid.n_samples)
    read_stop = min(stop + grid.frame_samples - 1, grid.n_samples)  # frames reach past the last window
    cleaned = [clean(source.read(start, read_stop)) for source in sources]
    signals = [samples for samples, _, _ in cleaned]
    first_frame, stop_frame = grid.frame_range(start, stop)
    frame_starts = np.arange(first_frame, stop_frame) * grid.hop_samples - start
    half_starts = grid.half_starts(first_window, stop_window) - start
    own = stop - start
    finite = np.ones((len(sources), len(frame_starts)), bool)
    for index, (_, bad, _) in enumerate(cleaned):
        if bad is not None:
            before = np.concatenate(([0], np.cumsum(bad)))
            finite[index] = before[frame_starts + grid.frame_samples] == before[frame_starts]
    nonzero = [np.logical_or.reduceat(samples[:own] != 0.0, half_starts) for samples in signals]
    return Block(
        first_window=first_window,
        stop_window=stop_window,
        first_frame=first_frame,
        samples=tuple(samples[:own] for samples in signals),
        bad=tuple(None if bad is None else bad[:own] for _, bad, _ in cleaned),
        half_starts=half_starts,
        half_of_frame=np.searchsorted(half_starts, frame_starts, side="right") - 1,
        nonzero=np.array(nonzero),
        finite=finite,
        peak=tuple(peak for _, _, peak in cleaned),
        spectra=analyser.spectra(signals, len(frame_starts), first_frame * grid.hop_samples - start),
    )
