"""How far each condition's sound is from the reference's, by one yardstick: dots beside what chance alone does.

A shift is a condition's value minus the reference's; the grey band is three times the noise floor's shift, to both
sides. Controls must leave it, or the run cannot show a degradation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from precision_eval.core.drawing import FAINT, INK, dress, style_of
from precision_eval.report.findings import NOISE_FLOOR_FACTOR, Yardstick
from precision_eval.results.model import Row


def shift_panel(axes: Axes, yardstick: Yardstick, shifts: Sequence[tuple[Row, float]]) -> None:
    """Draw one yardstick, a row per condition, the first at the top."""
    if yardstick.noise_floor is not None:
        reach = NOISE_FLOOR_FACTOR * abs(yardstick.noise_floor)
        axes.axvspan(-reach, reach, color=style_of("noise_floor").colour, alpha=0.25, lw=0, zorder=0)
    axes.axvline(0.0, color=FAINT, linewidth=1.0, zorder=1)
    for number, (row, shift) in enumerate(shifts):
        style = style_of(row.fix)
        axes.plot([shift], [number], style.marker, color=style.colour, markersize=7, zorder=4, gid=f"of {row.fix}")
        words: dict[str, Any] = {"fontsize": 8.5, "va": "center", "ha": "left", "color": INK}
        axes.text(
            1.02, number, yardstick.text(shift), transform=axes.get_yaxis_transform(), gid=f"text {row.fix}", **words
        )
        # an unseen bar over the whole width is what a pointer hits
        axes.axhspan(number - 0.45, number + 0.45, alpha=0.0, zorder=7, gid=f"mark {row.fix}")
    axes.set_yticks(
        range(len(shifts)), [row.fix.replace("control_", "control: ").replace("_floor", " floor") for row, _ in shifts]
    )
    axes.set_ylim(len(shifts) - 0.5, -0.5)
    unit = f", {yardstick.unit.strip()}" if yardstick.unit else ""
    axes.set_xlabel(f"{yardstick.name}: shift from the reference{unit}", fontsize=9.5, color=INK)
    dress(axes)
    axes.grid(False, axis="y")


def _label(row: Row) -> str:
    return row.fix.replace("control_", "control: ").replace("_floor", " floor")
