"""The ladder as a figure: one row per rung, one panel per metric; the same ladder gives the same bytes."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from precision_eval.core.drawing import INK, new_figure, save
from validation.audio_ladder.rungs import NOISE_FLOOR
from validation.audio_ladder.table import response

PANELS: tuple[tuple[str, str, str], ...] = (
    ("log_spectral_distance_db", "log-spectral\ndistance, dB", "log"),
    ("mel_mcd_db", "mel MCD, dB", "log"),
    ("spectral_convergence", "spectral\nconvergence", "log"),
    ("si_sdr_db", "SI-SDR, dB", "linear"),
    ("ltas_distance_db", "LTAS\ndistance, dB", "log"),
    ("frechet_distance", "Fréchet\ndistance, Np²", "log"),
)
"""(metric, title, scale)"""

_COLOURS = ("#0072B2", "#D55E00")  # Okabe and Ito's, told apart by the common kinds of colour blindness


def draw(ladder: dict[str, Any], directory: Path) -> list[Path]:
    """Draw ``ladder.png`` and ``ladder.svg``; return both paths."""
    rungs = ladder["rungs"]
    figure = new_figure(13.0, 1.4 + 0.2 * len(rungs))
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (name, title, scale) in zip(panels, PANELS, strict=True):
        _panel(axes, rungs, name, scale)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
    panels[0].set_yticks(range(len(rungs)), [rung["name"] for rung in rungs], fontsize=8.5)
    panels[0].set_ylim(len(rungs) - 0.5, -0.5)
    about = ladder["reference"]
    figure.suptitle(
        f"What known degradations do to {about['duration_s']:g} s of speech, whole file; dashed: the same words again "
        "with another noise seed",
        x=0.01,
        ha="left",
        fontsize=11.5,
        color=INK,
    )
    return save(figure, directory, "ladder")


def _panel(axes: Axes, rungs: list[dict[str, Any]], name: str, scale: str) -> None:
    """One metric: a dot per rung, neighbouring kinds in alternating colours, the noise floor as a line."""
    axes.set_xscale(scale)
    rows = list(enumerate(rungs))
    for number, (_, members) in enumerate(groupby(rows, key=lambda row: row[1]["kind"])):
        family = [(row, response(rung, name)) for row, rung in members]
        axes.axhspan(family[0][0] - 0.5, family[-1][0] + 0.5, color="#F4F4F4" if number % 2 else "white", zorder=0)
        drawn = {row: value for row, value in family if value is not None and (scale == "linear" or value > 0)}
        if drawn:
            colour = _COLOURS[number % 2]
            axes.plot([*drawn.values()], [*drawn], "o-", color=colour, markersize=5, linewidth=1)
        for row in {row for row, _ in family} - drawn.keys():
            axes.annotate("no difference", (0.02, row), xycoords=("axes fraction", "data"), fontsize=7, va="center")
    noise_floor = next((response(rung, name) for rung in rungs if rung["kind"] == NOISE_FLOOR), None)
    if noise_floor is not None:
        axes.axvline(noise_floor, color=INK, linewidth=1, linestyle="--", zorder=1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(True, axis="x", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8.5, colors=INK, length=2, top=True, labeltop=True)
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=8.5, colors=INK, length=0)
