"""A figure as part of the HTML report: matplotlib's SVG, in the colours of the reader's paper, with marks to point at.

Conventions: an artist's group id says what it is (see :mod:`precision_eval.report.figures`). What belongs to a fix gets
``data-fix``; a mark also gets the id of the hidden list of its records (``data-tip``) and a name. A chart states its
scales in ``data-sx`` and ``data-sy`` as ``lin|log low high start end``, in units of its view box, y down, so that a
program can read a place back as a value.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from precision_eval.report.html.paper import variable_of

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
    height = axes.figure.get_figheight() * _POINTS_PER_INCH
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
