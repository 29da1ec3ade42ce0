"""Quality against speed: drift (log axis) over the latency ratio, of the fixes of one group.

Lower left is better. The area of a disc is memory (storage and peak of a call); whiskers are the recorded intervals on
both axes; the staircase is the Pareto front of the point estimates; fixes that do not run are listed below, where they
cover nothing.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from precision_eval.core.formatting import join, memory_text, status_text
from precision_eval.report.drawing import FAINT, INK, NotDrawn, dress, lay_out, new_figure, place_labels, style_of
from precision_eval.results.choose.comparing import value_front
from precision_eval.results.model import Group, Row
from precision_eval.results.reading import Run

WIDTH_IN = 5.6
LARGEST_MARKER_PT2 = 420.0
SMALLEST_MARKER_PT2 = 60.0
MOST_NAMED = 12
"""With more fixes in a figure, only those on the front are named."""

FRONT_DASHES = (0, (5, 2))
FAILURES_WIDTH = 76  # characters
WIDE_RATIO = 4.0
"""Above this quotient of the slowest and the fastest fix, the axis of speed is logarithmic too."""


@dataclass(frozen=True, kw_only=True)
class TradeoffPoint:
    row: Row
    speed: tuple[float, float, float]
    drift: tuple[float, float, float]


def draw_tradeoff(run: Run, group: Group, *, width_in: float = WIDTH_IN, title: str = "", speed: str = "") -> Figure:
    """Draw a group; on a page that fits figures to its width, a narrower one has larger text."""
    points = points_of(group)
    if not points:
        raise NotDrawn(f"trade-off of {group.title}: no fix has both a latency ratio and a drift")
    below = "\n".join(
        filter(None, ["A/A check failed: distrust these times" * group.noise_floor_off, _failures_text(group)])
    )
    figure = new_figure(width_in, 4.6 * width_in / WIDTH_IN + 0.16 * len(below.splitlines()))
    axes = figure.subplots()
    axes.set_yscale("log")
    _set_limits(axes, points)
    axes.axvline(1.0, color="#BBBBBB", linewidth=1.0, zorder=1)
    corners = _front_corners(axes, group, points)
    axes.plot(*zip(*corners, strict=True), color=FAINT, linewidth=1.3, linestyle=FRONT_DASHES, zorder=2)
    largest = max(point.row.memory_bytes or 0.0 for point in points)
    for point in points:
        _draw_point(axes, point, largest)
    speed = speed or (f"{group.clock} time" if group.clock else "latency")
    label = f"{speed} ratio to {group.baseline} (left is faster)"
    axes.set_xlabel(f"{label}\n{below}" if below else label, fontsize=9.0, color=INK)
    axes.set_ylabel("drift: relative error to float64", fontsize=9.0, color=INK)
    dress(axes, title=title or group.title)
    _draw_legend(figure, largest, front=len(corners) > 1)
    lay_out(figure)
    _label_points(axes, group, points, largest)
    return figure


def points_of(group: Group) -> list[TradeoffPoint]:
    """Return the fixes that run and have a latency ratio and a drift above 0."""
    return [
        TradeoffPoint(row=row, speed=speed, drift=(drift.value, drift.low, drift.high))
        for row in group.curing
        if (speed := group.time_interval(row)) is not None and (drift := row.drift) is not None and drift.value > 0
    ]


def _failures_text(group: Group) -> str:
    parts = [f"{join(fixes)}: {status_text(status)}" for status, fixes in group.failing_by_status.items()]
    return textwrap.fill(f"does not run: {'; '.join(parts)}", FAILURES_WIDTH) if parts else ""


def _draw_point(axes: Axes, point: TradeoffPoint, largest_bytes: float) -> None:
    (x, x_low, x_high), (y, y_low, y_high) = point.speed, point.drift
    style = style_of(point.row.fix)
    axes.errorbar(
        x,
        y,
        xerr=[[max(x - x_low, 0.0)], [max(x_high - x, 0.0)]],
        yerr=[[y - y_low], [y_high - y]] if point.row.paired_drift else None,
        fmt="none",
        color=style.colour,
        elinewidth=1.4,
        capsize=2.8,
        zorder=4,
    )
    area = _area(point.row.memory_bytes, largest_bytes)
    axes.scatter([x], [y], s=area, color=style.colour, marker="o", alpha=0.4, edgecolor=style.colour, zorder=3)
    axes.scatter([x], [y], s=42, color=style.colour, marker=style.marker, edgecolor="white", lw=0.8, zorder=5)


def _set_limits(axes: Axes, points: Sequence[TradeoffPoint]) -> None:
    slowest, quickest = max(point.speed[2] for point in points), min(point.speed[1] for point in points)
    if slowest > WIDE_RATIO * quickest > 0:
        axes.set_xscale("log")
        pad = (slowest / quickest) ** 0.16
        axes.set_xlim(quickest / pad, slowest * pad)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        pad = 0.16 * max(slowest - quickest, 0.2)
        axes.set_xlim(quickest - pad, slowest + pad)
    low = math.log10(min(point.drift[1] for point in points))
    high = math.log10(max(point.drift[2] for point in points))
    span = high - low
    axes.set_ylim(10 ** (low - max(0.35, 0.14 * span)), 10 ** (high + max(0.5, 0.28 * span)))


def _front_corners(axes: Axes, group: Group, points: Sequence[TradeoffPoint]) -> list[tuple[float, float]]:
    by_fix = {point.row.fix: point for point in points}
    front = [by_fix[row.fix] for row in value_front(group) if row.fix in by_fix]
    xs = [point.speed[0] for point in front] + [axes.get_xlim()[1]]
    ys = [axes.get_ylim()[1]] + [point.drift[0] for point in front]
    corners = [(xs[0], ys[0])]
    for i in range(len(front)):
        corners += [(xs[i], ys[i + 1]), (xs[i + 1], ys[i + 1])]
    return corners


def _label_points(axes: Axes, group: Group, every: Sequence[TradeoffPoint], largest_bytes: float) -> None:
    """Write the names of the fixes at their marks; the figure's layout must be settled."""
    front = {row.fix for row in value_front(group)}
    points = [point for point in every if len(every) <= MOST_NAMED or point.row.fix in front or not front]
    pixels = axes.figure.dpi / 72.0
    radii = [(_area(point.row.memory_bytes, largest_bytes) ** 0.5) / 2 * pixels for point in points]
    texts = [(p.speed[0], p.drift[0], p.row.fix, style_of(p.row.fix).text_colour) for p in points]
    obstacles = [(*start, *end) for start, end in pairwise(_front_corners(axes, group, every))]
    obstacles += [(p.speed[1], p.drift[0], p.speed[2], p.drift[0]) for p in points]
    obstacles += [(p.speed[0], p.drift[0], p.speed[0], p.drift[0]) for p in every if p not in points]
    obstacles += [(p.speed[0], p.drift[1], p.speed[0], p.drift[2]) for p in points if p.row.paired_drift]
    obstacles.append((1.0, axes.get_ylim()[0], 1.0, axes.get_ylim()[1]))
    place_labels(axes, texts, radii_px=[max(radius, 5.0) for radius in radii], obstacles=obstacles)


def _area(size_bytes: float | None, largest_bytes: float) -> float:
    if not size_bytes or largest_bytes <= 0:
        return SMALLEST_MARKER_PT2
    return max(SMALLEST_MARKER_PT2, LARGEST_MARKER_PT2 * size_bytes / largest_bytes)


def _draw_legend(figure: Figure, largest_bytes: float, *, front: bool) -> None:
    handles = (
        [Line2D([], [], color=FAINT, linestyle=FRONT_DASHES, linewidth=1.3, label="Pareto front")] if front else []
    )
    for share in (1.0, 0.3) if largest_bytes > 0 else ():
        diameter = _area(share * largest_bytes, largest_bytes) ** 0.5
        label = f"memory {memory_text(share * largest_bytes)}"
        handles.append(Line2D([], [], linestyle="", marker="o", markersize=diameter, color="#C4C4C4", label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
