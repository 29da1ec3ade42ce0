"""Plots of the divergence experiment: observed survival beside its prediction, and the calibration of medians.

Colours and markers are the suite's own, one per fix; solid with a band is observed, dashed is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from precision_eval.core.drawing import FAINT, INK, dress, label_line_ends, new_figure, place_labels, save, style_of
from validation.divergence.analysis import Condition, Result
from validation.divergence.plan import FIXES


def draw(result: Result, out: Path) -> list[Path]:
    """Write ``divergence-survival.png`` and, where three medians are known, ``divergence-calibration.png``."""
    figures = {"survival": draw_survival(result.conditions)}
    if result.agreement is not None:
        figures["calibration"] = draw_calibration(result)
    files = []
    for name, figure in figures.items():
        png, svg = save(figure, out, f"divergence-{name}")
        svg.unlink()  # the PNGs are what is committed
        files.append(png)
    return files


def draw_survival(conditions: Sequence[Condition]) -> Figure:
    """Survival over steps on a log axis, one panel per group."""
    groups = list(dict.fromkeys(c.group for c in conditions))
    figure = new_figure(9.6, 4.6 * len(groups))
    panels = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    ends = []
    for axes, group in zip(panels, groups, strict=True):
        members = [c for c in conditions if c.group == group]
        ends.append([_draw_condition(axes, condition) for condition in members])
        axes.set(xscale="log", xlim=(1, max(c.steps for c in members)), ylim=(-0.03, 1.04))
        axes.set_yticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
        axes.axhline(0.5, color=FAINT, linewidth=0.8, linestyle=":")
        axes.set_xlabel("decode steps after the prompt (20 ms each)", fontsize=9.5, color=INK)
        axes.set_ylabel("streams still on the reference's tokens", fontsize=9.5, color=INK)
        checkpoint, temperature = group.split("@T")
        title = f"{checkpoint} checkpoint, temperature {temperature}, {len(members[0].first)} held-out streams"
        dress(axes, title=title)
    handles = [
        Line2D([], [], color=INK, label="observed, 95 % band"),
        Line2D([], [], color=INK, linestyle="--", label="predicted from teacher-forced logits"),
    ]
    figure.legend(handles=handles, loc="upper right", ncols=2, fontsize=8.5, frameon=False)
    figure.suptitle("First divergence from float64, observed and predicted", x=0.01, ha="left", fontsize=12)
    figure.draw_without_rendering()
    for axes, labels in zip(panels, ends, strict=True):
        label_line_ends(axes, labels)
    return figure


def _draw_condition(axes: Axes, condition: Condition) -> tuple[float, str, str]:
    """Draw one condition's curves; return where its label belongs."""
    style, curve = style_of(condition.fix), condition.curve
    steps = np.unique(np.geomspace(1, condition.steps, 400).round())
    points = curve.sampled(steps)
    axes.step(steps, points["fraction"], where="post", color=style.colour, linewidth=1.7)
    alive = np.asarray(points["fraction"]) > 0
    alive[1:] |= alive[:-1]  # up to the last loss; from there on no stream is left to be unsure of
    band = {"where": alive.tolist(), "step": "post", "color": style.colour, "alpha": 0.15, "lw": 0}
    axes.fill_between(steps, points["low"], points["high"], **band)
    if condition.prediction is not None:
        axes.plot(steps, condition.prediction.survival(steps), "--", color=style.text_colour, linewidth=1.3)
    name = condition.fix.replace("control_", "control: ")
    return points["fraction"][-1], f"{name}, {int(condition.observed.sum())} diverged", style.text_colour


def draw_calibration(result: Result) -> Figure:
    """Observed against predicted medians, both with intervals; arrows where a median was not reached."""
    known = [c for c in result.conditions if c.predicted_median and c.predicted_interval]
    figure = new_figure(6.4, 6.0)
    axes = figure.subplots()
    reached = [c for c in known if c.median.median is not None]
    values = [v for c in reached for v in (c.predicted_median, c.median.low, c.median.median, c.median.high) if v]
    limits = (min(values) / 1.5, max(values) * 1.8)
    axes.plot(limits, limits, color=FAINT, linewidth=1.0, zorder=1)
    labels = [_draw_point(axes, condition) for condition in reached]
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axes.set_xlabel("predicted median, steps (teacher-forced logits of calibration windows)", fontsize=9.5, color=INK)
    axes.set_ylabel("observed median, steps (held-out free-running streams)", fontsize=9.5, color=INK)
    dress(axes)
    figure.suptitle("Median step of first divergence", x=0.01, ha="left", fontsize=12)
    note = "\n".join(
        f"{c.fix}: predicted {c.predicted_median:,.0f}; {int(c.observed.sum())} of {len(c.first)} "
        f"diverged in {c.steps:,} steps"
        for c in known
        if c.median.median is None
    )
    axes.text(0.02, 0.98, note, transform=axes.transAxes, va="top", fontsize=8.5, color=INK)
    figure.draw_without_rendering()
    place_labels(axes, labels, radii_px=[9.0] * len(labels), obstacles=[], fontsize=8.0)
    return figure


def _draw_point(axes: Axes, condition: Condition) -> tuple[float, float, str, str]:
    """Draw one median with its intervals; return its label."""
    style, median = style_of(condition.fix), condition.median
    x, (low, high) = condition.predicted_median, condition.predicted_interval or (0.0, 0.0)
    assert x is not None
    assert median.median is not None
    y, bottom, top = median.median, median.low or 1.0, median.high
    axes.plot([low, high], [y, y], color=style.colour, linewidth=1.4)
    axes.plot([x, x], [bottom, top if top is not None else condition.steps], color=style.colour, linewidth=1.4)
    plain = condition.group.startswith("float32")
    fill = style.colour if plain else "white"
    axes.plot(x, y, style.marker, color=style.colour, markersize=8, markerfacecolor=fill, zorder=4)
    role = condition.fix if condition.fix in FIXES else condition.fix.replace("control_", "control: ")
    return x, y, role if plain else f"{role} ({condition.group})", style.text_colour
