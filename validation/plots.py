"""The plot that experiments draw: shares over a parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from precision_eval.report.drawing import INK, dress, new_figure, save

_OKABE_ITO = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D00")
_COLOURS = (*_OKABE_ITO, "#7A4FBF", "#777777", "#7FB800")  # as many as there are rules: none looks like another
_MARKERS = "os^Dv<>phX*"

Point = tuple[float, float, float, float]  # parameter, share, and the ends of its 95 % interval


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Curves of shares over one parameter, by name; the first is drawn heaviest, what shares a name's stem alike."""

    title: str
    x_label: str
    curves: Mapping[str, Sequence[Point]]
    ticks: Mapping[float, str] = field(default_factory=dict)
    log: bool = False
    linked: bool = True
    linked_from: float = -math.inf


def draw_shares(out: Path, stem: str, panels: Sequence[Panel], *, y_label: str) -> list[Path]:
    """Draw panels side by side with one legend; returns ``stem.png`` and ``stem.svg``."""
    figure = new_figure(5.6 * max(len(panels), 1.6), 5.2)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    stems = list(dict.fromkeys(name.partition(",")[0] for name in names))
    for axes, panel in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
        for name in names:
            place = stems.index(name.partition(",")[0])
            _draw_curve(axes, panel, name, place, second=name != next(n for n in names if n.startswith(stems[place])))
        dress(axes, title=panel.title)
        if panel.log:
            axes.set_xscale("log", base=2)
        if panel.ticks:
            axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
            axes.minorticks_off()
        axes.set(ylim=(-0.03, 1.03))
        axes.set_xlabel(panel.x_label, color=INK, fontsize=9.5)
    figure.axes[0].set_ylabel(y_label, color=INK, fontsize=9.5)
    shown = {text: one for axes in figure.axes for one, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend([*shown.values()], [*shown], loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return save(figure, out, stem)


def _draw_curve(axes: Axes, panel: Panel, name: str, place: int, *, second: bool) -> None:
    """Draw dots with bars, and a line through those from `linked_from` on; hollow and dashed for a tool's second."""
    points = panel.curves.get(name)
    if not points:
        return
    x, share, low, high = np.array(points).T
    look: dict[str, Any] = {"color": _COLOURS[place % len(_COLOURS)], "zorder": 4 if place == 0 else 3}
    bars = np.nan_to_num(np.maximum([share - low, high - share], 0.0))
    size, width = (6.5, 2.2) if place == 0 else (4.5, 1.1)
    fill = "white" if second else look["color"]
    dots: dict[str, Any] = {
        "fmt": _MARKERS[place % len(_MARKERS)],
        "markersize": size,
        "markerfacecolor": fill,
        "elinewidth": 0.9,
    }
    axes.errorbar(x, share, yerr=bars, label=name, **dots, **look)
    if panel.linked:
        linked = x >= panel.linked_from
        axes.plot(x[linked], share[linked], "--" if second else "-", linewidth=width, **look)
