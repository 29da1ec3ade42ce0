"""``lengths.png`` and ``lengths.svg``: latency of the two casts over ``full_float32``, by length, a panel each.

Conventions: both axes are logarithmic; bands are 95 % intervals; colours and markers are the fixes' own. The two lines
cross where the ratio of the casts does; a pale band marks the two lengths between which the order turns, a darker one
the interval on a straight line between them, both from the casts' own comparison. Where page faults jump in between,
there is no such line, and the two lengths stand alone. Lengths without a decided order that lie in no such band are
hollow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from precision_eval.core.drawing import FAINT, INK, dress, new_figure, save, style_of
from precision_eval.studies.sweep.curves import LengthCurve
from precision_eval.studies.sweep.plan import BASELINE, TO_HALF, TO_QUERY
from precision_eval.studies.sweep.summary import slots

_COLUMNS = 4
_BRACKET, _CROSSING = "#EEEEEE", "#AAAAAA"
_TICKS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_TITLES = {TO_HALF: "query → cache dtype (query_to_half)", TO_QUERY: "cache → query dtype (kv_to_query)"}


def draw(curves: Sequence[LengthCurve], out: Path) -> list[Path]:
    """Write both files; return them, PNG first; none where nothing was measured."""
    drawable = [curve for curve in curves if any(point.ratios for point in curve.points)]
    return save(draw_lengths(drawable), out, "lengths") if drawable else []


def draw_lengths(curves: Sequence[LengthCurve]) -> Figure:
    """Draw one panel per configuration."""
    columns = min(_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = new_figure(max(7.6, 3.5 * columns), 2.9 * rows + 1.0)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, curve in zip(panels.flat, curves, strict=False):
        _draw_panel(axes, curve)
    for axes in list(panels.flat)[len(curves) :]:
        axes.set_visible(False)
    _scale(panels[0, 0], curves)
    for axes in panels[:, 0]:
        axes.set_ylabel(f"latency ÷ {BASELINE}", fontsize=9.5, color=INK)
    for index, axes in enumerate(panels.flat):
        if index < len(curves) <= index + columns:
            axes.set_xlabel("slots of the cache, all in use", fontsize=9.5, color=INK)
            axes.tick_params(labelbottom=True)
    figure.legend(handles=_handles(curves), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle("The two casts at decode, by length of the cache", x=0.01, ha="left", fontsize=12)
    return figure


def _draw_panel(axes: Axes, curve: LengthCurve) -> None:
    dress(axes, title=curve.configuration.title.replace(", ", "\n", 1))
    axes.axhline(1.0, color=FAINT, linewidth=0.9, linestyle=":")
    hollow = set(curve.crossover.undecided_lengths) if curve.crossover else set()
    for fix in (TO_HALF, TO_QUERY):
        _draw_fix(axes, curve, fix, hollow)
    for crossing in curve.crossover.crossings if curve.crossover else ():
        axes.axvspan(*crossing.between, color=_BRACKET, linewidth=0, zorder=0.5)
        label = f"{slots(crossing.between[0])}\nto {slots(crossing.between[1])}"
        if crossing.jump is None:
            axes.axvspan(crossing.low, crossing.high, color=_CROSSING, alpha=0.6, linewidth=0, zorder=1)
            axes.axvline(crossing.length, color=INK, linewidth=0.9, linestyle="--", zorder=2)
            label = f"{slots(crossing.length)}\n[{slots(crossing.low)}, {slots(crossing.high)}]"
        axes.annotate(
            label,
            (crossing.between[0], 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 0),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            ha="right",
            va="top",
        )


def _draw_fix(axes: Axes, curve: LengthCurve, fix: str, hollow: set[int]) -> None:
    """Draw one cast's ratio with its band."""
    style = style_of(fix)
    points = [point for point in curve.points if fix in point.ratios]
    if not points:
        return
    x = np.array([point.length for point in points])
    y, low, high = np.array(
        [(r.ratio, r.ratio_low, r.ratio_high) for r in (point.ratios[fix] for point in points)]
    ).T  # each (n,)
    axes.fill_between(x, low, high, color=style.colour, alpha=0.2, linewidth=0, zorder=2)
    axes.plot(x, y, color=style.colour, linewidth=1.6, zorder=3)
    for length, ratio in zip(x, y, strict=True):
        face = "white" if length in hollow else style.colour
        axes.plot(length, ratio, marker=style.marker, color=style.colour, markerfacecolor=face, markersize=5, zorder=4)


def _scale(axes: Axes, curves: Sequence[LengthCurve]) -> None:
    """Set both logarithmic axes, shared by all panels, with ticks where there is something."""
    lengths = sorted({point.length for curve in curves for point in curve.points})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
    points = [point for curve in curves for point in curve.points]
    ratios = [point.ratios[fix].ratio for point in points for fix in _TITLES if fix in point.ratios]
    low, high = min([*ratios, 1.0]) / 1.5, max([*ratios, 1.0]) * 1.5  # a wide band may leave the panel
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(_thinned(lengths)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if low <= tick <= high]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _thinned(lengths: Sequence[int]) -> list[int]:
    """Leave out lengths whose labels would touch: those within a factor of 1.6 of the one before."""
    kept: list[int] = []
    for length in lengths:
        if not kept or length >= 1.6 * kept[-1]:
            kept.append(length)
    return kept


def _handles(curves: Sequence[LengthCurve]) -> list[Line2D | Patch]:
    """Return the key to what these panels show, and to nothing else."""
    crossovers = [curve.crossover for curve in curves if curve.crossover]
    crossings = [crossing for crossover in crossovers for crossing in crossover.crossings]
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=style_of(fix).colour, marker=style_of(fix).marker, label=title)
        for fix, title in _TITLES.items()
    ]
    if any(crossover.undecided_lengths for crossover in crossovers):
        handles.append(
            Line2D([], [], color=INK, marker="o", markerfacecolor="white", linestyle="none", label="order undecided")
        )
    if crossings:
        handles.append(Patch(color=_BRACKET, label="the order turns in here (95 %)"))
    if any(crossing.jump is None for crossing in crossings):
        handles.append(Patch(color=_CROSSING, alpha=0.6, label="crossing of straight lines, 95 % interval"))
    return handles
