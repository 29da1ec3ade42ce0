"""A choice in one sentence and as a table whose last column is the reason: on the console, in a report, in a notebook.

Conventions: every number is the record's. Time is a ratio to the baseline's, and speed its inverse. A tie-break says
what it went by and claims no measured difference unless there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precision_eval.core.formatting import (
    MISSING,
    join,
    memory_text,
    percent,
    plural,
    ratio_text,
    scientific,
    with_interval,
)
from precision_eval.core.table import Table
from precision_eval.explain.messages import short_reason
from precision_eval.results.choose import Answer, Choice, Estimate, Group
from precision_eval.results.choose.choosing import NEEDS
from precision_eval.results.choose.comparing import PAIR_ERROR, difference
from precision_eval.results.model import SAME_TIME

COLUMNS = ("fix", "time [95 %]", "drift", "memory", "reason")
AIMS = {"quality": "drift", "speed": "time", "balanced": "balance"}
LESS = {"time": "less time", "drift": "less drift", "memory": "less memory", "order": "the order of the list"}
MOST_DOUBTS = 3

COULD_NOT_TELL = "could not tell: run again"

_BEST = {"quality": "smallest drift", "speed": "least time", "balanced": "best balance of time and drift"}
_ONE_PROCESS = f", as one process timed it; with --set processes=5 it needs more than {percent(SAME_TIME)}"


def headline(choice: Choice) -> str:
    if not choice.group.curing:
        return f"Nothing measured here cures it{not_measured_here(choice.group)}."
    if choice.untold:
        return could_not_tell([choice.group])
    if choice.fix is None:
        return _nothing_keeps(choice)
    if not choice.surely:
        return f"Within noise of the limits: {choice.fix} may keep {_limits(choice)}, and no fix surely does."
    text = f"Take {choice.fix}"
    if len(choice.tied) > 1:
        text += f", a tie with {join(choice.tied[1:])} in {AIMS[choice.policy]}; tie-break: {_tie_break(choice)}."
    else:
        text += f": {_BEST[choice.policy]}."
    return text


def could_not_tell(failed: Sequence[Group], *, of: int = 1) -> str:
    """Say that times of groups, of so many, are not trusted, why, and what to do."""
    (first, *_), where, ratio = failed, "", "a time ratio other than 1"
    if of > 1:
        where = f" in {len(failed)} of {of} cases"
    elif first.noise_floor is not None:
        ratio = f"a time ratio of {time_text(first.noise_floor)}"
    return (
        f"Could not tell{where}: run again on an idle machine, because {first.baseline} against its own copy gave "
        f"{ratio}, so these times cannot be trusted."
    )


def not_measured_here(group: Group) -> str:
    """Say which fixes cure the case in another mode and were not measured in this one; empty where none is known."""
    parts = [
        f"{join(fixes)}, which {plural(len(fixes), 'cures', 'cure')} it {mode}" for mode, fixes in group.cured_elsewhere
    ]
    return f"; not measured {group.mode}: {'; '.join(parts)}" if parts else ""


def facts(group: Group, fix: str) -> str:
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
                f"{row.fix} is {verdict}, {time_text(row.time)}, but a tie: a choice needs a difference of more than "
                f"{least} with {percent(1.0 - PAIR_ERROR)} confidence{_ONE_PROCESS if row.processes == 1 else ''}"
            )
    return lines


def table_rows(choice: Choice) -> list[tuple[str, ...]]:
    """Return one row per fix, in order of preference; columns are :data:`COLUMNS`."""
    reasons = dict.fromkeys(choice.tied, "tie")
    reasons |= {fix: _rank(choice, fix) for fix in choice.runners_up}
    if choice.fix is not None:
        reasons[choice.fix] = "take"
    for out in choice.left_out:
        over = out.reason.replace("--max-", "").replace("--min-", "")
        known = {"limit": f"over: {over}", "near limit": f"near: {over}", "not measured": "not measured"}
        reasons[out.fix] = known.get(out.why, f"{out.why}: {_short(out.reason)}")
    return [_row(choice, fix, reason) for fix, reason in reasons.items()]


def _rank(choice: Choice, fix: str) -> str:
    standing = choice.standing_of(fix)
    if standing is None or standing.standing == "perhaps":
        return ""
    return "on the front" if standing.by is None else f"{standing.by} is better"


def _row(choice: Choice, fix: str, reason: str) -> tuple[str, ...]:
    row = choice.group.row(fix)
    time = "1 (baseline)" if fix == choice.group.baseline and row.time is not None else time_text(row.time)
    return fix, time, _drift(row.drift), memory_text(row.memory_bytes), reason


def choice_table(choice: Choice) -> Table:
    rows = table_rows(choice)
    kinds = tuple("chosen" if row[0] == choice.fix else "" for row in rows)
    return Table(columns=COLUMNS, rows=tuple(rows), kinds=kinds)


def overview(answer: Answer) -> Table:
    """Return the answer to a question that takes in several groups."""
    rows = [(*_place(choice.group), choice.fix or MISSING, _why(choice)) for choice in answer.choices]
    rows += [(*_place(group), MISSING, f"lacks a measure: {lacks}") for group, lacks in answer.unanswered]
    return Table(columns=("case", "size", "mode", "take", "why"), rows=tuple(rows))


def _why(choice: Choice) -> str:
    if not choice.group.curing:
        return "nothing measured here cures it"
    if choice.untold:
        return COULD_NOT_TELL
    if choice.fix is None:
        return "no fix keeps the limits"
    return f"tie with {join(choice.tied[1:])}" if len(choice.tied) > 1 else _BEST[choice.policy]


def _short(reason: str) -> str:
    return short_reason(reason).partition(", but got")[0]


def _place(group: Group) -> tuple[str, str, str]:
    return group.case, group.size, f"{group.mode}{group.pins.replace(',', ' ')}"


def doubt_lines(choice: Choice, *, most: int = MOST_DOUBTS) -> list[str]:
    """Return what speaks against the figures that the choice rests on; the last line counts what was left out."""
    rest = len(choice.doubts) - most
    return [*choice.doubts[:most], *([f"{rest} more in --json"] if rest > 0 else [])]


def _tie_break(choice: Choice) -> str:
    axis = choice.tie_break
    if axis == "order":
        return "none of the figures, the order of the list"
    if choice.tie_break_called:
        return f"{LESS[axis]}, by a difference beyond noise"
    return f"{LESS[axis]} by point estimate alone, within noise"


def _nothing_keeps(choice: Choice) -> str:
    near = next((out for out in choice.left_out if out.why == "limit"), None)
    text = f"No fix keeps {_limits(choice)}"
    if near is not None:
        text += f": nearest is {near.fix} ({facts(choice.group, near.fix)})"
        text += f", beyond {near.reason} by a factor {near.excess:.3g}"
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


def time_text(ratio: Estimate | None) -> str:
    if ratio is None:
        return MISSING
    return ratio_text(ratio.value, *(() if ratio.low == ratio.high else (ratio.low, ratio.high)))


def _drift(drift: Estimate | None) -> str:
    if drift is None:
        return MISSING
    if drift.degrees <= 0.0:  # one input: the band is a convention, not an interval
        return scientific(drift.value)
    return with_interval(*(scientific(value) for value in (drift.value, drift.low, drift.high)))
