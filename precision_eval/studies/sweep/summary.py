"""``crossover.json`` and ``summary.md`` of a sweep, and its answer in sentences.

Conventions: everything is made from the lines on file. Ratios have three significant digits and their 95 % interval;
page faults are the median over processes, with the range where they differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from precision_eval.core.formatting import MISSING, duration_text, join
from precision_eval.core.table import make_table, to_markdown
from precision_eval.stats import PairedRatio
from precision_eval.stats.crossover import Crossing, Crossover
from precision_eval.studies.sweep.curves import CASTS, NOISE_FLOOR, LengthCurve, LengthPoint
from precision_eval.studies.sweep.plan import BASELINE, REVISION, TO_HALF, TO_QUERY

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
    return json.dumps(head | {"configurations": configurations}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


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
    crossings = make_table(("configuration", "crossover"), [(_title(one), sentence(one.crossover)) for one in curves])

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
    turned = _turned_by_memory(curves)
    if turned:
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
        f"{_title(curve)}, {slots(point.length)} slots": ratio
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
    counts = sorted({point.processes for curve in curves for point in curve.points if point.processes})
    if not counts:
        return "no process"
    span = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{span} process{'es' if counts[-1] > 1 else ''}"


def _at_longest(group: Sequence[LengthCurve], longest: int) -> list[str]:
    """One sentence per state of memory of one shape and dtype."""
    shape = f"{group[0].configuration.shape} {group[0].configuration.cache_dtype}"
    lines = []
    for same_memory in _grouped(group, lambda curve: curve.configuration.memory):
        points = [point for curve in same_memory for point in curve.points if point.length == longest]
        ratios = [point.ratios[CASTS] for point in points if CASTS in point.ratios]
        if not ratios:
            continue
        low, high = min(ratio.ratio for ratio in ratios), max(ratio.ratio for ratio in ratios)
        span = f"{low:.3g}" if len(ratios) == 1 else f"{low:.3g} to {high:.3g}"
        counts = {verdict: sum(ratio.verdict == verdict for ratio in ratios) for verdict in _VERDICTS}
        verdicts = join([f"{verdict} in {count}" for verdict, count in counts.items() if count])
        faults = [value for point in points for value in point.page_faults.get(TO_QUERY, ())]
        lines.append(
            f"{shape} at {slots(longest)} slots, memory {same_memory[0].configuration.memory}: `{TO_QUERY}` takes "
            f"{span} × the time of `{TO_HALF}`; {verdicts} of {len(ratios)} "
            f"configuration{'s' if len(ratios) > 1 else ''}, with {_faults(faults)} page faults per call of the former."
        )
    return lines


def _turned_by_memory(curves: Sequence[LengthCurve]) -> list[str]:
    """List where two states of memory give opposite verdicts at the same length, all else equal."""
    sentences = []
    for group in _grouped(curves, lambda curve: replace(curve.configuration, memory="grown")):
        lengths: dict[tuple[str, str], list[str]] = {}
        for length in sorted({point.length for curve in group for point in curve.points}):
            verdicts = {
                curve.configuration.memory: point.ratios[CASTS].verdict
                for curve in group
                for point in curve.points
                if point.length == length and CASTS in point.ratios
            }
            slower, quicker = (
                join([state for state, verdict in verdicts.items() if verdict == wanted])
                for wanted in ("slower", "faster")
            )
            if slower and quicker:
                lengths.setdefault((slower, quicker), []).append(slots(length))
        title = replace(group[0].configuration, memory="grown").title
        for (slower, quicker), at in lengths.items():
            half, query = f"`{faster(1)}` is faster with memory {slower}", f"`{faster(-1)}` with {quicker}"
            sentences.append(f"{title}, at {join(at)} slots: {half}, {query}")
    return sentences


def _grouped(curves: Iterable[LengthCurve], key: Callable[[LengthCurve], Hashable]) -> list[list[LengthCurve]]:
    groups: dict[Hashable, list[LengthCurve]] = {}
    for curve in curves:
        groups.setdefault(key(curve), []).append(curve)
    return list(groups.values())


def _title(curve: LengthCurve) -> str:
    return curve.configuration.title


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _by_length(curves: Sequence[LengthCurve], cell: Callable[[LengthPoint], str]) -> str:
    """A row per configuration, a column per length."""
    lengths = sorted({point.length for curve in curves for point in curve.points})
    rows = []
    for curve in curves:
        cells = {point.length: cell(point) for point in curve.points}
        rows.append([_title(curve), *(cells.get(length, MISSING) for length in lengths)])
    return to_markdown(make_table(["configuration", *map(slots, lengths)], rows))


def _ratio_text(ratio: PairedRatio | None) -> str:
    if ratio is None:
        return MISSING
    return f"{ratio.ratio:.3g} [{ratio.ratio_low:.3g}, {ratio.ratio_high:.3g}]"


def _medians(ratio: PairedRatio | None) -> str:
    if ratio is None:
        return MISSING
    return f"{duration_text(ratio.baseline_median_s)}, {duration_text(ratio.median_s)}"


def _faults(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    low, high = round(min(values)), round(max(values))
    middle = f"{round(median(values)):,}"
    return middle if low == high else f"{middle} ({low:,} to {high:,})"


def _failures(curves: Sequence[LengthCurve]) -> list[str]:
    """One line per configuration, fix and reason, with its lengths."""
    lengths: dict[tuple[str, str, str], list[str]] = {}
    for curve in curves:
        for point in curve.points:
            for fix, why in point.failures.items():
                lengths.setdefault((_title(curve), fix, why), []).append(slots(point.length))
    return [f"{title}, `{fix}` at {', '.join(at)}: {why}" for (title, fix, why), at in lengths.items()]


def _doubts(curves: Sequence[LengthCurve]) -> list[str]:
    """Each kind of doubt about the ratio of the two casts, with how many points raise it and where first."""
    raised: dict[str, list[str]] = {}
    points = [(curve, point) for curve in curves for point in curve.points if CASTS in point.ratios]
    for curve, point in points:
        for doubt in point.ratios[CASTS].doubts:
            kind = doubt.split(" processes: ")[-1].split(":")[0].split(",")[0]
            raised.setdefault(kind, []).append(f"{_title(curve)}, {slots(point.length)}: {doubt}")
    return [f"{kind}: {len(where)} of {len(points)} points; first {where[0]}" for kind, where in raised.items()]
