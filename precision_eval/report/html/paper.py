"""Colours and marks of fixes in the HTML report, from those of the figures, made to be seen on light and dark paper.

Conventions: each fix has a number in a report; ``.f0``, ``.f1``, … set ``--c`` (marks) and ``--t`` (text). A colour of
a figure becomes a variable, ``--m-RRGGBB`` for marks and ``--t-RRGGBB`` for text. Contrast is WCAG's ratio of relative
luminances; marks keep at least 3, text at least 4.5. Greys are turned over on dark paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.colors import to_hex, to_rgb
from matplotlib.markers import MarkerStyle

from precision_eval.core.drawing import style_of

LIGHT, DARK = "#ffffff", "#141417"
DARK_INK = "#ececf1"
MARK_CONTRAST, TEXT_CONTRAST = 3.0, 4.5


@dataclass(frozen=True)
class Palette:
    """The fixes of a report, numbered."""

    names: tuple[str, ...]

    def css(self, name: str) -> str:
        """Return the class of a fix."""
        return f"f{self.names.index(name)}"

    @property
    def style(self) -> Markup:
        """Rules for both papers."""
        light = "".join(self._rule(name, LIGHT) for name in self.names)
        dark = "".join(self._rule(name, DARK) for name in self.names)
        return _for_both_papers(light, dark)

    @property
    def symbols(self) -> Markup:
        """The marks of all fixes, to be put into the document once."""
        shapes = (
            Markup('<symbol id="mark-{}" viewBox="-0.75 -0.75 1.5 1.5">{}</symbol>').format(
                self.css(name), shape_of(name)
            )
            for name in self.names
        )
        return Markup('<svg width="0" height="0" aria-hidden="true" class="symbols">{}</svg>').format(
            Markup("").join(shapes)
        )

    def chip(self, name: str) -> Markup:
        """Return a fix's mark and name."""
        shape = Markup('<svg class="chip" width="14" height="14" aria-hidden="true"><use href="#mark-{}"/></svg>')
        text = name.replace("control_", "control: ")
        return Markup('<span class="fix {0}">{1}<b>{2}</b></span>').format(
            self.css(name), shape.format(self.css(name)), text
        )

    def _rule(self, name: str, paper: str) -> str:
        style = style_of(name)
        mark = against(style.colour, paper, MARK_CONTRAST)
        return f".{self.css(name)}{{--c:{mark};--t:{against(mark, paper, TEXT_CONTRAST)}}}"


def palette_of(names: Iterable[str]) -> Palette:
    """Return a palette of the names, each once, in the order given."""
    return Palette(tuple(dict.fromkeys(names)))


def shape_of(name: str) -> Markup:
    """Return the mark of a fix as a path of SVG within ±0.75, y down."""
    marker = MarkerStyle(style_of(name).marker)
    path = marker.get_path().transformed(marker.get_transform())
    parts = [
        "M" + "L".join(f"{x:.3g} {-y:.3g}" for x, y in corners) + ("Z" if marker.is_filled() else "")
        for corners in path.to_polygons(closed_only=False)
    ]
    return Markup('<path class="{}" d="{}"/>').format("mk" if marker.is_filled() else "mk line", "".join(parts))


def variable_of(colour: str, *, text: bool) -> str:
    """Return the variable that stands for a figure's colour."""
    return f"--{'t' if text else 'm'}-{colour.removeprefix('#').lower()}"


def rules_of(variables: Iterable[str]) -> Markup:
    """Return what the variables of the charts are on light and on dark paper."""
    light, dark = [], []
    for name in sorted(set(variables)):
        colour = f"#{name.rpartition('-')[2]}"
        least = TEXT_CONTRAST if name.startswith("--t") else MARK_CONTRAST
        light.append(f"{name}:{colour if is_grey(colour) else against(colour, LIGHT, least)};")
        dark.append(f"{name}:{_turned(colour) if is_grey(colour) else against(colour, DARK, least)};")
    return _for_both_papers(f"svg.chart{{{''.join(light)}}}", f"svg.chart{{{''.join(dark)}}}")


def is_grey(colour: str) -> bool:
    """Whether a colour has no hue."""
    rgb = to_rgb(colour)
    return max(rgb) - min(rgb) < 0.02


def _turned(grey: str) -> str:
    """Return a grey of light paper as one of dark paper: white becomes the paper, black the ink."""
    share = to_rgb(grey)[0]
    ink, paper = (np.asarray(to_rgb(end)) for end in (DARK_INK, DARK))
    red, green, blue = ((1 - share) * ink + share * paper).tolist()
    return to_hex((red, green, blue))


def _for_both_papers(light: str, dark: str) -> Markup:
    return Markup(f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}")  # noqa: S704 - hex colours and numbers only


def contrast(first: str, second: str) -> float:
    """Return WCAG's contrast ratio of two colours, from 1 (equal) to 21."""
    brighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def against(colour: str, paper: str, least: float) -> str:
    """Return the colour, mixed with black or white until it contrasts enough with the paper."""
    ink = np.asarray(to_rgb("#000000" if _luminance(paper) > 0.5 else "#ffffff"))
    rgb = np.asarray(to_rgb(colour))
    for share in np.linspace(0.0, 1.0, 41):
        red, green, blue = ((1 - share) * rgb + share * ink).tolist()
        mixed = to_hex((red, green, blue))
        if contrast(mixed, paper) >= least:
            return mixed
    return to_hex(tuple(ink.tolist()))


def _luminance(colour: str) -> float:
    rgb = np.asarray(to_rgb(colour))
    linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))
