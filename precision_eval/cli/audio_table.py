"""The tables of ``precision-eval audio``.

Conventions: a dash where there is no value; ↓ marks what is closer when lower, ↑ when higher. The slope is per minute
with its 95 % interval; thirds are means over the first and the last third of the windows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from audio_metrics import METRICS, metric_by_name
from precision_eval.cli.audio_files import Header
from precision_eval.report.metric_titles import title_of

if TYPE_CHECKING:
    from audio_metrics import Comparison, Flag, Inspection, Summary

_ARROWS = {"lower": "↓", "higher": "↑", None: ""}
_PLAIN_WIDTH = 120


def show(
    comparison: Comparison,
    signals: dict[str, Inspection],
    flags: tuple[Flag, ...],
    headers: list[Header],
    *,
    plot: Path | None,
) -> None:
    """Print everything about a pair on standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    for header in headers:
        console.print(Text(f"{header.role}: {header.path} ({header.subtype})"), soft_wrap=True)
    console.print(
        f"{clock(comparison.duration_s)} at {comparison.sample_rate_hz} Hz, aligned; windows of 1 s; "
        f"{100 * comparison.active_fraction:.0f} % of the frames active"
    )
    console.print(_levels(comparison))
    console.print(_courses(comparison))
    console.print(_whole(comparison))
    console.print(_signals(signals))
    for line in _notes(comparison, flags):
        console.print(Text(line), soft_wrap=True)
    if plot is not None:
        console.print(Text(f"figure: {plot}"), soft_wrap=True)


def heading_of(name: str) -> str:
    """The title with an arrow that says which way is closer."""
    return f"{title_of(name)} {_ARROWS[metric_by_name(name).direction]}".strip()


def figure_of(value: float) -> str:
    """Three significant digits, a real minus sign, a dash for no value."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0.0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}".replace("-", "−")
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}".replace("-", "−")


def clock(seconds: float) -> str:
    """``61.5`` → ``1:01.5``."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    start = f"{int(hours)}:{int(minutes):02d}" if hours else f"{int(minutes)}"
    return f"{start}:{seconds:04.1f}"


def _levels(comparison: Comparison) -> Table:
    ratios = comparison.ratio_to_null
    table = Table(box=None, pad_edge=False, title="per second", title_justify="left")
    table.add_column("metric", no_wrap=True)
    table.add_column("unit")
    for heading in ("whole", "mean", "median", "p95", "worst", "at", *([] if ratios is None else ["× noise floor"])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, summary in comparison.summaries.items():
        metric = metric_by_name(name)
        values = (summary.whole_file, summary.mean, summary.median, summary.p95, summary.worst)
        row = [heading_of(name), metric.unit, *map(figure_of, values), worst_at(summary)]
        if ratios is not None:
            row.append(figure_of(ratios.get(name, math.nan)))
        table.add_row(*map(Text, row))
    return table


def _courses(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, title="course", title_justify="left")
    table.add_column("metric", no_wrap=True)
    table.add_column("unit")
    for heading in ("slope/min [95 %]", "first third", "last third"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, summary in comparison.summaries.items():
        slope = "–"
        if not math.isnan(summary.slope_per_min):
            low, high = figure_of(summary.slope_low), figure_of(summary.slope_high)
            slope = f"{figure_of(summary.slope_per_min)} [{low}, {high}]"
        thirds = [figure_of(value) for value in (summary.first_third, summary.last_third)]
        table.add_row(*map(Text, [heading_of(name), metric_by_name(name).unit, slope, *thirds]))
    return table


def worst_at(summary: Summary) -> str:
    """Start of the worst window as a clock; a dash where there is none or where every window is as bad."""
    found = np.flatnonzero(summary.series.value == summary.worst)
    values = summary.series.value[~np.isnan(summary.series.value)]
    if len(found) == 0 or (len(values) > 1 and np.all(values == values[0])):
        return "–"
    return clock(float(summary.series.time_s[found[0]]))


def _whole(comparison: Comparison) -> Table:
    ratios = comparison.ratio_to_null
    table = Table(box=None, pad_edge=False, title="whole file", title_justify="left")
    table.add_column("metric", no_wrap=True)
    table.add_column("unit")
    for heading in ("value", *([] if ratios is None else ["× noise floor"])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in (metric.name for metric in METRICS):
        value = getattr(comparison, name, None)
        if not isinstance(value, float):
            continue
        row = [heading_of(name), metric_by_name(name).unit, figure_of(value)]
        if ratios is not None:
            row.append(figure_of(ratios[name]) if name in ratios else "")
        table.add_row(*map(Text, row))
    never = math.isnan(comparison.t_div_s)
    last = ["another sound from (t_div)", "s", "never" if never else figure_of(comparison.t_div_s)]
    table.add_row(*last, *([] if ratios is None else [""]))
    return table


def _signals(signals: dict[str, Inspection]) -> Table:
    table = Table(box=None, pad_edge=False, title="each signal alone", title_justify="left")
    table.add_column("metric")
    table.add_column("unit")
    for role in signals:
        table.add_column(role, justify="right")
    for metric in METRICS:
        values = [getattr(signal, metric.name, None) for signal in signals.values()]
        if metric.n_signals == 1 and all(isinstance(value, float) for value in values):
            cells = [figure_of(value) for value in values if isinstance(value, float)]
            table.add_row(*map(Text, [title_of(metric.name), metric.unit, *cells]))
    return table


def _notes(comparison: Comparison, flags: tuple[Flag, ...]) -> list[str]:
    """Flags as sentences."""
    lines = []
    for flag in flags:
        when = "" if flag.time_s is None else f" First at {clock(flag.time_s)}."
        lines.append(f"! {flag.message[:1].upper()}{flag.message[1:]}.{when}")
    infinite = [title_of(name) for name, summary in comparison.summaries.items() if summary.n_infinite]
    if infinite:
        lines.append(f"! Some windows are equal bit for bit: {', '.join(infinite)} is infinite there.")
    return lines
