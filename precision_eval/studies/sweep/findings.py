"""What each configuration says: its crossover, and that in words.

Conventions: the ratio that crosses is ``kv_to_query`` over ``query_to_half``; above 1 the latter is faster. The place
of a crossing is read off a straight line, unless page faults jump in its bracket: where the copy of the cache has
outgrown what the C library uses again, its cost rises at one length, so that only the bracket is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from precision_eval.stats.crossover import Crossing, Crossover, find_crossover
from precision_eval.studies.sweep.lines import LengthPoint, Series
from precision_eval.studies.sweep.plan import TO_HALF, TO_QUERY


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One configuration."""

    series: Series
    crossover: Crossover | None


def findings_of(series: Sequence[Series], *, seed: int = 0) -> tuple[Finding, ...]:
    """Find every configuration's crossover."""
    found = []
    for one in series:
        points = one.crossover_points()
        crossover = _with_jumps(find_crossover(points, seed=seed), one) if points else None
        found.append(Finding(series=one, crossover=crossover))
    return tuple(found)


def _with_jumps(crossover: Crossover, series: Series) -> Crossover:
    """Mark crossings in whose bracket page faults jump."""
    crossings = tuple(
        replace(one, jump=jump_of_faults(series.points, between=one.between)) for one in crossover.crossings
    )
    return replace(crossover, crossings=crossings)


def jump_of_faults(points: Sequence[LengthPoint], *, between: tuple[int, int]) -> tuple[int, int] | None:
    """Find the lengths between which the page faults of ``kv_to_query`` jump."""
    low, high = between
    faults = {
        point.length: median(point.page_faults[TO_QUERY])
        for point in points
        if low <= point.length <= high and point.page_faults.get(TO_QUERY)
    }
    jumps = []
    for a, b in pairwise(faults):
        less, more = sorted((faults[a] / a, faults[b] / b))
        if more > 2.0 * less and max(faults[a], faults[b]) >= 1.0:
            jumps.append((a, b))
    return (jumps[0][0], jumps[-1][1]) if jumps else None


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
    loose = ", ".join(map(slots, crossover.undecided_lengths))
    if crossover.outcome == "none":
        shortest, longest = crossover.lengths[0], crossover.lengths[-1]
        return (
            f"no crossing in the range: {faster(crossover.sign)} is faster from {slots(shortest)} to {slots(longest)}"
        )
    if crossover.outcome == "undecided":
        if not crossover.sign:
            return "undecided at every length"
        return f"undecided at {loose}; {faster(crossover.sign)} is faster at every other length"
    text = "; ".join(_crossing(one) for one in crossover.crossings)
    count = "one crossing" if crossover.outcome == "one" else f"{len(crossover.crossings)} crossings"
    return f"{count} {text}" + (f"; not decided at {loose}" if loose else "")


def _crossing(one: Crossing) -> str:
    below, above = (-1, 1) if one.rising else (1, -1)
    order = f"{faster(below)} is faster below, {faster(above)} above"
    if one.jump == one.between:
        return f"in a jump of page faults between {_span(one.jump)}: {order}"
    if one.jump is not None:
        return f"between {_span(one.between)}, with a jump of page faults between {_span(one.jump)}: {order}"
    place = f"{slots(one.length)} [{slots(one.low)}, {slots(one.high)}]"
    return f"between {_span(one.between)}, on a straight line at {place}: {order}"


def _span(lengths: tuple[int, int]) -> str:
    return f"{slots(lengths[0])} and {slots(lengths[1])}"
