"""What can be said of one signal without a reference.

Conventions: as in :mod:`audio_metrics.comparison`; a window that is exactly zero has no level, flatness or centroid.
Flatness and centroid are means over frames that are not all zero, and again over active frames. Jumps, exact repeats,
and loops are flagged with their time.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from audio_metrics import spectral
from audio_metrics.detectors import LOOP_FLAG, LOOP_WINDOW_S, Clipping, Jumps, Loops, Repeats, Stuck
from audio_metrics.flags import Flag, clock, headline, json_number, json_numbers, signal_flags, storage_flags
from audio_metrics.frames import BLOCK_WINDOWS, FrameBlock, FrameGrid, FrameKernel, Wanted, blocks
from audio_metrics.longform import Series
from audio_metrics.signal import ArraySource, FileSource, FloatName, Source
from audio_metrics.spectra import FLOOR
from audio_metrics.table import HalfWindowTable, TableBuilder, by_window
from audio_metrics.waveform import CLIP_LEVEL, SilenceRuns

_FRAME_METRICS = {
    "spectral_flatness_db": spectral.frame_flatness_db,
    "spectral_centroid_hz": spectral.frame_centroid_hz,
}
DETECTED = frozenset({"jump", "repeat", "loop", "stuck"})  # kinds of flags that only an inspection finds

INSPECTED_ATTRIBUTES = ("bin_sum", "floored_bins", "log_bands", "cepstra")

_SCALARS = (
    "spectral_flatness_db",
    "spectral_flatness_active_db",
    "spectral_centroid_hz",
    "spectral_centroid_active_hz",
    "rms_dbfs",
    "silence_fraction",
    "longest_silence_s",
    "clipping_fraction",
    "dc_offset",
    "jumps_per_min",
    "repeat_fraction",
    "loop_score",
    "peak",
    "duration_s",
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Inspection:
    """What :func:`inspect` found; units in the names, fractions of 1, full scale = 1.0.

    Attributes
    ----------
    series : dict of str to Series
        ``spectral_flatness_db``, ``spectral_centroid_hz`` and ``rms_dbfs`` per 1 s window, ``loop_score`` per 20 s.
    jumps_per_min, repeat_fraction, loop_score : float
        As the plain functions of these names; NaN where they have no value.
    flags : tuple of Flag
    """

    sample_rate_hz: int
    duration_s: float
    spectral_flatness_db: float
    spectral_flatness_active_db: float
    spectral_centroid_hz: float
    spectral_centroid_active_hz: float
    rms_dbfs: float
    silence_fraction: float
    longest_silence_s: float
    clipping_fraction: float
    dc_offset: float
    jumps_per_min: float
    repeat_fraction: float
    loop_score: float
    peak: float
    series: dict[str, Series]
    flags: tuple[Flag, ...]

    @property
    def failed(self) -> bool:
        """Whether a sample is not finite, or all of them are zero."""
        return any(flag.kind == "non_finite" for flag in self.flags) or self.peak == 0.0

    @property
    def headline(self) -> str:
        return headline(self.flags)

    def __repr__(self) -> str:
        about = f"{clock(self.duration_s)} at {self.sample_rate_hz} Hz"
        figures = [f"{name:28s} {getattr(self, name):.4g}" for name in _SCALARS if name != "duration_s"]
        return "\n".join([self.headline, about, *figures])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """As plain data for strict JSON; NaN is None."""
        result: dict[str, Any] = {name: json_number(getattr(self, name)) for name in _SCALARS}
        result["sample_rate_hz"] = self.sample_rate_hz
        result["series"] = {
            name: {"time_s": json_numbers(series.time_s), "value": json_numbers(series.value)}
            for name, series in self.series.items()
        }
        result["flags"] = [flag.to_dict() for flag in self.flags]
        return result


def inspect(
    signal: np.ndarray, *, sample_rate_hz: int, floor: float = FLOOR, block_windows: int = BLOCK_WINDOWS
) -> Inspection:
    """Describe one signal.

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)
        Mono, float32 or float64, full scale = 1.0.
    sample_rate_hz : int
    floor : float
        Smallest power that a logarithm sees.
    block_windows : int
        Windows read at once; changes no result.

    Returns
    -------
    Inspection
        NaN and a flag where silence or samples that are not finite leave no value.

    Raises
    ------
    AudioParameterError
        Unusable signal, or shorter than one frame.
    """
    source = ArraySource(signal, sample_rate_hz=sample_rate_hz, name="signal")
    return _inspect(source, floor=floor, block_windows=block_windows)


def inspect_file(
    path: Path | str,
    *,
    on_progress: Callable[[float], None] | None = None,
    dtype: FloatName = "float32",
    floor: float = FLOOR,
    block_windows: int = BLOCK_WINDOWS,
    mono: bool = False,
) -> Inspection:
    """Describe one audio file without holding it in memory; otherwise as :func:`inspect`.

    Parameters
    ----------
    path : Path or str
        Any format that libsndfile reads.
    on_progress : callable, optional
        Called with the fraction done, 0 to 1, rising.
    dtype : {"float32", "float64"}
        What samples are read as.
    floor, block_windows
        See :func:`inspect`.
    mono : bool
        Mix channels to their mean; else more than one is an error.

    Raises
    ------
    SignalFileError
        The file is missing, unreadable or torn.
    AudioParameterError
        See :func:`inspect`.
    """
    with FileSource(path, dtype=dtype, name="signal", mono=mono) as source:
        result = _inspect(source, floor=floor, block_windows=block_windows, on_progress=on_progress)
        return replace(result, flags=result.flags + storage_flags((source,)))


def _inspect(
    source: Source, *, floor: float, block_windows: int, on_progress: Callable[[float], None] | None = None
) -> Inspection:
    inspector = Inspector(FrameGrid(source.sample_rate_hz, source.n_samples), "signal")
    wanted = Wanted(kernels=kernels_of(0), attributes=INSPECTED_ATTRIBUTES)
    for grid, block in blocks([source], floor=floor, block_windows=block_windows, wanted=wanted):
        inspector.add(block.only(0))
        if on_progress is not None:
            on_progress(block.stop_window / grid.n_started_windows)
    return inspector.result()


def kernels_of(signal: int) -> dict[str, FrameKernel]:
    return {f"{name}:{signal}": partial(kernel, signal=signal) for name, kernel in _FRAME_METRICS.items()}


class Inspector:
    def __init__(self, grid: FrameGrid, name: str) -> None:
        self.name = name
        self._runs = SilenceRuns()
        self._detectors = _Detectors(grid)
        self._builder = TableBuilder(grid, 1, summed=_FRAME_METRICS)

    def add(self, block: FrameBlock) -> None:
        self._runs.add(block)
        self._detectors.add(block)
        samples = block.samples[0].astype(np.float64, copy=False)
        clipped = (np.abs(samples) >= CLIP_LEVEL).astype(np.int64)
        sums = {"sum": samples, "energy": samples * samples, "clipped": clipped}
        self._builder.add(block, {name: np.add.reduceat(values, block.half_starts) for name, values in sums.items()})

    def result(self) -> Inspection:
        table, runs = self._builder.table, self._runs
        grid = table.grid
        n_finite = grid.n_samples - int(table.bad_samples.sum())
        detected = self._detectors.figures()
        totals = {name: float(column.sum()) for name, column in table.samples.items()}
        return Inspection(
            sample_rate_hz=grid.sample_rate_hz,
            duration_s=grid.n_samples / grid.sample_rate_hz,
            spectral_flatness_db=_mean(table, table.sums["spectral_flatness_db"], table.frames),
            spectral_flatness_active_db=_mean(table, table.active_sums["spectral_flatness_db"], table.active_frames),
            spectral_centroid_hz=_mean(table, table.sums["spectral_centroid_hz"], table.frames),
            spectral_centroid_active_hz=_mean(table, table.active_sums["spectral_centroid_hz"], table.active_frames),
            rms_dbfs=_level_db(totals["energy"], n_finite),
            silence_fraction=runs.n_silent / runs.n_frames,
            longest_silence_s=runs.longest * grid.hop_samples / grid.sample_rate_hz,
            clipping_fraction=totals["clipped"] / grid.n_samples,
            dc_offset=totals["sum"] / n_finite if n_finite else float("nan"),
            peak=table.peak[0],
            series=_series(table) | self._detectors.series(),
            flags=(*signal_flags(table, 0, self.name), *self._detectors.flags(self.name)),
            **detected,
        )


class _Detectors:
    def __init__(self, grid: FrameGrid) -> None:
        self._grid = grid
        self._jumps, self._repeats, self._loops = Jumps(grid), Repeats(grid), Loops(grid)
        self._clipping, self._stuck = Clipping(), Stuck(grid)

    def add(self, block: FrameBlock) -> None:
        for detector in (self._jumps, self._repeats, self._loops, self._clipping, self._stuck):
            detector.add(block)

    def figures(self) -> dict[str, float]:
        """The whole signal's figures; also closes the detectors, so it is called once."""
        self._jumps.finish()
        self._loops.finish()
        minutes = self._grid.n_samples / self._grid.sample_rate_hz / 60.0
        return {
            "jumps_per_min": len(self._jumps.starts) / minutes,
            "repeat_fraction": self._repeats.fraction,
            "loop_score": self._loops.worst,
        }

    def series(self) -> dict[str, Series]:
        scores = np.array(self._loops.scores)
        return {"loop_score": Series(np.arange(len(scores)) * LOOP_WINDOW_S, scores)}

    def flags(self, name: str) -> Iterator[Flag]:
        rate = self._grid.sample_rate_hz
        yield from self._clipping.flags(name, rate)
        yield from self._stuck.flags(name)
        if self._jumps.starts:
            count = len(self._jumps.starts)
            message = f"{name} has {count} cells of 10 ms with a jump that stands out of what is around it"
            yield Flag(kind="jump", signal=name, time_s=self._jumps.starts[0] / rate, count=count, message=message)
        if self._repeats.first is not None:
            later, earlier = (sample / rate for sample in self._repeats.first)
            count = self._repeats.n_repeated
            message = f"{name} has {count} stretches of 50 ms heard before, bit for bit, the first at {earlier:.3f} s"
            yield Flag(kind="repeat", signal=name, time_s=later, count=count, message=message)
        scores = np.nan_to_num(np.array(self._loops.scores))
        looped = np.flatnonzero(scores > LOOP_FLAG)
        if len(looped):
            first = int(looped[0])
            count = len(looped)
            every_s = self._loops.lags_s[first]
            message = f"{name} has {count} windows of 20 s that repeat themselves, the first every {every_s:.2f} s"
            time_s = first * LOOP_WINDOW_S
            yield Flag(kind="loop", signal=name, time_s=time_s, count=count, message=message)


def _mean(table: HalfWindowTable, sums: np.ndarray, frames: np.ndarray) -> float:
    sounding = ~table.silent_windows[0]
    n_frames = float(by_window(frames)[sounding].sum())
    return float(sums[sounding].sum()) / n_frames if n_frames else float("nan")


def _level_db(energy: float, n_samples: int) -> float:
    return float(10.0 * np.log10(energy / n_samples)) if energy > 0.0 else float("nan")


def _series(table: HalfWindowTable) -> dict[str, Series]:
    grid = table.grid
    time_s = table.window_times_s
    frames = by_window(table.frames).sum(axis=-1)
    series = {}
    for name in _FRAME_METRICS:
        sums = table.sums[name]
        values = np.divide(sums, frames, out=np.full(sums.shape, np.nan), where=(frames > 0) & ~table.silent_windows[0])
        series[name] = Series(time_s, values[: grid.n_windows])
    starts = np.arange(grid.n_started_windows) * grid.window_samples
    lengths = np.minimum(grid.window_samples, grid.n_samples - starts) - by_window(table.bad_samples[0]).sum(axis=-1)
    energy = by_window(table.samples["energy"]).sum(axis=-1)
    level = [_level_db(float(e), int(n)) for e, n in zip(energy, lengths, strict=True)]
    series["rms_dbfs"] = Series(time_s, np.array(level[: grid.n_windows]))
    return series
