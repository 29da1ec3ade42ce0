"""Figures over time: drift under teacher forcing, and survival of free-running streams.

Firm lines are running medians; controls are dashed. The noise floor, the reference with another noise seed, is what
chance alone does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from precision_eval.core.figures import RecordedSeries, TeacherForcedFigures
from precision_eval.report.drawing import INK, NotDrawn, dress, label_line_ends, lay_out, new_figure, style_of
from precision_eval.results.model import Group, Row
from precision_eval.results.reading import Run

DRIFT_PANELS = (
    ("relative_error", "relative error of the logits"),
    ("kl_nats", "KL(float64 ‖ fix), nats per token"),
)
WINDOW_FRACTION = 0.06
"""Share of a drift series that its running median takes in."""

Ends = list[tuple[float, str, str]]
"""Last value, label and color of each line."""

Points = tuple[list[float], list[float]]
"""Times in seconds, and values."""


def draw_drift(run: Run, group: Group) -> Figure:
    """Draw the drift of every fix, and of the controls, against time."""
    rows = [row for row in group.curing if _drift_series(row, "relative_error")]
    if not rows:
        raise NotDrawn(f"drift over time of {group.title}: no teacher-forced series")
    rows += [row for row in run.comparators(group, "teacher_forced_drift") if row.role == "control"]
    panels = [panel for panel in DRIFT_PANELS if any(_drift_series(row, panel[0]) for row in rows)]
    figure = new_figure(7.0, 0.6 + 3.2 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    ends = [_drift_panel(axes, rows, *panel) for axes, panel in zip(grid, panels, strict=True)]
    grid[0].set_title(f"{group.title}: drift under teacher forcing", loc="left", fontsize=10.5, color=INK)
    lay_out(figure)
    for axes, names in zip(grid, ends, strict=True):
        label_line_ends(axes, names)
    return figure


def _drift_series(row: Row, name: str) -> Points | None:
    points = _points(row.errors.series if isinstance(row.errors, TeacherForcedFigures) else None, name)
    return points if points is not None and max(points[1]) > 0 else None


def _drift_panel(axes: Axes, rows: Sequence[Row], name: str, label: str) -> Ends:
    """Draw one kind of drift: each step as recorded in faint, its running median firm."""
    ends = []
    axes.set_yscale("log")
    for row in rows:
        points = _drift_series(row, name)
        if points is None:
            continue
        time_s, values = np.asarray(points[0]), np.asarray(points[1])
        positive = np.where(values > 0, values, np.nan)  # an exact step has no place on a log axis: a gap
        smooth = running_median(values, window=round(WINDOW_FRACTION * values.size) | 1)
        smooth = np.where(smooth > 0, smooth, np.nan)
        style = style_of(row.fix)
        axes.plot(time_s, positive, color=style.colour, alpha=0.22, linewidth=0.7)
        axes.plot(time_s, smooth, color=style.colour, linestyle=style.line, linewidth=1.8)
        last = smooth[np.isfinite(smooth)]
        if last.size:
            ends.append((float(last[-1]), _label(row), style.text_colour))
    _name_axes(axes, "time into the scored speech, s", label)
    return ends


def draw_survival(run: Run, group: Group) -> Figure:
    """Draw which share of the streams is still on the reference's tokens."""
    rows = [row for row in group.curing if _survival_series(row, "fraction")]
    if not rows:
        raise NotDrawn(f"survival of {group.title}: divergence was not measured")
    others = [row for row in run.comparators(group, "divergence") if _survival_series(row, "fraction")]
    figure = new_figure(7.0, 3.6)
    axes = figure.subplots()
    ends = [_survival_curve(axes, row) for row in (*others, *rows)]
    axes.set_ylim(-0.03, 1.04)
    axes.set_yticks(np.linspace(0, 1, 6), [f"{100 * share:.0f} %" for share in np.linspace(0, 1, 6)])
    _name_axes(axes, "time since the prompt, s", "streams on the reference's tokens")
    axes.set_title(f"{group.title}: survival of free-running streams", loc="left", fontsize=10.5, color=INK)
    lay_out(figure)
    label_line_ends(axes, ends)
    return figure


def _survival_series(row: Row, name: str) -> Points | None:
    return _points(row.divergence.survival if row.divergence else None, name)


def _points(series: RecordedSeries | None, name: str) -> Points | None:
    """Return times (s) and values of a series, gaps left out; None where fewer than two points exist."""
    pairs = [] if series is None else zip(series.time_s, getattr(series, name), strict=True)
    known = [(time_s, value) for time_s, value in pairs if value is not None]
    return ([time_s for time_s, _ in known], [value for _, value in known]) if len(known) > 1 else None


def _survival_curve(axes: Axes, row: Row) -> tuple[float, str, str]:
    """Draw a curve as steps, with the recorded interval as a band until a fix's last stream is lost."""
    style = style_of(row.fix)
    time_s, share = _survival_series(row, "fraction") or ([], [])
    low, high = _survival_series(row, "low"), _survival_series(row, "high")
    if row.role == "fix" and low and high and low[0] == high[0] == time_s:
        uncertain = np.asarray(share) > 0
        uncertain[1:] |= uncertain[:-1]  # up to the last loss; from there on no stream is left to be unsure of
        axes.fill_between(
            time_s, low[1], high[1], where=uncertain.tolist(), step="post", color=style.colour, alpha=0.13, lw=0
        )
    width = 2.4 if row.role == "noise_floor" else 1.8
    axes.step(time_s, share, where="post", color=style.colour, linewidth=width, linestyle=style.line)
    counts = f", {row.divergence.diverged} of {row.divergence.streams} diverged" if row.divergence else ""
    return share[-1], _label(row) + counts, style.text_colour


def running_median(values: np.ndarray, *, window: int) -> np.ndarray:
    """Return the centered running median, shape (n,); the window shrinks at both ends so that nothing is invented."""
    half = max(window // 2, 0)
    return np.array([np.median(values[max(i - half, 0) : i + half + 1]) for i in range(values.size)])


def _label(row: Row) -> str:
    return row.fix.replace("control_", "control: ").replace("noise_floor", "noise floor")


def _name_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)
    axes.margins(x=0.01)
    dress(axes)
