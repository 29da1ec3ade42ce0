"""A choice in words and as a table: the same sentences on the console, in a report and in a notebook.

Conventions: every number is the record's. Time is a ratio to the baseline's, and speed its inverse. A tie-break says
what it went by and claims no measured difference unless there is one.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from string import ascii_lowercase, ascii_uppercase

import numpy as np

from precision_eval.core.formatting import (
    MISSING,
    counted,
    fixed,
    grouped,
    join,
    memory_text,
    percent,
    plural,
    ratio_text,
    scientific,
    times_text,
    with_interval,
)
from precision_eval.explain.messages import short_reason
from precision_eval.fixes.catalog import FIXES
from precision_eval.results.choose import Answer, Change, Choice, Estimate, Group, Row
from precision_eval.results.choose.choosing import BITS_PER_HALVING, NEEDS
from precision_eval.results.choose.comparing import FLAGS, PAIR_ERROR, difference, value_front
from precision_eval.results.model import SAME_TIME

COLUMNS = ("fix", "", "time [95 %]", "drift", "memory", "front")
FRONT = "front: no other fix is better in one figure and no worse in the rest; perhaps: within noise of that"
AIMS = {"quality": "drift", "speed": "time", "balanced": "balance"}
FEWEST_DRAWN = 13
"""Fixes in a plot of characters; fewer are as quickly read in the table."""
MOST_CHANGES = 2
"""Of each kind: moves from what is now, and limits that were not given."""

MOST_DOUBTS = 3
_ONE_PROCESS = f", as one process timed it; --processes 5 asks for more than {percent(SAME_TIME)}"
LESS = {"time": "less time", "drift": "less drift", "memory": "less memory", "order": "the order of the list"}


def plot_lines(group: Group, *, width: int = 64, height: int = 14) -> list[str]:
    """Draw drift over time in characters, both logarithmic, better to the lower left; empty where few fixes are there.

    A letter is a fix of ``FIXES`` or one on the front; another has the marker of its group, or a dot.
    """
    rows = [row for row in group.curing if row.time and row.time.value > 0 and row.drift and row.drift.value > 0]
    if len(rows) < FEWEST_DRAWN:
        return []
    from precision_eval.report.drawing import groups_text, sign_of  # which loads matplotlib

    places = np.log10([(row.time.value, row.drift.value) for row in rows if row.time and row.drift])
    low, span = places.min(0), np.ptp(places, axis=0)
    cells = np.rint((places - low) / np.where(span > 0, span, 1.0) * (width - 1, height - 1)).astype(int)
    front, named = {row.fix for row in value_front(group)}, {fix.id for fix in FIXES}
    canvas = [[" "] * width for _ in range(height)]
    legend, letters = [], iter(ascii_uppercase + ascii_lowercase)
    for row, (column, line) in sorted(
        zip(rows, cells.tolist(), strict=True), key=lambda at: at[0].fix in named | front
    ):
        sign = sign_of(row.fix) or "·"
        if row.fix in named | front:
            sign = next(letters)
            legend.append(f"{sign} {row.fix}" + (" (front)" if row.fix in front else ""))
        canvas[height - 1 - line][column] = sign
    low_time, high_time = 10 ** places.min(0)[0], 10 ** places.max(0)[0]
    low_drift, high_drift = 10 ** places.min(0)[1], 10 ** places.max(0)[1]
    labels = {0: f"{high_drift:.1e}", height - 1: f"{low_drift:.1e}"}
    lines = [f"{labels.get(index, ''):>9} │{''.join(line)}" for index, line in enumerate(canvas)]
    ends = f"{low_time:.3g}".ljust(width - 6) + f"{high_time:.3g}".rjust(6)
    return [
        "drift",
        *lines,
        " " * 10 + "└" + "─" * width,
        " " * 11 + ends,
        " " * 11 + "time ÷ baseline",
        *_folded([*legend, groups_text([row.fix for row in rows])]),
    ]


def _folded(parts: list[str]) -> list[str]:
    return textwrap.wrap("; ".join(parts), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def headline(choice: Choice) -> str:
    """Return the answer in one sentence."""
    if not choice.group.curing:
        return f"Nothing measured here cures it{not_measured_here(choice.group)}."
    if choice.fix is None:
        return _nothing_keeps(choice)
    if not choice.surely:
        return f"Within noise of the limits: {choice.fix} may keep {_limits(choice)}, and no fix surely does."
    text = f"Take {choice.fix}"
    if len(choice.tied) > 1:
        text += f", a tie with {join(choice.tied[1:])} in {AIMS[choice.policy]}; tie-break: {_tie_break(choice)}."
    else:
        text += f": {_because(choice)}."
    if choice.contested:
        verb = plural(len(choice.contested), "is", "are")
        text += f" {join(choice.contested)} {verb} not worse, but within noise of {_limits(choice)}."
    return text


def not_measured_here(group: Group) -> str:
    """Say which fixes cure the case in another mode and were not measured in this one; empty where none is known."""
    parts = [
        f"{join(fixes)}, which {plural(len(fixes), 'cures', 'cure')} it {mode}" for mode, fixes in group.cured_elsewhere
    ]
    return f"; not measured {group.mode}: {'; '.join(parts)}" if parts else ""


def untried_modes(groups: Iterable[Group]) -> str:
    """Say how fixes that cure in another mode are measured in the groups' own; empty where none is known."""
    pairs = dict.fromkeys((mode, group.mode) for group in groups for mode, _ in group.cured_elsewhere)
    return "".join(f"; what cures {mode} was not measured {own}: --mode {mode},{own}" for mode, own in pairs)


def facts(group: Group, fix: str) -> str:
    """Return what a fix costs here, figure by figure."""
    row = group.row(fix)
    parts = [f"drift {_drift(row.drift)}"] if row.drift is not None else []
    if row.time is not None:
        parts.append(
            "the baseline of time" if fix == group.baseline else f"{time_text(row.time)} of {group.baseline}'s time"
        )
    if row.memory_bytes is not None:
        total, stored = memory_text(row.memory_bytes), memory_text(row.stored_bytes)
        parts.append(total if total == stored else f"{total} ({stored} stored)")
    if row.diverged is not None and row.streams is not None:
        parts.append(f"{row.diverged} of {row.streams} streams diverged")
    if row.sound is not None:
        parts.append(f"sound {row.sound.verdict}")
    return ", ".join(parts)


def tie_lines(choice: Choice) -> list[str]:
    """Say why what is faster or slower by its verdict ties all the same: a choice asks for more."""
    group, lines = choice.group, []
    if choice.fix is None or "time" not in NEEDS[choice.policy]:
        return []
    taken = group.row(choice.fix)
    for row in map(group.row, choice.tied[1:]):
        apart, verdict = difference(group, "time", taken, row), group.verdict_of(row)
        if (
            verdict in ("faster", "slower")
            and verdict != group.verdict_of(taken)
            and apart
            and apart.relation == "unclear"
        ):
            least = percent(math.expm1(group.reach_of(taken, row)))
            lines.append(
                f"{row.fix} is {verdict}, {time_text(row.time)}, and yet a tie: a choice asks for more than {least} "
                f"with {percent(1.0 - PAIR_ERROR)} confidence{_ONE_PROCESS if row.processes == 1 else ''}"
            )
    return lines


def table_rows(choice: Choice, *, short: bool = False) -> list[tuple[str, ...]]:
    """Return one row per fix that runs, in order of preference; columns are :data:`COLUMNS`."""
    ranked = [*choice.tied, *choice.contested, *choice.runners_up]
    left = {out.fix: out for out in choice.left_out if out.why in ("limit", "not measured")}
    notes = dict.fromkeys(choice.runners_up, "")
    notes |= dict.fromkeys(choice.contested, "limit within noise") | dict.fromkeys(choice.tied, "tie")
    if choice.fix is not None:
        notes[choice.fix] = "take"
    for fix, out in left.items():
        over = out.reason.replace("--max-", "").replace("--min-", "")
        notes[fix] = f"over: {over}" if out.why == "limit" else "not measured"
    return [_row(choice, fix, notes[fix], short=short) for fix in dict.fromkeys((*ranked, *left))]


def not_running(choice: Choice) -> str:
    """Return the fixes that do not run, with their statuses; empty where all do."""
    groups = grouped(
        ((out.why, short_reason(out.reason).partition(", but got")[0]), out.fix)
        for out in choice.left_out
        if out.why not in ("limit", "not measured")
    )
    return "; ".join(f"{join(fixes)}: {status} ({message})" for (status, message), fixes in groups.items())


def change_lines(choice: Choice) -> list[str]:
    """Return what would change the choice: the smallest moves from what is now, then limits that were not given."""
    moves = [change for change in choice.changes if change.factor is not None]
    limits = [change for change in choice.changes if change.factor is None]
    return [_change(choice, change) for change in (*moves[:MOST_CHANGES], *limits[:MOST_CHANGES])]


def doubt_lines(choice: Choice, *, most: int = MOST_DOUBTS) -> list[str]:
    """Return what speaks against the figures that the choice rests on; the last line counts what was left out."""
    rest = len(choice.doubts) - most
    return [*choice.doubts[:most], *([f"{rest} more in --json"] if rest > 0 else [])]


def overview(answer: Answer) -> list[str]:
    """Return the answer to a question that takes in several groups, the first line first."""
    by_fix = grouped(
        (choice.fix, _short(choice.group) + (" ~" if choice.outcome == "tie" else ""))
        for choice in answer.choices
        if choice.fix is not None
    )
    total = sum(map(len, by_fix.values()))
    lines = [_overall({fix: len(groups) for fix, groups in by_fix.items()}, total)]
    order = sorted(by_fix, key=lambda fix: -len(by_fix[fix]))
    lines += [f"{fix}: {'; '.join(by_fix[fix])}" for fix in order]
    if any(choice.outcome == "tie" for choice in answer.choices):
        lines.append("~ within noise: a tie, broken as the detail of that case says")
    none = [_short(c.group) for c in answer.choices if c.fix is None and c.group.curing]
    lines += [f"no fix keeps the limits: {'; '.join(none)}"] if none else []
    return lines + rest_lines(answer)


def rest_lines(answer: Answer) -> list[str]:
    """Return the groups that nothing cures, and those that lack a measure."""
    raising = [choice.group for choice in answer.choices if not choice.group.curing]
    names = "; ".join(map(_short, raising))
    lines = [f"nothing measured cures: {names}{untried_modes(raising)}"] if raising else []
    if answer.unanswered:
        (first, lacks), count = answer.unanswered[0], len(answer.unanswered)
        groups = f"{count} groups, the first {_short(first)}" if count > 1 else _short(first)
        lines.append(f"not measured enough to choose: {groups}; add it: {lacks.rpartition(': ')[2]}")
    return lines


def _overall(counts: dict[str, int], total: int) -> str:
    if not counts:
        return "No fix to take."
    if len(counts) == 1:
        return f"Take {next(iter(counts))}: the answer in {'all ' if total > 1 else ''}{counted(total, 'case')}."
    parts = [f"{fix} in {count}" for fix, count in sorted(counts.items(), key=lambda item: -item[1])]
    return f"No one fix is the answer everywhere: of {total} cases, {join(parts)}."


def _short(group: Group) -> str:
    return f"{group.case} {group.size} {group.mode}{group.pins.replace(',', ' ')}"


def _because(choice: Choice) -> str:
    group, fix = choice.group, str(choice.fix)
    row, rest = group.row(fix), choice.runners_up
    following = group.row(rest[0]) if rest else None
    if choice.policy == "quality":
        return f"smallest drift, {_drift(row.drift)}{_next_in_drift(row, following)}"
    if choice.policy == "balanced":
        return _balance(row, following)
    tail = "" if following is None else f"; next is {following.fix} at {time_text(following.time)}"
    if fix == group.baseline:
        return f"nothing that may be taken is faster than it, the baseline of time{tail}"
    return f"least time, {time_text(row.time)} of {group.baseline}'s{tail}"


def _next_in_drift(row: Row, following: Row | None) -> str:
    if following is None or following.drift is None or row.drift is None:
        return ""
    more = f", {times_text(following.drift.value / row.drift.value)} as much" if row.drift.value > 0 else ""
    return f"; next is {following.fix} at {_drift(following.drift)}{more}"


def _balance(row: Row, following: Row | None) -> str:
    """Weigh the choice against the next one, in the policy's own terms."""
    if following is None or row.drift is None or row.time is None:
        return "the only one that may be taken"
    assert following.drift is not None
    assert following.time is not None
    time = row.time.value / following.time.value
    bits = math.log2(max(row.drift.value, 1e-300) / max(following.drift.value, 1e-300))
    spent = f"{abs(bits):.1f} bits {'more' if bits > 0 else 'less'} drift"
    pace = f"{fixed(time, decimals=2)} of its time"
    worth = f"a factor {2 ** (abs(bits) / BITS_PER_HALVING):.2f} in time at {BITS_PER_HALVING} bits per factor 2"
    return f"best balance of time and drift; against {following.fix}, the next, {pace} and {spent}, worth {worth}"


def _tie_break(choice: Choice) -> str:
    axis = choice.tie_break
    if axis == "order":
        return "none of the figures, the order of the list"
    if choice.tie_break_called:
        return f"{LESS[axis]}, by a called difference"
    return f"{LESS[axis]} by point estimate, which is no measured difference"


def _nothing_keeps(choice: Choice) -> str:
    near = next((out for out in choice.left_out if out.why == "limit"), None)
    text = f"No fix keeps {_limits(choice)}"
    if near is not None:
        text += f": nearest is {near.fix} ({facts(choice.group, near.fix)})"
        text += f", beyond {near.reason} by a factor {near.excess:.3g}"
    if choice.binding and len(choice.constraints.axes) > 1:
        text += f"; {join([FLAGS[axis] for axis in choice.binding])} alone binds"
    return f"{text}."


def _limits(choice: Choice) -> str:
    asked, limits = choice.constraints, []
    if asked.max_drift is not None:
        limits.append(f"--max-drift {asked.max_drift:g}")
    if asked.max_memory_bytes is not None:
        limits.append(f"--max-memory {memory_text(asked.max_memory_bytes)}")
    if asked.max_memory_ratio is not None:
        limits.append(f"--max-memory {asked.max_memory_ratio:g}x")
    if asked.min_speed is not None:
        limits.append(f"--min-speed {asked.min_speed:g}")
    return join(limits)


def _row(choice: Choice, fix: str, note: str, *, short: bool) -> tuple[str, ...]:
    row = choice.group.row(fix)
    stands = choice.standing_of(fix)
    time = "1 (baseline)" if fix == choice.group.baseline and row.time is not None else time_text(row.time)
    standing = MISSING if stands is None else stands.standing
    if stands is not None and stands.by and not short:
        standing = f"by {stands.by}"
    drift = scientific(row.drift.value) if short and row.drift is not None else _drift(row.drift)
    return fix, note, time, drift, memory_text(row.memory_bytes), standing


def _change(choice: Choice, change: Change) -> str:
    leads = f"take {change.leads_to}" if change.leads_to else "no fix is left"
    if change.kind == "figure":
        then, now = (_figure(change.axis, value) for value in (change.then, change.now or 0.0))
        size = "" if change.factor is None else f" (a factor {change.factor:.3g})"
        figure = "time ratio" if change.axis == "time" else change.axis
        text = f"{change.fix}'s {figure} {then} instead of {now}{size}"
        if change.fix == choice.fix:
            return f"{text}: no longer surely within {FLAGS[change.axis]}, {leads}"
        return f"{text}: level with {choice.fix}"
    value, flag = _figure(change.axis, change.then, as_limit=True), FLAGS[change.axis]
    tighter = change.now is None or change.then <= change.now
    if change.axis == "time":
        return f"{flag} {'above' if tighter else 'down to'} {value}: {leads}"
    return f"{flag} {'below' if tighter else 'up to'} {value}: {leads}"


def _figure(axis: str, value: float, *, as_limit: bool = False) -> str:
    if axis == "time":
        return f"{1.0 / value if as_limit else value:.3g}"
    return scientific(value) if axis == "drift" else memory_text(value)


def time_text(ratio: Estimate | None) -> str:
    """Write a ratio with its interval, where it has one."""
    if ratio is None:
        return MISSING
    return ratio_text(ratio.value, *(() if ratio.low == ratio.high else (ratio.low, ratio.high)))


def _drift(drift: Estimate | None) -> str:
    if drift is None:
        return MISSING
    if drift.degrees <= 0.0:  # one input: the band is a convention, not an interval
        return scientific(drift.value)
    return with_interval(*(scientific(value) for value in (drift.value, drift.low, drift.high)))
