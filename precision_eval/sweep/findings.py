"""What each configuration says: its crossover, and that in words.

Conventions: the ratio that crosses is ``kv_to_query`` over ``query_to_half``; above 1 the latter is faster.

Contents: :class:`Finding`, :func:`findings_of`, :func:`sentence`, :func:`faster`, :func:`slots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .crossover import Crossing, Crossover, find_crossover
from .lines import Series
from .plan import TO_HALF, TO_QUERY


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One configuration.

    Attributes
    ----------
    series : Series
    crossover : Crossover or None
        None where no length has a ratio of the two casts.
    """

    series: Series
    crossover: Crossover | None


def findings_of(series: Sequence[Series], *, seed: int = 0) -> tuple[Finding, ...]:
    """Find every configuration's crossover."""
    found = []
    for one in series:
        points = one.crossover_points()
        found.append(Finding(series=one, crossover=find_crossover(points, seed=seed) if points else None))
    return tuple(found)


def faster(sign: int) -> str:
    """Name the faster cast where the sign of the log-ratio is `sign`."""
    return TO_HALF if sign > 0 else TO_QUERY


def slots(length: float) -> str:
    """Write a length: ``1,450``; fractions are below what slots can tell."""
    return f"{round(length):,}"


def sentence(crossover: Crossover | None) -> str:
    """Say what a crossover is, in one sentence without its stop.

    Parameters
    ----------
    crossover : Crossover or None

    Returns
    -------
    str
    """
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
    return (
        f"between {slots(one.between[0])} and {slots(one.between[1])}, on a straight line at {slots(one.length)} "
        f"[{slots(one.low)}, {slots(one.high)}]: "
        f"{faster(below)} is faster below, {faster(above)} above"
    )
