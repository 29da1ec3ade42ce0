"""Colours and marks of fixes in the HTML report, and matplotlib's SVG in them, made to be seen on light and dark paper.

Conventions: each fix has a number in a report; ``.f0``, ``.f1``, … set ``--c`` (marks) and ``--t`` (text). A colour of
a figure becomes a variable, ``--m-RRGGBB`` for marks and ``--t-RRGGBB`` for text. Contrast is WCAG's ratio of relative
luminances; marks keep at least 3, text at least 4.5. Greys are turned over on dark paper. A mark that can be
pointed at is found by the group id of its artist (see :mod:`precision_eval.report.figures`). Templates lie in the
folders of the modules that fill them; ``page_base.css`` is shared. Values are escaped, control characters made visible,
and a name that is not given is an error.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from precision_eval.core.formatting import visible
from precision_eval.report.drawing import style_of, take_literally

if TYPE_CHECKING:
    from jinja2 import Environment

LIGHT, DARK = "#ffffff", "#141417"
DARK_INK = "#ececf1"
MARK_CONTRAST, TEXT_CONTRAST = 3.0, 5.1  # with the paper; text so keeps 4.5 on a panel too


def template_environment(*folders: Path) -> Environment:
    """Return an environment that finds templates in these folders, then among the shared ones."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.tests["web_address"] = lambda text: text.startswith("https://")
    environment.filters["as_policy_source"] = as_policy_source
    return environment


def as_policy_source(script: str) -> Markup:
    """Return what a content policy calls an inline script by: the hash of its text, so that no other one runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return Markup("'sha256-{}'").format(Markup(digest))  # noqa: S704 - letters, digits, + / =


def _finalized(value: Any) -> Any:
    if isinstance(value, Markup):
        return Markup(visible(str(value)))  # noqa: S704 - was markup before
    return visible(value) if isinstance(value, str) else value


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
        "M" + "L".join(f"{x:.3g} {-y:.3g}" for x, y in np.asarray(corners)) + ("Z" if marker.is_filled() else "")
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


_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_FONT = re.compile(r"font: ([\d.]+)px [^;]+")
_POINTS_PER_INCH = 72.0


def svg_of(
    figure: Figure,
    *,
    key: str,
    description: str,
    kind: str,
    tips: Mapping[str, str] | None = None,
    texts: Mapping[str, Markup] | None = None,
) -> Markup:
    """Return a figure with one panel as an element of HTML.

    `tips` maps a fix to the id of its list of records, `texts` to the words of its label, numbers with their origin.
    """
    for text in figure.axes[0].texts:
        text.set_path_effects([])  # with a halo, letters would be paths; the style sheet draws the halo
    take_literally(figure)
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": key, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 - matplotlib's own text
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    words: dict[str, Markup] = {}
    for element in root.iter(f"{{{_SVG}}}g"):
        _mark_up(element, tips or {}, texts or {}, words)
    for element in root.iter():
        _on_paper(element)
    root.attrib.pop("width"), root.attrib.pop("height")
    root.attrib |= {"class": "chart", "id": key, "data-kind": kind, "role": "group", "tabindex": "0"}
    root.attrib |= {"aria-roledescription": "chart", "aria-label": description, **_scales(figure.axes[0])}
    return _written(root, words)


def _mark_up(
    group: ElementTree.Element, tips: Mapping[str, str], texts: Mapping[str, Markup], words: dict[str, Markup]
) -> None:
    """Turn a group's id into attributes that the script and the style sheet know."""
    name = group.attrib.pop("id", "")
    kind, _, fix = name.partition(" ")
    if name.startswith(("xtick_", "ytick_")):
        group.attrib["class"] = f"tick {name[0]}"
    elif kind in ("mark", "of", "text"):
        group.attrib["data-fix"] = fix
        if kind == "mark" and fix in tips:
            tip = tips[fix]
            group.attrib |= {"class": "mark", "data-tip": tip, "aria-describedby": tip, "aria-label": fix}
            group.attrib |= {"role": "img", "tabindex": "-1"}
        elif kind == "text" and fix in texts:
            for text in group.iter(f"{{{_SVG}}}text"):
                slot = f"slot-{len(words)}-"
                words[slot], text.text = texts[fix], slot


def _on_paper(element: ElementTree.Element) -> None:
    """Give an element colours that depend on the paper, and the font of the report."""
    is_text = element.tag == f"{{{_SVG}}}text"
    for name in ("style", "fill", "stroke"):
        if name in element.attrib:
            style = _COLOUR.sub(lambda match: f"var({variable_of(match[0], text=is_text)})", element.attrib[name])
            element.attrib[name] = _FONT.sub(r"font-size: \1px", style)


def _scales(axes: Axes) -> dict[str, str]:
    box = axes.get_window_extent()
    height = axes.figure.bbox.height / axes.figure.dpi * _POINTS_PER_INCH
    to_points = _POINTS_PER_INCH / axes.figure.dpi
    ends = {
        "x": (axes.get_xscale(), axes.get_xlim(), box.x0 * to_points, box.x1 * to_points),
        "y": (axes.get_yscale(), axes.get_ylim(), height - box.y0 * to_points, height - box.y1 * to_points),
    }
    return {
        f"data-s{name}": f"{'log' if scale == 'log' else 'lin'} {float(low)!r} {float(high)!r} {start:.4f} {end:.4f}"
        for name, (scale, (low, high), start, end) in ends.items()
    }


def _written(root: ElementTree.Element, words: Mapping[str, Markup]) -> Markup:
    for prefix, namespace in (("", _SVG), ("xlink", _XLINK)):
        ElementTree.register_namespace(prefix, namespace)
    text = ElementTree.tostring(root, encoding="unicode")
    for slot, content in words.items():
        text = text.replace(slot, escape(content))
    return Markup(text)  # noqa: S704 - escaped by ElementTree


def variables_in(text: str) -> list[str]:
    """Return the variables of colours that the charts in a text use."""
    return re.findall(r"var\((--[mt]-[0-9a-f]{6})\)", text)
