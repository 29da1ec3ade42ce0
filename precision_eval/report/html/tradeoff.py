"""Drift against speed: one chart per group, each fix a mark with its intervals, the front drawn.

Conventions: lower left is better. Both axes are ratios: time over the baseline's, drift to float64 (logarithmic). The
faint disc behind a mark is memory by area. Marks carry the id of a hidden list of everything recorded about them, which
the script shows on hover and focus. The selection is that of ``report.plots_tradeoff``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup
from matplotlib.transforms import Bbox

from precision_eval.core.formatting import join
from precision_eval.report.html.facts import lines_of
from precision_eval.report.html.figures import Figure, Ranged
from precision_eval.report.html.looks import Palette, label_of, marker
from precision_eval.report.html.places import Place
from precision_eval.report.html.svg import Frame, Scale, axes, chart, labelled, padded
from precision_eval.report.plots_tradeoff import WIDE_RATIO
from precision_eval.report.ranking import drift_interval, is_baseline, latency_interval, pareto_front
from precision_eval.results.data import Row, memory_bytes

FRAME = Frame(width=430, height=340, right=16)
_LARGEST_PX, _SMALLEST_PX, _MARK_PX = 24.0, 7.0, 5.5


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart and what stands with it."""

    key: str
    title: str
    svg: Markup
    tips: tuple[tuple[str, Row, list[tuple[str, Figure | Ranged | str]]], ...] = ()
    notes: tuple[str, ...] = ()
    series: str = ""


@dataclass(frozen=True, kw_only=True)
class _Point:
    row: Row
    x: tuple[float, float, float]
    y: tuple[float, float, float]
    measured: bool
    total_bytes: float | None


def tradeoff_of(place: Place, palette: Palette) -> Chart | None:
    """Draw the trade-off of a group; None where no fix has both a latency ratio and a drift above 0."""
    points = _points(place)
    if not points:
        return None
    x, y = _scales(points)
    largest = max((point.total_bytes or 0.0 for point in points), default=0.0)
    key = f"tradeoff-{place.key}"
    baseline = str((points[0].row.data("latency") or {}).get("baseline", "the baseline"))
    corners = _corners(place, points, x, y)
    body = [
        axes(FRAME, x, y, x_title=f"time ÷ {baseline}'s (left is faster)", y_title="drift: relative error to float64"),
        _unit_line(x, y),
        Markup('<path class="front" d="M{}"/>').format("L".join(f"{a:.1f} {b:.1f}" for a, b in corners)),
    ]
    radii = [_radius(point.total_bytes, largest) for point in points]
    tips = []
    for number, (point, radius) in enumerate(zip(points, radii, strict=True)):
        tip = f"{key}-{number}"
        tips.append((tip, point.row, lines_of(point.row, place.section)))
        body.append(_mark(point, x, y, radius, tip, palette.css(point.row.fix)))
    body.append(_names(points, radii, corners, x, y, palette))
    title = f"{place.title}: drift against time of {join([point.row.fix for point in points])}"
    svg = chart(FRAME, Markup("").join(body), title=title, key=key, x=x, y=y, kind="points")
    return Chart(key=key, title=place.label, svg=svg, tips=tuple(tips), notes=_notes(place, points))


def _points(place: Place) -> list[_Point]:
    found = []
    for row in place.section.curing:
        speed, drift, memory = latency_interval(row), drift_interval(row), memory_bytes(row)
        if speed is None or drift is None or drift[0] <= 0:
            continue
        measured = "relative_error_low" in (row.drift or {})
        total = None if memory is None else sum(memory)
        found.append(_Point(row=row, x=speed, y=drift, measured=measured, total_bytes=total))
    return found


def _scales(points: Sequence[_Point]) -> tuple[Scale, Scale]:
    quickest, slowest = min(point.x[1] for point in points), max(point.x[2] for point in points)
    wide = slowest > WIDE_RATIO * quickest > 0
    x_ends = padded(quickest, slowest, share=0.14, log=wide, least=0.2)
    y_ends = padded(min(p.y[1] for p in points), max(p.y[2] for p in points), share=0.17, log=True, least=1.0)
    return FRAME.x(*x_ends, log=wide), FRAME.y(*y_ends, log=True)


def _unit_line(x: Scale, y: Scale) -> Markup:
    if not x.low < 1.0 < x.high:
        return Markup("")
    ends = (x(1.0), x(1.0), y.start, y.end)
    return Markup('<line class="one" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(*(f"{at:.1f}" for at in ends))


def _corners(place: Place, points: Sequence[_Point], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Pixels of the staircase that no point lies below."""
    known = {point.row.fix: point for point in points}
    front = [known[row.fix] for row in pareto_front(place.section) if row.fix in known]
    xs = [x(point.x[0]) for point in front] + [x.end]
    ys = [y.end] + [y(point.y[0]) for point in front]
    corners = [(xs[0], ys[0])]
    for i in range(len(front)):
        corners += [(xs[i], ys[i + 1]), (xs[i + 1], ys[i + 1])]
    return corners


def _mark(point: _Point, x: Scale, y: Scale, radius: float, tip: str, css: str) -> Markup:
    at = (x(point.x[0]), y(point.y[0]))
    whiskers = f"M{x(point.x[1]):.1f} {at[1]:.1f}L{x(point.x[2]):.1f} {at[1]:.1f}"
    if point.measured:
        whiskers += f"M{at[0]:.1f} {y(point.y[1]):.1f}L{at[0]:.1f} {y(point.y[2]):.1f}"
    disc = Markup('<circle class="disc" cx="{}" cy="{}" r="{}"/>').format(*(f"{v:.1f}" for v in (*at, radius)))
    label = f"{point.row.fix}{', the baseline of time' if is_baseline(point.row) else ''}"
    return Markup(
        '<g class="mark {}" data-fix="{}" data-tip="{}" data-at="{} {}" role="img" aria-label="{}" '
        'aria-describedby="{}" tabindex="-1">{}<path class="whisker" d="{}"/>{}'
        '<circle class="hit" cx="{}" cy="{}" r="13"/></g>'
    ).format(
        css, point.row.fix, tip, f"{at[0]:.2f}", f"{at[1]:.2f}", label, tip,
        disc if point.total_bytes else "", whiskers, marker(point.row.fix, *at, _MARK_PX),
        f"{at[0]:.1f}", f"{at[1]:.1f}",
    )  # fmt: skip


def _names(
    points: Sequence[_Point],
    radii: Sequence[float],
    corners: Sequence[tuple[float, float]],
    x: Scale,
    y: Scale,
    palette: Palette,
) -> Markup:
    """Names beside the marks, off the whiskers and the front."""
    obstacles = [_box(*start, *end) for start, end in pairwise(corners)]
    obstacles += [_box(x(p.x[1]), y(p.y[0]), x(p.x[2]), y(p.y[0])) for p in points]
    obstacles += [_box(x(p.x[0]), y(p.y[1]), x(p.x[0]), y(p.y[2])) for p in points if p.measured]
    texts = [(x(p.x[0]), y(p.y[0]), label_of(p.row.fix), palette.css(p.row.fix)) for p in points]
    frame = Bbox([[x.start, y.end], [x.end + 12.0, y.start]])
    return labelled(texts, radii_px=[max(radius, 8.0) for radius in radii], frame=frame, obstacles=obstacles)


def _box(x0: float, y0: float, x1: float, y1: float) -> tuple[float, float, float, float]:
    return min(x0, x1) - 2.0, min(y0, y1) - 2.0, max(x0, x1) + 2.0, max(y0, y1) + 2.0


def _radius(size_bytes: float | None, largest: float) -> float:
    if not size_bytes or largest <= 0:
        return _SMALLEST_PX
    return max(_SMALLEST_PX, _LARGEST_PX * math.sqrt(size_bytes / largest))


def _notes(place: Place, points: Sequence[_Point]) -> tuple[str, ...]:
    shown = {point.row.fix for point in points}
    exact = [row.fix for row in place.section.curing if (row.drift or {}).get("relative_error") == 0]
    lacking = [row.fix for row in place.section.curing if row.fix not in shown and row.fix not in exact]
    failing: dict[str, list[str]] = {}
    for row in place.section.failing:
        failing.setdefault(row.status.replace("_", " "), []).append(row.fix)
    notes = [f"{join(names)}: {status}" for status, names in failing.items()]
    notes += [f"no drift at all, so no place on this axis: {join(exact)}"] if exact else []
    notes += [f"time or drift not measured: {join(lacking)}"] if lacking else []
    return tuple(notes)
