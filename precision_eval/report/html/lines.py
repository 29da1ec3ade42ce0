"""Lines over time in SVG, with the values of every line for the script.

Conventions: times are seconds. A line is drawn as its running median where `window` asks for it, and thinned to what a
chart can show; the values that hover and focus show are the record's own, at up to :data:`MOST_SHOWN` places along the
axis. The series that the script reads are JSON with, per line, the cell, the JSON pointer of the list, and indices,
times and values of what is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from precision_eval.core.records import Record
from precision_eval.report.html.figures import pointer
from precision_eval.report.html.looks import Palette, dashes_of, marker
from precision_eval.report.html.svg import Frame, Scale, axes, chart, end_labels, padded, path_of
from precision_eval.report.html.tradeoff import Chart
from precision_eval.report.plots_drift import running_median
from precision_eval.results.data import Row

MOST_SHOWN = 150
"""Places along the axis at which values are shown."""

_MOST_DRAWN = 400
_BREAK = 1.5
SHORT_S = 180.0
"""Below this duration, in seconds, the axis of time is in seconds."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A recorded list over time, gaps left out.

    Attributes
    ----------
    record : str
        Cell.
    path : str
        JSON pointer of the list.
    index : tuple of int
        Of each value in that list.
    time_s, value : numpy.ndarray, shape (n,)
    """

    record: str
    path: str
    index: tuple[int, ...]
    time_s: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    row: Row
    series: Series
    window: int = 1
    faint: bool = False
    step: bool = False
    band: tuple[np.ndarray, np.ndarray] | None = None
    label: Markup | str = ""

    @property
    def drawn(self) -> np.ndarray:
        """What is drawn, shape (n,)."""
        return running_median(self.series.value, window=self.window) if self.window > 1 else self.series.value


def series_at(record: Record | None, *path: str, value: str) -> Series | None:
    """Return the series at `path` of a record's data; None where fewer than two finite values exist."""
    node: Any = None if record is None else record.data
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    if record is None or not isinstance(node, dict):
        return None
    pairs = list(zip(node.get("time_s") or (), node.get(value) or (), strict=False))
    index = [i for i, (_, v) in enumerate(pairs) if v is not None and math.isfinite(v)]
    if len(index) < 2:
        return None
    return Series(
        record=record.cell,
        path=pointer("data", *path, value),
        index=tuple(index),
        time_s=np.asarray([pairs[i][0] for i in index], dtype=float),
        value=np.asarray([pairs[i][1] for i in index], dtype=float),
    )


def line_chart(
    lines: Sequence[Line],
    palette: Palette,
    *,
    frame: Frame,
    key: str,
    title: str,
    description: str,
    x_title: str,
    y_title: str,
    log: bool = False,
    percent: bool = False,
    grey: tuple[float, float] | None = None,
    minutes: bool | None = None,
    notes: Sequence[str] = (),
) -> Chart:
    """Draw lines over time."""
    last_s = max(float(line.series.time_s[-1]) for line in lines)
    unit_s, unit = (60.0, "min") if (last_s >= SHORT_S if minutes is None else minutes) else (1.0, "s")
    first = min(float(line.series.time_s[0]) for line in lines)
    x = frame.x(*padded(first / unit_s, last_s / unit_s, share=0.01))
    y = frame.y(*((-0.03, 1.04) if percent else _extent(lines, grey, log=log)), log=log)
    body = [axes(frame, x, y, x_title=f"{x_title}, {unit}", y_title=y_title, percent=percent)]
    if grey is not None:
        body.append(_grey(x, y, grey))
    body += [_drawn(line, palette.css(line.row.fix), x, y, unit_s) for line in lines]
    ends = [(_last(line, y), line.label, palette.css(line.row.fix)) for line in lines if line.label]
    body.append(end_labels(ends, x=x, y=y))
    body.append(Markup('<g class="cross" hidden="hidden"><line y1="{}" y2="{}"/></g>').format(y.start, y.end))
    svg = chart(frame, Markup("").join(body), title=description, key=key, x=x, y=y, kind="lines")
    return Chart(key=key, title=title, svg=svg, notes=tuple(notes), series=_json(lines, palette, unit_s, unit))


def _extent(lines: Sequence[Line], grey: tuple[float, float] | None, *, log: bool) -> tuple[float, float]:
    values = np.concatenate([line.series.value if line.faint else line.drawn for line in lines])
    if grey is not None:
        values = np.concatenate([values, grey])
    values = values[values > 0] if log else values
    return padded(float(values.min()), float(values.max()), share=0.06, log=log, least=0.3 if log else 0.0)


def _grey(x: Scale, y: Scale, ends: tuple[float, float]) -> Markup:
    top, bottom = sorted(y(value) for value in ends)
    return Markup('<rect class="null" x="{}" y="{}" width="{}" height="{}"/>').format(
        *(f"{v:.1f}" for v in (x.start, top, x.end - x.start, bottom - top))
    )


def _drawn(line: Line, css: str, x: Scale, y: Scale, unit_s: float) -> Markup:
    times = line.series.time_s / unit_s
    parts = []
    if line.band is not None:
        parts.append(_band(line, times, x, y))
    if line.faint:
        raw = _pixels(times, line.series.value, x, y, most=2 * _MOST_DRAWN)
        parts.append(Markup('<path class="raw" d="{}"/>').format(path_of(raw)))
    pixels = _pixels(times, line.drawn, x, y, step=line.step)
    dashes = Markup(' stroke-dasharray="{}"').format(dashes) if (dashes := dashes_of(line.row.fix)) else ""
    parts.append(Markup('<path class="ln {}" d="{}"{}/>').format(line.row.role, path_of(pixels), dashes))
    if line.row.role == "fix":
        parts += _marks(line, times, x, y)
    return Markup('<g class="{}" data-fix="{}">{}</g>').format(css, line.row.fix, Markup("").join(parts))


def _pixels(
    times: np.ndarray, values: np.ndarray, x: Scale, y: Scale, *, step: bool = False, most: int = _MOST_DRAWN
) -> list[tuple[float, float] | None]:
    """Pixels of a line; the pen is lifted where times leave a gap, and where a logarithmic axis has no place."""
    every = 1 if step else max(1, -(-times.size // most))
    kept = list(range(0, times.size, every))
    if kept[-1] != times.size - 1:
        kept.append(times.size - 1)
    usual = float(np.median(np.diff(times))) * every
    found: list[tuple[float, float] | None] = []
    before: tuple[float, float] | None = None
    last_time = -math.inf
    for i in kept:
        if y.log and values[i] <= 0:
            before = None
            found.append(None)
            continue
        here = (x(float(times[i])), y(float(values[i])))
        if before is not None and not step and times[i] - last_time > _BREAK * usual:
            found.append(None)
        if step and before is not None:
            found.append((here[0], before[1]))
        found.append(here)
        before, last_time = here, float(times[i])
    return found


def _band(line: Line, times: np.ndarray, x: Scale, y: Scale) -> Markup:
    assert line.band is not None
    shown = line.series.value > 0
    shown[1:] |= shown[:-1].copy()  # up to the last loss; from there on nothing is left to be unsure of
    low, high = (_pixels(times[shown], ends[shown], x, y, step=True) for ends in line.band)
    around = path_of([*high, *reversed(low)])
    return Markup('<path class="band" d="{}Z"/>').format(around)


def _marks(line: Line, times: np.ndarray, x: Scale, y: Scale) -> list[Markup]:
    """A few of the fix's own marks along the line, so that colour is not all that tells it apart."""
    places = range(times.size // 8, times.size, max(1, times.size // 4))
    points = [(float(times[i]), float(line.drawn[i])) for i in places]
    return [marker(line.row.fix, x(t), y(v), 4.0) for t, v in points if v > 0 or not y.log]


def _last(line: Line, y: Scale) -> float:
    drawn = line.drawn[line.drawn > 0] if y.log else line.drawn
    return y(float(drawn[-1])) if drawn.size else y.start


def _json(lines: Sequence[Line], palette: Palette, unit_s: float, unit: str) -> str:
    found = []
    for line in lines:
        every = max(1, -(-len(line.series.index) // MOST_SHOWN))
        index = list(line.series.index)[::every]
        found.append(
            {
                "name": line.row.fix,
                "css": palette.css(line.row.fix),
                "record": line.series.record,
                "path": line.series.path,
                "i": index,
                "t": line.series.time_s[::every].tolist(),
                "v": line.series.value[::every].tolist(),
            }
        )
    text = json.dumps({"unit_s": unit_s, "unit": unit, "lines": found}, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
