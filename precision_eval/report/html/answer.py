"""The groups of a run as the HTML report shows them, and the answer: what each policy takes in them, and how often.

Conventions: every choice is the engine's (:func:`precision_eval.results.choose.choose_from`, without limits); figures
are the records'. Policies that take the same fix in a group share a cell. Records of other thread counts never share a
group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from precision_eval.core.errors import RecordError
from precision_eval.core.formatting import join, visible
from precision_eval.core.records import Record
from precision_eval.report.choice_text import change_lines, doubt_lines, not_measured_here
from precision_eval.report.choice_text import headline as choice_headline
from precision_eval.report.facts import Figure, diverged_of, drift_of, memory_of, sound_of, time_of
from precision_eval.results.choose import POLICIES, Choice, MissingMeasureError, choose_from
from precision_eval.results.choose.choosing import NEEDS
from precision_eval.results.model import MEASURE_OF, Group, Row
from precision_eval.results.reading import Run

NEW = "runs/again"
"""Folder in commands that measure anew; a run's own folder would only be resumed."""

_FLAGS = {
    "minutes": "--minutes",
    "streams": "--streams",
    "steps": "--steps",
    "budget_s": "--budget",
    "processes": "--processes",
    "seed": "--seed",
}


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """One group of a run."""

    run: Run = field(repr=False)
    group: Group = field(repr=False)
    key: str
    alone: bool = False

    @property
    def title(self) -> str:
        """Text such as ``voice · default · eager · cpu, 1 thread``."""
        return self.group.title

    @property
    def label(self) -> str:
        """The title, without device and threads where they are the same throughout: ``voice · default · eager``."""
        if not self.alone:
            return self.title
        pins = self.group.pins.replace(",", ", ").replace("=", " ")
        return f"{self.group.case} · {self.group.size} · {self.group.mode}{pins}"

    @property
    def rest(self) -> str:
        """The label without the case."""
        return self.label.partition(" · ")[2]

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """What each policy takes without limits; those that lack a measure are left out."""
        return tuple(choice for policy in POLICIES if isinstance(choice := self._choice(policy), Choice))

    @cached_property
    def lacks(self) -> str:
        """Why no policy takes anything, although something runs; empty otherwise."""
        if any(choice.fix for choice in self.choices) or not self.group.curing:
            return ""
        found = (self._choice(policy) for policy in POLICIES)
        return next((why for why in found if isinstance(why, str)), "")

    def row(self, fix: str) -> Row:
        """Return what was recorded of a fix."""
        return next(row for row in self.group.rows if row.fix == fix)

    def again(self, *measures: str) -> str:
        """Return the command that measures these anew, with the options that they were recorded with."""
        records = [row.records[name] for row in self.group.rows for name in measures if name in row.records]
        command = replace(self.group, run=NEW).command(",".join(measures))
        return f"{command}{_options(records)}"

    def lacking(self, policy: str) -> str:
        """Name the measures that a policy needs and no fix has: ``drift not measured``."""
        axes = [axis for axis in NEEDS[policy] if all(one.estimate(axis) is None for one in self.group.curing)]
        return f"{join([MEASURE_OF[axis] for axis in axes])} not measured" if axes else ""

    def _choice(self, policy: str) -> Choice | str:
        try:
            return choose_from(self.group, policy=policy)
        except (MissingMeasureError, RecordError) as lack:
            return str(lack)


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
    parts = []
    for name, flag in _FLAGS.items():
        values = {record.options[name] for record in records if name in record.options}
        if len(values) == 1:
            parts.append(f" {flag} {values.pop():g}")
    return "".join(parts)


NAMES = {"quality": "quality", "balanced": "balance", "speed": "speed"}
AIMS = {
    "quality": "the smallest drift",
    "balanced": "time and drift weighed against each other",
    "speed": "the least time",
}


@dataclass(frozen=True, kw_only=True)
class Take:
    """What one policy, or several that agree, take in a group."""

    policies: tuple[str, ...]
    fix: str
    costs: tuple[tuple[str, Figure | str], ...]
    ties: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def purpose(self) -> str:
        """What it is taken for: ``quality and balance``."""
        return "all three" if len(self.policies) == len(POLICIES) else join([NAMES[name] for name in self.policies])


@dataclass(frozen=True, kw_only=True)
class Without:
    """Policies that take nothing in a group, and what they lack."""

    policies: tuple[str, ...]
    text: str

    @property
    def purpose(self) -> str:
        """What nothing is taken for."""
        return join([NAMES[name] for name in self.policies])


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """The answer in one group."""

    place: GroupView
    takes: tuple[Take | Without, ...]
    without: str
    reasons: tuple[tuple[str, str], ...]
    changes: tuple[str, ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Card:
    """One policy over the whole run."""

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
    found = []
    for place in places:
        if not place.group.curing and place.group.failing:
            by_status: dict[str, list[str]] = {}
            for row in place.group.failing:
                by_status.setdefault(row.status.replace("_", " "), []).append(row.fix)
            tried = "; ".join(f"{join(names)}: {status}" for status, names in by_status.items())
            found.append((place, tried + not_measured_here(place.group)))
    return tuple(found)


def cards_of(rows: Sequence[AnswerRow]) -> tuple[Card, ...]:
    """Count what each policy takes over all groups."""
    cards = []
    for policy in POLICIES:
        chosen = [choice for row in rows for choice in row.place.choices if choice.policy == policy and choice.fix]
        counts: dict[str, list[int]] = {}
        for choice in chosen:
            counted = counts.setdefault(str(choice.fix), [0, 0])
            counted[0] += 1
            counted[1] += len(choice.tied) > 1
        ordered = sorted(counts.items(), key=lambda item: (-item[1][0], item[0]))
        fixes = tuple((fix, found[0], found[1]) for fix, found in ordered)
        cards.append(Card(policy=policy, name=NAMES[policy], aim=AIMS[policy], fixes=fixes, total=len(chosen)))
    return tuple(cards)


def in_short(cards: Sequence[Card]) -> str:
    """Return the answer in one sentence, without numbers."""
    leading = {card.name: card for card in cards if card.fixes}
    if not leading:
        return "No fix can be recommended from these records; below is what they lack."
    ties = " Some are ties, marked ≈ below." if any(tied for card in cards for _, _, tied in card.fixes) else ""
    everywhere = {name: card.fixes[0][0] for name, card in leading.items() if len(card.fixes) == 1}
    if len(everywhere) == len(leading) and len(set(everywhere.values())) == 1:
        return f"Take {next(iter(everywhere.values()))}: for {join(list(leading))}, in every case measured here.{ties}"
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
    choices = {choice.policy: choice for choice in place.choices if choice.fix is not None}
    takes: list[Take | Without] = []
    for policy in POLICIES:
        choice = choices.get(policy)
        before = takes[-1] if takes else None
        if choice is None:
            text = place.lacking(policy) or "no fix to take"
            if isinstance(before, Without) and before.text == text:
                takes[-1] = Without(policies=(*before.policies, policy), text=text)
            else:
                takes.append(Without(policies=(policy,), text=text))
        elif isinstance(before, Take) and before.fix == choice.fix:
            takes[-1] = _joined(before, choice)
        else:
            takes.append(_take(place, choice))
    shown = tuple(choices.values())
    alone = {row.fix for row in place.group.curing}
    return AnswerRow(
        place=place,
        takes=tuple(takes) if shown else (),
        without="" if shown else place.lacks or f"only {join(sorted(alone))} runs here",
        reasons=tuple((NAMES[choice.policy], choice_headline(choice)) for choice in shown),
        changes=tuple(dict.fromkeys(line for choice in shown for line in change_lines(choice))),
        doubts=tuple(dict.fromkeys(line for choice in shown for line in doubt_lines(choice, most=99))),
    )


def _take(place: GroupView, choice: Choice) -> Take:
    row = place.row(str(choice.fix))
    time = "the baseline" if choice.fix == choice.group.baseline else time_of(row)
    diverged = diverged_of(row)
    costs: list[tuple[str, Figure | str | None]] = [
        ("drift", drift_of(row)),
        ("time", time if row.data("latency") else None),
        ("memory", memory_of(row)),
        ("streams diverged", None if diverged is None else diverged[0]),
        ("sound, × noise floor", sound_of(row)),
    ]
    return Take(
        policies=(choice.policy,),
        fix=str(choice.fix),
        costs=tuple((title, cell) for title, cell in costs if cell is not None),
        ties=_ties(choice),
    )


def _joined(take: Take, choice: Choice) -> Take:
    return Take(
        policies=(*take.policies, choice.policy), fix=take.fix, costs=take.costs, ties=(*take.ties, *_ties(choice))
    )


def _ties(choice: Choice) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ((NAMES[choice.policy], choice.tied[1:]),) if len(choice.tied) > 1 else ()
