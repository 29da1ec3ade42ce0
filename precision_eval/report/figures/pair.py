"""Two aligned recordings at a glance: both spectrograms, their difference, the metrics over time, what was flagged.

Conventions: the files are read block by block and spectra are averaged into at most 800 columns of time and 512 rows
of frequency, so an hour takes no more memory than a minute. A cell of the difference is the mean power of the estimate
over the mean power of the reference, in dB. A metric with more than 240 windows is drawn as the median of groups
of neighbours with their range as a band.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from audio_metrics import AudioComparison, Flag, Series, metric_by_name
from audio_metrics.frames import FrameBlock, FrameGrid
from audio_metrics.spectra import FLOOR
from precision_eval.core.formatting import title_of
from precision_eval.report.drawing import FAINT, INK, dress, new_figure

MAX_COLUMNS = 800
MAX_ROWS = 512
MAX_POINTS = 240
DRAWN = ("log_spectral_distance_db", "mel_mcd_db", "si_sdr_db")
_RANGE_DB = 80.0
_DIFFERENCE_DB = 20.0
_SHORT_S = 180.0
_FLAG_COLOUR = "#D55E00"
_DIVERGED_COLOUR = "#CC0000"


class Spectrograms:
    """Mean power over time and frequency of two signals, taken from the blocks of a pass."""

    def __init__(self) -> None:
        self._sums: np.ndarray | None = None
        self._frames = np.zeros(0)
        self.duration_s = self.high_hz = 0.0

    def add(self, grid: FrameGrid, block: FrameBlock) -> None:
        """Add the power of a block's frames to the columns they belong to."""
        n_columns = min(MAX_COLUMNS, grid.n_frames)
        fold = -(-grid.n_bins // MAX_ROWS)
        if self._sums is None:
            self._sums = np.zeros((2, -(-grid.n_bins // fold), n_columns))
            self._frames = np.zeros(n_columns)
            self.duration_s = ((grid.n_frames - 1) * grid.hop_samples + grid.frame_samples) / grid.sample_rate_hz
            self.high_hz = self._sums.shape[1] * fold * grid.sample_rate_hz / grid.frame_samples
        power = block.spectra.power  # (2, n_frames, n_bins)
        index = (block.first_frame + np.arange(power.shape[1])) * n_columns // grid.n_frames
        if len(index) == 0:
            return
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        columns = index[starts]
        by_column = np.add.reduceat(power, starts, axis=1, dtype=np.float64)  # (2, n_columns of the block, n_bins)
        edges = np.arange(0, power.shape[2], fold)
        rows = np.add.reduceat(by_column, edges, axis=2) / np.diff(np.append(edges, power.shape[2]))
        self._sums[:, :, columns] += rows.transpose(0, 2, 1)
        self._frames[columns] += np.diff(np.append(starts, len(index)))

    @property
    def power(self) -> np.ndarray:
        """Mean power, shape (2, n_rows, n_columns)."""
        assert self._sums is not None  # a pass has at least one block
        return self._sums / self._frames

    def level_db(self) -> np.ndarray:
        """In dB re full scale, shape (2, n_rows, n_columns)."""
        return np.asarray(10.0 * np.log10(np.maximum(self.power, FLOOR)))


def draw_pair(comparison: AudioComparison, pictures: Spectrograms, *, names: tuple[str, str]) -> Figure:
    """Draw the figure."""
    figure = new_figure(12.0, 7.2 + 1.5 * len(DRAWN))
    rows = figure.subplots(3 + len(DRAWN), 1, sharex=True, height_ratios=[2.0, 2.0, 2.0, *[1.4] * len(DRAWN)])
    unit_s, unit = (1.0, "s") if pictures.duration_s < _SHORT_S else (60.0, "min")
    _draw_spectrograms(figure, list(rows[:3]), pictures, names, unit_s)
    for axes, name in zip(rows[3:], DRAWN, strict=True):
        _draw_series(axes, name, comparison.summaries[name].series, unit_s)
    _mark(list(rows), comparison, comparison.flags, unit_s)
    rows[-1].set_xlabel(f"time, {unit}", fontsize=9.5, color=INK)
    rows[-1].set_xlim(0.0, comparison.duration_s / unit_s)
    return figure


def _draw_spectrograms(
    figure: Figure, rows: list[Axes], pictures: Spectrograms, names: tuple[str, str], unit_s: float
) -> None:
    level_db = pictures.level_db()
    top_db = float(level_db.max())
    extent = (0.0, pictures.duration_s / unit_s, 0.0, pictures.high_hz / 1000.0)
    panels = [
        (f"reference: {names[0]}", level_db[0], "magma", top_db - _RANGE_DB, top_db, "dB re full scale"),
        (f"estimate: {names[1]}", level_db[1], "magma", top_db - _RANGE_DB, top_db, "dB re full scale"),
        ("estimate over reference", level_db[1] - level_db[0], "RdBu_r", -_DIFFERENCE_DB, _DIFFERENCE_DB, "dB"),
    ]
    for axes, (title, values, colours, low, high, unit) in zip(rows, panels, strict=True):
        image = axes.imshow(
            values,
            origin="lower",
            aspect="auto",
            extent=extent,
            cmap=colours,
            vmin=low,
            vmax=high,
            interpolation="none",
        )
        dress(axes, title=title)
        axes.grid(False)
        axes.set_ylabel("kHz", fontsize=9.5, color=INK)
        bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=12, extend="both" if unit == "dB" else "min")
        bar.set_label(unit, fontsize=9, color=INK)
        bar.ax.tick_params(labelsize=8.5, colors=INK)


def _draw_series(axes: Axes, name: str, series: Series, unit_s: float) -> None:
    """Draw the windows as steps, or the median and range of groups where there are many."""
    metric = metric_by_name(name)
    time_s, low, middle, high = thinned(series)
    if not np.isfinite(middle).any():
        reason = "equal bit for bit: infinite" if np.isposinf(series.value).any() else "no window has a finite value"
        axes.annotate(reason, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", color=FAINT)
    # a step needs a point where the last window ends
    width_s = float(time_s[1] - time_s[0]) if len(time_s) > 1 else 1.0
    time_s = np.append(time_s, time_s[-1] + width_s if len(time_s) else 0.0)
    low, middle, high = (np.append(values, values[-1:] if len(values) else np.nan) for values in (low, middle, high))
    arrow = "lower is closer" if metric.direction == "lower" else "higher is closer"
    dress(axes, title=f"{title_of(name)}, {metric.unit} per second · {arrow}")
    if len(time_s) - 1 < len(series.value):
        axes.fill_between(time_s / unit_s, low, high, color="#0072B2", alpha=0.25, linewidth=0, step="post")
    axes.step(time_s / unit_s, middle, where="post", color="#0072B2", linewidth=1.2)
    axes.set_ylabel(metric.unit, fontsize=9.5, color=INK)


def thinned(series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """At most 240 groups of neighbouring windows: time_s, least, median and greatest; NaN where a group has
    no value.
    """
    values = np.where(np.isfinite(series.value), series.value, np.nan)
    size = max(1, -(-len(values) // MAX_POINTS))
    padded = np.append(values, np.full(-len(values) % size, np.nan)).reshape(-1, size)
    known = np.isfinite(padded).any(axis=1)
    result = np.full((3, len(padded)), np.nan)
    if known.any():
        result[:, known] = np.nanquantile(padded[known], (0.0, 0.5, 1.0), axis=1)
    return series.time_s[::size], result[0], result[1], result[2]


def _mark(rows: list[Axes], comparison: AudioComparison, flags: tuple[Flag, ...], unit_s: float) -> None:
    """Shade windows without a value, and draw a line where something was flagged and where the sounds part."""
    for start_s, stop_s in undefined_spans(comparison.summaries[DRAWN[0]].series):
        for axes in rows[2:]:
            axes.axvspan(start_s / unit_s, stop_s / unit_s, color="#BBBBBB", alpha=0.6, linewidth=0, zorder=0.5)
    marks = [(flag.time_s, f"{flag.signal}: {flag.kind}", _FLAG_COLOUR) for flag in flags if flag.time_s is not None]
    if np.isfinite(comparison.t_div_s):
        marks.append((comparison.t_div_s, "another sound from here (t_div)", _DIVERGED_COLOUR))
    for number, (time_s, text, colour) in enumerate(sorted(marks)):
        for axes in rows:
            axes.axvline(time_s / unit_s, color=colour, linewidth=1.1, linestyle="--")
        late = time_s > 0.7 * comparison.duration_s
        rows[2].annotate(
            text,
            (time_s / unit_s, 0.93 - 0.13 * (number % 6)),
            xycoords=blended_transform_factory(rows[2].transData, rows[2].transAxes),
            xytext=(-4 if late else 4, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            va="top",
            fontsize=8.5,
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )
    if any(np.isnan(comparison.summaries[DRAWN[0]].series.value)):
        note = "grey: no value (digital silence or samples that are not finite)"
        rows[-1].annotate(note, (1.0, 1.04), xycoords="axes fraction", ha="right", fontsize=8.5, color=FAINT)


def undefined_spans(series: Series) -> list[tuple[float, float]]:
    """Stretches of windows without a value, as (start, stop) in seconds."""
    undefined = np.isnan(series.value)
    if len(undefined) < 1 or not undefined.any():
        return []
    width_s = float(series.time_s[1] - series.time_s[0]) if len(series.time_s) > 1 else 1.0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], undefined, [False])).astype(int)))
    starts, stops = edges[::2], edges[1::2]
    return [
        (float(series.time_s[a]), float(series.time_s[b - 1]) + width_s) for a, b in zip(starts, stops, strict=True)
    ]
