"""Power curves: the share flagged over the slowdown.

Conventions: bars are Wilson's 95 % intervals. At 0 % a curve shows *any* flag (the false alarms), elsewhere the share
flagged ``slower``. Colours are Okabe and Ito's; tools differ in marker, the second rule of a tool is hollow and dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from precision_eval.core.drawing import FAINT, INK, dress, new_figure, save
from precision_eval.stats import wilson_interval
from validation.latency.calls import DELTAS
from validation.latency.figures import OURS, RuleOutcome
from validation.latency.load import LOADS, MEAN_BUSY
from validation.latency.rivals import RULES
from validation.latency.schedule import BUDGET_S
from validation.plots import RuleLook, draw_shares, share_legend

LOOKS = {
    rule: RuleLook(RULES[rule], colour, marker, line)
    for rule, colour, marker, line in (
        ("ours", "#000000", "o", "-"),
        ("asv_1.1", "#E69F00", "s", "-"),
        ("asv_1.01", "#E69F00", "s", "--"),
        ("pytest_median_2", "#0072B2", "^", "-"),
        ("pytest_min_5", "#0072B2", "^", "--"),
        ("torch_iqr", "#D55E00", "D", "-"),
        ("torch_compare", "#D55E00", "D", "--"),
        ("ttest_0.01", "#009E73", "v", "-"),
    )
}


def draw_power(found: Sequence[RuleOutcome], out: Path) -> list[Path]:
    """Draw the share flagged over the slowdown, a panel per load; returns ``latency_power.png`` and ``.svg``."""
    figure = new_figure(11.0, 5.4)
    panels = figure.subplots(1, len(LOADS), sharey=True)
    for axes, load in zip(panels, LOADS, strict=True):
        dress(axes, title=_panel_title(load))
        for place, rule in enumerate(RULES):
            _draw_curve(axes, [o for o in found if o.load == load and o.rule == rule], rule, place=place)
        axes.set_xticks(range(len(DELTAS)), ["0 (A/A)", *(f"+{100 * delta:g} %" for delta in DELTAS[1:])])
        axes.axvline(0.5, color=FAINT, linewidth=0.8, linestyle=":")
        axes.set_xlim(-0.45, len(DELTAS) - 0.55)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("injected slowdown", color=INK, fontsize=9.5)
    panels[0].set_ylabel("share flagged slower (at 0: flagged at all, falsely)", color=INK, fontsize=9.5)
    share_legend(figure, panels)
    return save(figure, out, "latency_power")


def _panel_title(load: str) -> str:
    extra = "nothing added" if load == "quiet" else f"a competitor per core, busy {100 * MEAN_BUSY:.0f} %"
    return f"{load} ({extra}), {BUDGET_S[load]:g} s per pair"


def _draw_curve(axes: Axes, cases: Sequence[RuleOutcome], rule: str, *, place: int) -> None:
    """Draw one rule's points with their intervals, moved sideways so that bars do not cover each other."""
    shift = 0.07 * (place - (len(RULES) - 1) / 2)
    points = []
    for position, delta in enumerate(DELTAS):
        here = [o for o in cases if o.delta == delta]
        if here:
            hits = sum(o.flagged if delta == 0.0 else o.said == "slower" for o in here) / len(here)
            low, high = wilson_interval(hits, len(here))
            points.append((position + shift, hits, low, high))
    # the share at 0 answers another question, so no line leads to it
    draw_shares(axes, points, LOOKS[rule], ours=rule == OURS, linked_from=0.5)
