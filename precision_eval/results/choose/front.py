"""The trade-off front, with its uncertainty.

Conventions: contenders are compared on every axis that all of them have a figure for: time, drift, memory. One
*dominates* another where it is better by a called difference on at least one axis and better or the same on all; an
axis that is unclear on which of the two is ahead prevents it. Three standings follow:
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from precision_eval.results.choose.comparing import AXES, Relation, difference
from precision_eval.results.model import Group, Row


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a contender stands."""

    fix: str
    standing: Literal["front", "perhaps", "dominated"]
    by: str | None = None


def axes_of(contenders: Sequence[Row]) -> tuple[str, ...]:
    """Return the axes that every contender has a figure for."""
    return tuple(axis for axis in AXES if contenders and all(one.estimate(axis) is not None for one in contenders))


def standings(group: Group, contenders: Sequence[Row]) -> tuple[Standing, ...]:
    """Say of each contender where it stands."""
    axes = axes_of(contenders)
    if not axes:
        return ()
    return tuple(_standing(group, axes, one, contenders) for one in contenders)


def point_front(points: Sequence[tuple[float, ...]]) -> tuple[int, ...]:
    """Return the points that no other beats, by their values alone."""
    kept = [
        index
        for index, point in enumerate(points)
        if not any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)
    ]
    return tuple(sorted(kept, key=lambda index: points[index]))


def value_front(group: Group) -> tuple[Row, ...]:
    """Return the curing fixes that no other beats on both time and drift by their values alone, fastest first."""
    rows = [(row.time.value, row.drift.value, row) for row in group.curing if row.time and row.drift]
    return tuple(rows[index][2] for index in point_front([row[:2] for row in rows]))


def dominates(group: Group, axes: Sequence[str], first: Row, second: Row) -> bool:
    """Say whether the first is better on some axis, by a call, and better or the same on all."""
    relations = [_relation(group, axis, first, second) for axis in axes]
    return "better" in relations and all(relation in ("better", "same") for relation in relations)


def _standing(group: Group, axes: Sequence[str], one: Row, contenders: Sequence[Row]) -> Standing:
    sure = True
    for other in contenders:
        if other.fix == one.fix:
            continue
        if dominates(group, axes, other, one):
            return Standing(fix=one.fix, standing="dominated", by=other.fix)
        sure = sure and any(_relation(group, axis, other, one) == "worse" for axis in axes)
    return Standing(fix=one.fix, standing="front" if sure else "perhaps")


def _relation(group: Group, axis: str, first: Row, second: Row) -> Relation:
    found = difference(group, axis, first, second)
    assert found is not None  # axes_of asked for it
    return found.relation
