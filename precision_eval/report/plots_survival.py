"""Survival of free-running streams: the share whose tokens still equal the reference's, over time.

Steps, with the recorded interval as a band for each fix until its last stream is lost; the noise floor (the
reference with another noise seed) is the grey curve that no fix can be blamed for. One figure per section that
measured divergence.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from precision_eval.core.drawing import INK, LeftOut, dress, label_line_ends, new_figure, style_of
from precision_eval.results.data import Row, Run, Section, figure_of, series_of


def draw_survival(run: Run, section: Section) -> Figure:
    """Draw the survival curves of one section."""
    rows = [row for row in section.curing if _curve(row, "fraction")]
    if not rows:
        raise LeftOut(f"survival of streams, {section.title}: divergence was not measured")
    comparators = [row for row in run.comparators(section, "divergence") if _curve(row, "fraction")]
    figure = new_figure(9.2, 4.9)
    axes = figure.subplots()
    ends = [_draw_curve(axes, row) for row in (*comparators, *rows)]
    axes.set_ylim(-0.03, 1.04)
    axes.margins(x=0.01)
    axes.set_yticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
    axes.set_xlabel("time since the prompt, s", fontsize=9.5, color=INK)
    axes.set_ylabel("streams still on the reference's tokens", fontsize=9.5, color=INK)
    dress(axes)
    streams = figure_of(rows[0].data("divergence"), "streams")
    count = "" if streams is None else f"{streams:.0f} "
    without = "" if any(row.role == "noise_floor" for row in comparators) else "; the noise floor was not measured"
    figure.suptitle(
        f"{section.title}: survival of {count}free-running streams{without}", x=0.01, ha="left", fontsize=12
    )
    figure.draw_without_rendering()
    label_line_ends(axes, ends)
    return figure


def _curve(row: Row, name: str) -> tuple[list[float], list[float]] | None:
    return series_of(row.data("divergence"), "survival", value=name)


def _draw_curve(axes: Axes, row: Row) -> tuple[float, str, str]:
    style = style_of(row.fix)
    time_s, share = _curve(row, "fraction") or ([], [])
    low, high = _curve(row, "low"), _curve(row, "high")
    is_null = row.role == "noise_floor"
    if row.role == "fix" and low and high and low[0] == high[0] == time_s:
        shown = np.asarray(share) > 0
        shown[1:] |= shown[:-1]  # up to the last loss; from there on no stream is left to be unsure of
        axes.fill_between(
            time_s, low[1], high[1], where=shown.tolist(), step="post", color=style.colour, alpha=0.13, lw=0
        )
    axes.step(
        time_s,
        share,
        where="post",
        color=style.colour,
        linewidth=2.4 if is_null else 1.8,
        linestyle=style.line,
        zorder=2.5 if is_null else 3,
    )
    diverged, streams = (figure_of(row.data("divergence"), name) for name in ("diverged", "streams"))
    counts = "" if diverged is None or streams is None else f", {diverged:.0f} of {streams:.0f} diverged"
    return share[-1], row.fix.replace("control_", "control: ") + counts, style.text_colour
