"""What the numbers say, computed from the records; no sentence here is fixed in advance.

Two figures whose intervals overlap are a **tie** and are called one. A drift of an attention workload comes from one
seeded input and has no interval, so two of them within 10 % are not told apart.

Contents: :func:`findings_of`, :func:`pareto_front`, :func:`fastest`, :func:`lowest_drift`.
"""

from __future__ import annotations

from collections.abc import Sequence

from precision_eval.report.data import Row, Run, Section, figure_of, memory_bytes
from precision_eval.report.wording import fixed, join, memory_text, plural, scientific, short_reason, times_text

SAME_WITHOUT_INTERVAL = 0.10
"""Relative difference below which two drifts without an interval count as a tie."""

Interval = tuple[float, float, float]


def findings_of(run: Run, section: Section) -> list[str]:
    """Return the sentences for one section, most decisive first; empty where nothing was measured."""
    sentences = [
        _cure_sentence(section),
        _speed_sentence(section),
        _drift_sentence(section),
        _front_sentence(section),
        _memory_sentence(section),
        _divergence_sentence(run, section),
        _sound_sentence(run, section),
        _original_sentence(run, section),
    ]
    return [sentence for sentence in sentences if sentence]


def latency_interval(row: Row) -> Interval | None:
    """Return (ratio, low, high); the ends equal the ratio where no interval was recorded.

    The baseline's ratio is 1 by definition; its record holds the same fix against itself, whose interval says how well
    this machine could tell two things apart.
    """
    data = row.data("latency")
    found = _interval(data, "ratio", "ratio_low", "ratio_high")
    if found is not None and is_baseline(row):
        return 1.0, min(1.0, found[1]), max(1.0, found[2])
    return found


def is_baseline(row: Row) -> bool:
    """Tell whether the latency ratios of a row's section are taken to this row."""
    return (row.data("latency") or {}).get("baseline") == row.fix


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


def pareto_front(section: Section) -> tuple[Row, ...]:
    """Return the curing fixes that no other beats on both latency ratio and drift, fastest first."""
    points = [
        (speed[0], drift[0], row)
        for row in section.curing
        if (speed := latency_interval(row)) and (drift := drift_interval(row))
    ]
    front = [
        (x, y, row) for x, y, row in points if not any(a <= x and b <= y and (a, b) != (x, y) for a, b, _ in points)
    ]
    return tuple(row for _, _, row in sorted(front, key=lambda point: point[:2]))


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


def _names(rows: Sequence[Row]) -> str:
    return join([row.fix for row in rows])


def _cure_sentence(section: Section) -> str:
    if not section.fixes:
        return ""
    if not section.failing:
        return f"All {len(section.fixes)} fixes measured run here."
    groups: dict[str, list[Row]] = {}
    for row in section.failing:
        groups.setdefault(row.status, []).append(row)
    parts = []
    for status, rows in groups.items():
        message = f" (“{short_reason(rows[0].reason).partition(', but got')[0]} …”)" if status == "raised" else ""
        verb = plural(len(rows), "does", "do")
        parts.append(f"{_names(rows)} {verb} not cure it: {status}{message}")
    cured = f"Cured by {_names(section.curing)}" if section.curing else "Nothing measured here cures it"
    return f"{'; '.join(parts)}. {cured}."


def _speed_sentence(section: Section) -> str:
    best = fastest(section)
    if not best:
        return ""
    ratio, low, high = latency_interval(best[0]) or (0.0, 0.0, 0.0)
    baseline = (best[0].data("latency") or {}).get("baseline", "the baseline")
    if is_baseline(best[0]):
        text = f"Nothing is faster than the baseline {baseline}"
    else:
        interval = f"{fixed(ratio, decimals=3)} [{fixed(low, decimals=3)}, {fixed(high, decimals=3)}]"
        text = f"Fastest is {best[0].fix} at {interval} of {baseline}'s time"
    tie = "" if len(best) == 1 else f", a tie within uncertainty with {_names(best[1:])}"
    undecided = [row for row in section.curing if (row.data("latency") or {}).get("verdict") == "undecided"]
    others = [row for row in undecided if not is_baseline(row)]
    doubt = "" if not others else f"; undecided against {baseline}: {_names(others)}"
    noise = (
        "" if len(others) == len(undecided) else ". Even the baseline against itself is undecided: read speed with care"
    )
    return f"{text}{tie}{doubt}{noise}."


def _drift_sentence(section: Section) -> str:
    best = lowest_drift(section)
    if not best:
        return ""
    measured = [(found[0], row) for row in section.curing if (found := drift_interval(row))]
    least = figure_of(best[0].drift, "relative_error") or 0.0
    tie = "" if len(best) == 1 else f", not told apart from {_names(best[1:])}"
    text = f"Lowest drift: {best[0].fix} at {scientific(least)}{tie}"
    most, worst = max(measured, key=lambda pair: pair[0])
    if worst in best or least <= 0:
        return text + "."
    return f"{text}; highest: {worst.fix} at {scientific(most)}, {times_text(most / least)} as much."


def _front_sentence(section: Section) -> str:
    front = pareto_front(section)
    if not front:
        return ""
    if len(front) == 1:
        return f"{front[0].fix} beats every other curing fix on speed and drift at once, by point estimates."
    return f"No other fix beats {_names(front)} on speed and drift at once (the Pareto front, by point estimates)."


def _memory_sentence(section: Section) -> str:
    found = [(sum(memory), row) for row in section.curing if (memory := memory_bytes(row))]
    if len(found) < 2:
        return ""
    (least, lightest), (most, heaviest) = min(found, key=lambda p: p[0]), max(found, key=lambda p: p[0])
    if most <= least * 1.01:
        return f"Memory does not separate them: {memory_text(least)} to {memory_text(most)}."
    light, heavy = memory_text(least), memory_text(most)
    return f"Least memory (storage and peak): {lightest.fix}, {light}; most: {heaviest.fix}, {heavy}."


def _divergence_sentence(run: Run, section: Section) -> str:
    counts = [
        (row, figure_of(data, "diverged") or 0.0, figure_of(data, "streams") or 0.0)
        for row in section.curing
        if (data := row.data("divergence"))
    ]
    if not counts:
        return ""
    parts = [f"{row.fix} {diverged:.0f} of {streams:.0f}" for row, diverged, streams in counts]
    nulls = [row for row in run.references(section, "divergence") if row.role == "null"]
    beside = ""
    if nulls:
        data = nulls[0].data("divergence")
        beside = f" (null: {figure_of(data, 'diverged'):.0f} of {figure_of(data, 'streams'):.0f})"
    return f"Free-running streams that left the oracle's tokens: {join(parts)}{beside}."


def _sound_sentence(run: Run, section: Section) -> str:
    ratios = [
        (ratio, row)
        for row in section.curing
        if (ratio := figure_of(row.data("audio"), "against_oracle", "mel_mcd_db", "ratio_to_null")) is not None
    ]
    if not ratios:
        return ""
    (least, nearest), (most, farthest) = min(ratios, key=lambda p: p[0]), max(ratios, key=lambda p: p[0])
    if len(ratios) == 1:
        return f"Its audio lies {least:.2f} of the null's MCD away from the oracle's."
    beyond = [row for ratio, row in ratios if ratio > 1.0]
    end = f"; beyond the null: {_names(beyond)}" if beyond else "; none goes beyond what another noise seed does"
    spread = f"from {least:.2f} ({nearest.fix}) to {most:.2f} ({farthest.fix})"
    return f"MCD to the oracle's audio runs {spread} of the null's{end}."


def _original_sentence(run: Run, section: Section) -> str:
    def level(row: Row) -> float | None:
        return figure_of(row.data("audio"), "against_original", "mel_mcd_db", "mean")

    references = run.references(section, "audio")
    oracle = next((found for row in references if row.role == "oracle" and (found := level(row)) is not None), None)
    fixes = [(found, row) for row in section.curing if (found := level(row)) is not None]
    if oracle is None or not fixes:
        return ""
    excess, worst = max(((found - oracle, row) for found, row in fixes), key=lambda pair: pair[0])
    text = f"Against the original speech the oracle itself is at {fixed(oracle, decimals=2)} dB MCD; "
    text += f"{worst.fix} is the worst fix, {_shift(excess)}" if excess > 0 else "no fix is farther from it"
    beside = [
        (row, found - oracle)
        for row in references
        if row.role in ("null", "control") and (found := level(row)) is not None
    ]
    if not beside:
        return text + "; null and controls were not measured."
    chance = [abs(shift) for row, shift in beside if row.role == "null"]
    within = " (no more than the null's own shift)" if chance and 0 < excess <= chance[0] else ""
    return f"{text}{within}; {join([f'{row.fix} {_shift(shift)}' for row, shift in beside])}."


def _shift(decibels: float) -> str:
    return f"{'+' if decibels >= 0 else ''}{fixed(decibels, decimals=2)} dB"
