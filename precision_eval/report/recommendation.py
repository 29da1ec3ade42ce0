"""One recommendation per voice section, conditional on what the reader cares for: drift, speed or memory.

Each priority takes its winner by :mod:`precision_eval.report.ranking`; among fixes that tie, the one that drifts less
(for drift: the faster one). Sound comes in as :mod:`precision_eval.report.findings_sound` weighs it.

Contents: :func:`recommendation`.
"""

from __future__ import annotations

from collections.abc import Sequence

from precision_eval.report.data import Row, Run, Section, figure_of, memory_bytes
from precision_eval.report.findings_sound import measured_length, silent_controls, worse_by_sound, yardsticks_of
from precision_eval.report.ranking import (
    drift_interval,
    fastest,
    is_baseline,
    latency_interval,
    least_memory,
    lowest_drift,
)
from precision_eval.report.wording import fixed, join, memory_text, scientific

VOICE_MEASURES = ("audio", "divergence", "teacher_forced_drift")
_NEVER = float("inf")


def recommendation(run: Run, section: Section) -> str:
    """Return what to take on this machine, by priority, with the numbers behind it.

    Empty for a section without a measure of the voice, or with fewer than two curing fixes to choose from.
    """
    measured = [row for row in section.curing if row.data(*VOICE_MEASURES)]
    chosen = _choices(section)
    if len(measured) < 2 or not chosen:
        return ""
    parts = [
        f"for {join([aim for aim, _ in aims])} take {row.fix} ({_facts(row)}{_ties(row, aims)})" for row, aims in chosen
    ]
    where = section.title.rpartition(" · ")[2]
    return f"On this machine ({where}): {'; '.join(parts)}. {_by_sound(run, section)}".rstrip()


def _choices(section: Section) -> list[tuple[Row, list[tuple[str, Sequence[Row]]]]]:
    """Return each recommended fix with the priorities that lead to it and who ties there."""
    winners = (
        ("the lowest drift", lowest_drift(section), _ratio),
        ("the most speed", fastest(section), _drift),
        ("the least memory", least_memory(section), _drift),
    )
    by_fix: dict[str, tuple[Row, list[tuple[str, Sequence[Row]]]]] = {}
    for aim, tied, tie_break in winners:
        if tied:
            best = min(tied, key=tie_break)
            others = tuple(row for row in tied if row is not best)
            by_fix.setdefault(best.fix, (best, []))[1].append((aim, others))
    return list(by_fix.values())


def _drift(row: Row) -> float:
    found = drift_interval(row)
    return _NEVER if found is None else found[0]


def _ratio(row: Row) -> float:
    found = latency_interval(row)
    return _NEVER if found is None else found[0]


def _facts(row: Row) -> str:
    facts = []
    if (drift := drift_interval(row)) is not None:
        facts.append(f"drift {scientific(drift[0])}")
    if is_baseline(row):
        facts.append("the baseline of speed")
    elif (speed := latency_interval(row)) is not None:
        baseline = (row.data("latency") or {}).get("baseline", "the baseline")
        facts.append(f"{fixed(speed[0], decimals=2)} of {baseline}'s time")
    if (memory := memory_bytes(row)) is not None:
        facts.append(memory_text(sum(memory)))
    diverged, streams = (figure_of(row.data("divergence"), name) for name in ("diverged", "streams"))
    if diverged is not None and streams is not None:
        facts.append(f"{diverged:.0f} of {streams:.0f} streams diverged")
    return ", ".join(facts)


def _ties(row: Row, aims: Sequence[tuple[str, Sequence[Row]]]) -> str:
    texts = []
    for aim, others in aims:
        if others:
            word = aim.split()[-1]
            key, verb = (_ratio, "slower") if word == "drift" else (_drift, "of more drift")
            behind = f", {verb}" if all(key(other) > key(row) for other in others) else ""
            texts.append(f"; in {word} a tie with {join([other.fix for other in others])}{behind}")
    return "".join(texts)


def _by_sound(run: Run, section: Section) -> str:
    """Say whether sound takes part in the choice."""
    yardsticks = yardsticks_of(run, section)
    if not yardsticks or any(y.null is None or not y.controls for y in yardsticks):
        return "Sound was not measured beside null and controls, so it takes no part in this."
    length = measured_length(section)
    over = f" over {length}" if length else ""
    if silent_controls(yardsticks):
        return f"Sound takes no part in this: a control that must degrade it does not{over}."
    against = worse_by_sound(yardsticks)
    if against:
        return f"Sound speaks against {join(against)}: worse than the oracle by more than chance{over}."
    return f"Sound does not separate the fixes{over}, so drift, speed and memory decide."
