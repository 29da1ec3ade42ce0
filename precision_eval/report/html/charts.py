"""The charts of the HTML report: the panels of :mod:`precision_eval.report.figures`, one section each, and what a
reader sees on pointing at them.

Conventions: a chart of marks comes with a hidden list of records per mark. A chart of lines comes with its values as
JSON: per line the cell, the JSON pointer of the list, and indices, times in seconds and values as recorded, at up to
:data:`MOST_VALUES` places along the axis.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from precision_eval.core.formatting import METRIC_TITLES, join
from precision_eval.core.records import Record
from precision_eval.report.drawing import GROUPS_TEXT, dress, groups_text, label_line_ends
from precision_eval.report.facts import (
    Line,
    diverged_of,
    lines_of,
    mean_difference,
    memory_of,
    pointer,
    record_of,
)
from precision_eval.report.figures import over_time
from precision_eval.report.figures.bars import change_panel, draw_bars
from precision_eval.report.figures.tradeoff import draw_panel, is_crowded, label_points, points_of
from precision_eval.report.html.answer import GroupView, failing_text
from precision_eval.report.html.paper import svg_of
from precision_eval.results.model import Row, memory_bytes, node_of
from precision_eval.results.sound import SOUND_METRICS, SoundMetric

MOST_VALUES = 150
"""Places along the axis at which the values of a line can be read."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart and what belongs to it: tips as (id, row, its lines), notes, and the values of its lines as JSON."""

    key: str
    title: str
    svg: Markup
    tips: tuple[tuple[str, Row, Sequence[Line]], ...] = ()
    notes: tuple[str, ...] = ()
    series: str = ""
    is_wide: bool = False


def tradeoff_charts(place: GroupView) -> tuple[Chart, ...]:
    """Draw drift against time; empty where no fix has both, the drift above 0."""
    section = place.group
    points = points_of(section)
    if not points:
        return ()
    drawing, axes = _panel(8.6, 5.4) if is_crowded(points) else _panel(4.3, 3.5)
    largest = max(point.row.memory_bytes or 0.0 for point in points)
    draw_panel(axes, section, largest)
    dress(axes)
    label_points(axes, section, largest)
    rows = [point.row for point in points]
    tips = [(row, lines_of(row, section)) for row in rows]
    description = f"drift against time of {join([row.fix for row in rows])}"
    groups = groups_text([row.fix for row in rows])
    notes: tuple[str, ...] = (f"{groups}. {GROUPS_TEXT}",) if groups else ()
    notes += _tradeoff_notes(place, rows)
    chart = _marked_chart(drawing, place, f"tradeoff-{place.key}", tips, description=description, notes=notes)
    return (replace(chart, is_wide=is_crowded(points)),)


def _tradeoff_notes(place: GroupView, drawn: Sequence[Row]) -> tuple[str, ...]:
    """Name what has no place in the chart."""
    known = {row.fix for row in drawn}
    exact = [row.fix for row in place.group.curing if (row.drift_data or {}).get("relative_error") == 0]
    lacking = [row.fix for row in place.group.curing if row.fix not in known and row.fix not in exact]
    notes = failing_text(place.group).split("; ") if place.group.failing else []
    notes += [f"no drift at all, so no place on this axis: {join(exact)}"] if exact else []
    notes += [f"time or drift not measured: {join(lacking)}"] if lacking else []
    return tuple(notes)


def memory_charts(place: GroupView) -> tuple[Chart, ...]:
    """Draw storage and peak of every fix; empty where memory was not measured."""
    rows = [row for row in place.group.fixes if memory_bytes(row)]
    if not rows:
        return ()
    drawing, axes = _panel(4.3, 0.7 + 0.28 * len(place.group.fixes), left=1.25)
    draw_bars(axes, place.group)
    dress(axes)
    axes.grid(False, axis="y")
    tips = [(row, lines_of(row, place.group)) for row in rows]
    totals = {row.fix: total.tspan for row in rows if (total := memory_of(row)) is not None}
    return (
        _marked_chart(
            drawing, place, f"memory-{place.key}", tips, description="memory per fix", kind="bars", texts=totals
        ),
    )


def change_charts(place: GroupView) -> tuple[Chart, ...]:
    """Draw, per metric of sound, every condition's change from the reference: noise floor, controls, then fixes."""
    order = ("noise_floor", "control", "fix")
    rows = [*place.run.comparators(place.group, "sound"), *place.group.curing]
    judged = sorted((row for row in rows if row.sound and row.sound.metrics), key=lambda row: order.index(row.role))
    if not any(row.role == "fix" for row in judged):
        return ()
    known = judged[0].sound.metrics if judged[0].sound else {}
    return tuple(
        _change_chart(place, replace(metric, margin=known[metric.name].margin), judged)
        for metric in SOUND_METRICS
        if metric.name in known
    )


def _change_chart(place: GroupView, metric: SoundMetric, rows: Sequence[Row]) -> Chart:
    comparators = place.run.comparators(place.group, "sound")
    reference = record_of(next(row for row in comparators if row.role == "reference"), "sound")
    drawing, axes = _panel(4.3, 0.7 + 0.28 * len(rows), left=1.6, right=0.75)
    change_panel(axes, metric, rows)
    tips, texts = [], {}
    for row in rows:
        assert row.sound is not None
        decision = row.sound.metrics[metric.name]
        change = mean_difference(
            record_of(row, "sound"),
            reference,
            "heard",
            metric.name,
            write=lambda value: metric.text(value * metric.worse),
        )
        texts[row.fix] = change.tspan
        verdict = decision.verdict + (
            ", by less than the margin" if decision.verdict == "worse" and decision.no_worse else ""
        )
        lines: list[Line] = [(f"{metric.title}, change", change), ("judged", verdict)]
        tips.append((row, lines))
    title, description = f"{place.group.case}: {metric.title}", f"{metric.title}, change from the reference"
    key = f"change-{place.key}-{metric.name}".replace("_", "-")
    return _marked_chart(drawing, place, key, tips, description=description, title=title, texts=texts)


def drift_charts(place: GroupView) -> tuple[Chart, ...]:
    """Draw drift over time under teacher forcing; empty where no fix has a series of it."""
    every = over_time.drift_rows(place.run, place.group)
    charts = []
    for name, label in over_time.DRIFT_PANELS:
        rows = [row for row in every if over_time.drift_series(row, name)]
        if rows:
            drawing, axes = _panel(6.2, 3.3, right=1.75)
            ends = over_time.drift_panel(axes, rows, name, label)
            label_line_ends(axes, ends, fontsize=8.5)
            charts.append(
                _line_chart(
                    drawing,
                    rows,
                    ("teacher_forced_drift", "series", name),
                    key=f"drift-{place.key}-{name}",
                    title=f"{place.label}: {label}",
                    description=f"{place.group.title}: {label} over time of {_names(rows)}",
                )
            )
    return tuple(charts)


def sound_charts(place: GroupView) -> tuple[Chart, ...]:
    """Draw the audio metrics over time; empty where no fix has any."""
    fixes, comparators = over_time.sound_rows(place.run, place.group)
    panels = over_time.sound_panels(fixes)
    unit = over_time.time_unit([*fixes, *comparators]) if panels else (1.0, "s")
    charts = []
    for against, metric, direction in panels:
        drawing, axes = _panel(4.3, 2.9)
        over_time.sound_panel(axes, fixes, comparators, (against, metric, direction), unit=unit)
        axes.set_title("", loc="left")
        notes = tuple(text.get_text() for text in axes.texts)  # below the chart there is room for them
        for text in list(axes.texts):
            text.remove()
        rows = [
            row
            for row in (*comparators, *fixes)
            if over_time.sound_series(row, against, metric)
            and not (row.role == "reference" and against == "against_reference")
        ]
        short, _, full = METRIC_TITLES[metric]
        to = "to the reference" if against == "against_reference" else "to the original"
        charts.append(
            _line_chart(
                drawing,
                rows,
                ("audio", against, metric, "series", "value"),
                key=f"minutes-{place.key}-{against}-{metric}",
                title=f"{short} {to}, {direction}",
                description=f"{place.group.title}: {full} {to} over time of {_names(rows)}",
                unit=unit,
                notes=notes,
            )
        )
    return tuple(charts)


def survival_charts(place: GroupView) -> tuple[Chart, ...]:
    """Draw the share of streams still on the reference's tokens; empty where divergence was not measured."""
    rows = over_time.survival_rows(place.run, place.group)
    if not rows:
        return ()
    drawing, axes = _panel(6.8, 3.3, right=2.6)
    ends = over_time.survival_panel(axes, rows)
    label_line_ends(axes, ends, fontsize=8.5)
    texts = {}
    for row, artist in zip(rows, axes.texts[-len(ends) :], strict=True):
        artist.set_gid(f"text {row.fix}")
        if (counts := diverged_of(row)) is not None:
            name = artist.get_text().partition(",")[0]
            texts[row.fix] = Markup("{}, {} of {} diverged").format(name, counts[0].tspan, counts[1].tspan)
    chart = _line_chart(
        drawing,
        rows,
        ("divergence", "survival", "fraction"),
        key=f"survival-{place.key}",
        title=place.label,
        description=f"{place.group.title}: share of streams on the reference's tokens over time of {_names(rows)}",
        texts=texts,
        notes=() if any(row.role == "noise_floor" for row in rows) else ("the noise floor was not measured",),
    )
    return (chart,)


def _marked_chart(
    drawing: Figure,
    place: GroupView,
    key: str,
    tips: Sequence[tuple[Row, Sequence[Line]]],
    *,
    description: str,
    kind: str = "points",
    title: str = "",
    texts: dict[str, Markup] | None = None,
    notes: tuple[str, ...] = (),
) -> Chart:
    named = tuple((f"{key}-{number}", row, lines) for number, (row, lines) in enumerate(tips))
    description = f"{place.group.title}: {description}"
    marks = {row.fix: tip for tip, row, _ in named}
    svg = svg_of(drawing, key=key, description=description, kind=kind, tips=marks, texts=texts)
    return Chart(key=key, title=title or place.label, svg=svg, tips=named, notes=notes)


def _line_chart(
    drawing: Figure,
    rows: Sequence[Row],
    series: tuple[str, ...],
    *,
    key: str,
    title: str,
    description: str,
    unit: tuple[float, str] = (1.0, "s"),
    texts: dict[str, Markup] | None = None,
    notes: tuple[str, ...] = (),
) -> Chart:
    """Return a chart of lines; `series` is their measure, and the path in its data."""
    key, (measure, *path, value) = key.replace("_", "-"), series
    found = {row.fix: series_at(record_of(row, measure), *path, value=value) for row in rows}
    lines = [{"name": fix, **own} for fix, own in found.items() if own is not None]
    content = {"unit_s": unit[0], "unit": unit[1], "lines": lines}
    text = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    svg = svg_of(drawing, key=key, description=description, kind="lines", texts=texts)
    return Chart(key=key, title=title, svg=svg, notes=notes, series=text)


def series_at(record: Record | None, *path: str, value: str) -> dict[str, Any] | None:
    """Return cell, pointer, indices, times and values of a recorded series, thinned and without gaps."""
    if record is None:
        return None
    pairs = list(zip(*(node_of(record.data, *path, name) or () for name in ("time_s", value)), strict=False))
    index = [i for i, (_, v) in enumerate(pairs) if v is not None]
    if len(index) < 2:
        return None
    index = index[:: max(1, -(-len(index) // MOST_VALUES))]
    return {
        "record": record.cell,
        "path": pointer("data", *path, value),
        "i": index,
        "t": [pairs[i][0] for i in index],
        "v": [pairs[i][1] for i in index],
    }


def _panel(width_in: float, height_in: float, *, left: float = 0.72, right: float = 0.12) -> tuple[Figure, Axes]:
    """Return a figure with one panel, margins in inches."""
    drawing = Figure(figsize=(width_in, height_in), dpi=100)
    FigureCanvasAgg(drawing)
    bottom, top = 0.5, 0.12
    size = (width_in - left - right) / width_in, (height_in - bottom - top) / height_in
    return drawing, drawing.add_axes((left / width_in, bottom / height_in, *size))


def _names(rows: Sequence[Row]) -> str:
    return join([row.fix for row in rows if row.role == "fix"])
