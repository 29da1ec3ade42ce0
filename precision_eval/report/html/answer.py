"""The answer: what each policy takes, group by group, and how often over the whole run.

Conventions: every choice is the engine's (:func:`precision_eval.results.choose.choose_from`, without limits);
figures are the records'. Policies that take the same fix in a group share a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precision_eval.core.formatting import join
from precision_eval.report.choice_text import change_lines, doubt_lines, not_measured_here
from precision_eval.report.choice_text import headline as choice_headline
from precision_eval.report.html.facts import Figure, Ranged, diverged_of, drift_of, memory_of, sound_of, time_of
from precision_eval.report.html.places import GroupView
from precision_eval.results.choose import POLICIES, Choice

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
    costs: tuple[tuple[str, Figure | Ranged | str], ...]
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
    return tuple(_row(place) for place in places if place.section.curing)


def uncured(places: Sequence[GroupView]) -> tuple[tuple[GroupView, str], ...]:
    """Return the groups that nothing measured cures, and what was tried there."""
    found = []
    for place in places:
        if not place.section.curing and place.section.failing:
            by_status: dict[str, list[str]] = {}
            for row in place.section.failing:
                by_status.setdefault(row.status.replace("_", " "), []).append(row.fix)
            tried = "; ".join(f"{join(names)}: {status}" for status, names in by_status.items())
            found.append((place, tried + not_measured_here(place.section)))
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
    alone = {row.fix for row in place.section.curing}
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
    costs: list[tuple[str, Figure | Ranged | str | None]] = [
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
