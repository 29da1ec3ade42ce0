"""How every figure looks: one colour and one marker per fix, labels that do not overlap, files as PNG and SVG.

Colours are Okabe and Ito's, told apart by the common kinds of colour blindness; markers and line styles carry the same
distinction without colour. Figures are drawn on the Agg canvas, without pyplot, so no global state is touched.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import BboxBase

from precision_eval.core.formatting import visible

DPI = 130
LABEL_GAP_PX = 34.0
"""Between the axes and the names of lines, where leaders run."""
INK = "#222222"
FAINT = "#777777"


class NotDrawn(Exception):  # noqa: N818 - a signal to the writer, not an error of the user's
    """A figure cannot be drawn from these records; the message says which measure is missing."""


@dataclass(frozen=True, kw_only=True)
class FixStyle:
    colour: str
    marker: str
    line: Literal["-", "--", ":"] = "-"

    @property
    def text_colour(self) -> str:
        """The colour, darkened until it reads well as text on white."""
        rgb = np.asarray(to_rgb(self.colour))
        luminance = float(rgb @ (0.2126, 0.7152, 0.0722))
        red, green, blue = np.clip(rgb * min(1.0, 0.36 / max(luminance, 1e-6)), 0, 1)
        return to_hex((float(red), float(green), float(blue)))


FIX_STYLES = {
    "as_shipped": FixStyle(colour="#000000", marker="X"),
    "query_to_half": FixStyle(colour="#D55E00", marker="o"),
    "kv_to_query": FixStyle(colour="#0072B2", marker="s"),
    "full_float32": FixStyle(colour="#009E73", marker="D"),
    "bfloat16": FixStyle(colour="#CC79A7", marker="^"),
    "dynamo_fallback": FixStyle(colour="#8C8C8C", marker="P"),
    "float16": FixStyle(colour="#E69F00", marker="v"),
    "autocast": FixStyle(colour="#56B4E9", marker="<"),
    "upstream": FixStyle(colour="#7B3294", marker=">"),
    "reference": FixStyle(colour="#000000", marker="*"),
    "noise_floor": FixStyle(colour="#9A9A9A", marker="d"),
    "control_rope_bfloat16": FixStyle(colour="#5A4A3A", marker="1", line="--"),
    "control_long_window": FixStyle(colour="#5A4A3A", marker="2", line=":"),
}
_SPARE_COLOURS = ("#332288", "#117733", "#882255", "#999933", "#44AA99")
_SPARE_MARKERS = ("h", "p", "8", "H")


@dataclass(frozen=True)
class StatusStyle:
    letter: str
    colour: str
    title: str


STATUS_STYLES = {
    "passed": StatusStyle("P", "#BFE3D6", "passed"),
    "raised": StatusStyle("R", "#E58B57", "raised"),
    "non_finite": StatusStyle("N", "#D9A6C6", "not finite"),
    "unsupported": StatusStyle("U", "#C9C9C9", "unsupported"),
    "out_of_memory": StatusStyle("M", "#F0D264", "out of memory"),
    "timed_out": StatusStyle("T", "#A9C7E8", "timed out"),
    "crashed": StatusStyle("C", "#9A6A4A", "crashed"),
    "failed": StatusStyle("F", "#B05C5C", "benchmark failed"),
    "not_applicable": StatusStyle("–", "#EFEFEF", "not applicable"),
}
"""Of each status that a cell can have; none is blank."""


def style_of(fix: str) -> FixStyle:
    """Return the look of a fix; one that is not listed gets a spare color and marker, the same every time."""
    number = zlib.crc32(fix.encode())
    colour, marker = _SPARE_COLOURS[number % len(_SPARE_COLOURS)], _SPARE_MARKERS[number % len(_SPARE_MARKERS)]
    return FIX_STYLES.get(fix, FixStyle(colour=colour, marker=marker))


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure of that size in inches with its own Agg canvas."""
    figure = Figure(figsize=(width_in, height_in), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.06))
    return figure


def dress(axes: Axes, *, title: str | None = None) -> None:
    """Give `axes` the house look: light grid, no box, small ticks, left-aligned title."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#AAAAAA")
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=INK, length=3)
    if title:
        axes.set_title(title, loc="left", fontsize=10.5, color=INK)


_POWER = re.compile(r"\$\\mathdefault\{(?:[0-9.]+\\times)?-?[0-9.]+\^\{-?[0-9.]+\}\}\$")
"""What matplotlib writes at a logarithmic axis; any other ``$`` is of a name, and no formula."""


def take_literally(figure: Figure) -> None:
    """Make control characters of texts visible, and keep the dollars of names from being read as formulas."""
    for text in figure.findobj(Text):
        text.set_text(visible(text.get_text()))
        text.set_parse_math("$" not in text.get_text() or _POWER.fullmatch(text.get_text()) is not None)


def lay_out(figure: Figure) -> None:
    take_literally(figure)
    figure.draw_without_rendering()


def file_stem(text: str) -> str:
    """Return the name of a figure's files, without their endings: what a case is called by its user may hold a path."""
    return re.sub(r"[^\w.=+-]+", "-", text)[:120]


def save(figure: Figure, directory: Path, stem: str, *, as_png: bool = True) -> list[Path]:
    """Write ``stem.svg``, and ``stem.png`` before it; return the paths. The same data gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = file_stem(stem)
    png, svg = directory / f"{stem}.png", directory / f"{stem}.svg"
    if as_png:
        save_as(figure, png)
    else:
        lay_out(figure)
    figure.set_layout_engine("none")  # laid out once: the SVG is what the PNG shows
    save_as(figure, svg)
    return [png, svg] if as_png else [svg]


def save_as(figure: Figure, path: Path) -> None:
    take_literally(figure)
    if path.suffix.lower() == ".png":
        figure.savefig(path, dpi=DPI, facecolor="white", metadata={"Software": None})
        return
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, facecolor="white", metadata={"Date": None, "Creator": None})


def place_labels(
    axes: Axes,
    points: Sequence[tuple[float, float, str, str]],
    *,
    radii_px: Sequence[float],
    obstacles: Sequence[tuple[float, float, float, float]] = (),
    fontsize: float = 9.0,
) -> None:
    """Write a label beside each point so that no label covers another label or a marker."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    frame = axes.get_window_extent(renderer)
    centres = axes.transData.transform([(x, y) for x, y, _, _ in points]) if points else np.empty((0, 2))
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(centres, radii_px, strict=True)]
    for x0, y0, x1, y1 in obstacles:
        ends = axes.transData.transform([(x0, y0), (x1, y1)])
        taken.append((*(ends.min(axis=0) - 2), *(ends.max(axis=0) + 2)))
    to_points = 72.0 / figure.dpi
    halo = [withStroke(linewidth=2.5, foreground="white")]
    for (x, y), radius, (data_x, data_y, text, colour) in zip(centres, radii_px, points, strict=True):
        probe = axes.text(0, 0, text, fontsize=fontsize, parse_math=False)
        size = probe.get_window_extent(renderer)
        probe.remove()
        left, bottom = free_spot((x, y), radius, (size.width, size.height), taken, frame)
        taken.append((left, bottom, left + size.width, bottom + size.height))
        far = np.hypot(left + size.width / 2 - x, bottom + size.height / 2 - y) > radius + size.width / 2 + 16
        axes.annotate(
            text,
            (data_x, data_y),
            xytext=((left - x) * to_points, (bottom - y) * to_points),
            textcoords="offset points",
            fontsize=fontsize,
            color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6} if far else None,
            path_effects=halo,
            zorder=6,
        )


def free_spot(
    centre: tuple[float, float],
    radius: float,
    size: tuple[float, float],
    taken: Sequence[tuple[float, float, float, float]],
    frame: BboxBase,
) -> tuple[float, float]:
    """Return the corner of least x and y (px) of the nearest place around `centre` that covers least of what
    is taken.
    """
    (x, y), (width, height) = centre, size
    best, least = (x + radius, y), float("inf")
    for ring in range(6):
        gap = radius + 5 + 11 * ring
        for horizontal, vertical in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)):
            left = x + horizontal * gap - (width / 2) * (1 - horizontal)
            bottom = y + vertical * gap - (height / 2) * (1 - vertical)
            box = (left - 2, bottom - 2, left + width + 2, bottom + height + 2)
            outside = box[0] < frame.x0 or box[2] > frame.x1 or box[1] < frame.y0 or box[3] > frame.y1
            covered = sum(_overlap(box, other) for other in taken) + (1e6 if outside else 0.0)
            if covered < least:
                best, least = (left, bottom), covered
            if least == 0.0:
                return best
    return best


def _overlap(first: tuple[float, float, float, float], second: tuple[float, float, float, float]) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return width * height if width > 0 and height > 0 else 0.0


def label_line_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], *, fontsize: float = 9.0) -> None:
    """Write each line's name at the right edge, at its last height, moved apart where names would overlap."""
    if not ends:
        return
    figure = axes.figure
    frame = axes.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    step = fontsize * 1.3 * figure.dpi / 72.0
    x_edge = axes.get_xlim()[1]
    wanted = [float(axes.transData.transform((x_edge, y))[1]) for y, _, _ in ends]
    placed = spread(wanted, step=step, low=frame.y0 + step / 2, high=frame.y1 - step / 2)
    for height, target, (_, text, colour) in zip(placed, wanted, ends, strict=True):
        bottom = (height - frame.y0) / frame.height
        target_at = (np.clip(target, frame.y0, frame.y1) - frame.y0) / frame.height
        axes.annotate(
            text,
            (1.0, float(target_at)),
            xycoords="axes fraction",
            xytext=(1.0 + LABEL_GAP_PX / frame.width, bottom),
            textcoords="axes fraction",
            fontsize=fontsize,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "lw": 0.7,
                "shrinkA": 3,
                "shrinkB": 0,
                "relpos": (0.0, 0.5),
                "patchA": None,
            },
        )


def spread(wanted: Sequence[float], *, step: float, low: float, high: float) -> list[float]:
    """Move positions apart to at least `step`, in order, as little as a sweep up and a sweep down allow."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    heights = [min(max(wanted[i], low), high) for i in order]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + step)
    overshoot = max(0.0, heights[-1] - high) if heights else 0.0
    if overshoot:
        heights[-1] -= overshoot
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - step)
    placed = [0.0] * len(wanted)
    for place, i in enumerate(order):
        placed[i] = heights[place]
    return placed
