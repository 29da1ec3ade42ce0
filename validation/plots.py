"""The kinds of plot that several experiments draw: shares over a parameter, and ratios with a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from precision_eval.core.drawing import INK


@dataclass(frozen=True)
class RuleLook:
    """How a rule is drawn; the second rule of a tool is hollow and dashed."""

    label: str
    colour: str
    marker: str = "o"
    line: str = "-"


def draw_shares(
    axes: Axes, points: Sequence[tuple[float, ...]], look: RuleLook, *, ours: bool, linked_from: float = -math.inf
) -> None:
    """Draw (x, share, low, high) as dots with bars, and a line through those from `linked_from` on; ours heaviest."""
    if not points:
        return
    x, share, low, high = np.array(points).T
    axes.errorbar(
        x,
        share,
        yerr=np.maximum([share - low, high - share], 0.0),
        color=look.colour,
        marker=look.marker,
        markerfacecolor=look.colour if look.line == "-" else "white",
        linestyle="none",
        markersize=6.5 if ours else 4.5,
        elinewidth=1.4 if ours else 0.8,
        label=look.label,
        zorder=4 if ours else 3,
    )
    linked = x >= linked_from
    axes.plot(x[linked], share[linked], look.line, color=look.colour, linewidth=2.2 if ours else 1.1, zorder=3)


def share_legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """Draw one legend below all panels."""
    handles = {text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def draw_ratios(axes: Axes, ratios: Mapping[str, Mapping[str, Any]], target: float) -> None:
    """Draw bars from 1 with intervals, and the target as a line."""
    for row, ratio in enumerate(reversed(list(ratios.values()))):
        colour = "#009E73" if ratio["high"] <= target else "#D55E00"
        axes.barh(row, ratio["ratio"] - 1.0, left=1.0, height=0.6, color=colour, alpha=0.75)
        if math.isfinite(ratio["high"]):
            axes.plot([ratio["low"], ratio["high"]], [row, row], color=INK, linewidth=1.2)
    axes.axvline(1.0, color="#999999", linewidth=0.8)
    axes.axvline(target, color=INK, linewidth=1.0, linestyle="--")
    axes.set_yticks(range(len(ratios)), list(reversed(list(ratios))))
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.set_xlabel("ratio, 95 % interval; green: all of it within the target", fontsize=9, color=INK)
