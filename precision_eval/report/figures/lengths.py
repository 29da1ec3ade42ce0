"""Figure of time over length: the ratio of each fix to the baseline, at every size of a case that is a length.

A crossing is the pair of neighboring lengths between which one ratio overtakes another; nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from precision_eval.report.drawing import FAINT, NotDrawn, dress, new_figure, style_of
from precision_eval.results.model import Estimate, Group

CASTS = ("query_to_half", "kv_to_query")


def ratios_by_length(groups: Sequence[Group]) -> dict[str, dict[int, Estimate]]:
    """Return for each fix its time over the baseline's, by length; times that are not trusted are left out."""
    ratios: dict[str, dict[int, Estimate]] = {}
    trusted = (group for group in groups if group.size.isdecimal() and not group.noise_floor_off)
    for group in sorted(trusted, key=lambda group: int(group.size)):
        for row in group.curing:
            if row.time is not None:
                ratios.setdefault(row.fix, {})[int(group.size)] = row.time
    return ratios


def crossings(first: Mapping[int, float], second: Mapping[int, float]) -> list[tuple[int, int]]:
    """Return the pairs of neighboring lengths between which one series overtakes the other.

    >>> crossings({256: 0.5, 512: 0.8, 1024: 1.2}, {256: 1.0, 512: 1.0, 1024: 1.0})
    [(512, 1024)]
    """
    lengths = sorted(first.keys() & second.keys())
    return [
        (shorter, longer)
        for shorter, longer in pairwise(lengths)
        if (first[shorter] - second[shorter]) * (first[longer] - second[longer]) < 0.0
    ]


def draw_lengths(case: str, where: str, groups: Sequence[Group]) -> Figure:
    """Draw the ratios of the groups of one case, device and mode, which differ in length."""
    ratios = ratios_by_length(groups)
    lengths = sorted({length for series in ratios.values() for length in series})
    if len(lengths) < 2:
        raise NotDrawn(f"time over length of {case}: fewer than two lengths were timed")
    figure = new_figure(9.0, 5.0)
    axes = figure.subplots()
    for fix, series in ratios.items():
        style, places = style_of(fix), list(series)
        values = [series[length].value for length in places]
        lows = [series[length].value - series[length].low for length in places]
        highs = [series[length].high - series[length].value for length in places]
        axes.errorbar(
            *(places, values, (lows, highs)),
            color=style.colour,
            label=fix,
            linestyle=style.line,
            marker=style.marker,
            markersize=4,
            linewidth=1.5,
            capsize=2,
        )
    axes.axhline(1.0, color=FAINT, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter("{x:g}")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_xlabel("positions in the cache")
    axes.set_ylabel("time ÷ full_float32's, 95 %")
    dress(axes, title="; ".join(_crossing_texts(ratios)) or "No ratio crosses 1.")
    figure.suptitle(f"{case} on {where}: time over length", x=0.01, ha="left", fontsize=12)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _crossing_texts(ratios: Mapping[str, Mapping[int, Estimate]]) -> list[str]:
    """Name the two lengths around each crossing of the two casts, and of the casts with the baseline."""
    values = {fix: {length: time.value for length, time in series.items()} for fix, series in ratios.items()}
    casts = [fix for fix in CASTS if fix in values]
    pairs = [(fix, "full_float32", dict.fromkeys(values[fix], 1.0)) for fix in casts]
    if len(casts) == len(CASTS):
        pairs.append((CASTS[1], CASTS[0], values[CASTS[0]]))
    return [
        f"{fix} crosses {other} between {shorter:,} and {longer:,}"
        for fix, other, series in pairs
        for shorter, longer in crossings(values[fix], series)
    ]
