"""What the numbers and the sound say, and what each policy takes; no sentence here is fixed in advance.

What counts as a tie is said in :mod:`precision_eval.results.choose.comparing`. For sound, a *shift* is a condition's
value minus the reference's. The noise floor is the reference with another noise seed, so its shift is what chance alone
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from precision_eval.core.formatting import duration_long, fixed, join, memory_text, plural, scientific, times_text
from precision_eval.report.choice_text import AIMS, LESS, facts, not_measured_here
from precision_eval.results.choose import Choice
from precision_eval.results.choose.choosing import choices_of
from precision_eval.results.choose.comparing import leaders, value_front
from precision_eval.results.messages import short_reason
from precision_eval.results.model import SAME_MEMORY, Group, Row, figure_of, memory_bytes
from precision_eval.results.reading import Run

Shifts = tuple[tuple[Row, float], ...]

NOISE_FLOOR_FACTOR = 3.0
"""A judgement, not a calibration: the noise floor is one draw, so more than its own shift is asked for. Set after a
ten-minute run in which a factor of 1 had singled out bfloat16 by a hair."""

_PLACES = (
    ("MCD to the original speech", ("against_original", "mel_mcd_db", "mean"), 1.0, " dB", 2),
    ("phonemes right", ("phoneme_accuracy", "value"), -1.0, "", 3),
)


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """One figure that compares with the original speech, with everybody's shift from the reference."""

    name: str
    worse: float
    unit: str
    decimals: int
    reference: float
    noise_floor: float | None
    fixes: Shifts
    controls: Shifts

    def text(self, shift: float) -> str:
        """Write a shift with sign and unit: ``+0.55 dB``, ``−0.052``."""
        number = fixed(shift, decimals=self.decimals)
        return f"{'' if number.startswith('−') else '+'}{number}{self.unit}"

    def beyond(self, shifts: Shifts) -> Shifts:
        """Return those whose shift is larger than three times the noise floor's, either way; none where
        there is no noise floor.
        """
        chance = None if self.noise_floor is None else NOISE_FLOOR_FACTOR * abs(self.noise_floor)
        return tuple((row, shift) for row, shift in shifts if chance is not None and abs(shift) > chance)

    def worse_than_chance(self, shifts: Shifts) -> tuple[Row, ...]:
        """Return those that are worse than the reference by more than that."""
        return tuple(row for row, shift in self.beyond(shifts) if shift * self.worse > 0)


def yardsticks_of(run: Run, section: Group) -> tuple[Yardstick, ...]:
    """Return the yardsticks that the reference and at least one fix of `section` have."""
    comparators = run.comparators(section, "audio")
    found = []
    for name, path, worse, unit, decimals in _PLACES:
        reference = next((value for _, value in _values(comparators, "reference", path)), None)
        fixes = _values(section.curing, "fix", path)
        if reference is None or not fixes:
            continue
        noise_floor = next((value - reference for _, value in _values(comparators, "noise_floor", path)), None)
        yardstick = Yardstick(
            name=name,
            worse=worse,
            unit=unit,
            decimals=decimals,
            reference=reference,
            noise_floor=noise_floor,
            fixes=tuple((row, value - reference) for row, value in fixes),
            controls=tuple((row, value - reference) for row, value in _values(comparators, "control", path)),
        )
        found.append(yardstick)
    return tuple(found)


def worse_by_sound(yardsticks: Sequence[Yardstick]) -> tuple[str, ...]:
    """Return the ids of the fixes that are worse than the reference by more than chance, by any yardstick."""
    return tuple(dict.fromkeys(row.fix for y in yardsticks for row in y.worse_than_chance(y.fixes)))


def silent_controls(yardsticks: Sequence[Yardstick]) -> tuple[str, ...]:
    """Return the ids of the controls that no yardstick shows as degraded beyond chance."""
    heard = {row.fix for y in yardsticks for row in y.worse_than_chance(y.controls)}
    return tuple(dict.fromkeys(row.fix for y in yardsticks for row, _ in y.controls if row.fix not in heard))


def measured_length(section: Group) -> str:
    """Return how much audio was compared, such as ``10 min`` or ``60 s``; empty where it is not recorded."""
    lengths = [length for row in section.curing if (length := figure_of(row.data("audio"), "duration_s"))]
    return duration_long(lengths[0]) if lengths else ""


def sound_sentences(run: Run, section: Group) -> list[str]:
    """Return what fixes and controls do against the original speech; empty where that was not measured."""
    yardsticks = yardsticks_of(run, section)
    if not yardsticks:
        return []
    return [_fixes_sentence(yardsticks), _controls_sentence(yardsticks, section)]


def _values(rows: Sequence[Row], role: str, path: tuple[str, ...]) -> list[tuple[Row, float]]:
    pairs: list[tuple[Row, Mapping[str, Any] | None]] = [(row, row.data("audio")) for row in rows if row.role == role]
    return [(row, value) for row, data in pairs if (value := figure_of(data, *path)) is not None]


def _fixes_sentence(yardsticks: Sequence[Yardstick]) -> str:
    level = " or ".join(f"{y.name} ({fixed(y.reference, decimals=y.decimals)}{y.unit})" for y in yardsticks)
    farthest = _named(yardsticks, [_farthest(y.fixes).fix for y in yardsticks])
    if any(y.noise_floor is None for y in yardsticks):
        return f"Farthest from the reference's {level}: {farthest}; without the noise floor no shift can be weighed."
    chance = ", ".join(y.text(y.noise_floor or 0.0) for y in yardsticks)
    beyond = [row.fix for y in yardsticks for row, _ in y.beyond(y.fixes)]
    if not beyond:
        return (
            f"No fix differs from the reference's {level} by more than three times the noise floor's shift "
            f"({chance}; one draw of chance); farthest: {farthest}."
        )
    text = (
        f"Farther from the reference's {level} than three times the noise floor's shift ({chance}; one draw "
        f"of chance): "
        f"{_named(yardsticks, beyond)}"
    )
    return f"{text}{'' if worse_by_sound(yardsticks) else ', none of them for the worse'}."


def _controls_sentence(yardsticks: Sequence[Yardstick], section: Group) -> str:
    names = list(dict.fromkeys(row.fix for y in yardsticks for row, _ in y.controls))
    if not names:
        return "No control was measured, so nothing shows that this run could reveal a degradation."
    if any(y.noise_floor is None for y in yardsticks):
        return ""
    silent = silent_controls(yardsticks)
    heard = [name for name in names if name not in silent]
    shown = f"{_named(yardsticks, heard)} {plural(len(heard), 'is', 'are')} worse by more than that, as intended"
    if not silent:
        every = {1: "The only control measured is", 2: "Both controls are"}.get(len(names), "All controls are")
        return f"{every} worse by more than that, as intended: {_named(yardsticks, heard)}."
    length = measured_length(section)
    run_text = f"this run of {length}" if length else "this run"
    return (
        f"{shown + ', but ' if heard else ''}{_named(yardsticks, silent)} {plural(len(silent), 'is', 'are')} not worse "
        f"by more than that: {run_text} is too short to judge by sound."
    )


def _named(yardsticks: Sequence[Yardstick], names: Sequence[str]) -> str:
    """Write each condition once, with its shift by every yardstick."""
    texts = []
    for name in dict.fromkeys(names):
        shifts = [y.text(shift) for y in yardsticks for row, shift in (*y.fixes, *y.controls) if row.fix == name]
        texts.append(f"{name} ({', '.join(shifts)})")
    return join(texts)


def _farthest(shifts: Shifts) -> Row:
    return max(shifts, key=lambda pair: abs(pair[1]))[0]


def recommendation(run: Run, section: Group) -> str:
    """Return what to take on this machine, by policy, with the numbers behind it."""
    if len(section.curing) < 2:
        return ""
    if section.fault:
        return f"No fix is recommended: {section.fault}."
    choices = [choice for choice in choices_of(section).values() if isinstance(choice, Choice) and choice.fix]
    if not choices:
        return ""
    by_fix: dict[str, list[Choice]] = {}
    for choice in choices:
        by_fix.setdefault(str(choice.fix), []).append(choice)
    parts = [_part(fix, same) for fix, same in by_fix.items()]
    where = section.title.rpartition(" · ")[2]
    return f"On this machine ({where}): {'; '.join(parts)}. {_by_sound(run, section)}".rstrip()


def _part(fix: str, choices: list[Choice]) -> str:
    """Say what one or more policies take, and what ties there."""
    names = join([choice.policy.replace("balanced", "balance") for choice in choices])
    ties = [f"; {_tie(choice)}" for choice in choices if len(choice.tied) > 1]
    return f"for {names} take {fix} ({facts(choices[0].group, fix)}{''.join(ties)})"


def _tie(choice: Choice) -> str:
    called = "" if choice.tie_break_called or choice.tie_break == "order" else ", by point estimate"
    less = LESS[choice.tie_break]
    return f"in {AIMS[choice.policy]} a tie with {join(choice.tied[1:])}, broken by {less}{called}"


def _by_sound(run: Run, section: Group) -> str:
    """Say whether sound takes part in the choice; empty where there is none to hear."""
    if not any(row.data("audio") for row in section.rows):
        return ""
    yardsticks = yardsticks_of(run, section)
    if not yardsticks or any(y.noise_floor is None or not y.controls for y in yardsticks):
        return "Sound was not measured beside noise floor and controls, so it takes no part in this."
    length = measured_length(section)
    over = f" over {length}" if length else ""
    if silent_controls(yardsticks):
        return f"Sound takes no part in this: a control that must degrade it does not{over}."
    against = worse_by_sound(yardsticks)
    if against:
        return f"Sound speaks against {join(against)}: worse than the reference by more than chance{over}."
    return f"Sound does not separate the fixes{over}, so drift, speed and memory decide."


def findings_of(run: Run, section: Group) -> list[str]:
    """Return the sentences for one section, most decisive first; empty where nothing was measured."""
    sentences = [
        _cure_sentence(section),
        _speed_sentence(section),
        _allocator_sentence(section),
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
    parts = []
    for status, fixes in section.failing_by_status.items():
        reason = short_reason(section.row(fixes[0]).reason).partition(", but got")[0]
        message = f" (“{reason} …”)" if status == "raised" else ""
        parts.append(f"{join(fixes)} {plural(len(fixes), 'does', 'do')} not cure it: {status}{message}")
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


def _allocator_sentence(section: Group) -> str:
    """Say which conclusions on time depend on the allocator's state, where several were measured."""
    found = {row.fix: by_memory for row in section.curing if len(by_memory := _by_memory(row)) > 1}
    if not found:
        return ""
    states = list(next(iter(found.values())))
    moved = {
        fix: own
        for fix, own in found.items()
        if fix != section.baseline
        and max(one["ratio_low"] for one in own.values()) > min(one["ratio_high"] for one in own.values())
    }
    if not moved:
        return f"No conclusion on time was seen to depend on the allocator's state ({join(states)})."
    parts = []
    for fix, own in moved.items():
        ratios = join([f"{fixed(one['ratio'], decimals=2)} {state}" for state, one in own.items()])
        said = {one["verdict"] for one in own.values()} - {"undecided"}
        parts.append(f"{fix} at {ratios}{' (the verdict turns)' if len(said) > 1 else ''}")
    order = _turned(found, states)
    return f"With the allocator {join(states)}, the time ratio moves of {'; '.join(parts)}. " + (
        f"The order of {join(order)} depends on it." if order else "No order of two fixes depends on it."
    )


def _by_memory(row: Row) -> dict[str, Mapping[str, Any]]:
    """Return a fix's ratio in each state of the allocator."""
    data = row.data("latency") or {}
    return {str(data.get("memory")): data, **data.get("by_memory", {})}


def _turned(found: Mapping[str, Mapping[str, Mapping[str, Any]]], states: Sequence[str]) -> list[str]:
    """Return the pairs of fixes of which one is faster in one state and the other in another, beyond both intervals."""
    pairs = []
    for first, second in combinations(found, 2):
        ahead = {
            next((pair for pair in ((first, second), (second, first)) if _is_faster(found, *pair, state)), None)
            for state in states
        }
        if len(ahead - {None}) > 1:
            pairs.append(f"{first} and {second}")
    return pairs


def _is_faster(found: Mapping[str, Mapping[str, Mapping[str, Any]]], fix: str, other: str, state: str) -> bool:
    return bool(found[fix][state]["ratio_high"] < found[other][state]["ratio_low"])


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
