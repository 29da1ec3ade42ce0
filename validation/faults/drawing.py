"""Plots of the fault experiment: detection over effect size beside false alarms, and detection by fault.

One colour and line style per rule, the suite's own heaviest; bars are Wilson's 95 % intervals.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from precision_eval.core.drawing import FAINT, INK, dress, new_figure, save
from validation.faults.families import FAMILIES
from validation.faults.trials import OURS, POOL, POOLED, RULES, Judgements
from validation.plots import RuleLook, draw_shares, share_legend

LOOKS = {
    OURS: RuleLook("assess", "#0072B2"),
    POOLED: RuleLook(f"assess, {POOL} calls pooled", "#0072B2", line="--"),
    "bias_or_rms": RuleLook("bias z > 5 or RMS > 2×", "#009E73"),
    "assert_close": RuleLook("assert_close", "#D55E00"),
    "allclose_1e-2": RuleLook("allclose(1e-2)", "#CC79A7"),
    "flash_2max": RuleLook("2 × max", "#E69F00"),
    "flash_2max_atol": RuleLook("2 × max + atol", "#8C6D00", line=":"),
}
EDGES = 2.0 ** np.arange(-5.0, 6.5, 0.5)
FEWEST_TRIALS = 20
_FAULTS_SHOWN = 40


def draw_rules(out: Path, faults: Judgements, honest: Judgements, pooled: Judgements) -> list[Path]:
    """Draw ``faults.png``: detection over effect size, and false alarms per family."""
    figure = new_figure(11.0, 4.9)
    curves, bars = figure.subplots(1, 2, width_ratios=(1.5, 1.0))
    for rule in RULES:
        _curve(curves, faults, rule)
    _curve(curves, pooled, POOLED)
    dress(curves, title="Planted faults caught, over the size of the fault")
    curves.set_xscale("log", base=2)
    curves.set_xticks([1 / 32, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 32], ["1/32", "⅛", "¼", "½", "1", "2", "4", "8", "32"])
    curves.minorticks_off()
    for at in (0.25, 1.0):
        curves.axvline(at, color=FAINT, linewidth=0.8, linestyle=":")
    curves.set_ylim(-2, 102)
    curves.set_xlabel("effect of the fault, in the format's own error (RMS)", color=INK)
    curves.set_ylabel("caught, %", color=INK)
    _false_alarms(bars, honest)
    share_legend(figure, [curves])
    return save(figure, out, "faults")


def _curve(axes: Axes, judged: Judgements, rule: str) -> None:
    """Detection per bin of effect size, where there are trials enough."""
    points = []
    for low, high in itertools.pairwise(EDGES):
        rate = judged.rate(rule, judged.between(float(low), float(high)))
        if rate.trials >= FEWEST_TRIALS:
            points.append((float(np.sqrt(low * high)), *(100 * value for value in (rate.value, *rate.interval))))
    draw_shares(axes, points, LOOKS[rule], ours=rule == OURS)


def _false_alarms(axes: Axes, honest: Judgements) -> None:
    """One group of bars per family."""
    width = 0.8 / len(RULES)
    for place, rule in enumerate(RULES):
        rates = [honest.rate(rule, honest.family == name) for name in FAMILIES]
        x = np.arange(len(FAMILIES)) + (place - (len(RULES) - 1) / 2) * width
        values = np.array([rate.value for rate in rates])
        low, high = np.array([rate.interval for rate in rates]).T
        spread = 100 * np.maximum([values - low, high - values], 0.0)
        axes.bar(x, 100 * values, width, color=LOOKS[rule].colour, yerr=spread, error_kw={"lw": 0.7, "ecolor": INK})
    dress(axes, title="False alarms on honest variations")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_yticks([0, 0.5, 1, 10, 100], ["0", "0.5", "1", "10", "100"])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_xticks(range(len(FAMILIES)), [name.replace("_", "\n") for name in FAMILIES])
    axes.set_ylabel("flagged, % (linear below 1)", color=INK)


def draw_by_fault(out: Path, faults: Judgements, honest: Judgements) -> list[Path]:
    """Draw ``faults-by-fault.png``: the faults that the suite's rule misses most often, from a quarter on."""
    where = faults.between(0.25, float("inf"))
    hardest = faults.missed(OURS, where)[:_FAULTS_SHOWN]
    if not hardest:
        return []
    figure = new_figure(8.0, 1.6 + 0.21 * len(hardest))
    axes = figure.subplots()
    heights = np.arange(len(hardest))[::-1]
    for rule in (*RULES[1:], OURS):
        look = LOOKS[rule]
        label = f"{look.label} ({100 * honest.rate(rule).value:.1f} % false alarms)"
        rates = [100 * faults.rate(rule, where & (faults.id == name)).value for name, _ in hardest]
        size = 46 if rule == OURS else 22
        axes.scatter(rates, heights, s=size, color=look.colour, label=label, zorder=3 + (rule == OURS), clip_on=False)
    dress(axes, title="Caught, of the trials with an effect of at least a quarter: the faults missed most often")
    axes.set_yticks(heights, [f"{name} ({rate.trials})" for name, rate in hardest], fontsize=8)
    axes.set(xlim=(-1, 101), ylim=(-0.8, len(hardest) - 0.2))
    axes.set_xlabel("caught, % (number of trials in brackets)", color=INK)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    return save(figure, out, "faults-by-fault")
