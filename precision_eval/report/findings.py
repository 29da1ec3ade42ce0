"""What the numbers say, computed from the records; no sentence here is fixed in advance.

What counts as a tie is said in :mod:`precision_eval.results.choose.comparing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from precision_eval.core.formatting import fixed, join, memory_text, plural, scientific, times_text
from precision_eval.diagnose.explain.reading import short_reason
from precision_eval.report.choice_text import not_measured_here
from precision_eval.report.findings_sound import sound_sentences
from precision_eval.report.recommendation import recommendation
from precision_eval.results.choose.comparing import leaders
from precision_eval.results.choose.front import value_front
from precision_eval.results.model import SAME_MEMORY, Group, Row, figure_of, memory_bytes
from precision_eval.results.reading import Run


def findings_of(run: Run, section: Group) -> list[str]:
    """Return the sentences for one section, most decisive first; empty where nothing was measured."""
    sentences = [
        _cure_sentence(section),
        _speed_sentence(section),
        _drift_sentence(section),
        _assessment_sentence(section),
        _front_sentence(section),
        _memory_sentence(section),
        _divergence_sentence(run, section),
        _sound_sentence(run, section),
        *sound_sentences(run, section),
        recommendation(run, section),
    ]
    return [sentence for sentence in sentences if sentence]


def _names(rows: Sequence[Row]) -> str:
    return join([row.fix for row in rows])


def _cure_sentence(section: Group) -> str:
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
    cured = (
        f"Cured by {_names(section.curing)}"
        if section.curing
        else f"Nothing measured here cures it{not_measured_here(section)}"
    )
    return f"{'; '.join(parts)}. {cured}."


def _speed_sentence(section: Group) -> str:
    best = leaders(section, "time")
    if not best:
        return ""
    ratio, low, high = section.time_interval(best[0]) or (0.0, 0.0, 0.0)
    baseline = (best[0].data("latency") or {}).get("baseline", "the baseline")
    if section.is_baseline(best[0]):
        text = f"Nothing is faster than the baseline {baseline}"
    else:
        interval = f"{fixed(ratio, decimals=3)} [{fixed(low, decimals=3)}, {fixed(high, decimals=3)}]"
        text = f"Fastest is {best[0].fix} at {interval} of {baseline}'s time"
    tie = "" if len(best) == 1 else f", a tie within uncertainty with {_names(best[1:])}"
    undecided = [row for row in section.curing if section.verdict_of(row) in ("undecided", "noise floor off")]
    others = [row for row in undecided if not section.is_baseline(row)]
    doubt = "" if not others else f"; undecided against {baseline}: {_names(others)}"
    noise = (
        ""
        if len(others) == len(undecided)
        else ". Even the baseline is not told from itself with certainty: read speed with care"
    )
    return f"{text}{tie}{doubt}{noise}."


def _drift_sentence(section: Group) -> str:
    best = leaders(section, "drift")
    if not best:
        return ""
    measured = [(row.drift.value, row) for row in section.curing if row.drift]
    least = figure_of(best[0].drift_data, "relative_error") or 0.0
    tie = "" if len(best) == 1 else f", not told apart from {_names(best[1:])}"
    text = f"Lowest drift: {best[0].fix} at {scientific(least)}{tie}"
    most, worst = max(measured, key=lambda pair: pair[0])
    if worst in best or least <= 0:
        return text + "."
    return f"{text}; highest: {worst.fix} at {scientific(most)}, {times_text(most / least)} as much."


def _assessment_sentence(section: Group) -> str:
    judged = [(row, found) for row in section.curing if (found := (row.drift_data or {}).get("assessment"))]
    if not judged:
        return ""
    worse = [f"{row.fix} ({found['reasons'][0]})" for row, found in judged if found["verdict"] == "worse"]
    if not worse:
        return f"The error of {'each' if len(judged) > 1 else 'it'} is as expected of the format it is computed in."
    return f"Worse than the format makes an error: {join(worse)}."


def _front_sentence(section: Group) -> str:
    front = value_front(section)
    if not front:
        return ""
    if len(front) == 1:
        return f"{front[0].fix} beats every other curing fix on speed and drift at once, by point estimates."
    return f"No other fix beats {_names(front)} on speed and drift at once (the Pareto front, by point estimates)."


def _memory_sentence(section: Group) -> str:
    found = [(sum(memory), row) for row in section.curing if (memory := memory_bytes(row))]
    if len(found) < 2:
        return ""
    (least, lightest), (most, heaviest) = min(found, key=lambda p: p[0]), max(found, key=lambda p: p[0])
    if most <= least * (1 + SAME_MEMORY):
        return f"Memory does not separate them: {memory_text(least)} to {memory_text(most)}."
    light, heavy = memory_text(least), memory_text(most)
    return f"Least memory (storage and peak): {lightest.fix}, {light}; most: {heaviest.fix}, {heavy}."


def _divergence_sentence(run: Run, section: Group) -> str:
    counts = [
        (row, figure_of(data, "diverged") or 0.0, figure_of(data, "streams") or 0.0)
        for row in section.curing
        if (data := row.data("divergence"))
    ]
    if not counts:
        return ""
    parts = [f"{row.fix} {diverged:.0f} of {streams:.0f}" for row, diverged, streams in counts]
    noise_floors = [row for row in run.comparators(section, "divergence") if row.role == "noise_floor"]
    beside = ""
    if noise_floors:
        data = noise_floors[0].data("divergence")
        beside = f" (noise floor: {figure_of(data, 'diverged'):.0f} of {figure_of(data, 'streams'):.0f})"
    return f"Free-running streams that left the reference's tokens: {join(parts)}{beside}."


def _sound_sentence(run: Run, section: Group) -> str:
    ratios = [
        (ratio, row)
        for row in section.curing
        if (ratio := figure_of(row.data("audio"), "against_reference", "mel_mcd_db", "ratio_to_null")) is not None
    ]
    if not ratios:
        return ""
    (least, nearest), (most, farthest) = min(ratios, key=lambda p: p[0]), max(ratios, key=lambda p: p[0])
    if len(ratios) == 1:
        return f"Its audio lies {least:.2f} of the noise floor's MCD away from the reference's."
    beyond = [row for ratio, row in ratios if ratio > 1.0]
    end = f"; beyond the noise floor: {_names(beyond)}" if beyond else "; none goes beyond what another noise seed does"
    spread = f"from {least:.2f} ({nearest.fix}) to {most:.2f} ({farthest.fix})"
    return f"MCD to the reference's audio runs {spread} of the noise floor's{end}."
