"""A map as a figure: layers × roles in colour, and the first ranks as bars with their intervals.

Conventions: colour is the drift that a site adds when it alone is dropped, on a logarithmic scale; what does not occur
is blank. The drift itself stands in each cell. Files are PNG and SVG.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from precision_eval.core.drawing import FAINT, INK, dress, new_figure, save, style_of
from precision_eval.trace.sites import ROLES

BARS = 14


def draw(summary: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw every map of a summary."""
    return [path for one in summary["maps"] for path in _draw_map(one, directory)]


def _draw_map(one: Mapping[str, Any], directory: Path) -> list[Path]:
    sites = [effect for effect in one["effects"] if effect["kind"] == "site"]
    layers = sorted({effect["layer"] for effect in sites}, key=_layer_order)
    figure = new_figure(12.0, max(3.8, 1.6 + 0.42 * max(len(layers), BARS // 2 + 3)))
    grid = figure.add_gridspec(1, 2, width_ratios=(1.35, 1.0))
    _heatmap(figure.add_subplot(grid[0, 0]), sites, layers)
    _bars(figure.add_subplot(grid[0, 1]), sites[:BARS], one)
    title = f"{one['target']} · {one['size']} · {one['format']}: drift that each site adds alone"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return save(figure, directory, f"{one['target']}-{one['format']}")


def _layer_order(name: str) -> tuple[bool, int, str]:
    first = name.partition(".")[0]
    return (not first.isdigit(), int(first) if first.isdigit() else 0, name)


def _heatmap(axes: Axes, sites: list[Mapping[str, Any]], layers: list[str]) -> None:
    roles = [role for role in ROLES if any(effect["role"] == role for effect in sites)]
    values = np.full((len(layers), len(roles)), np.nan)
    for effect in sites:
        if effect["added"] is not None and effect["added"] > 0.0:
            values[layers.index(effect["layer"]), roles.index(effect["role"])] = effect["added"]
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.1, 1.0)
    low = max(low, high * 1e-4)  # sites that add nothing beyond float32 would use the scale up
    image = axes.imshow(np.maximum(values, low), norm=LogNorm(low, high * 1.0001), cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            light = math.log(max(value, low) / low) < 0.55 * math.log(high * 1.0001 / low)
            colour = "white" if light else "black"
            axes.text(column, row, f"{value:.0e}", ha="center", va="center", fontsize=6.5, color=colour)
    dress(axes, title="layer × role")
    axes.grid(False)
    axes.set_xticks(range(len(roles)), roles, rotation=40, ha="right")
    axes.set_yticks(range(len(layers)), layers)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01)
    bar.ax.tick_params(labelsize=8, colors=INK)


def _bars(axes: Axes, first: list[Mapping[str, Any]], one: Mapping[str, Any]) -> None:
    shown = [effect for effect in first if effect["added"] is not None]
    places = np.arange(len(shown))
    added = np.array([effect["added"] for effect in shown])
    ends = np.array([[effect["added_low"], effect["added_high"]] for effect in shown]).reshape(-1, 2)
    errors = np.abs(ends.T - added)
    axes.barh(places, added, xerr=errors, color=style_of(one["format"]).colour, ecolor=INK, capsize=2.5, height=0.7)
    axes.set_yticks(places, [effect["name"] for effect in shown])
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel("relative error to float64, 95 % over units", fontsize=9, color=INK)
    dress(axes, title=f"first {len(shown)} of {sum(e['kind'] == 'site' for e in one['effects'])} sites")
    if one["uniform_drift"] is not None:
        axes.annotate(
            f"everything in {one['format']}: {one['uniform_drift']:.1e}",
            (0.98, 0.03),
            xycoords="axes fraction",
            ha="right",
            fontsize=8.5,
            color=FAINT,
        )
