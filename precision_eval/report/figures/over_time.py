"""Figures over time: drift under teacher forcing, sound window by window, and survival of free-running streams.

Firm lines are running medians; controls are dashed. The noise floor (the reference with another noise seed) is what
chance alone does: a grey band from the 5th to the 95th percentile of its windows in sound, the grey curve in survival.
Against the original speech that band also holds the windows' own variety and is drawn fainter. One figure per section
that measured the quantity; below 3 minutes the axis of time is in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from precision_eval.core.formatting import METRIC_TITLES, join
from precision_eval.report.drawing import FAINT, INK, NotDrawn, dress, label_line_ends, lay_out, new_figure, style_of
from precision_eval.results.model import Group, Row, figure_of, is_identical, series_of
from precision_eval.results.reading import Run

DRIFT_PANELS = (
    ("relative_error", "relative error of the logits"),
    ("kl_nats", "KL(float64 ‖ fix), nats per token"),
)
SOUND_PANELS = (
    ("against_reference", "log_spectral_distance_db", "lower is closer"),
    ("against_reference", "mel_mcd_db", "lower is closer"),
    ("against_reference", "si_sdr_db", "higher is closer"),
    ("against_original", "mel_mcd_db", "lower is closer"),
)
SHORT_S = 180.0
"""Below this duration, in seconds, the axis of time is in seconds."""

WINDOW_FRACTION = 0.06
"""Of a drift series, that its running median takes in."""

_BAND_ALPHA = {"against_reference": 0.25, "against_original": 0.13}
_TO = {"against_reference": "to the reference's audio", "against_original": "to the original speech"}

Ends = list[tuple[float, str, str]]
"""Last value, label and colour of each line."""

Points = tuple[list[float], list[float]]
"""Times in seconds, and values."""


def drift_series(row: Row, name: str) -> Points | None:
    """Return a row's drift over time; None where there is none above 0."""
    points = series_of(row.drift_data, "series", value=name)
    return points if points is not None and max(points[1]) > 0 else None


def drift_rows(run: Run, section: Group) -> list[Row]:
    """Return the fixes with a drift over time, then the controls; empty where no fix has one."""
    rows = [row for row in section.curing if series_of(row.drift_data, "series", value="relative_error")]
    controls = [row for row in run.comparators(section, "teacher_forced_drift") if row.role == "control"]
    return [*rows, *controls] if rows else []


def draw_drift(run: Run, section: Group) -> Figure:
    """Draw drift against time for one section."""
    rows = drift_rows(run, section)
    if not rows:
        raise NotDrawn(f"drift over time of {section.title}: no teacher-forced series")
    figure = new_figure(11.6, 4.7)
    panels = list(figure.subplots(1, len(DRIFT_PANELS), squeeze=False)[0])
    ends = [drift_panel(axes, rows, name, label) for axes, (name, label) in zip(panels, DRIFT_PANELS, strict=True)]
    streams = {str((row.drift_data or {}).get("streams", "?")) for row in rows}
    title = f"{section.title}: drift under teacher forcing, mean of {'/'.join(sorted(streams))} streams"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    lay_out(figure)
    for axes, names in zip(panels, ends, strict=True):
        label_line_ends(axes, names)
    return figure


def drift_panel(axes: Axes, rows: Sequence[Row], name: str, label: str) -> Ends:
    """Draw one kind of drift: each step as recorded in faint, its running median firm."""
    ends = []
    axes.set_yscale("log")
    for row in rows:
        points = drift_series(row, name)
        if points is None:
            continue
        time_s, values = np.asarray(points[0]), np.asarray(points[1])
        positive = np.where(values > 0, values, np.nan)  # an exact step has no place on a log axis: a gap
        smooth = running_median(values, window=round(WINDOW_FRACTION * values.size) | 1)
        style, of = style_of(row.fix), f"of {row.fix}"
        axes.plot(time_s, positive, color=style.colour, alpha=0.22, linewidth=0.7, gid=of)
        smooth = np.where(smooth > 0, smooth, np.nan)
        axes.plot(time_s, smooth, color=style.colour, linestyle=style.line, linewidth=1.8, gid=of)
        last = smooth[np.isfinite(smooth)]
        if last.size:
            ends.append((float(last[-1]), _label(row), style.text_colour))
    _name_axes(axes, "time into the scored speech, s", label)
    return ends


def draw_audio(run: Run, section: Group) -> Figure:
    """Draw the audio metrics of one section against time."""
    fixes, comparators = sound_rows(run, section)
    panels = sound_panels(fixes)
    if not panels:
        raise NotDrawn(f"sound over minutes of {section.title}: no audio measured")
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(1.2 + 5.6 * columns, 1.5 + 3.2 * lines)
    grid = figure.subplots(lines, columns, squeeze=False)
    unit = time_unit([*fixes, *comparators])
    for axes, panel in zip(grid.flat, panels, strict=False):
        sound_panel(axes, fixes, comparators, panel, unit=unit)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    missing = {"noise_floor", "control"} - {row.role for row in comparators}
    without = f" (not measured: {', '.join(sorted(missing)).replace('_', ' ')})" if missing else ""
    figure.suptitle(f"{section.title}: sound over time{without}", x=0.01, ha="left", fontsize=12)
    handles = _handles(fixes, comparators)
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)), frameon=False, fontsize=9)
    return figure


def sound_rows(run: Run, section: Group) -> tuple[list[Row], list[Row]]:
    """Return the fixes that have audio, and reference, noise floor and controls."""
    return [row for row in section.curing if row.data("audio")], list(run.comparators(section, "audio"))


def sound_panels(fixes: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return the panels that at least one fix has a series for."""
    return [panel for panel in SOUND_PANELS if any(sound_series(row, *panel[:2]) for row in fixes)]


def sound_series(row: Row, against: str, metric: str) -> Points | None:
    """Return a row's distance over time."""
    return series_of(row.data("audio"), against, metric, "series", value="value")


def time_unit(rows: Sequence[Row]) -> tuple[float, str]:
    """Return (seconds per unit, its name) for the axis of time."""
    last = [points[0][-1] for row in rows for panel in SOUND_PANELS if (points := sound_series(row, *panel[:2]))]
    return (1.0, "s") if max(last) < SHORT_S else (60.0, "min")


def sound_panel(
    axes: Axes,
    fixes: Sequence[Row],
    comparators: Sequence[Row],
    panel: tuple[str, str, str],
    *,
    unit: tuple[float, str],
) -> None:
    """Draw one distance over time."""
    against, metric, direction = panel
    for row in (*comparators, *fixes):
        points = sound_series(row, against, metric)
        if points is None or (row.role == "reference" and against == "against_reference"):
            continue
        if row.role == "noise_floor":
            low, high = (float(end) for end in np.quantile(points[1], [0.05, 0.95]))
            colour = style_of("noise_floor").colour
            axes.axhspan(low, high, color=colour, alpha=_BAND_ALPHA[against], lw=0, zorder=0)
        _sound_line(axes, row, points, unit_s=unit[0])
    if against == "against_reference" and (text := _identical_text(fixes, metric)):
        axes.text(0.01, 0.985, text, transform=axes.transAxes, va="top", fontsize=8.5, color=FAINT)
        axes.margins(y=0.12)
    short, unit_of_metric, _ = METRIC_TITLES[metric]
    _name_axes(axes, f"time, {unit[1]}", f"{short}, {unit_of_metric}")
    dress(axes, title=f"{short} {_TO[against]}, {direction}")


def _identical_text(fixes: Sequence[Row], metric: str) -> str:
    """Say where a metric has no finite value because the audio equals the reference's."""
    whole = [row.fix for row in fixes if sound_series(row, "against_reference", metric) is None and is_identical(row)]
    parts = [row for row in fixes if figure_of(row.data("audio"), "against_reference", metric, "n_infinite")]
    texts = [f"identical to the reference, no finite value: {join(whole)}"] if whole else []
    if any(row.fix not in whole for row in parts):
        texts.append("others: no line where identical" if whole else "no line where identical to the reference")
    return "; ".join(texts)


def _sound_line(axes: Axes, row: Row, points: Points, *, unit_s: float) -> None:
    style, of = style_of(row.fix), f"of {row.fix}"
    times, values = np.asarray(points[0]) / unit_s, np.asarray(points[1])
    smooth = running_median(values, window=max(3, round(0.15 * values.size)) | 1) if values.size >= 8 else values
    width = {"control": 1.6, "noise_floor": 1.2, "reference": 1.1}.get(row.role, 2.0)
    height = 5 if row.role == "reference" else 3
    steps = np.diff(times)
    breaks = np.flatnonzero(steps > 1.5 * np.median(steps)) + 1  # windows without a finite value: no line across
    lines = np.insert(times, breaks, np.nan), np.insert(smooth, breaks, np.nan)
    axes.plot(*lines, color=style.colour, linestyle=style.line, linewidth=width, zorder=height, gid=of)
    marks = slice(len(times) // 8, None, max(1, len(times) // 4))
    if row.role == "fix":
        axes.plot(times[marks], smooth[marks], style.marker, color=style.colour, markersize=4.5, zorder=6, gid=of)


def _handles(fixes: Sequence[Row], comparators: Sequence[Row]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for row in fixes:
        style = style_of(row.fix)
        ratio = figure_of(row.data("audio"), "against_reference", "mel_mcd_db", "ratio_to_null")
        text = row.fix + ("" if ratio is None else f" (MCD × {ratio:.2f} of noise floor)")
        handles.append(Line2D([], [], color=style.colour, marker=style.marker, markersize=5, label=text))
    for row in comparators:
        style = style_of(row.fix)
        if row.role == "noise_floor":
            handles.append(Patch(color=style.colour, alpha=0.4, label="noise floor, 5–95 % of windows"))
        else:
            handles.append(Line2D([], [], color=style.colour, linestyle=style.line, label=_label(row)))
    return handles


def draw_survival(run: Run, section: Group) -> Figure:
    """Draw the survival curves of one section."""
    rows = survival_rows(run, section)
    if not rows:
        raise NotDrawn(f"survival of streams, {section.title}: divergence was not measured")
    figure = new_figure(9.2, 4.9)
    axes = figure.subplots()
    ends = survival_panel(axes, rows)
    streams = figure_of(rows[-1].data("divergence"), "streams")
    count = "" if streams is None else f"{streams:.0f} "
    without = "" if any(row.role == "noise_floor" for row in rows) else "; the noise floor was not measured"
    title = f"{section.title}: survival of {count}free-running streams{without}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    lay_out(figure)
    label_line_ends(axes, ends)
    return figure


def survival_rows(run: Run, section: Group) -> list[Row]:
    """Return noise floor and controls, then the fixes, that have a survival curve; empty where no fix has one."""
    rows = [row for row in section.curing if survival_series(row, "fraction")]
    others = [row for row in run.comparators(section, "divergence") if survival_series(row, "fraction")]
    return [*others, *rows] if rows else []


def survival_series(row: Row, name: str) -> Points | None:
    """Return a row's share of streams that are still on the reference's tokens, or an end of its interval."""
    return series_of(row.data("divergence"), "survival", value=name)


def survival_panel(axes: Axes, rows: Sequence[Row]) -> Ends:
    """Draw the curves as steps, with the recorded interval as a band for each fix until its last stream is lost."""
    ends = [_survival_curve(axes, row) for row in rows]
    axes.set_ylim(-0.03, 1.04)
    axes.set_yticks(np.linspace(0, 1, 6), [f"{100 * share:.0f} %" for share in np.linspace(0, 1, 6)])
    _name_axes(axes, "time since the prompt, s", "streams still on the reference's tokens")
    return ends


def _survival_curve(axes: Axes, row: Row) -> tuple[float, str, str]:
    style, of = style_of(row.fix), f"of {row.fix}"
    time_s, share = survival_series(row, "fraction") or ([], [])
    low, high = survival_series(row, "low"), survival_series(row, "high")
    if row.role == "fix" and low and high and low[0] == high[0] == time_s:
        drawn = np.asarray(share) > 0
        drawn[1:] |= drawn[:-1]  # up to the last loss; from there on no stream is left to be unsure of
        axes.fill_between(
            time_s, low[1], high[1], where=drawn.tolist(), step="post", color=style.colour, alpha=0.13, lw=0, gid=of
        )
    is_floor = row.role == "noise_floor"
    axes.step(
        time_s,
        share,
        where="post",
        color=style.colour,
        linewidth=2.4 if is_floor else 1.8,
        linestyle=style.line,
        zorder=2.5 if is_floor else 3,
        gid=of,
    )
    diverged, streams = (figure_of(row.data("divergence"), name) for name in ("diverged", "streams"))
    counts = "" if diverged is None or streams is None else f", {diverged:.0f} of {streams:.0f} diverged"
    return share[-1], _label(row) + counts, style.text_colour


def running_median(values: np.ndarray, *, window: int) -> np.ndarray:
    """Return the centred running median, shape (n,); the window shrinks at both ends so that nothing is invented."""
    half = max(window // 2, 0)
    return np.array([np.median(values[max(i - half, 0) : i + half + 1]) for i in range(values.size)])


def _label(row: Row) -> str:
    return row.fix.replace("control_", "control: ").replace("noise_floor", "noise floor")


def _name_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)
    axes.margins(x=0.01)
    dress(axes)
