"""Colours and shapes of fixes on the page, from those of the figures, made to be seen on light and dark paper.

Conventions: each fix has a number on a page; ``.f0``, ``.f1``, … set ``--c`` (marks) and ``--t`` (text). Marks have
the figures' shapes. Contrast is WCAG's ratio of relative luminances; marks keep at least 3, text at least 4.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.colors import to_hex, to_rgb

from precision_eval.core.drawing import style_of

LIGHT, DARK = "#ffffff", "#141417"
MARK_CONTRAST, TEXT_CONTRAST = 3.0, 4.5

_DASHES = {"-": "", "--": "6 4", ":": "1.5 4"}
_CORNERS = {  # of polygons around the origin, y down, in units of the radius
    "s": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "D": ((0, -1.15), (1.15, 0), (0, 1.15), (-1.15, 0)),
    "d": ((0, -1.2), (0.75, 0), (0, 1.2), (-0.75, 0)),
    "^": ((0, -1.1), (1.05, 0.85), (-1.05, 0.85)),
    "v": ((0, 1.1), (1.05, -0.85), (-1.05, -0.85)),
    "<": ((-1.1, 0), (0.85, -1.05), (0.85, 1.05)),
    ">": ((1.1, 0), (-0.85, -1.05), (-0.85, 1.05)),
    "X": (
        (-1, -0.55), (-0.55, -1), (0, -0.45), (0.55, -1), (1, -0.55), (0.45, 0),
        (1, 0.55), (0.55, 1), (0, 0.45), (-0.55, 1), (-1, 0.55), (-0.45, 0),
    ),
    "P": (
        (-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4),
        (0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Palette:
    """The fixes of a page, numbered."""

    names: tuple[str, ...]

    def css(self, name: str) -> str:
        """Return the class of a fix."""
        return f"f{self.names.index(name)}"

    @property
    def style(self) -> Markup:
        """Rules for both papers."""
        light = "".join(self._rule(name, LIGHT) for name in self.names)
        dark = "".join(self._rule(name, DARK) for name in self.names)
        return Markup(f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}")  # noqa: S704 - hex colours and numbers only

    def chip(self, name: str) -> Markup:
        """Return a fix's mark and name."""
        shape = Markup('<svg class="chip" viewBox="-8 -8 16 16" width="14" height="14" aria-hidden="true">{}</svg>')
        return Markup('<span class="fix {}">{}<b>{}</b></span>').format(
            self.css(name), shape.format(marker(name, 0.0, 0.0, 5.5)), label_of(name)
        )

    def _rule(self, name: str, paper: str) -> str:
        style = style_of(name)
        mark = _against(style.colour, paper, MARK_CONTRAST)
        return f".{self.css(name)}{{--c:{mark};--t:{_against(mark, paper, TEXT_CONTRAST)}}}"


def palette_of(names: Iterable[str]) -> Palette:
    """Return a palette of the names, each once, in the order given."""
    return Palette(tuple(dict.fromkeys(names)))


def label_of(name: str) -> str:
    """Write a fix's name: ``control: rope_bfloat16``."""
    return name.replace("control_", "control: ")


def dashes_of(name: str) -> str:
    """Return the dash pattern of a fix's lines; empty for a firm line."""
    return _DASHES[style_of(name).line]


def marker(name: str, x: float, y: float, radius: float) -> Markup:
    """Return the mark of a fix, centred at (x, y), in SVG."""
    shape = style_of(name).marker
    if shape in _CORNERS:
        corners = _CORNERS[shape]
    elif shape in ("*", "h"):
        corners = _star(5, 0.45) if shape == "*" else _star(6, None)
    elif shape in ("1", "2"):  # three strokes from the centre
        down = 1.0 if shape == "1" else -1.0
        spokes = "".join(
            f"M{x:.2f} {y:.2f}L{x + 1.2 * radius * math.sin(a):.2f} {y + 1.2 * down * radius * math.cos(a):.2f}"
            for a in (0.0, 2.0944, -2.0944)
        )
        return Markup('<path class="mk ln" d="{}"/>').format(spokes)
    else:
        return Markup('<circle class="mk" cx="{}" cy="{}" r="{}"/>').format(f"{x:.2f}", f"{y:.2f}", f"{radius:.2f}")
    points = " ".join(f"{x + radius * a:.2f},{y + radius * b:.2f}" for a, b in corners)
    return Markup('<polygon class="mk" points="{}"/>').format(points)


def contrast(first: str, second: str) -> float:
    """Return WCAG's contrast ratio of two colours, from 1 (equal) to 21."""
    brighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    rgb = np.asarray(to_rgb(colour))
    linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _against(colour: str, paper: str, least: float) -> str:
    """Return the colour, mixed with black or white until it contrasts enough with the paper."""
    ink = np.asarray(to_rgb("#000000" if _luminance(paper) > 0.5 else "#ffffff"))
    rgb = np.asarray(to_rgb(colour))
    for share in np.linspace(0.0, 1.0, 41):
        red, green, blue = ((1 - share) * rgb + share * ink).tolist()
        mixed = to_hex((red, green, blue))
        if contrast(mixed, paper) >= least:
            return mixed
    return to_hex(tuple(ink.tolist()))


def _star(count: int, inner: float | None) -> tuple[tuple[float, float], ...]:
    """Corners of a star, or of a regular polygon where `inner` is None; the first one points up."""
    steps = count if inner is None else 2 * count
    radii = [1.15 if inner is None or i % 2 == 0 else 1.25 * inner for i in range(steps)]
    angles = [2 * math.pi * i / steps for i in range(steps)]
    return tuple((r * math.sin(a), -r * math.cos(a)) for r, a in zip(radii, angles, strict=True))
