"""What torch versions or commits changed, as one table, one heatmap, CSV and JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from precision_eval.core.formatting import MISSING, counted, factor_text, grouped, memory_text, scientific, status_text
from precision_eval.core.table import Table, make_table
from precision_eval.history.versions import History, Step, VersionSeries
from precision_eval.report.drawing import INK, STATUS_STYLES, NotDrawn, new_figure, save_as

_BYTES = ("peak_bytes", "stored_bytes", "peakmem")
_SHADES = mpl.colormaps["RdBu_r"]
_FULL_SHADE = math.log(4.0)  # factor from which the colour no longer deepens


def heading(history: History) -> str:
    first = history.sets[0]
    count = counted(len(history.positions), "torch version" if history.axis == "torch" else "commit")
    cpu = f" ({first.hardware['cpu']})" if first.hardware.get("cpu") else ""
    changed = f"{len(history.changed):,} of {len(history.series):,} series changed beyond their margin"
    return f"{count} on {first.machine}{cpu}: {changed}"


def versions_table(history: History) -> Table:
    """Return a row per series that changed, with its value at each position."""
    columns = ("case", "mode, size", "fix", "metric", *history.positions, "changed")
    return make_table(columns, map(_row, history.changed), title=heading(history))


def changes_table(history: History) -> Table:
    """Return a row per change that several fixes share, with the range of their factors."""
    steps = grouped(
        ((key.case, f"{key.mode}, {key.size}", key.metric, step.at, _direction(step)), (key.fix, step))
        for key, step in ((series.key, step) for series in history.changed for step in series.steps)
    )
    rows = []
    for (case, place, metric, at, direction), of in steps.items():
        factors = sorted(step.factor for _, step in of if step.factor is not None)
        ends = dict.fromkeys(factor_text(factor) for factor in (factors[:1] + factors[-1:]))
        fixes = of[0][0] if len(of) == 1 else f"{len(of)} fixes"
        rows.append((case, place, metric.replace("_", " "), at, " to ".join(ends) or direction, fixes))
    return make_table(("case", "mode, size", "metric", "at", "change", "of"), rows, title=heading(history))


def _direction(step: Step) -> str:
    """Return what tells changes that are named apart from others of their place."""
    if step.factor is None:
        return f"{status_text(str(step.old))} → {status_text(str(step.new))}"
    return "more" if step.factor > 1.0 else "less"


def _row(series: VersionSeries) -> tuple[str, ...]:
    key = series.key
    values = (value_text(value, key.metric) for value in series.values)
    changes = "; ".join(step_text(step) for step in series.steps)
    return (key.case, f"{key.mode}, {key.size}", key.fix, key.metric.replace("_", " "), *values, changes)


def value_text(value: float | str | None, metric: str) -> str:
    """Write a value of a metric: bytes in binary units, other figures with three digits."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return status_text(value)
    return memory_text(value) if metric in _BYTES else scientific(value, digits=3)


def step_text(step: Step) -> str:
    if step.factor is None:
        return f"{status_text(str(step.old))} → {status_text(str(step.new))} at {step.at}"
    return f"{factor_text(step.factor)} at {step.at}"


def as_data(history: History) -> dict[str, Any]:
    """Return the history as JSON takes it; what is not finite is null."""
    return {
        "axis": history.axis,
        "machine": history.sets[0].machine,
        "positions": list(history.positions),
        "series": [
            {
                **series.key._asdict(),
                "values": list(series.values),
                "steps": [
                    {"before": step.before, "at": step.at, "old": step.old, "new": step.new} for step in series.steps
                ],
            }
            for series in history.series
        ],
        "notes": list(history.notes),
    }


def draw_heatmap(history: History, path: Path) -> None:
    """Draw every series that changed: colour is the factor to its first figure, a status has its own colour."""
    rows, positions = history.changed, history.positions
    if not rows:
        raise NotDrawn("nothing changed beyond its margin, so there is nothing to draw")
    figure = new_figure(5.2 + 0.72 * len(positions), 1.0 + 0.24 * len(rows))
    axes = figure.subplots()
    for row, series in enumerate(rows):
        _draw_row(axes, row, series)
    axes.set(xlim=(-0.5, len(positions) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(positions)), positions)
    names = [f"{each.key.case}, {each.key.mode}: {each.key.fix}, {each.key.metric}" for each in rows]
    axes.set_yticks(range(len(rows)), [name.replace("_", " ") for name in names])
    axes.tick_params(labelsize=7.5, colors=INK, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    title = "torch versions" if history.axis == "torch" else "commits"
    figure.suptitle(f"Changed over {title}; red: more than at first, blue: less", x=0.01, ha="left", fontsize=10)
    save_as(figure, path)


def _draw_row(axes: Axes, row: int, series: VersionSeries) -> None:
    first = next((value for value in series.values if isinstance(value, float)), math.nan)
    for column, value in enumerate(series.values):
        if value is None:
            continue
        color, text = _face(value, first, series.key.metric)
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor="white", lw=1))
        axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=_readable(color))


def _face(value: float | str, first: float, metric: str) -> tuple[str, str]:
    """Return a cell's colour and text; the text of a status is its letter."""
    if isinstance(value, str):
        style = STATUS_STYLES[value]
        return style.colour, style.letter
    shade = math.log(value / first) / _FULL_SHADE if value > 0.0 and first > 0.0 else 1.0
    return mpl.colors.to_hex(_SHADES(0.5 + 0.5 * max(-1.0, min(1.0, shade)))), value_text(value, metric)


def _readable(color: str) -> str:
    red, green, blue = to_rgb(color)
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5 else INK
