"""Quality against speed: drift (log axis) over the latency ratio, one figure per case and device.

Panels are sizes (columns) × modes (rows). Lower left is better. Marker area is memory (storage and peak of a call);
whiskers are the recorded intervals on both axes; the staircase is the Pareto front of the point estimates; fixes that
do not run are listed below the panel, where they cover nothing. Fixes of a group (:data:`.FIX_GROUPS`) have its small
marker, and are faint where another is better on both axes; among many, only those on the front are named.
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
from matplotlib.transforms import ScaledTranslation

from precision_eval.core.formatting import grouped, memory_text
from precision_eval.report.drawing import (
    FAINT,
    FIX_GROUPS,
    GROUPS_TEXT,
    INK,
    NotDrawn,
    dress,
    lay_out,
    new_figure,
    place_labels,
    style_of,
)
from precision_eval.results.choose.comparing import value_front
from precision_eval.results.model import Group, Row

LARGEST_MARKER_PT2 = 520.0
SMALLEST_MARKER_PT2 = 60.0
TARGET_PT2 = 260.0
"""Of the unseen disc around a mark that a pointer hits."""
MOST_NAMED = 12
"""With more fixes in a panel, those of a group are named on the front only."""

FRONT_DASHES = (0, (5, 2))
FAILURES_BELOW_IN = -0.52  # under the ticks and the label of the axis
FAILURES_WIDTH = 84  # characters
WIDE_RATIO = 4.0
"""Above this quotient of the slowest and the fastest fix, the axis of speed is logarithmic too."""


@dataclass(frozen=True, kw_only=True)
class TradeoffPoint:
    """One fix in one panel; speed and drift with the ends of their intervals."""

    row: Row
    speed: tuple[float, float, float]
    drift: tuple[float, float, float]


def draw_tradeoff(case: str, device: str, sections: Sequence[Group]) -> Figure:
    """Draw the trade-off of one case on one device."""
    panels = {(section.size, section.mode): section for section in sections if points_of(section)}
    if not panels:
        raise NotDrawn(f"trade-off of {case} on {device}: no fix has both a latency ratio and a drift")
    sizes = list(dict.fromkeys(size for size, _ in panels))
    modes = list(dict.fromkeys(mode for _, mode in panels))
    largest = max((point.row.memory_bytes or 0.0 for s in panels.values() for point in points_of(s)), default=0.0)
    crowded = any(is_crowded(points_of(section)) for section in panels.values())
    figure = new_figure(max(8.6, 1.4 + 5.6 * len(sizes)), 1.3 + (6.2 if crowded else 4.3) * len(modes))
    grid = figure.subplots(len(modes), len(sizes), squeeze=False)
    for i, mode in enumerate(modes):
        for j, size in enumerate(sizes):
            section = panels.get((size, mode))
            if section is None:
                grid[i][j].set_axis_off()
                continue
            draw_panel(grid[i][j], section, largest)
            unseen = [other for other in sections if other.size == size and (size, other.mode) not in panels]
            _draw_failures(grid[i][j], section, elsewhere=unseen if i == 0 else [])
            dress(grid[i][j], title=f"{size}, {mode}")
    figure.suptitle(f"{case} on {device}: drift against speed (lower left is better)", x=0.01, ha="left", fontsize=12)
    _draw_legend(figure, largest, [point for section in panels.values() for point in points_of(section)])
    lay_out(figure)
    for (size, mode), section in panels.items():
        label_points(grid[modes.index(mode)][sizes.index(size)], section, largest)
    return figure


def points_of(section: Group) -> list[TradeoffPoint]:
    """Return the fixes that run and have a latency ratio and a drift above 0."""
    return [
        TradeoffPoint(row=row, speed=speed, drift=(drift.value, drift.low, drift.high))
        for row in section.curing
        if (speed := section.time_interval(row)) is not None and (drift := row.drift) is not None and drift.value > 0
    ]


def is_crowded(points: Sequence[TradeoffPoint]) -> bool:
    """Say whether a panel has more fixes than can be named."""
    return len(points) > MOST_NAMED


def draw_panel(axes: Axes, section: Group, largest_bytes: float) -> None:
    """Draw one section, without the names of the fixes."""
    points = points_of(section)
    axes.set_yscale("log")
    _set_limits(axes, points)
    axes.axvline(1.0, color="#BBBBBB", linewidth=1.0, zorder=1)
    corners = _front_corners(axes, section, points)
    axes.plot(*zip(*corners, strict=True), color=FAINT, linewidth=1.3, linestyle=FRONT_DASHES, zorder=2)
    front = {row.fix for row in value_front(section)}
    for point in points:
        if style_of(point.row.fix).group:
            _draw_grouped(axes, point, alpha=1.0 if point.row.fix in front else 0.35)
        else:
            _draw_point(axes, point, largest_bytes)
    axes.set_xlabel(f"latency ratio to {_baseline(points)} (left is faster)", fontsize=9.5, color=INK)
    axes.set_ylabel("drift: relative error to float64", fontsize=9.5, color=INK)


def _draw_grouped(axes: Axes, point: TradeoffPoint, *, alpha: float) -> None:
    """Draw one of a group: its marker, filled by what it narrows, and thin whiskers."""
    x, y, style = point.speed[0], point.drift[0], style_of(point.row.fix)
    _draw_whiskers(axes, point, alpha=0.6 * alpha, width=0.8)
    axes.plot(
        [x],
        [y],
        linestyle="",
        marker=style.marker,
        markersize=6.5,
        fillstyle=style.fill,
        color=style.colour,
        markerfacecoloralt="white",
        markeredgecolor=style.colour,
        alpha=alpha,
        zorder=4,
        gid=f"of {point.row.fix}",
    )
    axes.scatter([x], [y], s=TARGET_PT2 / 3, color=style.colour, alpha=0.0, zorder=6, gid=f"mark {point.row.fix}")


def _draw_point(axes: Axes, point: TradeoffPoint, largest_bytes: float) -> None:
    x, y, style, of = point.speed[0], point.drift[0], style_of(point.row.fix), f"of {point.row.fix}"
    _draw_whiskers(axes, point, alpha=1.0, width=1.4)
    area, colour = _area(point.row.memory_bytes, largest_bytes), style.colour
    axes.scatter([x], [y], s=area, color=colour, marker="o", alpha=0.4, edgecolor=colour, zorder=3, gid=of)
    axes.scatter([x], [y], s=42, color=colour, marker=style.marker, edgecolor="white", lw=0.8, zorder=5, gid=of)
    axes.scatter([x], [y], s=TARGET_PT2, color=colour, alpha=0.0, zorder=7, gid=f"mark {point.row.fix}")


def _draw_whiskers(axes: Axes, point: TradeoffPoint, *, alpha: float, width: float) -> None:
    (x, x_low, x_high), (y, y_low, y_high) = point.speed, point.drift
    whiskers = axes.errorbar(
        x,
        y,
        xerr=[[max(x - x_low, 0.0)], [max(x_high - x, 0.0)]],
        yerr=[[y - y_low], [y_high - y]] if point.row.paired_drift else None,
        fmt="none",
        color=style_of(point.row.fix).colour,
        elinewidth=width,
        capsize=2 * width,
        alpha=alpha,
        zorder=4,
    )
    for artist in (*whiskers.lines[1], *whiskers.lines[2]):
        artist.set_gid(f"of {point.row.fix}")


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


def _front_corners(axes: Axes, section: Group, points: Sequence[TradeoffPoint]) -> list[tuple[float, float]]:
    by_fix = {point.row.fix: point for point in points}
    front = [by_fix[row.fix] for row in value_front(section) if row.fix in by_fix]
    xs = [point.speed[0] for point in front] + [axes.get_xlim()[1]]
    ys = [axes.get_ylim()[1]] + [point.drift[0] for point in front]
    corners = [(xs[0], ys[0])]
    for i in range(len(front)):
        corners += [(xs[i], ys[i + 1]), (xs[i + 1], ys[i + 1])]
    return corners


def _draw_failures(axes: Axes, section: Group, *, elsewhere: Sequence[Group]) -> None:
    """List the fixes that do not run: this panel's, and those of modes in which nothing runs, which have no panel."""
    modes = grouped(((row.status, row.fix), part.mode) for part in (section, *elsewhere) for row in part.failing)
    groups = grouped((status, f"{fix} ({', '.join(names)})") for (status, fix), names in modes.items())
    if not groups:
        return
    text = "does not run: " + "; ".join(f"{', '.join(names)}: {status}" for status, names in groups.items())
    axes.text(
        0.0,
        0.0,
        textwrap.fill(text, FAILURES_WIDTH),
        transform=axes.transAxes + ScaledTranslation(0.0, FAILURES_BELOW_IN, axes.figure.dpi_scale_trans),
        ha="left",
        va="top",
        fontsize=8.5,
        color="#8B1A1A",
    )


def label_points(axes: Axes, section: Group, largest_bytes: float) -> None:
    """Write the names of the fixes beside their marks; the figure's layout must be settled."""
    every = points = points_of(section)
    if is_crowded(every):
        front = {row.fix for row in value_front(section)}
        points = [point for point in every if point.row.fix in front or not style_of(point.row.fix).group]
    pixels = axes.figure.dpi / 72.0
    radii = [(_area(point.row.memory_bytes, largest_bytes) ** 0.5) / 2 * pixels for point in points]
    texts = [(p.speed[0], p.drift[0], p.row.fix, style_of(p.row.fix).text_colour) for p in points]
    corners = _front_corners(axes, section, every)
    obstacles = [(*start, *end) for start, end in pairwise(corners)]
    obstacles += [(p.speed[1], p.drift[0], p.speed[2], p.drift[0]) for p in points]
    obstacles += [(p.speed[0], p.drift[0], p.speed[0], p.drift[0]) for p in every if p not in points]
    obstacles += [(p.speed[0], p.drift[1], p.speed[0], p.drift[2]) for p in points if p.row.paired_drift]
    obstacles.append((1.0, axes.get_ylim()[0], 1.0, axes.get_ylim()[1]))
    place_labels(axes, texts, radii_px=[max(radius, 5.0) for radius in radii], obstacles=obstacles)


def _area(size_bytes: float | None, largest_bytes: float) -> float:
    if not size_bytes or largest_bytes <= 0:
        return SMALLEST_MARKER_PT2
    return max(SMALLEST_MARKER_PT2, LARGEST_MARKER_PT2 * size_bytes / largest_bytes)


def _baseline(points: Sequence[TradeoffPoint]) -> str:
    names = {str((point.row.data("latency") or {}).get("baseline", "the baseline")) for point in points}
    return ", ".join(sorted(names))


def _draw_legend(figure: Figure, largest_bytes: float, points: Sequence[TradeoffPoint]) -> None:
    handles = [Line2D([], [], color=FAINT, linestyle=FRONT_DASHES, linewidth=1.3, label="Pareto front")]
    text = "marker area is memory, storage + peak:" if largest_bytes > 0 else "memory was not measured"
    handles.append(Line2D([], [], linestyle="", label=text))
    for share in (1.0, 0.5, 0.2) if largest_bytes > 0 else ():
        diameter = _area(share * largest_bytes, largest_bytes) ** 0.5
        size = memory_text(share * largest_bytes)
        handles.append(Line2D([], [], linestyle="", marker="o", markersize=diameter, color="#C4C4C4", label=size))
    drawn = {style_of(point.row.fix).group for point in points}
    groups = [style for _, style in FIX_GROUPS if style.group in drawn]
    handles += [
        Line2D([], [], linestyle="", marker=style.marker, markersize=6.5, color=style.colour, label=style.group)
        for style in groups
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=3 if groups else len(handles),
        title=GROUPS_TEXT if groups else None,
        title_fontsize=9,
        fontsize=9,
        frameon=False,
        columnspacing=1.6,
        borderpad=0.9,
    )
