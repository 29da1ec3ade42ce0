"""Two aligned recordings at a glance: both spectrograms, their difference, the metrics over time, what was flagged.

Conventions: the files are read block by block and spectra are averaged into at most 800 columns of time and 512 rows
of frequency, so an hour takes no more memory than a minute. A cell of the difference is the mean power of the estimate
over the mean power of the reference, in dB.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from audio_metrics import AudioComparison, Flag, Series, metric_by_name
from audio_metrics.frames import WINDOW_S, FrameBlock, FrameGrid
from audio_metrics.spectra import FLOOR
from precision_eval.core.formatting import title_of
from precision_eval.report.drawing import FAINT, INK, dress, new_figure

MAX_COLUMNS = 800
MAX_ROWS = 512
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
    """Draw one step per window; windows without a value are gray."""
    metric = metric_by_name(name)
    finite = np.isfinite(series.value)
    if not finite.any():
        reason = "equal bit for bit: infinite" if np.isposinf(series.value).any() else "no window has a finite value"
        axes.annotate(reason, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", color=FAINT)
    arrow = "lower is closer" if metric.direction == "lower" else "higher is closer"
    dress(axes, title=f"{title_of(name)}, {metric.unit} per second · {arrow}")
    edges = np.append(series.time_s, series.time_s[-1:] + WINDOW_S) / unit_s  # a step ends where its window does
    values = np.where(finite, series.value, np.nan)
    axes.step(edges, np.append(values, values[-1:]), where="post", color="#0072B2", linewidth=1.2)
    axes.set_ylabel(metric.unit, fontsize=9.5, color=INK)


def _mark(rows: list[Axes], comparison: AudioComparison, flags: tuple[Flag, ...], unit_s: float) -> None:
    """Shade windows without a value, and draw a line where something was flagged and where the sounds part."""
    series = comparison.summaries[DRAWN[0]].series
    undefined_s = series.time_s[np.isnan(series.value)]
    for axes in rows[2:]:
        for start_s in undefined_s:
            end_s = start_s + WINDOW_S
            axes.axvspan(start_s / unit_s, end_s / unit_s, color="#BBBBBB", alpha=0.6, linewidth=0, zorder=0.5)
    marks = [(flag.time_s, f"{flag.signal}: {flag.kind}", _FLAG_COLOUR) for flag in flags if flag.time_s is not None]
    if np.isfinite(comparison.parted_s):
        marks.append((comparison.parted_s, "another sound from here (t_div)", _DIVERGED_COLOUR))
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
    if len(undefined_s):
        note = "gray: no value (digital silence or samples that are not finite)"
        rows[-1].annotate(note, (1.0, 1.04), xycoords="axes fraction", ha="right", fontsize=8.5, color=FAINT)
