"""What the HTML report shows: the answer, the figures, sound, every table of a run, and what it was measured with.

``report.html`` is the template, ``report.css`` its rules. Figures are pictures on a light card, so dark mode needs no
second set of them. Tables are :class:`~precision_eval.core.table.Table`, written by its HTML writer.
"""

from __future__ import annotations

import base64
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from precision_eval.core.formatting import counted, join, one_line, plural, status_text, visible
from precision_eval.core.table import Table, make_table, to_html
from precision_eval.report.choice_text import COULD_NOT_TELL, could_not_tell
from precision_eval.report.doubts import Footnotes
from precision_eval.report.drawing import STATUS_STYLES
from precision_eval.report.guide import reading_guide
from precision_eval.report.html.paper import template_environment
from precision_eval.report.html.sound import SoundSection, sound_sections
from precision_eval.report.next_step import NEW
from precision_eval.report.tables import (
    answer_of,
    drift_cell,
    group_table,
    memory_cell,
    recordings_table,
    sound_table,
    time_cell,
)
from precision_eval.results.choose.choosing import POLICIES, Choice, choices_of
from precision_eval.results.model import Group, order_of
from precision_eval.results.reading import Run

FILE_NAME = "report.html"  # the template's name too

NAMES = {"quality": "quality", "balanced": "balance", "speed": "speed"}
AIMS = {
    "quality": "the smallest drift",
    "balanced": "time and drift weighed against each other",
    "speed": "the least time",
}
CAPTIONS = {
    "tradeoff": (
        "Drift against speed",
        "Lower left is better. Bars are intervals; larger discs take more memory. The dashed line "
        "joins the fixes that no other beats in both drift and time, by their estimates alone; "
        "there is none where the A/A check failed.",
    ),
    "lengths": (
        "Time over length",
        "The ratio of each fix to the baseline at every length whose A/A check passed; the title names the lengths "
        "between which two cross.",
    ),
    "drift": (
        "Drift over time",
        "Teacher forcing: every fix is fed the reference's tokens, so a line shows whether its own cache makes it "
        "drift further and further. Mean over streams; the solid line is a running median, controls are dashed.",
    ),
    "survival": (
        "Survival of streams",
        "Free-running streams under the same noise: how many still have the reference's tokens. Leaving them need not "
        "be audible; the noise floor leaves at once and sounds as good. Bands are intervals.",
    ),
    "memory": (
        "Memory",
        "Solid: weights and caches as stored. Hatched: what one call allocates on top at its peak.",
    ),
}
_MOST_CASES_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Card:
    """One policy over the whole run: each fix with how often it is taken and how often that is a tie.

    `untold` counts where it could not tell.
    """

    policy: str
    fixes: tuple[tuple[str, int, int], ...]
    untold: int = 0

    @property
    def name(self) -> str:
        return NAMES[self.policy]

    @property
    def aim(self) -> str:
        return AIMS[self.policy]

    @property
    def total(self) -> int:
        """Groups in which a fix is taken."""
        return sum(count for _, count, _ in self.fixes)


def render_html(run: Run, figures: Mapping[tuple[str, str], Path]) -> str:
    """Return the HTML report; `figures` maps a group's slug and a kind to the SVG."""
    groups = [group for group in run.sections if group.fixes]
    choices = {group.slug: _choices(group) for group in groups}
    cards = cards_of(list(choices.values()))
    notes = Footnotes()
    details = [(group, list(_tables(run, group, notes)), _command(run, group)) for group in groups]
    command = shlex.quote(visible(run.directory.name if run.directory.is_absolute() else str(run.directory)))
    return (
        template_environment(Path(__file__).parent)
        .get_template(FILE_NAME)
        .render(
            subject=subject(run),
            days=_days(run),
            command=command,
            in_short=in_short(cards, groups),
            cards=[card for card in cards if card.fixes],
            take=to_markup(_take_table(groups, choices)),
            uncured=[(group, _failing_text(group)) for group in groups if not group.curing],
            sections=list(_figure_sections(groups, figures)),
            sound=_sound(run, groups),
            statuses=_statuses(groups),
            status_styles=STATUS_STYLES,
            details=details,
            notes=notes.texts,
            environment=[(name, value) for name, value in _facts(run.environment) if value],
            environments=len({record.environment for record in run.records}),
            guide=reading_guide(run),
            damage=[one_line(line) for line in run.damage],
        )
    )


def to_markup(table: Table) -> Markup:
    """Return a table as HTML that the template does not escape again."""
    return Markup(to_html(table))  # noqa: S704 - its cells are escaped


def _choices(group: Group) -> dict[str, Choice]:
    found = choices_of(group) if group.curing else {}
    choices = {name: choice for name, choice in found.items() if isinstance(choice, Choice)}
    return {name: choice for name, choice in choices.items() if choice.fix is not None or choice.untold}


def cards_of(choices: Sequence[Mapping[str, Choice]]) -> list[Card]:
    """Count what each policy takes over all groups, most often first."""
    cards = []
    for policy in POLICIES:
        made = [group[policy] for group in choices if policy in group]
        taken = [choice for choice in made if not choice.untold]
        counts = Counter(str(choice.fix) for choice in taken)
        ties = Counter(str(choice.fix) for choice in taken if len(choice.tied) > 1)
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        fixes = tuple((fix, count, ties[fix]) for fix, count in ordered)
        cards.append(Card(policy=policy, fixes=fixes, untold=len(made) - len(taken)))
    return cards


def in_short(cards: Sequence[Card], groups: Sequence[Group]) -> str:
    """Return the answer in a few sentences; what could not be told comes first."""
    timed = [group for group in groups if group.noise_floor is not None]
    failed = [group for group in timed if group.noise_floor_off]
    untold = [could_not_tell(failed, of=len(timed))] if failed else []
    told = [_what_to_take(cards)] if any(card.fixes for card in cards) else []
    nothing = "No fix can be recommended from these records; the tables below show what they lack."
    return " ".join([*untold, *told] or [nothing])


def _what_to_take(cards: Sequence[Card]) -> str:
    leading = [card for card in cards if card.fixes]
    every = {fix for card in leading for fix, *_ in card.fixes}
    if len(every) == 1:
        text = f"take {every.pop()} for {join([card.name for card in leading])}"
        text += ", in every case measured here" if leading[0].total > 1 and not any(c.untold for c in cards) else ""
    else:
        text = "; ".join(_part(card) for card in leading)
    ties = " Some are ties, marked ≈ below." if any(tied for card in cards for *_, tied in card.fixes) else ""
    return f"{text[0].upper()}{text[1:]}.{ties}"


def _part(card: Card) -> str:
    fix, count, _ = card.fixes[0]
    if len(card.fixes) == 1:
        return f"for {card.name} take {fix}" + (", everywhere" if card.total > 1 and not card.untold else "")
    if card.fixes[1][1] == count:
        return f"for {card.name} it depends on the case"
    where = "in most cases" if 2 * count > card.total else "most often; it depends on the case"
    return f"for {card.name} take {fix} {where}"


def _take_table(groups: Sequence[Group], choices: Mapping[str, Mapping[str, Choice]]) -> Table:
    """Return what each policy takes, group by group, with what it costs."""
    rows = [
        (
            group.title.removesuffix(", 1 thread"),
            *(_take(group, choices[group.slug].get(policy)) for policy in POLICIES),
        )
        for group in groups
        if group.curing
    ]
    columns = ("case, size, mode", *(f"for {NAMES[policy]}" for policy in POLICIES))
    return make_table(columns, rows, title="What to take, case by case (≈: not told apart from it)")


def _take(group: Group, choice: Choice | None) -> str:
    if choice is None:
        return "not measured"
    if choice.untold:
        return COULD_NOT_TELL
    row = group.row(str(choice.fix))
    timed = row.time is not None and not group.noise_floor_off
    time = None if not timed else "baseline" if row.fix == group.baseline else time_cell(group, row)
    costs = {"drift": drift_cell(row), "time": time, "memory": memory_cell(row)}
    ties = "".join(f" ≈ {fix}" for fix in choice.tied[1:])
    return f"{row.fix}{ties}; {', '.join(f'{name} {cost}' for name, cost in costs.items() if cost)}"


def _failing_text(group: Group) -> str:
    parts = [f"{join(fixes)}: {status_text(status)}" for status, fixes in group.failing_by_status.items()]
    elsewhere = [
        f"{join(fixes)} {plural(len(fixes), 'cures', 'cure')} it {mode}" for mode, fixes in group.cured_elsewhere
    ]
    return "; ".join([*parts, *elsewhere])


_SVG = "data:image/svg+xml;base64,"


def _figure_sections(groups: Sequence[Group], figures: Mapping[tuple[str, str], Path]) -> Iterator[dict[str, Any]]:
    for kind, (title, text) in CAPTIONS.items():
        pictures = [
            (f"{title}: {group.title}", _SVG + base64.b64encode(figures[group.slug, kind].read_bytes()).decode("ascii"))
            for group in groups
            if (group.slug, kind) in figures
        ]
        if pictures:
            yield {"kind": kind, "title": title, "text": text, "pictures": pictures}


def _sound(run: Run, groups: Sequence[Group]) -> tuple[list[Markup], list[SoundSection]]:
    tables = [to_markup(table) for group in groups if (table := sound_table(run, group)) is not None]
    return tables, sound_sections(run)


def _statuses(groups: Sequence[Group]) -> dict[str, Any]:
    fixes = sorted({row.fix for group in groups for row in group.fixes}, key=order_of)
    rows = []
    for group in groups:
        known = {row.fix: row.status + ("*" if row.incomplete else "") for row in group.fixes}
        rows.append((group, [known.get(fix, "") for fix in fixes]))
    return {"fixes": fixes, "rows": rows}


def _tables(run: Run, group: Group, notes: Footnotes) -> Iterator[Markup]:
    yield to_markup(group_table(answer_of(group), notes))
    recordings = recordings_table(run, group, notes)
    if recordings is not None:
        yield to_markup(recordings)


def _command(run: Run, group: Group) -> str:
    """Return the command that measures a group anew, in another folder: the run's own would only be resumed."""
    return replace(group, run=NEW).command()


def subject(run: Run) -> str:
    cases = list(dict.fromkeys(record.case for record in run.records))
    named = join(cases) if len(cases) <= _MOST_CASES_NAMED else counted(len(cases), "case")
    models = [run.environment.get(part, {}).get("model") for part in ("device", "cpu")]
    return " on ".join(filter(None, [named, models[0] or models[1]]))


def _days(run: Run) -> str:
    days = sorted({record.started_at[:10] for record in run.records})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _facts(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a run was measured with; long lists and hashes are left out."""
    for name, value in node.items():
        if isinstance(value, Mapping):
            if name not in ("assets", "config"):
                yield from _facts(value, f"{path}{name}.")
        elif value is not None and not isinstance(value, list):
            yield f"{path}{name}", f"{value:,}" if isinstance(value, int) else str(value)
