"""Figures with a row per fix: memory as bars, and how far each condition's sound is from the reference's as dots.

Of memory there is one figure per case and device, one panel per size × mode: what is stored, and what one call
allocates on top at its peak; a fix that does not run has no bar but its status. A change of sound is a condition's mean
over streams minus the reference's, with its 95 % interval; up to the dashed line it counts as no worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from precision_eval.core.formatting import memory_text
from precision_eval.report.drawing import FAINT, INK, NotDrawn, dress, new_figure, style_of
from precision_eval.results.model import Group, Row, memory_bytes
from precision_eval.results.sound import SoundMetric


def draw_memory(case: str, device: str, sections: Sequence[Group]) -> Figure:
    """Draw storage and peak of every fix of one case on one device."""
    measured = [section for section in sections if any(memory_bytes(row) for row in section.fixes)]
    if not measured:
        raise NotDrawn(f"memory of {case} on {device}: not measured")
    columns = min(2, len(measured))
    rows = -(-len(measured) // columns)
    tallest = max(len(section.fixes) for section in measured)
    figure = new_figure(1.0 + 5.8 * columns, 1.0 + rows * (0.9 + 0.34 * tallest))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, section in zip(grid.flat, measured, strict=False):
        draw_bars(axes, section)
        dress(axes, title=f"{section.size}, {section.mode}")
        axes.grid(False, axis="y")
    for axes in list(grid.flat)[len(measured) :]:
        axes.set_axis_off()
    figure.suptitle(f"{case} on {device}: memory per fix", x=0.01, ha="left", fontsize=12)
    handles = [
        Patch(facecolor="#777777", label="storage (weights, caches)"),
        Patch(facecolor="#DDDDDD", edgecolor="#777777", hatch="////", label="extra at the peak of one call"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def draw_bars(axes: Axes, section: Group) -> None:
    """Draw one section, a bar per fix."""
    fixes = section.fixes[::-1]
    totals = [sum(sizes) for row in fixes if (sizes := memory_bytes(row))]
    largest = max(totals)
    scale, unit = next((s, u) for s, u in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")) if largest >= s)
    for number, row in enumerate(fixes):
        colour = style_of(row.fix).colour
        sizes, of = memory_bytes(row), f"of {row.fix}"
        if sizes is None:
            text = row.status if row.status != "passed" else "not measured"
            axes.text(largest / scale * 0.01, number, text, va="center", fontsize=8.5, color="#8B1A1A")
            continue
        storage, extra = sizes[0] / scale, sizes[1] / scale
        axes.barh(number, storage, height=0.62, color=colour, gid=of)
        bars = axes.barh(number, extra, left=storage, height=0.62, gid=of)
        bars[0].set(facecolor="white", edgecolor=colour, hatch="////", linewidth=1.0)
        at, text = storage + extra + largest / scale * 0.015, memory_text(sum(sizes))
        axes.text(at, number, text, va="center", fontsize=8.5, gid=f"text {row.fix}")
        # an unseen bar over the whole width is what a pointer hits
        axes.barh(number, largest / scale * 1.2, height=0.9, alpha=0.0, zorder=7, gid=f"mark {row.fix}")
    axes.set_yticks(range(len(fixes)), [row.fix for row in fixes])
    axes.set_xlim(0, largest / scale * 1.2)
    axes.set_ylim(-0.6, len(fixes) - 0.4)
    axes.set_xlabel(unit, fontsize=9.5, color=INK)


def change_panel(axes: Axes, metric: SoundMetric, rows: Sequence[Row]) -> None:
    """Draw one metric of sound, a row per condition, the first at the top."""
    axes.axvline(0.0, color=FAINT, linewidth=1.0, zorder=1)
    axes.axvline(metric.worse * metric.margin, color=FAINT, linewidth=1.0, linestyle="--", zorder=1)
    for number, row in enumerate(rows):
        assert row.sound is not None
        style, decision = style_of(row.fix), row.sound.metrics[metric.name]
        ends = [metric.worse * decision.low, metric.worse * decision.high]
        axes.plot(ends, [number, number], color=style.colour, linewidth=1.6, zorder=3)
        axes.plot(
            [metric.worse * decision.estimate],
            [number],
            style.marker,
            color=style.colour,
            markersize=7,
            zorder=4,
            gid=f"of {row.fix}",
        )
        words: dict[str, Any] = {"fontsize": 8.5, "va": "center", "ha": "left", "color": INK}
        text = metric.text(decision.estimate)
        axes.text(1.02, number, text, transform=axes.get_yaxis_transform(), gid=f"text {row.fix}", **words)
        # an unseen bar over the whole width is what a pointer hits
        axes.axhspan(number - 0.45, number + 0.45, alpha=0.0, zorder=7, gid=f"mark {row.fix}")
    axes.set_yticks(
        range(len(rows)), [row.fix.replace("control_", "control: ").replace("_floor", " floor") for row in rows]
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    unit = f", {metric.unit.strip()}" if metric.unit else ""
    axes.set_xlabel(f"{metric.title}: change from the reference{unit}", fontsize=9.5, color=INK)
    dress(axes)
    axes.grid(False, axis="y")
