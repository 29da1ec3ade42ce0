"""The fused pass: sums per window of everything that is measured on one signal or on an aligned pair.

Conventions: a frame kernel gives one value per frame; its sums are kept over all usable frames and over active frames
(the reference's, by the absolute gate). A frame is usable where no non-finite sample touches it; of a single signal
also only where it is not all zeros. Sums over frames are kept per window (1 s), sums over samples and what finds a
divergence per half window, so memory grows by about 200 bytes per second of audio and by nothing else, and any longer
stretch is a sum of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from audio_metrics.distribution import Moments
from audio_metrics.errors import UndefinedMetricError
from audio_metrics.frames import FrameBlock, FrameGrid, FrameKernel, Wanted, blocks
from audio_metrics.signal import ArraySource, Source, refuse_bad_samples


@dataclass
class HalfWindowTable:
    """Sums per window and per half window, one row and two rows for every window that holds a sample."""

    grid: FrameGrid
    n_signals: int
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    active_sums: dict[str, np.ndarray] = field(default_factory=dict)
    half_sums: dict[str, np.ndarray] = field(default_factory=dict)
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    moments: tuple[Moments, ...] = ()

    def __post_init__(self) -> None:
        n_halves = 2 * self.grid.n_started_windows
        self.frames = np.zeros(n_halves, np.int16)
        self.active_frames = np.zeros(n_halves, np.int16)
        self.bad_samples = np.zeros((self.n_signals, n_halves), np.int32)
        self.nonzero = np.zeros((self.n_signals, n_halves), bool)
        self.floored_bins = np.zeros(self.n_signals, np.int64)
        self.first_bad_sample: list[int | None] = [None] * self.n_signals
        self.peak = [0.0] * self.n_signals

    @cached_property
    def window_times_s(self) -> np.ndarray:
        """Starts of the windows that are kept, shape (n_windows,)."""
        return np.arange(self.grid.n_windows) * (self.grid.window_samples / self.grid.sample_rate_hz)

    @property
    def silent_windows(self) -> np.ndarray:
        """Windows in which a signal is exactly zero, shape (n_signals, n_started_windows)."""
        return np.asarray(~by_window(self.nonzero).any(axis=-1))

    @property
    def failed_windows(self) -> np.ndarray:
        """Windows with a sample that is not finite in any signal, shape (n_started_windows,)."""
        return np.asarray(by_window(self.bad_samples).any(axis=(0, -1)))

    @property
    def has_whole(self) -> bool:
        """Whether a figure of the whole file can be had: every sample is finite and no signal is all zeros."""
        return not (self.bad_samples.any() or self.silent_windows.all(axis=1).any())

    def put(self, columns: dict[str, np.ndarray], name: str, rows: slice, values: np.ndarray, *, parts: int) -> None:
        """Write rows of the column of that name, which has `parts` rows a window and is made when it is new."""
        if name not in columns:
            columns[name] = np.zeros(parts * self.grid.n_started_windows)
        columns[name][rows] = values


def by_window(halves: np.ndarray) -> np.ndarray:
    """View of half-window rows as windows, shape (..., n_windows, 2)."""
    return halves.reshape(*halves.shape[:-1], -1, 2)


class TableBuilder:
    def __init__(
        self,
        grid: FrameGrid,
        n_signals: int,
        *,
        summed: Collection[str],
        pooled: Collection[str] = (),
        halved: Collection[str] = (),
        moments: bool = False,
    ) -> None:
        self.table = HalfWindowTable(grid, n_signals)
        if moments:
            self.table.moments = tuple(Moments(grid.n_bins, cepstra=True) for _ in range(n_signals))
        self._names = summed, pooled, halved

    def add(self, block: FrameBlock, sample_sums: Mapping[str, np.ndarray]) -> None:
        _add_signals(self.table, block)
        _add_frames(self.table, block, *self._names)
        rows = _rows(block)
        for name, values in sample_sums.items():
            self.table.put(self.table.samples, name, rows, values, parts=2)


def table_of(
    sources: Sequence[Source],
    kernels: Mapping[str, FrameKernel],
    *,
    floor: float,
) -> HalfWindowTable:
    """Run kernels once over one signal or an aligned pair of finite samples."""
    refuse_bad_samples(*sources)
    grid = FrameGrid(sources[0].sample_rate_hz, sources[0].n_samples)
    builder = TableBuilder(grid, len(sources), summed=kernels)
    wanted = Wanted(kernels=kernels, attributes=("bin_sum", "floored_bins"))
    for _, block in blocks(sources, floor=floor, wanted=wanted):
        builder.add(block, {})
    return builder.table


def _rows(block: FrameBlock) -> slice:
    first = 2 * block.first_window
    return slice(first, first + len(block.half_starts))


def _add_signals(table: HalfWindowTable, block: FrameBlock) -> None:
    rows = _rows(block)
    table.floored_bins += block.spectra.floored_bins
    table.nonzero[:, rows] = block.nonzero
    for signal, bad in enumerate(block.bad):
        table.peak[signal] = max(table.peak[signal], block.peak[signal])
        if bad is not None and bad.any():
            table.bad_samples[signal, rows] = np.add.reduceat(bad.astype(np.int64), block.half_starts)
            if table.first_bad_sample[signal] is None:
                start = block.first_window * table.grid.window_samples
                table.first_bad_sample[signal] = start + int(np.argmax(bad))
        if table.moments:
            table.moments[signal].add(block.spectra, signal, block.outside_silence(*range(table.n_signals)))


def _add_frames(
    table: HalfWindowTable,
    block: FrameBlock,
    summed_names: Collection[str],
    pooled_names: Collection[str],
    halved: Collection[str],
) -> None:
    usable = block.finite.all(axis=0)
    if table.n_signals == 1:
        usable &= block.spectra.bin_sum[0] > 0.0
    active = usable & block.spectra.active[0]
    rows, n_halves = _rows(block), len(block.half_starts)
    halves, active_halves = block.half_of_frame[usable], block.half_of_frame[active]
    table.frames[rows] = np.bincount(halves, minlength=n_halves)
    table.active_frames[rows] = np.bincount(active_halves, minlength=n_halves)
    windows, active_windows = halves // 2, active_halves // 2
    window_rows, n_windows = slice(block.first_window, block.stop_window), block.stop_window - block.first_window
    for name in (*summed_names, *pooled_names):
        sums = np.bincount(windows, block.values[name][usable], n_windows)
        table.put(table.sums, name, window_rows, sums, parts=1)
    for name in summed_names:
        sums = np.bincount(active_windows, block.values[name][active], n_windows)
        table.put(table.active_sums, name, window_rows, sums, parts=1)
    for name in halved:
        table.put(table.half_sums, name, rows, np.bincount(halves, block.values[name][usable], n_halves), parts=2)


def _frames_outside_silence(table: HalfWindowTable, sources: Sequence[Source]) -> tuple[np.ndarray, float]:
    for source, silent in zip(sources, table.silent_windows, strict=True):
        if silent.all():
            raise UndefinedMetricError(f"{source.name} is digital silence throughout; the metric has no value")
    left_out = table.silent_windows.all(axis=0)
    n_frames = float(by_window(table.frames)[~left_out].sum())
    if n_frames == 0.0:
        raise UndefinedMetricError("no frame outside digital silence; the metric has no value")
    return np.asarray(left_out), n_frames


def file_sums(sources: Sequence[Source], kernels: Sequence[FrameKernel], *, floor: float) -> list[float]:
    """Sum of each kernel over the frames of a pair, windows of digital silence in both left out."""
    table = table_of(sources, {str(index): kernel for index, kernel in enumerate(kernels)}, floor=floor)
    silent, _ = _frames_outside_silence(table, sources)
    return [float(column[~silent].sum()) for column in table.sums.values()]


def file_mean(sources: Sequence[Source], kernel: FrameKernel, *, floor: float) -> float:
    """Mean of a kernel over the frames of one signal or a pair; otherwise as :func:`file_sums`."""
    table = table_of(sources, {"0": kernel}, floor=floor)
    silent, n_frames = _frames_outside_silence(table, sources)
    return float(table.sums["0"][~silent].sum()) / n_frames


def signal_mean(signal: np.ndarray, kernel: FrameKernel, *, sample_rate_hz: int, floor: float) -> float:
    """Mean of a kernel over the frames of one array that are not all zero; otherwise as :func:`file_sums`."""
    return file_mean([ArraySource(signal, sample_rate_hz=sample_rate_hz, name="signal")], kernel, floor=floor)
