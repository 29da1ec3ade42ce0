"""The groups of a run as the HTML report shows them, and the answer: what each policy takes in them, and how often.

Conventions: every choice is the engine's (:func:`precision_eval.results.choose.choose_from`, without limits); figures
are the records'. Policies that take the same fix in a group share a cell. Records of other thread counts never share a
group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from precision_eval.core.formatting import join, status_text, visible
from precision_eval.core.records import Record
from precision_eval.report.choice_text import doubt_lines, headline, not_measured_here, tie_lines
from precision_eval.report.facts import Figure, diverged_of, drift_of, memory_of, sound_of, time_of
from precision_eval.results.choose import POLICIES, Choice
from precision_eval.results.choose.choosing import NEEDS, choices_of
from precision_eval.results.model import MEASURE_OF, Group
from precision_eval.results.reading import Run

NEW = "runs/again"
"""Folder in commands that measure anew; a run's own folder would only be resumed."""

NAMES = {"quality": "quality", "balanced": "balance", "speed": "speed"}
AIMS = {
    "quality": "the smallest drift",
    "balanced": "time and drift weighed against each other",
    "speed": "the least time",
}
_FLAGS = ("minutes", "streams", "steps", "budget_s", "processes", "seed")


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """One group of a run."""

    run: Run = field(repr=False)
    group: Group = field(repr=False)
    key: str
    alone: bool = False

    @property
    def label(self) -> str:
        """The title, without device and threads where they are the same throughout: ``voice · default · eager``."""
        if not self.alone:
            return self.group.title
        pins = self.group.pins.replace(",", ", ").replace("=", " ")
        return f"{self.group.case} · {self.group.size} · {self.group.mode}{pins}"

    @cached_property
    def choices(self) -> dict[str, Choice | str]:
        """What each policy takes without limits, or what it lacks."""
        return choices_of(self.group)

    @property
    def taken(self) -> tuple[Choice, ...]:
        """The choices that take a fix."""
        return tuple(
            choice for choice in self.choices.values() if isinstance(choice, Choice) and choice.fix is not None
        )

    def again(self, *measures: str) -> str:
        """Return the command that measures these anew, with the options that they were recorded with."""
        records = [row.records[name] for row in self.group.rows for name in measures if name in row.records]
        return f"{replace(self.group, run=NEW).command(','.join(measures) or None)}{_options(records)}"


def places_of(run: Run) -> tuple[GroupView, ...]:
    """Return the groups of a run that hold fixes, in the order of a report."""
    folder = path_in_commands(run.directory)
    groups = [replace(group, run=folder) for group in run.sections if group.fixes]
    alone = len({(group.device, group.threads) for group in groups}) == 1
    names = [re.sub(r"[^A-Za-z0-9]+", "-", f"{group.slug}-{group.threads}") for group in groups]
    places = [GroupView(run=run, group=group, key=name, alone=alone) for group, name in zip(groups, names, strict=True)]
    return tuple(sorted(places, key=lambda place: (place.group.case, place.group.size)))


def path_in_commands(directory: Path) -> str:
    """Return a run's folder as a command may name it: as given where that is relative, else by its name alone."""
    return visible(directory.name if directory.is_absolute() else directory.as_posix())


def _options(records: list[Record]) -> str:
    """Write the options that all of these records share."""
    values = {name: {record.options[name] for record in records if name in record.options} for name in _FLAGS}
    return "".join(f" --set {name.removesuffix('_s')}={own.pop():g}" for name, own in values.items() if len(own) == 1)


@dataclass(frozen=True, kw_only=True)
class Take:
    """What one policy, or several that agree, take in a group; `text` says why they take nothing."""

    policies: tuple[str, ...]
    fix: str = ""
    text: str = ""
    costs: tuple[tuple[str, Figure | str], ...] = ()
    ties: tuple[tuple[str, tuple[str, ...]], ...] = ()
    why_tied: tuple[str, ...] = ()

    @property
    def purpose(self) -> str:
        """What it is taken for: ``quality and balance``."""
        return "all three" if len(self.policies) == len(POLICIES) else join([NAMES[name] for name in self.policies])


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """The answer in one group."""

    place: GroupView
    takes: tuple[Take, ...]
    without: str
    reasons: tuple[tuple[str, str], ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Card:
    """One policy over the whole run: fix, how often it is taken and how often that is a tie, most often first."""

    policy: str
    name: str
    aim: str
    fixes: tuple[tuple[str, int, int], ...]
    total: int


def answer_rows(places: Sequence[GroupView]) -> tuple[AnswerRow, ...]:
    """Return a row per group that at least one fix cures."""
    return tuple(_row(place) for place in places if place.group.curing)


def uncured(places: Sequence[GroupView]) -> tuple[tuple[GroupView, str], ...]:
    """Return the groups that nothing measured cures, and what was tried there."""
    groups = [place for place in places if not place.group.curing and place.group.failing]
    return tuple((place, failing_text(place.group) + not_measured_here(place.group)) for place in groups)


def failing_text(group: Group) -> str:
    """Name the fixes that do not run, by status."""
    return "; ".join(f"{join(fixes)}: {status_text(status)}" for status, fixes in group.failing_by_status.items())


def cards_of(rows: Sequence[AnswerRow]) -> tuple[Card, ...]:
    """Count what each policy takes over all groups."""
    cards = []
    for policy in POLICIES:
        chosen = [choice for row in rows for choice in row.place.taken if choice.policy == policy]
        counts = Counter(str(choice.fix) for choice in chosen)
        ties = Counter(str(choice.fix) for choice in chosen if len(choice.tied) > 1)
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        fixes = tuple((fix, count, ties[fix]) for fix, count in ordered)
        cards.append(Card(policy=policy, name=NAMES[policy], aim=AIMS[policy], fixes=fixes, total=len(chosen)))
    return tuple(cards)


def in_short(cards: Sequence[Card]) -> str:
    """Return the answer in one sentence, without numbers."""
    leading = {card.name: card for card in cards if card.fixes}
    if not leading:
        return "No fix can be recommended from these records; below is what they lack."
    ties = " Some are ties, marked ≈ below." if any(tied for card in cards for _, _, tied in card.fixes) else ""
    everywhere = {fix for card in leading.values() for fix, *_ in card.fixes}
    if len(everywhere) == 1:
        return f"Take {everywhere.pop()}: for {join(list(leading))}, in every case measured here.{ties}"
    text = "; ".join(_part(card) for card in leading.values())
    return f"{text[0].upper()}{text[1:]}.{ties}"


def _part(card: Card) -> str:
    first = card.fixes[0][0]
    if len(card.fixes) == 1:
        return f"for {card.name} take {first}, everywhere"
    if 2 * card.fixes[0][1] > card.total:
        return f"for {card.name} take {first} in most cases"
    return f"for {card.name} it depends on the case, most often {first}"


def _row(place: GroupView) -> AnswerRow:
    takes: list[Take] = []
    for policy in POLICIES:
        own, before = _take(place, policy), takes[-1] if takes else None
        if before is not None and (before.fix, before.text) == (own.fix, own.text):
            why = tuple(dict.fromkeys((*before.why_tied, *own.why_tied)))
            policies, ties = (*before.policies, policy), (*before.ties, *own.ties)
            takes[-1] = replace(before, policies=policies, ties=ties, why_tied=why)
        else:
            takes.append(own)
    lacks = next((why for why in place.choices.values() if isinstance(why, str)), "")
    only = join(sorted({row.fix for row in place.group.curing}))
    return AnswerRow(
        place=place,
        takes=tuple(takes) if place.taken else (),
        without="" if place.taken else lacks or f"only {only} runs here",
        reasons=tuple((NAMES[choice.policy], headline(choice)) for choice in place.taken),
        doubts=tuple(dict.fromkeys(line for choice in place.taken for line in doubt_lines(choice, most=99))),
    )


def _take(place: GroupView, policy: str) -> Take:
    group = place.group
    choice = next((choice for choice in place.taken if choice.policy == policy), None)
    if choice is None:
        axes = [axis for axis in NEEDS[policy] if all(row.estimate(axis) is None for row in group.curing)]
        lacking = f"{join([MEASURE_OF[axis] for axis in axes])} not measured" if axes else "no fix to take"
        return Take(policies=(policy,), text=lacking)
    row = group.row(str(choice.fix))
    diverged = diverged_of(row)
    costs = {
        "drift": drift_of(row),
        "time": ("the baseline" if row.fix == group.baseline else time_of(row)) if row.data("latency") else None,
        "memory": memory_of(row),
        "streams diverged": None if diverged is None else diverged[0],
        "sound, × noise floor": sound_of(row),
    }
    return Take(
        policies=(policy,),
        fix=row.fix,
        costs=tuple((title, cell) for title, cell in costs.items() if cell is not None),
        ties=((NAMES[policy], choice.tied[1:]),) if len(choice.tied) > 1 else (),
        why_tied=tuple(tie_lines(choice)),
    )
