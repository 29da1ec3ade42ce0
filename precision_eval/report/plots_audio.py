"""Sound over minutes: distance to the reference's audio, and to the original speech, window by window.

The noise floor (the reference with another noise seed) is a grey band from the 5th to the 95th percentile of its
windows: inside it, a fix is no farther away than chance. Against the original speech that band also holds the
windows' own variety and is drawn fainter; the reference is the thin black line on top. Controls are dashed. Below 3
minutes the axis is in seconds. One figure per section that measured audio.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from precision_eval.core.drawing import FAINT, INK, LeftOut, dress, new_figure, style_of
from precision_eval.core.formatting import METRIC_TITLES, join
from precision_eval.report.plots_drift import running_median
from precision_eval.results.data import Row, Run, Section, figure_of, is_identical, series_of

PANELS = (
    ("against_reference", "log_spectral_distance_db", "lower is closer"),
    ("against_reference", "mel_mcd_db", "lower is closer"),
    ("against_reference", "si_sdr_db", "higher is closer"),
    ("against_original", "mel_mcd_db", "lower is closer"),
)
SHORT_S = 180.0
"""Below this duration, in seconds, the axis of time is in seconds."""

_BAND_ALPHA = {"against_reference": 0.25, "against_original": 0.13}
_TO = {"against_reference": "to the reference's audio", "against_original": "to the original speech"}


def draw_audio(run: Run, section: Section) -> Figure:
    """Draw the audio metrics of one section against time."""
    fixes = [row for row in section.curing if row.data("audio")]
    comparators = list(run.comparators(section, "audio"))
    panels = [panel for panel in PANELS if any(_series(row, *panel[:2]) for row in fixes)]
    if not panels:
        raise LeftOut(f"sound over minutes of {section.title}: no audio measured")
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(1.2 + 5.6 * columns, 1.5 + 3.2 * lines)
    grid = figure.subplots(lines, columns, squeeze=False)
    unit_s, unit = _time_unit([*fixes, *comparators])
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, fixes, comparators, panel, unit_s=unit_s)
        axes.set_xlabel(f"time, {unit}", fontsize=9.5, color=INK)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    missing = {"noise_floor", "control"} - {row.role for row in comparators}
    without = f" (not measured: {', '.join(sorted(missing))})" if missing else ""
    figure.suptitle(f"{section.title}: sound over time{without}", x=0.01, ha="left", fontsize=12)
    handles = _handles(fixes, comparators)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), frameon=False, fontsize=9)
    return figure


def _series(row: Row, against: str, metric: str) -> tuple[list[float], list[float]] | None:
    return series_of(row.data("audio"), against, metric, "series", value="value")


def _time_unit(rows: Sequence[Row]) -> tuple[float, str]:
    """Return (seconds per unit, its name) for the axis of time."""
    last = [found[0][-1] for row in rows for panel in PANELS if (found := _series(row, *panel[:2]))]
    return (1.0, "s") if max(last) < SHORT_S else (60.0, "min")


def _draw_panel(
    axes: Axes, fixes: Sequence[Row], comparators: Sequence[Row], panel: tuple[str, str, str], *, unit_s: float
) -> None:
    against, metric, direction = panel
    for row in comparators:
        found = _series(row, against, metric)
        if found is None or (row.role == "reference" and against == "against_reference"):
            continue
        if row.role == "noise_floor":
            low, high = np.quantile(found[1], [0.05, 0.95])
            axes.axhspan(
                float(low),
                float(high),
                color=style_of("noise_floor").colour,
                alpha=_BAND_ALPHA[against],
                lw=0,
                zorder=0,
            )
        _draw_line(axes, row, found, unit_s=unit_s)
    for row in fixes:
        found = _series(row, against, metric)
        if found is not None:
            _draw_line(axes, row, found, unit_s=unit_s)
    if against == "against_reference" and (text := _identical_text(fixes, metric)):
        axes.text(0.01, 0.985, text, transform=axes.transAxes, va="top", fontsize=8.5, color=FAINT)
        axes.margins(y=0.12)
    short, unit, _ = METRIC_TITLES[metric]
    dress(axes, title=f"{short} {_TO[against]}, {direction}")
    axes.set_ylabel(f"{short}, {unit}", fontsize=9.5, color=INK)
    axes.margins(x=0.01)


def _identical_text(fixes: Sequence[Row], metric: str) -> str:
    """Say where a metric has no finite value because the audio equals the reference's."""
    whole = [row.fix for row in fixes if _series(row, "against_reference", metric) is None and is_identical(row)]
    parts = [row for row in fixes if figure_of(row.data("audio"), "against_reference", metric, "n_infinite")]
    texts = [f"identical to the reference, no finite value: {join(whole)}"] if whole else []
    if any(row.fix not in whole for row in parts):
        texts.append("others: no line where identical" if whole else "no line where identical to the reference")
    return "; ".join(texts)


def _draw_line(axes: Axes, row: Row, found: tuple[list[float], list[float]], *, unit_s: float) -> None:
    style = style_of(row.fix)
    times, values = np.asarray(found[0]) / unit_s, np.asarray(found[1])
    smooth = running_median(values, window=max(3, round(0.15 * values.size)) | 1) if values.size >= 8 else values
    width = {"control": 1.6, "noise_floor": 1.2, "reference": 1.1}.get(row.role, 2.0)
    height = 5 if row.role == "reference" else 3
    steps = np.diff(times)
    breaks = np.flatnonzero(steps > 1.5 * np.median(steps)) + 1  # windows without a finite value: no line across
    lines = np.insert(times, breaks, np.nan), np.insert(smooth, breaks, np.nan)
    axes.plot(*lines, color=style.colour, linestyle=style.line, linewidth=width, zorder=height)
    marks = slice(len(times) // 8, None, max(1, len(times) // 4))
    if row.role == "fix":
        axes.plot(times[marks], smooth[marks], style.marker, color=style.colour, markersize=4.5, zorder=6)


def _handles(fixes: Sequence[Row], comparators: Sequence[Row]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for row in fixes:
        style = style_of(row.fix)
        text = row.fix + _ratio_text(row)
        handles.append(Line2D([], [], color=style.colour, marker=style.marker, markersize=5, label=text))
    for row in comparators:
        style = style_of(row.fix)
        if row.role == "noise_floor":
            handles.append(Patch(color=style.colour, alpha=0.4, label="noise floor, 5–95 % of windows"))
        else:
            handles.append(
                Line2D([], [], color=style.colour, linestyle=style.line, label=row.fix.replace("control_", "control: "))
            )
    return handles


def _ratio_text(row: Row) -> str:
    ratio = figure_of(row.data("audio"), "against_reference", "mel_mcd_db", "ratio_to_null")
    return "" if ratio is None else f" (MCD × {ratio:.2f} of noise floor)"
