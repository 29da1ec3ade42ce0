"""The one blockwise short-time Fourier pass that every metric shares.

Conventions: periodic Hann window of 42.7 ms and hop of 10.7 ms (1024/256 samples at 24 kHz; at other rates ``hop =
round(256 · fs / 24000)`` and a window of four hops), no padding, transform length = window length. Power is ``P =
|X|² / Σ w²``, so that white noise of variance v has P = v in every bin. A tail that fills no frame is dropped and
counted. Logarithms see ``max(P, floor)``; nothing else is floored. The transform runs in the dtype of the signal
(float32, or float64 for identities); whatever is summed is summed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.fft

from audio_metrics.errors import AudioParameterError
from audio_metrics.signal import Source, clean
from audio_metrics.spectra import FLOOR, MelBands, Spectra, Workspace, cosine_basis

WINDOW_S = 1.0
BLOCK_WINDOWS = 4

PIECE_FRAMES = 188  # frames worked on at once: what they need stays in the second cache

FrameKernel = Callable[[Spectra], np.ndarray]


@dataclass(frozen=True)
class FrameGrid:
    sample_rate_hz: int
    n_samples: int

    def __post_init__(self) -> None:
        if self.n_samples < self.frame_samples:
            raise AudioParameterError(
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


_SUMMED = ("floored_bins", "power_sum")  # over frames; other attributes have values per frame


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is worked out of the frames of every block while they are in the cache."""

    kernels: Mapping[str, FrameKernel] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrameBlock:
    """A whole number of windows of one or two signals, with the frames that start in them."""

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
    values: dict[str, np.ndarray]
    workspace: Workspace

    def only(self, signal: int) -> FrameBlock:
        """The block as if it had been read of one signal alone; values of frames named ``name:signal`` are its own."""
        part = slice(signal, signal + 1)
        own = f":{signal}"
        return replace(
            self,
            samples=self.samples[part],
            bad=self.bad[part],
            nonzero=self.nonzero[part],
            finite=self.finite[part],
            peak=self.peak[part],
            spectra=self.spectra.only(signal),
            values={name.removesuffix(own): values for name, values in self.values.items() if name.endswith(own)},
        )

    def outside_silence(self, *signals: int) -> np.ndarray:
        """Frames that no bad sample of the signals touches, in windows that are not digital silence in all of them."""
        chosen = list(signals)
        sounds = np.asarray(self.nonzero[chosen].any(axis=0))
        if len(sounds) % 2:
            sounds = np.append(sounds, False)  # a last window that ends in its first half
        in_sound = np.asarray(sounds.reshape(-1, 2).any(axis=1))[self.half_of_frame // 2]
        return np.asarray(self.finite[chosen].all(axis=0) & in_sound)


def taper(n: int) -> np.ndarray:
    """Periodic Hann window with 1/Σw² folded in, shape (n,)."""
    hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(n) / n)
    return np.asarray(hann / np.sqrt(np.sum(hann**2)))


@lru_cache(maxsize=4)
def _bands_of(sample_rate_hz: int, n_fft: int) -> MelBands:
    return MelBands(sample_rate_hz, n_fft)


class _Analyser:
    """Window, scaling and tables for one grid and dtype, and room for the frames that are being worked on."""

    def __init__(self, grid: FrameGrid, *, dtype: np.dtype[Any], floor: float, wanted: Wanted) -> None:
        n = grid.frame_samples
        self.grid = grid
        self.workspace = Workspace()
        self._taper = taper(n).astype(dtype)
        self._floor = floor
        self._wanted = wanted
        self._bands = _bands_of(grid.sample_rate_hz, n)
        self._basis = cosine_basis()
        self._piece_workspace = Workspace()

    def spectra(
        self, signals: Sequence[np.ndarray], n_frames: int, offset: int
    ) -> tuple[Spectra, dict[str, np.ndarray]]:
        """Spectra of the `n_frames` frames from sample `offset` on, and the values of the kernels."""
        grid = self.grid
        power = self.workspace.array("power", (len(signals), n_frames, grid.n_bins), self._taper.dtype)
        whole = self._spectra_of(power, self.workspace)
        values = {name: np.empty(n_frames) for name in self._wanted.kernels}
        if n_frames == 0:
            return whole, values
        views = [np.lib.stride_tricks.sliding_window_view(samples[offset:], grid.frame_samples) for samples in signals]
        frames = [view[:: grid.hop_samples][:n_frames] for view in views]
        for start in range(0, n_frames, PIECE_FRAMES):
            part = slice(start, min(start + PIECE_FRAMES, n_frames))
            for index, each in enumerate(frames):
                self._power(each[part], out=power[index, part])
            piece = self._spectra_of(power[:, part], self._piece_workspace)
            for name, kernel in self._wanted.kernels.items():
                values[name][part] = kernel(piece)
            for name in self._wanted.attributes:
                _gather(whole, piece, name, part, n_frames)
        return whole, values

    def _spectra_of(self, power: np.ndarray, workspace: Workspace) -> Spectra:
        bin_hz = self.grid.sample_rate_hz / self.grid.frame_samples
        return Spectra(
            power, floor=self._floor, bands=self._bands, basis=self._basis, bin_hz=bin_hz, workspace=workspace
        )

    def _power(self, frames: np.ndarray, *, out: np.ndarray) -> None:
        """Squared magnitudes of tapered frames, shape (n_frames, n_bins)."""
        workspace = self._piece_workspace
        tapered = np.multiply(frames, self._taper, out=workspace.array("tapered", frames.shape, self._taper.dtype))
        spectrum = scipy.fft.rfft(tapered, axis=-1)
        squares = workspace.array("squares", out.shape, out.dtype)
        np.square(spectrum.real, out=out)
        np.square(spectrum.imag, out=squares)
        out += squares


def _gather(whole: Spectra, piece: Spectra, name: str, part: slice, n_frames: int) -> None:
    """Put an attribute of some frames where the whole block keeps it."""
    found, held = getattr(piece, name), vars(whole)
    if name in _SUMMED:
        held[name] = held[name] + found if name in held else found
        return
    if name not in held:
        held[name] = np.empty((found.shape[0], n_frames, *found.shape[2:]))
    held[name][:, part] = found


def blocks(
    sources: Sequence[Source],
    *,
    floor: float = FLOOR,
    block_windows: int = BLOCK_WINDOWS,
    wanted: Wanted = Wanted(),
) -> Iterator[tuple[FrameGrid, FrameBlock]]:
    if not (np.isfinite(floor) and floor >= 0.0):
        raise AudioParameterError(f"floor is {floor!r}; expected a finite power of at least 0")
    if block_windows < 1:
        raise AudioParameterError(f"block_windows is {block_windows}; expected at least 1")
    grid = FrameGrid(sources[0].sample_rate_hz, sources[0].n_samples)
    analyser = _Analyser(grid, dtype=sources[0].dtype, floor=floor, wanted=wanted)
    for first in range(0, grid.n_started_windows, block_windows):
        yield grid, _block(sources, analyser, first, min(first + block_windows, grid.n_started_windows))


def _block(sources: Sequence[Source], analyser: _Analyser, first_window: int, stop_window: int) -> FrameBlock:
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
    spectra, values = analyser.spectra(signals, len(frame_starts), first_frame * grid.hop_samples - start)
    return FrameBlock(
        first_window=first_window,
        stop_window=stop_window,
        first_frame=first_frame,
        samples=tuple(samples[:own] for samples in signals),
        bad=tuple(None if bad is None else bad[:own] for _, bad, _ in cleaned),
        half_starts=half_starts,
        half_of_frame=np.searchsorted(half_starts, frame_starts, side="right") - 1,
        nonzero=np.array([_nonzero(samples[:own], bad, half_starts) for samples, bad, _ in cleaned]),
        finite=finite,
        peak=tuple(peak for _, _, peak in cleaned),
        spectra=spectra,
        values=values,
        workspace=analyser.workspace,
    )


def _nonzero(samples: np.ndarray, bad: np.ndarray | None, starts: np.ndarray) -> np.ndarray:
    """Whether any sample of each stretch differs from zero, as one that is not finite does."""
    nonzero = samples[starts] != 0.0  # the first sample mostly decides
    stops = np.append(starts[1:], len(samples))
    for index in np.flatnonzero(~nonzero):
        stretch = slice(starts[index], stops[index])
        nonzero[index] = samples[stretch].any() or (bad is not None and bad[stretch].any())
    return np.asarray(nonzero)
