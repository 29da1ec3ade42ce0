"""Teacher-forced drift over time: relative error of the logits and KL divergence, one line per fix.

Both axes of drift are logarithmic. The faint line is each step as recorded (mean over streams), the firm line its
running median; controls are dashed. One figure per section that has a series.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from precision_eval.core.drawing import INK, LeftOut, dress, label_line_ends, new_figure, style_of
from precision_eval.results.data import Row, Run, Section, series_of

PANELS = (
    ("relative_error", "relative error of the logits"),
    ("kl_nats", "KL(float64 ‖ fix), nats per token"),
)
WINDOW_FRACTION = 0.06


def draw_drift(run: Run, section: Section) -> Figure:
    """Draw drift against time for one section."""
    rows = [row for row in section.curing if _series(row, "relative_error")]
    if not rows:
        raise LeftOut(f"drift over time of {section.title}: no teacher-forced series")
    rows += [row for row in run.comparators(section, "teacher_forced_drift") if row.role == "control"]
    figure = new_figure(11.6, 4.7)
    panels = list(figure.subplots(1, len(PANELS), squeeze=False)[0])
    ends = [_draw_panel(axes, rows, name, label) for axes, (name, label) in zip(panels, PANELS, strict=True)]
    streams = {str((row.drift or {}).get("streams", "?")) for row in rows}
    title = f"{section.title}: drift under teacher forcing, mean of {'/'.join(sorted(streams))} streams"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.draw_without_rendering()
    for axes, names in zip(panels, ends, strict=True):
        label_line_ends(axes, names)
    return figure


def running_median(values: np.ndarray, *, window: int) -> np.ndarray:
    """Return the centred running median, shape (n,); the window shrinks at both ends so that nothing is invented."""
    half = max(window // 2, 0)
    return np.array([np.median(values[max(i - half, 0) : i + half + 1]) for i in range(values.size)])


def _series(row: Row, name: str) -> tuple[list[float], list[float]] | None:
    return series_of(row.drift, "series", value=name)


def _draw_panel(axes: Axes, rows: Sequence[Row], name: str, label: str) -> list[tuple[float, str, str]]:
    ends = []
    axes.set_yscale("log")
    for row in rows:
        found = _series(row, name)
        if found is None or max(found[1]) <= 0:
            continue
        time_s, values = np.asarray(found[0]), np.asarray(found[1])
        positive = np.where(values > 0, values, np.nan)  # an exact step has no place on a log axis: a gap
        smooth = running_median(values, window=round(WINDOW_FRACTION * values.size) | 1)
        style = style_of(row.fix)
        axes.plot(time_s, positive, color=style.colour, alpha=0.22, linewidth=0.7)
        axes.plot(time_s, np.where(smooth > 0, smooth, np.nan), color=style.colour, linestyle=style.line, linewidth=1.8)
        last = smooth[smooth > 0]
        if last.size:
            ends.append((float(last[-1]), row.fix.replace("control_", "control: "), style.text_colour))
    axes.set_xlabel("time into the scored speech, s", fontsize=9.5, color=INK)
    axes.set_ylabel(label, fontsize=9.5, color=INK)
    axes.margins(x=0.01)
    dress(axes)
    return ends
