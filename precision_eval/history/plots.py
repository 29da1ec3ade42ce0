"""Fixes over torch versions: drift as a heatmap, latency as lines with intervals, statuses as a grid.

Conventions: versions run from left to right, oldest first, evenly spaced; fixes from top to bottom in the order of the
catalogue. A cell without a figure carries the letter of its status (:data:`STATUS_STYLES`) on that status's colour, so
that colour is never the only sign; a cell that nothing was run for is blank. A dark frame marks a position where a
change was found. Drift and latency have one figure per case, one panel per mode and size; statuses have one figure
per mode, one panel per case and size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from precision_eval.core.formatting import scientific
from precision_eval.history.changes import ChangePoint, StatusChange
from precision_eval.history.versions import CaseHistory, FixCell, FixTable, VersionHistory
from precision_eval.report.drawing import (
    FAINT,
    INK,
    STATUS_STYLES,
    NotDrawn,
    dress,
    label_line_ends,
    lay_out,
    new_figure,
    style_of,
)

DRIFT = "drift"
LATENCY = "latency_ratio"
_SHADES = mpl.colormaps["YlGnBu"]
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
_STATUS_COLUMNS = 3
_PALE = "#5A8C7C"
"""Letter of what passed: there to be read, behind what did not."""
_FRAMED = "; framed: it changed here"


def drawings(history: VersionHistory) -> Iterator[tuple[str, str, Figure]]:
    """Draw every figure of a history that its results allow."""
    for mode in dict.fromkeys(table.mode for case in history.cases for table in case.tables):
        yield f"statuses-{mode}", "", draw_statuses(history, mode=mode)
    for case in history.cases:
        for kind, draw in ((DRIFT, draw_drift), ("latency", draw_latency)):
            try:
                figure = draw(history, case)
            except NotDrawn:
                continue
            yield f"{kind}-{case.case}", case.case, figure


def draw_drift(history: VersionHistory, case: CaseHistory) -> Figure:
    """Draw drift by fix and version, colour on a logarithmic scale shared by the panels."""
    tables = [table for table in case.tables if _drifts(table)]
    if not tables:
        raise NotDrawn(f"drift of {case.case}: none was measured")
    drifts = [value for table in tables for value in _drifts(table)]
    norm = LogNorm(min(drifts) / 1.01, max(drifts) * 1.01)
    fixes = max(len(table.fixes) for table in tables)
    panel_in = (0.52 * len(history.positions) + 1.25, 0.29 * fixes + 0.75)
    figure, panels = _panels(len(tables), columns=2, panel_in=panel_in, margin_in=(1.0, 0.75))
    changes = False
    for axes, table in zip(panels, tables, strict=True):
        framed = {(change.fix, change.at) for change in case.changes if _same(change, table, DRIFT)}
        changes |= bool(framed)
        _cells(axes, table, history.positions, norm=norm, framed=framed)
        dress_grid(axes, title=f"{table.mode}, {table.size}")
    bar = figure.colorbar(ScalarMappable(norm, _SHADES), ax=panels, aspect=30, pad=0.01)
    bar.set_label("relative error to float64", fontsize=8.5, color=INK)
    bar.ax.tick_params(labelsize=8)
    _title(figure, f"{case.case}: drift over {_axis_title(history)}{_FRAMED if changes else ''}")
    _legend(figure, {_status(cell) for table in tables for cell in table.cells.values()} - {"passed", None})
    return figure


def draw_statuses(history: VersionHistory, *, mode: str) -> Figure:
    """Draw what every fix came to in one mode, a panel per case and size."""
    tables = [(case, table) for case in history.cases for table in case.tables if table.mode == mode]
    if not tables:
        raise NotDrawn(f"statuses of mode {mode}: there are none")
    longest = max(len(table.fixes) for _, table in tables)
    panel_in = (0.27 * len(history.positions) + 1.55, 0.2 * longest + 0.75)
    figure, panels = _panels(len(tables), columns=_STATUS_COLUMNS, panel_in=panel_in, margin_in=(0.3, 0.9))
    any_framed = False
    for axes, (case, table) in zip(panels, tables, strict=True):
        framed = {(change.fix, change.at) for change in case.status_changes if _same(change, table)}
        any_framed |= bool(framed)
        _cells(axes, table, history.positions, norm=None, framed=framed)
        dress_grid(axes, title=f"{case.case}, {table.size}", small=True)
    _title(figure, f"Statuses over {_axis_title(history)}, {mode}{_FRAMED if any_framed else ''}")
    _legend(figure, {_status(cell) for _, table in tables for cell in table.cells.values()} - {None})
    return figure


def _same(change: ChangePoint | StatusChange, table: FixTable, metric: str | None = None) -> bool:
    """Say whether a change is of a table's mode and size, and of a metric."""
    return (change.mode, change.size) == (table.mode, table.size) and metric in (None, change.metric)


def draw_latency(history: VersionHistory, case: CaseHistory) -> Figure:
    """Draw the latency ratio of every fix as a line with 95 % intervals."""
    tables = [table for table in case.tables if _ratios(table)]
    if not tables:
        raise NotDrawn(f"latency of {case.case}: none was measured")
    panel_in = (0.42 * len(history.positions) + 2.6, 4.1)
    figure, panels = _panels(len(tables), columns=2, panel_in=panel_in, margin_in=(0.0, 0.0), least_in=5.6)
    ends = []
    for axes, table in zip(panels, tables, strict=True):
        changed = {(change.fix, change.at) for change in case.changes if _same(change, table, LATENCY)}
        ends.append(_lines(axes, table, history.positions, changed))
    _title(figure, f"{case.case}: latency over {_axis_title(history)}, below 1 is faster; ringed: it changed here")
    lay_out(figure)
    for axes, names in zip(panels, ends, strict=True):
        label_line_ends(axes, names, fontsize=8.5)
    return figure


def _lines(
    axes: Axes, table: FixTable, positions: Sequence[str], changed: set[tuple[str, str]]
) -> list[tuple[float, str, str]]:
    """Draw one panel; return where each line ends."""
    axes.set_yscale("log")
    ends = []
    shift = 0.36 / max(len(table.fixes), 1)
    for number, fix in enumerate(table.fixes):
        cells = [table.cells[fix, position] for position in positions]
        if all(cell.ratio is None for cell in cells):
            continue
        style = style_of(fix.partition("~")[0])
        x = np.arange(len(positions)) + (number - len(table.fixes) / 2) * shift  # side by side: intervals stay readable
        y = np.array([math.nan if cell.ratio is None else cell.ratio for cell in cells])
        low, high = np.array([cell.ratio_interval or (value, value) for cell, value in zip(cells, y, strict=True)]).T
        axes.plot(x, y, color=style.colour, linestyle=style.line, linewidth=1.3, alpha=0.85)
        axes.vlines(x, low, high, color=style.colour, linewidth=1.6)
        axes.plot(x, y, color=style.colour, marker=style.marker, markersize=4, linestyle="none")
        at = [i for i, position in enumerate(positions) if (fix, position) in changed]
        axes.plot(x[at], y[at], "o", markersize=10, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=0.9)
        last = int(np.flatnonzero(np.isfinite(y))[-1])
        until = "" if last == len(positions) - 1 else f" (to {_short(positions[last])})"
        ends.append((float(y[last]), f"{fix}{until}", style.text_colour))
    axes.axhline(1.0, color=FAINT, linewidth=0.9, linestyle=":", zorder=0.8)
    dress(axes, title=f"{table.mode}, {table.size}")
    axes.set_ylabel("latency ÷ full_float32", fontsize=8.5, color=INK)
    axes.set_xlim(-0.6, len(positions) - 0.4)
    _name_versions(axes, positions, at=0.0)
    _name_ratios(axes, _ratios(table))
    return ends


def _name_ratios(axes: Axes, ratios: Sequence[float]) -> None:
    """Put plain numbers on the axis: at least three, where the ratios lie close together too."""
    low, high = min([*ratios, 1.0]) / 1.08, max([*ratios, 1.0]) * 1.08
    axes.set_ylim(low, high)
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    if len(ticks) < 3:
        step = 10 ** math.floor(math.log10(high - low))
        steps = next(part for part in (step, step / 2, step / 5) if (high - low) / part >= 3)
        ticks = [round(k * steps, 6) for k in range(math.ceil(low / steps), math.floor(high / steps) + 1)]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _panels(
    count: int, *, columns: int, panel_in: tuple[float, float], margin_in: tuple[float, float], least_in: float = 6.4
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels of a size in inches, in rows of `columns`."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = new_figure(max(columns * panel_in[0] + margin_in[0], least_in), rows * panel_in[1] + margin_in[1])
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _cells(
    axes: Axes, table: FixTable, positions: Sequence[str], *, norm: LogNorm | None, framed: set[tuple[str, str]]
) -> None:
    """Draw one cell per fix and version: drift as colour and number where `norm` is given, else the status."""
    for row, fix in enumerate(table.fixes):
        for column, position in enumerate(positions):
            colour, text = _face(table.cells[fix, position], norm)
            if colour is not None:
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white", lw=1))
                axes.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=_PALE if text == "P" else _readable(colour),
                    clip_on=True,
                )
            if (fix, position) in framed:
                frame = Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor=INK, lw=1.5, zorder=4)
                axes.add_patch(frame)
    axes.set_xlim(-0.5, len(positions) - 0.5)
    axes.set_ylim(len(table.fixes) - 0.5, -0.5)
    axes.set_yticks(range(len(table.fixes)), table.fixes)
    _name_versions(axes, positions, at=-0.5)


def _face(cell: FixCell, norm: LogNorm | None) -> tuple[str | None, str]:
    """Return a cell's colour and text; no colour where nothing was run."""
    status = _status(cell)
    if norm is not None and status == "passed" and cell.drift is not None:
        if cell.drift <= 0.0:
            return "#FFFFFF", "0"
        return mpl.colors.to_hex(_SHADES(norm(cell.drift))), scientific(cell.drift)
    if status is None:
        return None, ""
    style = STATUS_STYLES[status]
    if norm is not None and status == "passed":
        return "#FFFFFF", "?"  # passed, and its drift was not measured
    return style.colour, style.letter


def _status(cell: FixCell) -> str | None:
    """Return a cell's status; what has a drift and no recorded status has passed."""
    return "passed" if cell.status is None and cell.drift is not None else cell.status


def _readable(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5 else INK


def dress_grid(axes: Axes, *, title: str, small: bool = False) -> None:
    """Give a grid of cells the house look: no box, no lines, names outside."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(labelsize=7 if small else 8, colors=INK, length=0)
    axes.set_title(title, loc="left", fontsize=9 if small else 10, color=INK)


def _name_versions(axes: Axes, positions: Sequence[str], *, at: float) -> None:
    axes.set_xticks(range(len(positions)), [_short(position) for position in positions])
    if max(len(_short(position)) for position in positions) * len(positions) > 36 or at < 0:
        axes.tick_params(axis="x", rotation=45)
    axes.tick_params(axis="x", labelsize=8)


def _short(position: str) -> str:
    """Leave out the last number of a version where it is 0: ``2.13``."""
    return position.removesuffix(".0") if position.count(".") == 2 else position


def _axis_title(history: VersionHistory) -> str:
    return "torch versions" if history.axis == "torch" else "commits"


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, color=INK)


def _legend(figure: Figure, statuses: set[str | None]) -> None:
    """Name the statuses that occur, letter first."""
    handles = [
        Patch(facecolor=style.colour, edgecolor="#999999", linewidth=0.5, label=f"{style.letter} = {style.title}")
        for status, style in STATUS_STYLES.items()
        if status in statuses
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 5), frameon=False, fontsize=8)


def _drifts(table: FixTable) -> list[float]:
    """Return the drifts that have a colour: above 0, of fixes that pass."""
    cells = table.cells.values()
    return [cell.drift for cell in cells if cell.drift is not None and cell.drift > 0.0 and _status(cell) == "passed"]


def _ratios(table: FixTable) -> list[float]:
    """Return the ratios and the ends of their intervals."""
    cells = [cell for cell in table.cells.values() if cell.ratio is not None]
    return [value for cell in cells for value in (cell.ratio or 1.0, *(cell.ratio_interval or ()))]
