"""Memory of each fix of a group: what is stored, and what one call allocates on top at its peak."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from precision_eval.core.figures import MemoryFigures
from precision_eval.core.formatting import memory_text, status_text
from precision_eval.report.drawing import INK, NotDrawn, dress, new_figure, style_of
from precision_eval.results.model import Group
from precision_eval.results.reading import Run


def draw_memory(run: Run, group: Group) -> Figure:
    """Draw storage and peak of every fix; one that does not run has its status in place of a bar."""
    if not any(row.memory for row in group.fixes):
        raise NotDrawn(f"memory of {group.title}: not measured")
    figure = new_figure(5.6, 1.3 + 0.3 * len(group.fixes))
    axes = figure.subplots()
    _draw_bars(axes, group)
    dress(axes, title=f"{group.title}: memory")
    axes.grid(False, axis="y")
    handles = [
        Patch(facecolor="#777777", label="stored (weights, caches)"),
        Patch(facecolor="white", edgecolor="#777777", hatch="////", label="on top at the peak of one call"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    return figure


def _total(memory: MemoryFigures) -> int:
    return memory.storage_bytes + memory.allocated_peak_bytes


def _draw_bars(axes: Axes, group: Group) -> None:
    fixes = group.fixes[::-1]
    largest = max(_total(row.memory) for row in fixes if row.memory)
    scale, unit = next((s, u) for s, u in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")) if largest >= s)
    width = largest / scale
    for number, row in enumerate(fixes):
        colour, memory = style_of(row.fix).colour, row.memory
        if memory is None:
            text = "not measured" if row.status == "passed" else status_text(row.status)
            axes.text(width * 0.01, number, text, va="center", fontsize=8.5, color="#8B1A1A")
            continue
        stored, extra = memory.storage_bytes / scale, memory.allocated_peak_bytes / scale
        axes.barh(number, stored, height=0.62, color=colour)
        axes.barh(
            number, extra, left=stored, height=0.62, facecolor="white", edgecolor=colour, hatch="////", linewidth=1.0
        )
        axes.text(stored + extra + width * 0.015, number, memory_text(_total(memory)), va="center", fontsize=8.5)
    axes.set_yticks(range(len(fixes)), [row.fix for row in fixes])
    axes.set_xlim(0, width * 1.22)
    axes.set_ylim(-0.6, len(fixes) - 0.4)
    axes.set_xlabel(unit, fontsize=9.5, color=INK)
