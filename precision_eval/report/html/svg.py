"""Scales, axes and labels of charts in SVG, made here so that a page is complete without a script.

Conventions: pixels are those of the view box, y down. A chart states its scales in ``data-sx`` and ``data-sy`` as
``lin|log low high start end``, so that a program can read a mark's value back from its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.transforms import Bbox

from precision_eval.core.drawing import free_spot, spread

LETTER_PX = 7.0
"""Mean width of a letter at the charts' 13 pixels, a little on the wide side."""

LINE_PX = 16.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return a value's pixel."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    @property
    def text(self) -> str:
        """As a chart states it."""
        kind = "log" if self.log else "lin"
        return f"{kind} {self.low!r} {self.high!r} {self.start!r} {self.end!r}"

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round values along the axis."""
        return _log_ticks(self.low, self.high) if self.log else _even_ticks(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A chart's size, and the margins around its axes, in pixels."""

    width: float
    height: float
    left: float = 60.0
    right: float = 14.0
    top: float = 12.0
    bottom: float = 44.0

    def x(self, low: float, high: float, *, log: bool = False) -> Scale:
        """Return the horizontal scale."""
        return Scale(low=low, high=high, start=self.left, end=self.width - self.right, log=log)

    def y(self, low: float, high: float, *, log: bool = False) -> Scale:
        """Return the vertical scale."""
        return Scale(low=low, high=high, start=self.height - self.bottom, end=self.top, log=log)


def axes(frame: Frame, x: Scale, y: Scale | None, *, x_title: str, y_title: str = "", percent: bool = False) -> Markup:
    """Return grid, ticks and titles."""
    bottom, top = frame.height - frame.bottom, frame.top
    parts = []
    for value in x.ticks:
        at = f"{x(value):.1f}"
        parts.append(_line("grid", at, f"{bottom:.1f}", at, f"{top:.1f}"))
        parts.append(_tick(at, f"{bottom + 17:.1f}", "middle", _tick_text(value, log=x.log)))
    for value in () if y is None else y.ticks:
        at = f"{y(value):.1f}" if y is not None else ""
        parts.append(_line("grid", f"{x.start:.1f}", at, f"{x.end:.1f}", at))
        text = f"{100 * value:g} %" if percent else _tick_text(value, log=y is not None and y.log)
        parts.append(_tick(f"{x.start - 6:.1f}", f"{float(at) + 4:.1f}", "end", text))
    parts.append(_title(f"{(x.start + x.end) / 2:.1f}", f"{bottom + 36:.1f}", x_title))
    if y_title:
        turned = Markup('<text class="axis" transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>')
        parts.append(turned.format(f"{(bottom + top) / 2:.1f}", y_title))
    return Markup("").join(parts)


def chart(
    frame: Frame, content: Markup, *, title: str, key: str, x: Scale | None = None, y: Scale | None = None, kind: str
) -> Markup:
    """Return the SVG element around a chart's content."""
    scales = "".join(f' data-s{name}="{one.text}"' for name, one in (("x", x), ("y", y)) if one is not None)
    return Markup(
        '<svg class="chart" id="{}" data-kind="{}" viewBox="0 0 {} {}" role="group" tabindex="0" '
        'aria-roledescription="chart" aria-label="{}"{}>{}</svg>'
    ).format(key, kind, f"{frame.width:g}", f"{frame.height:g}", title, Markup(scales), content)  # noqa: S704 - numbers


def labelled(
    points: Sequence[tuple[float, float, str, str]],
    *,
    radii_px: Sequence[float],
    frame: Bbox,
    obstacles: Iterable[tuple[float, float, float, float]] = (),
) -> Markup:
    """Return a label beside each point, so that none covers another label, a mark or an obstacle where that can be."""
    taken = [(x - r, y - r, x + r, y + r) for (x, y, _, _), r in zip(points, radii_px, strict=True)]
    taken += obstacles
    parts = []
    for (x, y, text, name), radius in zip(points, radii_px, strict=True):
        width = text_width(text)
        left, top = free_spot((x, y), radius, (width, LINE_PX), taken, frame)
        taken.append((left, top, left + width, top + LINE_PX))
        middle = (left + width / 2, top + LINE_PX / 2)
        if math.hypot(middle[0] - x, middle[1] - y) > radius + width / 2 + 16:
            near = (min(max(x, left), left + width), min(max(y, top), top + LINE_PX))
            parts.append(
                Markup('<line class="lead {}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
                    name, *(f"{v:.1f}" for v in (x, y, *near))
                )
            )
        parts.append(
            Markup('<text class="name {}" x="{}" y="{}">{}</text>').format(
                name, f"{left:.1f}", f"{top + LINE_PX - 4:.1f}", text
            )
        )
    return Markup("").join(parts)


def end_labels(ends: Sequence[tuple[float, Markup | str, str]], *, x: Scale, y: Scale) -> Markup:
    """Return each line's name to the right of the axes, at its last height, moved apart where names would overlap."""
    low, high = min(y.start, y.end), max(y.start, y.end)
    placed = spread([at for at, _, _ in ends], step=LINE_PX, low=low + 6, high=high - 4)
    parts = []
    for height, (at, text, name) in zip(placed, ends, strict=True):
        lead = Markup('<path class="lead {}" d="M{} {}L{} {}"/>')
        target = min(max(at, low), high)
        parts.append(lead.format(name, *(f"{v:.1f}" for v in (x.end + 2, target, x.end + 18, height))))
        label = Markup('<text class="name {}" x="{}" y="{}">{}</text>')
        parts.append(label.format(name, f"{x.end + 21:.1f}", f"{height + 4:.1f}", text))
    return Markup("").join(parts)


def path_of(points: Iterable[tuple[float, float] | None]) -> str:
    """Return the path through pixels; None lifts the pen."""
    parts, down = [], False
    for point in points:
        if point is None:
            down = False
            continue
        parts.append(f"{'L' if down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        down = True
    return "".join(parts)


def text_width(text: str) -> float:
    """Return about how wide a label is, pixels."""
    return LETTER_PX * len(text) + 2.0


def padded(low: float, high: float, *, share: float, log: bool = False, least: float = 0.0) -> tuple[float, float]:
    """Widen a range by a share of it on both sides, and to at least a width (of decades on a logarithmic axis)."""
    if log:
        bottom, top = padded(math.log10(low), math.log10(high), share=share, least=least)
        return 10.0**bottom, 10.0**top
    pad = max(share * (high - low), (least - (high - low)) / 2.0)
    pad = pad or 0.05 * (abs(low) or 1.0)
    return low - pad, high + pad


def _tick_text(value: float, *, log: bool) -> str:
    if value == 0.0 or (1e-2 if log else 1e-4) <= abs(value) < 1e5:
        return f"{value:.6g}".replace("-", "−")
    mantissa, exponent = f"{value:.5e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", "−", 1 if value < 0 else 0)


def _even_ticks(low: float, high: float) -> tuple[float, ...]:
    raw = (high - low) / 5.0
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * one for one in _STEPS if unit * one >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return tuple(round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if len(decades) >= 3:
        every = -(-len(decades) // 7)
        return tuple(10.0**n for n in decades if n % every == 0)
    first = math.floor(math.log10(low))
    found = [m * 10.0**n for n in range(first, first + 4) for m in (1.0, 2.0, 5.0) if low <= m * 10.0**n <= high]
    return tuple(found) if len(found) >= 2 else _even_ticks(low, high)


def _line(name: str, x1: str, y1: str, x2: str, y2: str) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(name, x1, y1, x2, y2)


def _tick(x: str, y: str, anchor: str, text: str) -> Markup:
    return Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _title(x: str, y: str, text: str) -> Markup:
    return Markup('<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>').format(x, y, text)
