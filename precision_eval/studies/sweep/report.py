"""``crossover.json``, ``summary.md`` and ``lengths.png`` of a sweep, and its answer in sentences, from the lines alone.

Conventions: ratios have three significant digits and their 95 % interval; page faults are the median over processes,
with the range where they differ. In the figure both axes are logarithmic and bands are 95 % intervals. The two lines
cross where the ratio of the casts does; a pale band marks the two lengths between which the order turns, a darker one
the interval on a straight line between them, both from the casts' own comparison. Where page faults jump in between,
there is no such line, and the two lengths stand alone. Lengths without a decided order in no such band are hollow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from precision_eval.core.files import to_json
from precision_eval.core.formatting import MISSING, counted, duration_text, grouped, join, range_text
from precision_eval.core.table import make_table, to_markdown
from precision_eval.report.drawing import FAINT, INK, dress, new_figure, save, style_of
from precision_eval.stats import PairedRatio
from precision_eval.stats.crossover import Crossing, Crossover
from precision_eval.studies.sweep.plan import BASELINE, CASTS, NOISE_FLOOR, REVISION, TO_HALF, TO_QUERY
from precision_eval.studies.sweep.running import LengthCurve, LengthPoint

_KEPT = ("ratio", "ratio_low", "ratio_high", "verdict", "minimum_detectable_effect", "median_s", "baseline_median_s",
         "blocks", "clock", "preempted_fraction", "process_ratios", "doubts")  # fmt: skip
_VERDICTS = ("slower", "faster", "equivalent", "undecided")

_STATES = (
    "Memory: *grown* (where nothing else is said) is glibc's own rule in a process that has loaded a model and has no "
    "room of 32 MiB free: blocks below that are used again, larger ones are taken from the system at every call; "
    "*kept*: all freed memory is used again; *returned*: none of 128 KiB or more is; *untouched*: as the lengths "
    "measured before have left it."
)


def crossover_json(curves: Sequence[LengthCurve], *, campaign: str) -> str:
    """Return every configuration's outcome and points as strict JSON."""
    configurations = [
        {
            "id": curve.configuration.id,
            **asdict(curve.configuration),
            "says": sentence(curve.crossover),
            "crossover": None if curve.crossover is None else _crossover_data(curve.crossover),
            "points": [_point_data(point) for point in curve.points],
        }
        for curve in curves
    ]
    head = {"ratio": f"{TO_QUERY} / {TO_HALF}", "campaign": campaign, "revision": REVISION}
    return to_json(head | {"configurations": configurations}, what="the sweep", indent=1) + "\n"


def _crossover_data(crossover: Crossover) -> dict[str, Any]:
    """Plain data; a crossing in a jump has no place on a straight line."""
    data = asdict(crossover)
    for crossing in data["crossings"]:
        if crossing["jump"] is not None:
            crossing |= {"length": None, "low": None, "high": None}
    return data


def _point_data(point: LengthPoint) -> dict[str, Any]:
    return {
        "length": point.length,
        "processes": point.processes,
        "ratios": {name: {key: ratio.to_dict()[key] for key in _KEPT} for name, ratio in point.ratios.items()},
        "page_faults_per_call": {fix: list(values) for fix, values in point.page_faults.items()},
        "failures": dict(point.failures),
    }


def summary_markdown(curves: Sequence[LengthCurve], *, campaign: str) -> str:
    """Return the summary."""
    batch = join(sorted({str(curve.configuration.batch) for curve in curves}))
    crossings = make_table(
        ("configuration", "crossover"),
        [(curve.configuration.title, sentence(curve.crossover)) for curve in curves],
    )

    def ratios(name: str) -> str:
        return _by_length(curves, lambda point: _ratio_text(point.ratios.get(name)))

    parts = [
        "# The two casts at decode, by length of the cache",
        f"One query per head, all slots in use, batch {batch}; `{TO_HALF}` runs attention in the cache's dtype, "
        f"`{TO_QUERY}` casts keys and values to float32 at every step. Ratios of latency with 95 % intervals, over "
        f"several processes; above 1 takes longer. Environment, revision, budget, processes and seed: `{campaign}`.",
        "![ratios by length](lengths.png)",
        "## Where the order turns",
        to_markdown(crossings),
        f"Every ratio is over {_processes(curves)}. A crossing's place is read off a straight line over the "
        "logarithm of the length, and so is its interval; where page faults jump, the ratio does, and only the two "
        "lengths around the crossing are given. Crossings that come in pairs between neighbouring lengths are not "
        "seen. " + _STATES,
        "## Which cast is faster",
        _bullets(answer(curves)),
        f"## `{TO_QUERY}` ÷ `{TO_HALF}`",
        ratios(CASTS),
        f"## `{TO_HALF}` ÷ `{BASELINE}`",
        ratios(TO_HALF),
        f"## `{TO_QUERY}` ÷ `{BASELINE}`",
        ratios(TO_QUERY),
        f"## A copy of `{BASELINE}` ÷ `{BASELINE}`",
        "The noise floor. The copy has tensors of its own, as every candidate has: the baseline run twice would find "
        "its cache in the processor's the second time, and all others would seem slower than they are.",
        ratios(NOISE_FLOOR),
        f"## Median latency of `{TO_HALF}` and `{TO_QUERY}`",
        _by_length(curves, lambda point: _medians(point.ratios.get(CASTS))),
        f"## Page faults per call of `{TO_QUERY}`",
        "Each is a 4 KiB page (where the system has no larger ones) that had to be cleared for the copy of the cache; "
        "0 says that its memory was used again.",
        _by_length(curves, lambda point: _faults(point.page_faults.get(TO_QUERY, ()))),
    ]
    for heading, lines in (("Not measured", _failures(curves)), ("Doubts", _doubts(curves))):
        if lines:
            parts += [f"## {heading}", _bullets(lines)]
    return "\n\n".join(parts) + "\n"


def faster(sign: int) -> str:
    """Name the faster cast where the sign of the log-ratio is `sign`."""
    return TO_HALF if sign > 0 else TO_QUERY


def slots(length: float) -> str:
    """Write a length: ``1,450``; fractions are below what slots can tell."""
    return f"{round(length):,}"


def sentence(crossover: Crossover | None) -> str:
    """Say what a crossover is, in one sentence without its stop."""
    if crossover is None:
        return "no ratio: one of the casts could not be measured"
    undecided = ", ".join(map(slots, crossover.undecided_lengths))
    if crossover.outcome == "none":
        span = f"from {slots(crossover.lengths[0])} to {slots(crossover.lengths[-1])}"
        return f"no crossing in the range: {faster(crossover.sign)} is faster {span}"
    if crossover.outcome == "undecided":
        if not crossover.sign:
            return "undecided at every length"
        return f"undecided at {undecided}; {faster(crossover.sign)} is faster at every other length"
    text = "; ".join(map(_crossing, crossover.crossings))
    count = "one crossing" if crossover.outcome == "one" else f"{len(crossover.crossings)} crossings"
    return f"{count} {text}" + (f"; not decided at {undecided}" if undecided else "")


def _crossing(crossing: Crossing) -> str:
    below, above = (-1, 1) if crossing.rising else (1, -1)
    order = f"{faster(below)} is faster below, {faster(above)} above"
    if crossing.jump == crossing.between:
        return f"in a jump of page faults between {_span(crossing.jump)}: {order}"
    bracket = f"between {_span(crossing.between)}"
    if crossing.jump is not None:
        return f"{bracket}, with a jump of page faults between {_span(crossing.jump)}: {order}"
    interval = f"{slots(crossing.length)} [{slots(crossing.low)}, {slots(crossing.high)}]"
    return f"{bracket}, on a straight line at {interval}: {order}"


def _span(lengths: tuple[int, int]) -> str:
    return f"{slots(lengths[0])} and {slots(lengths[1])}"


def answer(curves: Sequence[LengthCurve]) -> list[str]:
    """Say which cast is faster at the longest length, and what the order depends on."""
    longest = max(point.length for curve in curves for point in curve.points)
    lines = []
    for group in _grouped(curves, lambda curve: (curve.configuration.shape, curve.configuration.cache_dtype)):
        lines += _at_longest(group, longest)
    if turned := _turned_by_memory(curves):
        lines.append(
            f"The state of memory alone turns the order: {'; '.join(turned)}. Two readings of the same casts at the "
            "same length that disagree can both be right."
        )
    elif len({curve.configuration.memory for curve in curves}) > 1:
        lines.append("No length was found at which the state of memory alone turns the order.")
    return [*lines, *_noise_floor(curves)]


def _noise_floor(curves: Sequence[LengthCurve]) -> list[str]:
    """One sentence on how far equal copies of the baseline came out apart, none where there is no noise floor."""
    ratios = {
        f"{curve.configuration.title}, {slots(point.length)} slots": ratio
        for curve in curves
        for point in curve.points
        if (ratio := point.ratios.get(NOISE_FLOOR)) is not None
    }
    if not ratios:
        return []
    middle = median(ratio.ratio for ratio in ratios.values())
    called = sum(ratio.verdict in ("slower", "faster") for ratio in ratios.values())
    farthest = max(ratios, key=lambda where: abs(math.log(ratios[where].ratio)))
    return [
        f"Noise floor: a copy of `{BASELINE}` with tensors of its own takes {middle:.3g} × its time in the middle of "
        f"{len(ratios)} points and {_ratio_text(ratios[farthest])} at the farthest ({farthest}); {called} of them are "
        "called slower or faster."
    ]


def _processes(curves: Sequence[LengthCurve]) -> str:
    """Say over how many processes: ``6 processes``, ``3 to 6 processes``."""
    counts = [point.processes for curve in curves for point in curve.points if point.processes]
    return f"{range_text(counts, write=str)} process{'es' if max(counts) > 1 else ''}" if counts else "no process"


def _at_longest(group: Sequence[LengthCurve], longest: int) -> list[str]:
    """One sentence per state of memory of one shape and dtype."""
    shape = f"{group[0].configuration.shape} {group[0].configuration.cache_dtype}"
    lines = []
    for same_memory in _grouped(group, lambda curve: curve.configuration.memory):
        points = [point for curve in same_memory for point in curve.points if point.length == longest]
        ratios = [point.ratios[CASTS] for point in points if CASTS in point.ratios]
        if not ratios:
            continue
        span = range_text([ratio.ratio for ratio in ratios], write=lambda value: f"{value:.3g}")
        counts = Counter[str](ratio.verdict for ratio in ratios)
        verdicts = join([f"{verdict} in {counts[verdict]}" for verdict in _VERDICTS if counts[verdict]])
        faults = [value for point in points for value in point.page_faults.get(TO_QUERY, ())]
        lines.append(
            f"{shape} at {slots(longest)} slots, memory {same_memory[0].configuration.memory}: `{TO_QUERY}` takes "
            f"{span} × the time of `{TO_HALF}`; {verdicts} of {counted(len(ratios), 'configuration')}, with "
            f"{_faults(faults)} page faults per call of the former."
        )
    return lines


def _turned_by_memory(curves: Sequence[LengthCurve]) -> list[str]:
    """List where two states of memory give opposite verdicts at the same length, all else equal."""
    sentences = []
    for group in _grouped(curves, lambda curve: replace(curve.configuration, memory="grown")):
        lengths: dict[tuple[str, str], list[str]] = {}
        for length in sorted({point.length for curve in group for point in curve.points}):
            states = grouped(
                (point.ratios[CASTS].verdict, curve.configuration.memory)
                for curve in group
                for point in curve.points
                if point.length == length and CASTS in point.ratios
            )
            slower, quicker = (join(states.get(verdict, [])) for verdict in ("slower", "faster"))
            if slower and quicker:
                lengths.setdefault((slower, quicker), []).append(slots(length))
        title = replace(group[0].configuration, memory="grown").title
        for (slower, quicker), at in lengths.items():
            half, query = f"`{faster(1)}` is faster with memory {slower}", f"`{faster(-1)}` with {quicker}"
            sentences.append(f"{title}, at {join(at)} slots: {half}, {query}")
    return sentences


def _grouped(curves: Iterable[LengthCurve], key: Callable[[LengthCurve], Hashable]) -> list[list[LengthCurve]]:
    return list(grouped((key(curve), curve) for curve in curves).values())


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line.replace('<', '&lt;')}" for line in lines)  # what stored lines say is text


def _by_length(curves: Sequence[LengthCurve], cell: Callable[[LengthPoint], str]) -> str:
    """A row per configuration, a column per length."""
    lengths = sorted({point.length for curve in curves for point in curve.points})
    rows = []
    for curve in curves:
        cells = {point.length: cell(point) for point in curve.points}
        rows.append([curve.configuration.title, *(cells.get(length, MISSING) for length in lengths)])
    return to_markdown(make_table(["configuration", *map(slots, lengths)], rows))


def _ratio_text(ratio: PairedRatio | None) -> str:
    return MISSING if ratio is None else f"{ratio.ratio:.3g} [{ratio.ratio_low:.3g}, {ratio.ratio_high:.3g}]"


def _medians(ratio: PairedRatio | None) -> str:
    return MISSING if ratio is None else f"{duration_text(ratio.baseline_median_s)}, {duration_text(ratio.median_s)}"


def _faults(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    low, high = round(min(values)), round(max(values))
    middle = f"{round(median(values)):,}"
    return middle if low == high else f"{middle} ({low:,} to {high:,})"


def _failures(curves: Sequence[LengthCurve]) -> list[str]:
    """One line per configuration, fix and reason, with its lengths."""
    lengths = grouped(
        ((curve.configuration.title, fix, why), slots(point.length))
        for curve in curves
        for point in curve.points
        for fix, why in point.failures.items()
    )
    return [f"{title}, `{fix}` at {', '.join(at)}: {why}" for (title, fix, why), at in lengths.items()]


def _doubts(curves: Sequence[LengthCurve]) -> list[str]:
    """Each kind of doubt about the ratio of the two casts, with how many points raise it and where first."""
    raised: dict[str, list[str]] = {}
    points = [(curve, point) for curve in curves for point in curve.points if CASTS in point.ratios]
    for curve, point in points:
        for doubt in point.ratios[CASTS].doubts:
            kind = doubt.split(" processes: ")[-1].split(":")[0].split(",")[0]
            raised.setdefault(kind, []).append(f"{curve.configuration.title}, {slots(point.length)}: {doubt}")
    return [f"{kind}: {len(where)} of {len(points)} points; first {where[0]}" for kind, where in raised.items()]


_COLUMNS = 4
_BRACKET, _CROSSING = "#EEEEEE", "#AAAAAA"
_TICKS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_TITLES = {TO_HALF: "query → cache dtype (query_to_half)", TO_QUERY: "cache → query dtype (kv_to_query)"}


def draw(curves: Sequence[LengthCurve], out: Path) -> list[Path]:
    """Write both files; return them, PNG first; none where nothing was measured."""
    drawable = [curve for curve in curves if any(point.ratios for point in curve.points)]
    return save(draw_lengths(drawable), out, "lengths") if drawable else []


def draw_lengths(curves: Sequence[LengthCurve]) -> Figure:
    """Draw one panel per configuration."""
    columns = min(_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = new_figure(max(7.6, 3.5 * columns), 2.9 * rows + 1.0)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, curve in zip(panels.flat, curves, strict=False):
        _draw_panel(axes, curve)
    for axes in list(panels.flat)[len(curves) :]:
        axes.set_visible(False)
    _scale(panels[0, 0], curves)
    for axes in panels[:, 0]:
        axes.set_ylabel(f"latency ÷ {BASELINE}", fontsize=9.5, color=INK)
    for index, axes in enumerate(panels.flat):
        if index < len(curves) <= index + columns:
            axes.set_xlabel("slots of the cache, all in use", fontsize=9.5, color=INK)
            axes.tick_params(labelbottom=True)
    figure.legend(handles=_handles(curves), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle("The two casts at decode, by length of the cache", x=0.01, ha="left", fontsize=12)
    return figure


def _draw_panel(axes: Axes, curve: LengthCurve) -> None:
    dress(axes, title=curve.configuration.title.replace(", ", "\n", 1))
    axes.axhline(1.0, color=FAINT, linewidth=0.9, linestyle=":")
    hollow = set(curve.crossover.undecided_lengths) if curve.crossover else set()
    for fix in (TO_HALF, TO_QUERY):
        _draw_fix(axes, curve, fix, hollow)
    for crossing in curve.crossover.crossings if curve.crossover else ():
        axes.axvspan(*crossing.between, color=_BRACKET, linewidth=0, zorder=0.5)
        label = f"{slots(crossing.between[0])}\nto {slots(crossing.between[1])}"
        if crossing.jump is None:
            axes.axvspan(crossing.low, crossing.high, color=_CROSSING, alpha=0.6, linewidth=0, zorder=1)
            axes.axvline(crossing.length, color=INK, linewidth=0.9, linestyle="--", zorder=2)
            label = f"{slots(crossing.length)}\n[{slots(crossing.low)}, {slots(crossing.high)}]"
        axes.annotate(
            label,
            (crossing.between[0], 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 0),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            ha="right",
            va="top",
        )


def _draw_fix(axes: Axes, curve: LengthCurve, fix: str, hollow: set[int]) -> None:
    """Draw one cast's ratio with its band."""
    style = style_of(fix)
    points = [point for point in curve.points if fix in point.ratios]
    if not points:
        return
    x = np.array([point.length for point in points])
    y, low, high = np.array(
        [(r.ratio, r.ratio_low, r.ratio_high) for r in (point.ratios[fix] for point in points)]
    ).T  # each (n,)
    axes.fill_between(x, low, high, color=style.colour, alpha=0.2, linewidth=0, zorder=2)
    axes.plot(x, y, color=style.colour, linewidth=1.6, zorder=3)
    for length, ratio in zip(x, y, strict=True):
        face = "white" if length in hollow else style.colour
        axes.plot(length, ratio, marker=style.marker, color=style.colour, markerfacecolor=face, markersize=5, zorder=4)


def _scale(axes: Axes, curves: Sequence[LengthCurve]) -> None:
    """Set both logarithmic axes, shared by all panels, with ticks where there is something."""
    lengths = sorted({point.length for curve in curves for point in curve.points})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
    points = [point for curve in curves for point in curve.points]
    ratios = [point.ratios[fix].ratio for point in points for fix in _TITLES if fix in point.ratios]
    low, high = min([*ratios, 1.0]) / 1.5, max([*ratios, 1.0]) * 1.5  # a wide band may leave the panel
    axes.set_ylim(low, high)
    ticks: list[int] = []
    for length in lengths:  # labels of lengths within a factor of 1.6 would touch
        if not ticks or length >= 1.6 * ticks[-1]:
            ticks.append(length)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    shown = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()


def _handles(curves: Sequence[LengthCurve]) -> list[Line2D | Patch]:
    """Return the key to what these panels show, and to nothing else."""
    crossovers = [curve.crossover for curve in curves if curve.crossover]
    crossings = [crossing for crossover in crossovers for crossing in crossover.crossings]
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=style_of(fix).colour, marker=style_of(fix).marker, label=title)
        for fix, title in _TITLES.items()
    ]
    if any(crossover.undecided_lengths for crossover in crossovers):
        handles.append(
            Line2D([], [], color=INK, marker="o", markerfacecolor="white", linestyle="none", label="order undecided")
        )
    if crossings:
        handles.append(Patch(color=_BRACKET, label="the order turns in here (95 %)"))
    if any(crossing.jump is None for crossing in crossings):
        handles.append(Patch(color=_CROSSING, alpha=0.6, label="crossing of straight lines, 95 % interval"))
    return handles
