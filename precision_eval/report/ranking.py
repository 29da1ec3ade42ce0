"""Which fixes come first, and what ties with them.

Two figures whose intervals overlap are a **tie**. A drift of an attention case comes from one seeded input and has
no interval, so two of them within 10 % are not told apart; memory is exact, and within 1 % counts as the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precision_eval.results.choose.front import point_front
from precision_eval.results.data import Row, Section, figure_of, memory_bytes

SAME_WITHOUT_INTERVAL = 0.10
"""Relative difference below which two drifts without an interval count as a tie."""

SAME_MEMORY = 0.01
"""Relative difference below which two amounts of memory count as the same."""

Interval = tuple[float, float, float]


def latency_interval(row: Row) -> Interval | None:
    """Return (ratio, low, high); the ends equal the ratio where no interval was recorded."""
    data = row.data("latency")
    found = _interval(data, "ratio", "ratio_low", "ratio_high")
    if found is not None and is_baseline(row):
        return 1.0, min(1.0, found[1]), max(1.0, found[2])
    return found


def is_baseline(row: Row) -> bool:
    """Tell whether the latency ratios of a row's section are taken to this row."""
    return (row.data("latency") or {}).get("baseline") == row.fix


def verdict_of(row: Row, section: Section) -> str | None:
    """Return a row's latency verdict, held to what the baseline shows against itself."""
    data = row.data("latency")
    if data is None:
        return None
    verdict = recorded_verdict(data)
    noise_floor = next((other.data("latency") for other in section.curing if is_baseline(other)), None)
    if noise_floor is None or recorded_verdict(noise_floor) not in ("faster", "slower"):
        return verdict
    if is_baseline(row):
        return "noise floor off"
    found, chance = (
        _interval(data, "ratio", "ratio_low", "ratio_high"),
        _interval(noise_floor, "ratio", "ratio_low", "ratio_high"),
    )
    if found is None or chance is None:
        return verdict
    reach = max(abs(chance[1] - 1.0), abs(chance[2] - 1.0))
    return verdict if found[2] < 1.0 - reach or found[1] > 1.0 + reach else "undecided"


def recorded_verdict(data: Mapping[str, Any]) -> str:
    """Return the verdict of a latency record; those of version 0.1 said *better* and *worse*."""
    verdict = str(data.get("verdict"))
    return {"better": "faster", "worse": "slower"}.get(verdict, verdict)


def drift_interval(row: Row) -> Interval | None:
    """Return (relative error, low, high); without an interval the ends are half of 10 % away on either side."""
    data = row.drift
    middle = figure_of(data, "relative_error")
    if middle is None:
        return None
    if figure_of(data, "relative_error_low") is None:
        return middle, middle * (1 - SAME_WITHOUT_INTERVAL / 2), middle * (1 + SAME_WITHOUT_INTERVAL / 2)
    return _interval(data, "relative_error", "relative_error_low", "relative_error_high")


def fastest(section: Section) -> tuple[Row, ...]:
    """Return the curing fix with the smallest latency ratio, then those whose intervals overlap its own."""
    return _best([(row, found) for row in section.curing if (found := latency_interval(row))])


def lowest_drift(section: Section) -> tuple[Row, ...]:
    """Return the curing fix with the smallest drift, then those that cannot be told from it."""
    return _best([(row, found) for row in section.curing if (found := drift_interval(row))])


def least_memory(section: Section) -> tuple[Row, ...]:
    """Return the curing fix with the least storage and peak, then those within 1 % of it."""
    found = [(row, sum(memory)) for row in section.curing if (memory := memory_bytes(row))]
    return _best([(row, (total, total, total * (1 + SAME_MEMORY))) for row, total in found])


def pareto_front(section: Section) -> tuple[Row, ...]:
    """Return the curing fixes that no other beats on both latency ratio and drift, fastest first."""
    points = [
        (speed[0], drift[0], row)
        for row in section.curing
        if (speed := latency_interval(row)) and (drift := drift_interval(row))
    ]
    return tuple(points[index][2] for index in point_front([point[:2] for point in points]))


def _interval(data: object, middle: str, low: str, high: str) -> Interval | None:
    if not isinstance(data, dict):
        return None
    value = figure_of(data, middle)
    if value is None:
        return None
    lower, upper = figure_of(data, low), figure_of(data, high)
    return value, value if lower is None else lower, value if upper is None else upper


def _best(candidates: Sequence[tuple[Row, Interval]]) -> tuple[Row, ...]:
    if not candidates:
        return ()
    ordered = sorted(candidates, key=lambda candidate: candidate[1][0])
    limit = ordered[0][1][2]
    return tuple(row for i, (row, found) in enumerate(ordered) if i == 0 or found[1] <= limit)
