"""What the numbers and the sound say, and what each policy takes; no sentence here is fixed in advance.

What counts as a tie is said in :mod:`precision_eval.results.choose.comparing`, what is heard in
:mod:`precision_eval.results.sound`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from precision_eval.core.formatting import fixed, grouped, join, memory_text, percent, plural, scientific, times_text
from precision_eval.explain.messages import short_reason
from precision_eval.report.choice_text import AIMS, LESS, facts, not_measured_here
from precision_eval.results.choose import Choice
from precision_eval.results.choose.choosing import choices_of
from precision_eval.results.choose.comparing import difference, leaders, value_front
from precision_eval.results.model import SAME_MEMORY, Group, Row, figure_of, memory_bytes
from precision_eval.results.reading import Run
from precision_eval.results.sound import SOUND_METRICS, margins_text, metrics_text
from precision_eval.stats.differences import FAMILY_ERROR


def sound_sentences(run: Run, section: Group) -> list[str]:
    """Return what is heard of fixes and controls; empty where no sound was made."""
    heard = [row for row in section.curing if row.sound is not None]
    if not heard:
        return []
    judged = [row for row in heard if row.sound and row.sound.metrics]
    if not judged:
        reasons = join(list(dict.fromkeys(row.sound.reason for row in heard if row.sound)))
        decides = f"run --case {section.case} --measure sound, into this folder, decides"
        return [f"Sound is undecided: {reasons}. {decides}."]
    missing = dict.fromkeys(line for row in judged for line in (row.data("sound") or {}).get("doubts", ()))
    return [_fixes_sentence(judged), _detectable_sentence(judged), _controls_sentence(run, section), *missing]


def _fixes_sentence(rows: Sequence[Row]) -> str:
    first = rows[0].sound
    assert first is not None
    by_verdict = grouped(
        (sound.verdict, row.fix + (f" ({sound.decisive})" if sound.decisive else ""))
        for row in rows
        if (sound := row.sound)
    )
    words = {
        "worse": "worse",
        "no worse": f"no worse than {margins_text(first.metrics)} would make it",
        "better": "nearer to the original than the reference",
        "undecided": "undecided",
    }
    parts = [f"{text}: {join(by_verdict[verdict])}" for verdict, text in words.items() if verdict in by_verdict]
    return (
        f"Sound of {first.streams} streams of {first.stream_s:g} s, held to the reference's on the same passages with "
        f"the same noise: {'; '.join(parts)}."
    )


def _detectable_sentence(rows: Sequence[Row]) -> str:
    verdicts = [row.sound for row in rows if row.sound is not None]
    largest = {
        m.name: max(verdict.detectable[m.name] for verdict in verdicts)
        for m in SOUND_METRICS
        if m.name in verdicts[0].detectable
    }
    text = (
        f"Of every fix, changes as large as {metrics_text(largest)} would have been found in 80 % of repetitions; "
        f"{100 * FAMILY_ERROR:g} % of runs say that anything differs where nothing does."
    )
    needed = [verdict.needed for verdict in verdicts if verdict.verdict == "undecided"]
    return f"{text} With --set streams={max(needed)} what is undecided would probably be decided." if needed else text


def _controls(run: Run, section: Group) -> list[Row]:
    return [row for row in run.comparators(section, "sound") if row.role == "control" and row.sound is not None]


def silent_controls(run: Run, section: Group) -> tuple[str, ...]:
    """Return the ids of the controls that are not found to be worse."""
    return tuple(row.fix for row in _controls(run, section) if row.sound and row.sound.verdict != "worse")


def _controls_sentence(run: Run, section: Group) -> str:
    controls = _controls(run, section)
    if not controls:
        return "No control was measured, so nothing shows that this run could reveal a degradation."
    silent = silent_controls(run, section)
    texts = [f"{row.fix} ({row.sound.decisive})" for row in controls if row.sound and row.fix not in silent]
    if not silent:
        return f"What must be worse is: {join(texts)}."
    heard = f"{join(texts)} {plural(len(texts), 'is', 'are')} worse, as intended, but " if texts else ""
    verb = plural(len(silent), "is", "are")
    return f"{heard}{join(silent)} {verb} not found to be: too few streams to judge by sound."


def recommendation(run: Run, section: Group) -> str:
    """Return what to take on this machine, by policy, with the numbers behind it."""
    if len(section.curing) < 2:
        return ""
    if section.fault:
        return f"No fix is recommended: {section.fault}."
    choices = [choice for choice in choices_of(section).values() if isinstance(choice, Choice) and choice.fix]
    if not choices:
        return ""
    parts = [_part(fix, same) for fix, same in grouped((str(choice.fix), choice) for choice in choices).items()]
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
    if not any(row.data("audio", "sound") for row in section.rows):
        return ""
    verdicts = {row.fix: row.sound for row in section.curing if row.sound is not None and row.sound.metrics}
    if not verdicts or not _controls(run, section):
        return "Sound is undecided, so it takes no part in this."
    if silent_controls(run, section):
        return "Sound takes no part in this: a control that must degrade it is not heard."
    worse = [fix for fix, sound in verdicts.items() if sound.verdict == "worse"]
    if worse:
        return f"Sound speaks against {join(worse)}: worse than the reference."
    undecided = [fix for fix, sound in verdicts.items() if sound.verdict == "undecided"]
    if undecided:
        return f"Sound speaks against none; of {join(undecided)} it is undecided."
    return "Sound is no worse under any of them, so drift, speed and memory decide."


def findings_of(run: Run, section: Group) -> list[str]:
    """Return the sentences for one section, most decisive first; empty where nothing was measured."""
    sentences = [
        _cure_sentence(section),
        _speed_sentence(section),
        allocator_sentence(section),
        _drift_sentence(section),
        _assessment_sentence(section),
        _front_sentence(section),
        _memory_sentence(section),
        narrow_cache_sentence(section),
        _divergence_sentence(run, section),
        _sound_sentence(section),
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


def allocator_sentence(section: Group) -> str:
    """Say which conclusions on time depend on the allocator's state, where several were measured."""
    by_fix = {row.fix: by_memory for row in section.curing if len(by_memory := _by_memory(row)) > 1}
    if not by_fix:
        return ""
    states = list(next(iter(by_fix.values())))
    apart = math.exp(section.time_reach)
    moved = {
        fix: own
        for fix, own in by_fix.items()
        if fix != section.baseline
        and max(one["ratio_low"] for one in own.values()) > apart * min(one["ratio_high"] for one in own.values())
    }
    if not moved:
        return f"No conclusion on time was seen to depend on the allocator's state ({join(states)})."
    parts = []
    for fix, own in moved.items():
        ratios = join([f"{fixed(timed['ratio'], decimals=2)} {state}" for state, timed in own.items()])
        said = {timed["verdict"] for timed in own.values()} - {"undecided"}
        parts.append(f"{fix} at {ratios}{' (the verdict turns)' if len(said) > 1 else ''}")
    order = _turned(by_fix, states)
    return f"With the allocator {join(states)}, the time ratio moves of {'; '.join(parts)}. " + (
        f"The order of {join(order)} depends on it." if order else "No order of two fixes depends on it."
    )


def _by_memory(row: Row) -> dict[str, Mapping[str, Any]]:
    """Return a fix's ratio in each state of the allocator."""
    data = row.data("latency") or {}
    return {str(data.get("memory")): data, **data.get("by_memory", {})}


def _turned(by_fix: Mapping[str, Mapping[str, Mapping[str, Any]]], states: Sequence[str]) -> list[str]:
    """Return the pairs of fixes of which one is faster in one state and the other in another, beyond both intervals."""
    pairs = []
    for first, second in combinations(by_fix, 2):
        ahead = {
            next((pair for pair in ((first, second), (second, first)) if _is_faster(by_fix, *pair, state)), None)
            for state in states
        }
        if len(ahead - {None}) > 1:
            pairs.append(f"{first} and {second}")
    return pairs


def _is_faster(by_fix: Mapping[str, Mapping[str, Mapping[str, Any]]], fix: str, other: str, state: str) -> bool:
    return bool(by_fix[fix][state]["ratio_high"] < by_fix[other][state]["ratio_low"])


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


def narrow_cache_sentence(section: Group) -> str:
    """Answer what an 8-bit cache would have cost in the place of the one that is kept, which is read wide."""
    base = next((row for row in section.curing if row.fix == "kv_to_query"), None)
    narrow = [row for row in section.curing if row.fix.startswith("cache_") and row.drift]
    if base is None or base.drift is None or not narrow:
        return ""
    least = min(narrow, key=lambda row: row.drift.value if row.drift else 0.0)
    parts = [_narrow_costs(section, row, base) for row in sorted(narrow, key=lambda row: row is not least)]
    drift = scientific(base.drift.value)
    left = len(parts) - 3
    more = f"; {left} more {plural(left, 'is', 'are')} in the table" if left > 0 else ""
    return f"An 8-bit cache instead of kv_to_query's, whose drift is {drift}: {'; '.join(parts[:3])}{more}."


def _narrow_costs(section: Group, row: Row, base: Row) -> str:
    assert row.drift is not None
    assert base.drift is not None
    more = f" ({times_text(row.drift.value / base.drift.value)})" if base.drift.value else ""  # exact: of zeros
    costs = [f"drift {scientific(row.drift.value)}{more}"]
    if base.stored_bytes and row.stored_bytes:
        saved = base.stored_bytes - row.stored_bytes
        costs.append(f"{memory_text(abs(saved))} {'less' if saved >= 0 else 'more'} stored")
    apart = difference(section, "time", row, base)
    if apart is not None and row.time and base.time:
        told = apart.relation in ("better", "worse")
        costs.append(_time_text(row.time.value / base.time.value) if told else "time not told apart")
    if row.sound is not None:
        costs.append(f"sound {row.sound.verdict}")
    if words := row.data("transcription"):
        costs.append(f"{words['words_changed']} of {words['words_heard']:,} words heard otherwise than in float64")
    return f"{row.fix} {', '.join(costs)}"


def _time_text(ratio: float) -> str:
    if ratio >= 2:
        return f"{times_text(ratio)} as long"
    return f"{percent(abs(ratio - 1))} {'longer' if ratio > 1 else 'shorter'}"


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


def _sound_sentence(section: Group) -> str:
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
    spread = f"from {least:.2f} ({nearest.fix}) to {most:.2f} ({farthest.fix})"
    return f"MCD to the reference's audio runs {spread} of the noise floor's, which is one draw."
