"""What can be said of one signal without a reference.

Conventions: as in :mod:`audio_metrics.comparison`; a window that is exactly zero has no level, flatness or centroid.
Flatness and centroid are means over frames that are not all zero, and again over active frames.

Contents: :func:`inspect`, :func:`inspect_file`, :class:`Inspection`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from audio_metrics import spectral
from audio_metrics.flags import Flag, json_number, json_numbers, signal_flags, storage_flags
from audio_metrics.frames import BLOCK_WINDOWS, FLOOR, Block
from audio_metrics.longform import Series
from audio_metrics.signal import ArraySource, FileSource, FloatName, Source
from audio_metrics.table import HalfWindowTable, by_window, measure
from audio_metrics.waveform import CLIP_LEVEL, SilenceRuns

_FRAME_METRICS = {
    "spectral_flatness_db": spectral.frame_flatness_db,
    "spectral_centroid_hz": spectral.frame_centroid_hz,
}
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
    "peak",
    "duration_s",
)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What :func:`inspect` found; units in the names, fractions of 1, full scale = 1.0.

    Attributes
    ----------
    series : dict of str to Series
        ``spectral_flatness_db``, ``spectral_centroid_hz`` and ``rms_dbfs`` per 1 s window.
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
    peak: float
    series: dict[str, Series]
    flags: tuple[Flag, ...]

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
    ParameterError
        Unusable signal, or shorter than one frame.
    """
    source = ArraySource(signal, sample_rate_hz=sample_rate_hz, name="signal")
    return _inspect(source, floor=floor, block_windows=block_windows)


def inspect_file(
    path: Path | str, *, dtype: FloatName = "float32", floor: float = FLOOR, block_windows: int = BLOCK_WINDOWS
) -> Inspection:
    """Describe one mono audio file without holding it in memory; as :func:`inspect`."""
    with FileSource(path, dtype=dtype, name="signal") as source:
        result = _inspect(source, floor=floor, block_windows=block_windows)
        return replace(result, flags=result.flags + storage_flags((source,)))


def _inspect(source: Source, *, floor: float, block_windows: int) -> Inspection:
    runs = SilenceRuns()

    def sample_sums(block: Block) -> dict[str, np.ndarray]:
        runs.add(block)
        samples = block.samples[0].astype(np.float64, copy=False)
        clipped = (np.abs(samples) >= CLIP_LEVEL).astype(np.int64)
        return {
            "sum": np.add.reduceat(samples, block.half_starts),
            "energy": np.add.reduceat(samples * samples, block.half_starts),
            "clipped": np.add.reduceat(clipped, block.half_starts),
        }

    table = measure(
        [source],
        frame_kernels=_FRAME_METRICS,
        sample_kernel=sample_sums,
        floor=floor,
        block_windows=block_windows,
    )
    grid = table.grid
    n_finite = grid.n_samples - int(table.bad_samples.sum())
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
        series=_series(table),
        flags=tuple(signal_flags(table, 0, "signal")),
    )


def _mean(table: HalfWindowTable, sums: np.ndarray, frames: np.ndarray) -> float:
    sounding = ~table.silent_windows[0]
    n_frames = float(by_window(frames)[sounding].sum())
    return float(by_window(sums)[sounding].sum()) / n_frames if n_frames else float("nan")


def _level_db(energy: float, n_samples: int) -> float:
    return float(10.0 * np.log10(energy / n_samples)) if energy > 0.0 else float("nan")


def _series(table: HalfWindowTable) -> dict[str, Series]:
    grid = table.grid
    time_s = np.arange(grid.n_windows) * (grid.window_samples / grid.sample_rate_hz)
    frames = by_window(table.frames).sum(axis=-1)
    series = {}
    for name in _FRAME_METRICS:
        sums = by_window(table.sums[name]).sum(axis=-1)
        values = np.divide(sums, frames, out=np.full(sums.shape, np.nan), where=(frames > 0) & ~table.silent_windows[0])
        series[name] = Series(time_s, values[: grid.n_windows])
    starts = np.arange(grid.n_started_windows) * grid.window_samples
    lengths = np.minimum(grid.window_samples, grid.n_samples - starts) - by_window(table.bad_samples[0]).sum(axis=-1)
    energy = by_window(table.samples["energy"]).sum(axis=-1)
    level = [_level_db(float(e), int(n)) for e, n in zip(energy, lengths, strict=True)]
    series["rms_dbfs"] = Series(time_s, np.array(level[: grid.n_windows]))
    return series
