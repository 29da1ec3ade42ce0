"""The short answer of a run: per group one table with the pick on top, then what raised and what is undecided.

It fits a terminal of 80 columns. Times are ratios to the group's baseline, and a verdict is the record's; a tie (≈) is
what :mod:`precision_eval.results.choose` does not tell apart from the pick.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precision_eval.core.formatting import (
    MISSING,
    counted,
    grouped,
    join,
    memory_text,
    plural,
    ratio_text,
    scientific,
    status_text,
)
from precision_eval.core.table import Strong, Table, print_lines, print_table, without_empty_columns
from precision_eval.explain.messages import short_reason
from precision_eval.report.choice_text import tie_lines, untried_modes
from precision_eval.report.tables import confidence_text
from precision_eval.results.choose import Choice
from precision_eval.results.choose.choosing import choices_of
from precision_eval.results.model import SAME_TIME, Group, Row, figure_of
from precision_eval.results.reading import Run

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_BUDGET_S = 120.0
"""Seconds of timing per group above which no command is offered for what is undecided."""

_PROCESSES = re.compile(r"^in \d+ of \d+ processes: ")
_BEYOND_INTERVAL = {
    "fresh memory": "each call takes new pages, at a cost that differs from process to process",
    "the noise floor is off": "the baseline differs from its own copy",
}
_WORDS = {"equivalent": "same", "noise floor off": "noisy"}


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """A group with the fix to take in it; without a choice where nothing cures, or a measure is missing."""

    group: Group
    choice: Choice | None

    @property
    def pick(self) -> str | None:
        """The fix to take."""
        return None if self.choice is None else self.choice.fix

    @property
    def ties(self) -> tuple[str, ...]:
        """What is not told apart from the pick."""
        return () if self.choice is None or self.choice.fix is None else self.choice.tied[1:]

    @property
    def headline(self) -> str:
        """Where, and what to take there."""
        group = self.group
        where = group.title.replace(" · ", " ", 2).removesuffix(", 1 thread")
        if group.fault:
            return f"{where}: {group.fault}"
        if self.pick is None:
            return where
        ties = f" ≈ {' ≈ '.join(self.ties)}" if self.ties else ""
        return f"{where}: take {self.pick}{ties}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The fixes that run, in order of preference."""
        ranked: tuple[str, ...] = ()
        if self.choice is not None:
            ranked = (*self.choice.tied, *self.choice.contested, *self.choice.runners_up)
        order = {fix: number for number, fix in enumerate(ranked)}
        return tuple(sorted(self.group.curing, key=lambda row: order.get(row.fix, len(order))))

    def table(self) -> Table:
        """Return one row per fix, without the columns that none fills."""
        return without_empty_columns(self.full_table())

    def full_table(self) -> Table:
        """Return one row per fix: those that run in order of preference, then those that do not by status."""
        rows = [self._cells(row) for row in self.rows]
        kinds = ["chosen" if row.fix == self.pick else "passed" for row in self.rows]
        for status, fixes in self.group.failing_by_status.items():
            rows += [(fix, status_text(status), *[MISSING] * 5) for fix in fixes]
            kinds += ["failed"] * len(fixes)
        time = f"time ratio {confidence_text(self.group)}"
        columns = ("fix", "result", time, "memory", "drift", "sound", "words off")
        return Table(columns=columns, rows=tuple(rows), kinds=tuple(kinds), align="llrrrrr", title=self.headline)

    def _cells(self, row: Row) -> tuple[str, ...]:
        mark = "≈ " if row.fix in self.ties else ""
        name = Strong(row.fix) if row.fix == self.pick else f"{mark}{row.fix}"
        time = MISSING if row.time is None else ratio_text(row.time.value, row.time.low, row.time.high)
        drift = MISSING if row.drift is None else scientific(row.drift.value)
        sound = MISSING if row.sound is None else row.sound.verdict
        words = row.data("transcription")
        off = f"{words['words_changed']}/{words['words_heard']:,}" if words else MISSING
        is_baseline = self.group.is_baseline(row)
        result = "baseline" if is_baseline else self._verdict(row)
        return name, result, "1" if is_baseline else time, memory_text(row.memory_bytes), drift, sound, off

    def _verdict(self, row: Row) -> str:
        verdict = self.group.verdict_text(row).removeprefix("undecided: ") or "passed"
        return _WORDS.get(verdict, verdict) + (" *" if row.incomplete else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        group = self.group
        names = ("case", "size", "mode", "device", "threads", "pins", "baseline", "fault")
        fixes = [
            row.to_dict() | {"verdict": group.verdict_of(row), "budget_to_decide_s": budget_to_decide(group, row)}
            for row in group.fixes
        ]
        return {name: getattr(group, name) for name in names} | {
            "pick": self.pick,
            "ties": list(self.ties),
            "fixes": fixes,
        }


def summaries_of(groups: Iterable[Group]) -> tuple[GroupSummary, ...]:
    """Return one summary per group that has a fix."""
    choices = [(group, choices_of(group)["balanced"] if group.curing else "") for group in groups if group.fixes]
    return tuple(GroupSummary(group=g, choice=choice if isinstance(choice, Choice) else None) for g, choice in choices)


def budget_to_decide(group: Group, row: Row) -> float | None:
    """Return the seconds of timing per group after which an undecided time would probably be called.

    The detectable effect shrinks with the square root of the time measured: either the effect seen is called, or, as
    the record estimates itself, everything beyond twice the margin. None where nothing is undecided, where the baseline
    is told apart from itself, where calls take fresh memory, or where neither follows from the record.
    """
    data = row.data("latency")
    if (
        group.noise_floor_off
        or row.fresh_memory
        or group.verdict_of(row) != "undecided"
        or row.time is None
        or data is None
    ):
        return None
    spent_s = figure_of(data, "elapsed_s") or figure_of(row.records["latency"].options, "budget_s")
    effect, settling_s = figure_of(data, "minimum_detectable_effect"), figure_of(data, "settling_s")
    seen = abs(math.log(row.time.value))
    needed = [] if settling_s is None else [settling_s]
    if effect is not None and spent_s is not None and math.log1p(SAME_TIME) < seen < math.log1p(effect):
        needed.append(spent_s * (math.log1p(effect) / seen) ** 2)
    return float(math.ceil(min(needed))) if needed else None


def undecided_line(summaries: tuple[GroupSummary, ...]) -> str:
    """Say what is undecided and what would decide it, where the records tell; empty where nothing is."""
    undecided = [
        (summary.group, row, budget_to_decide(summary.group, row))
        for summary in summaries
        for row in summary.group.curing
        if not summary.group.is_baseline(row) and summary.group.verdict_of(row) == "undecided"
    ]
    if not undecided:
        return ""
    known = [(group, row, budget) for group, row, budget in undecided if budget and budget <= LONGEST_BUDGET_S]
    fresh = [row for _, row, _ in undecided if row.fresh_memory]
    line, ways = f"Undecided: {counted(len(undecided), 'time')}", []
    if known:
        budget = max(budget for _, _, budget in known if budget)
        needed = f"about {budget * len({group.slug for group, _, _ in known}):.0f} s of timing: --set budget={budget:g}"
        ways.append(f"{len(known)} would probably be decided by {needed}")
    if fresh:
        ways.append(f"{len(fresh)} for fresh memory, which --set processes=5 takes into the interval")
    return f"{line}; {'; '.join(ways) or 'no budget that the records tell of would decide'}."


def sound_lines(summaries: tuple[GroupSummary, ...]) -> Iterator[str]:
    """Say of which fixes the sound is worse, and of which it is undecided and what would decide."""
    for summary in summaries:
        group = summary.group
        heard = {row.fix: row.sound for row in group.curing if row.sound is not None}
        worse = [fix for fix, sound in heard.items() if sound.verdict == "worse"]
        undecided = {fix: sound for fix, sound in heard.items() if sound.verdict == "undecided"}
        where = f"Sound of {group.case} {group.mode}"
        if worse:
            yield f"{where}: {join(worse)} {plural(len(worse), 'is', 'are')} worse than the reference."
        if undecided:
            needed = max(sound.needed for sound in undecided.values())
            reason = next((sound.reason for sound in undecided.values() if sound.reason), "")
            decides = f"; --set streams={needed} would probably decide" if needed else f": {reason}" if reason else ""
            names = "every fix" if len(undecided) == len(heard) > 1 else join(list(undecided))
            yield f"{where}: undecided for {names}{decides}."


def doubts_line(summaries: tuple[GroupSummary, ...]) -> str:
    """Name what speaks against the times and is not in their intervals; the report has all doubts; empty without."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for summary in summaries:
        timed = [row for row in summary.group.curing if row.time is not None]
        fixes: dict[str, list[str]] = {}
        for row in timed:
            for doubt in (row.data("latency") or {}).get("doubts") or ():
                kind = _PROCESSES.sub("", str(doubt)).partition(":")[0]
                if kind in _BEYOND_INTERVAL:
                    fixes.setdefault(kind, []).append(row.fix)
        for kind, names in fixes.items():
            of = "every fix" if len(names) == len(timed) else join(names)
            kinds.setdefault(kind, {}).setdefault(of, []).append(summary.group.case)
    doubts = (
        f"{kind} ({', '.join(f'{join(cases)}: {of}' for of, cases in places.items())}), {_BEYOND_INTERVAL[kind]}"
        for kind, places in kinds.items()
    )
    return f"Doubts: {'; '.join(doubts)}." if kinds else ""


def tied_lines(summaries: tuple[GroupSummary, ...]) -> Iterator[str]:
    """Say why a fix ties that a verdict calls faster or slower."""
    for summary in summaries:
        for line in [] if summary.choice is None else tie_lines(summary.choice):
            yield f"{summary.group.case} {summary.group.mode}: {line}."


def not_cured_line(summaries: tuple[GroupSummary, ...]) -> str:
    """Name the groups in which nothing cures, and the mode in which something does; empty where there is none."""
    groups = [summary.group for summary in summaries if not summary.group.curing and not summary.group.fault]
    cases = grouped((group.mode, group.case) for group in groups)
    names = join([f"{mode} {join(list(dict.fromkeys(own)))}" for mode, own in cases.items()])
    return f"Nothing measured cures {names}{untried_modes(groups)}." if names else ""


def failure_lines(summaries: tuple[GroupSummary, ...]) -> Iterator[str]:
    """Yield each message once, with the fixes that it is of."""
    messages: dict[tuple[str, str], dict[str, None]] = {}
    for summary in summaries:
        mode = "" if summary.group.mode == "eager" else f" ({summary.group.mode})"
        for (status, reason), fixes in summary.group.failing_by_reason.items():
            message = reason.partition(", but got")[0].rstrip(".")
            messages.setdefault((status, message), {}).update(dict.fromkeys(fix + mode for fix in fixes))
        for row in summary.group.curing:
            for measure, (status, why) in row.incomplete.items():
                messages.setdefault((f"* {measure} {status}", short_reason(why)), {})[row.fix] = None
    for (status, message), names in messages.items():
        yield f"{status_text(status)}: {join(list(names))}: {message or 'no message'}"


def print_summary(run: Run, console: Console) -> None:
    """Print every group's table, then what raised and what is undecided."""
    summaries = summaries_of(run.sections)
    for summary in summaries:
        if not summary.group.curing:
            continue
        print_table(summary.table(), console, compact=True)
    notes = [
        *(summary.headline for summary in summaries if summary.group.fault),
        not_cured_line(summaries),
        *failure_lines(summaries),
        "Bold: best balance of time and drift; ≈: not told apart. Below 1 is faster.",
        undecided_line(summaries),
        doubts_line(summaries),
        *tied_lines(summaries),
        *sound_lines(summaries),
        *dict.fromkeys(f"{summary.group.case}: {note}." for summary in summaries for note in summary.group.notes),
    ]
    print_lines(filter(None, notes), console)
