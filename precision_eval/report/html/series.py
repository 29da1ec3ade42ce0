"""The charts over time of a group: drift under teacher forcing, sound over minutes, survival of streams.

Conventions: as in ``report.plots_drift``, ``plots_audio`` and ``plots_survival``: the same rows, panels, windows of the
running median and bands. References (noise floor, controls, reference) are those of the group's section.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from precision_eval.core.formatting import METRIC_TITLES, join
from precision_eval.report.html.facts import diverged_of, record_of
from precision_eval.report.html.lines import SHORT_S, Line, line_chart, series_at
from precision_eval.report.html.looks import Palette, label_of
from precision_eval.report.html.places import Place
from precision_eval.report.html.svg import Frame
from precision_eval.report.html.tradeoff import Chart
from precision_eval.report.plots_audio import PANELS as SOUND_PANELS
from precision_eval.report.plots_drift import PANELS as DRIFT_PANELS
from precision_eval.report.plots_drift import WINDOW_FRACTION
from precision_eval.results.data import Row, is_identical

NAMED = Frame(width=640, height=330, right=178)
"""With room for the names of lines."""

WIDE = Frame(width=700, height=330, right=294)
PLAIN = Frame(width=430, height=280)
_TO = {"against_reference": "to the reference", "against_original": "to the original"}
_DRIFT = "teacher_forced_drift"


def drift_charts(place: Place, palette: Palette) -> tuple[Chart, ...]:
    """Draw drift over time under teacher forcing; empty where no fix has a series of it."""
    rows = [row for row in place.section.curing if series_at(record_of(row, _DRIFT), "series", value="relative_error")]
    if not rows:
        return ()
    rows += [row for row in place.run.comparators(place.section, _DRIFT) if row.role == "control"]
    charts = []
    for name, label in DRIFT_PANELS:
        lines = [line for row in rows if (line := _drift_line(row, name)) is not None]
        if lines:
            charts.append(
                line_chart(
                    lines,
                    palette,
                    frame=NAMED,
                    key=f"drift-{place.key}-{name}".replace("_", "-"),
                    title=f"{place.label}: {label}",
                    description=f"{place.title}: {label} over time of {_names(lines)}",
                    x_title="time into the scored speech",
                    y_title=label,
                    log=True,
                )
            )
    return tuple(charts)


def sound_rows(place: Place) -> tuple[list[Row], list[Row]]:
    """Return the fixes that have audio, and reference, noise floor and controls."""
    fixes = [row for row in place.section.curing if row.data("audio")]
    return fixes, list(place.run.comparators(place.section, "audio"))


def sound_charts(place: Place, palette: Palette) -> tuple[Chart, ...]:
    """Draw the audio metrics over time; empty where no fix has any."""
    fixes, comparators = sound_rows(place)
    every = [_sound_line(row, *panel[:2]) for row in (*fixes, *comparators) for panel in SOUND_PANELS]
    last_s = max((float(line.series.time_s[-1]) for line in every if line is not None), default=0.0)
    charts = []
    for against, metric, direction in SOUND_PANELS:
        own = [line for row in fixes if (line := _sound_line(row, against, metric)) is not None]
        if not own:
            continue
        others = [row for row in comparators if not (row.role == "reference" and against == "against_reference")]
        lines = [line for row in others if (line := _sound_line(row, against, metric)) is not None]
        short, unit, full = METRIC_TITLES[metric]
        charts.append(
            line_chart(
                [*lines, *own],
                palette,
                frame=PLAIN,
                key=f"minutes-{place.key}-{against}-{metric}".replace("_", "-"),
                title=f"{short} {_TO[against]}, {direction}",
                description=f"{place.title}: {full} {_TO[against]} over time of {_names(own)}",
                x_title="time",
                y_title=f"{short}, {unit}",
                grey=_noise_floor_band(lines),
                minutes=last_s >= SHORT_S,
                notes=_identical(fixes, against, metric),
            )
        )
    return tuple(charts)


def survival_chart(place: Place, palette: Palette) -> Chart | None:
    """Draw the share of streams still on the reference's tokens; None where divergence was not measured."""
    rows = [row for row in place.section.curing if _survival(row, "fraction")]
    if not rows:
        return None
    comparators = [row for row in place.run.comparators(place.section, "divergence") if _survival(row, "fraction")]
    lines = [line for row in (*comparators, *rows) if (line := _survival_line(row)) is not None]
    return line_chart(
        lines,
        palette,
        frame=WIDE,
        key=f"survival-{place.key}",
        title=place.label,
        description=f"{place.title}: share of streams still on the reference's tokens over time of {_names(lines)}",
        x_title="time since the prompt",
        y_title="streams on the reference's tokens",
        percent=True,
        notes=() if any(row.role == "noise_floor" for row in comparators) else ("the noise floor was not measured",),
    )


def _drift_line(row: Row, name: str) -> Line | None:
    series = series_at(record_of(row, _DRIFT), "series", value=name)
    if series is None or series.value.max() <= 0:
        return None
    window = round(WINDOW_FRACTION * series.value.size) | 1
    return Line(row=row, series=series, window=window, faint=window > 1, label=label_of(row.fix))


def _sound_line(row: Row, against: str, metric: str) -> Line | None:
    series = series_at(record_of(row, "audio"), against, metric, "series", value="value")
    if series is None:
        return None
    size = series.value.size
    return Line(row=row, series=series, window=max(3, round(0.15 * size)) | 1 if size >= 8 else 1)


def _noise_floor_band(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Return the 5th and 95th percentile of the noise floor's windows."""
    noise_floor = next((line for line in lines if line.row.role == "noise_floor"), None)
    if noise_floor is None:
        return None
    low, high = np.quantile(noise_floor.series.value, [0.05, 0.95])
    return float(low), float(high)


def _identical(fixes: Sequence[Row], against: str, metric: str) -> tuple[str, ...]:
    """Say whose audio has no finite value because it equals the reference's."""
    whole = [row.fix for row in fixes if is_identical(row) and _sound_line(row, against, metric) is None]
    if against != "against_reference" or not whole:
        return ()
    return (f"no line, the very audio of the reference: {join(whole)}",)


def _survival(row: Row, name: str) -> bool:
    return series_at(record_of(row, "divergence"), "survival", value=name) is not None


def _survival_line(row: Row) -> Line | None:
    record = record_of(row, "divergence")
    share, low, high = (series_at(record, "survival", value=name) for name in ("fraction", "low", "high"))
    if share is None:
        return None
    banded = row.role == "fix" and low is not None and high is not None and low.index == high.index == share.index
    counts = diverged_of(row)
    label: Markup | str = label_of(row.fix)
    if counts is not None:
        label = Markup("{}: {} of {} diverged").format(label, counts[0].tspan, counts[1].tspan)
    return Line(
        row=row,
        series=share,
        step=True,
        band=(low.value, high.value) if banded and low is not None and high is not None else None,
        label=label,
    )


def _names(lines: Sequence[Line]) -> str:
    return join([line.row.fix for line in lines])
