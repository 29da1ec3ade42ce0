"""The groups of a run as the HTML report shows them: records, choices, and the commands that measure them again.

Conventions: a *place* is one group of the engine (case × size × mode × device × threads × pins) together with the
report's section of the same records. Records of other thread counts never share a place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from precision_eval.core.errors import RecordError
from precision_eval.core.formatting import join
from precision_eval.core.records import Record
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
    def section(self) -> Group:
        """The group."""
        return self.group

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
        if any(choice.fix for choice in self.choices) or not self.section.curing:
            return ""
        found = (self._choice(policy) for policy in POLICIES)
        return next((why for why in found if isinstance(why, str)), "")

    def row(self, fix: str) -> Row:
        """Return what was recorded of a fix."""
        return next(row for row in self.section.rows if row.fix == fix)

    def again(self, *measures: str) -> str:
        """Return the command that measures these anew, with the options that they were recorded with."""
        records = [row.records[name] for row in self.section.rows for name in measures if name in row.records]
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
    return directory.name if directory.is_absolute() else directory.as_posix()


def _options(records: list[Record]) -> str:
    """Write the options that all of these records share."""
    parts = []
    for name, flag in _FLAGS.items():
        values = {record.options[name] for record in records if name in record.options}
        if len(values) == 1:
            parts.append(f" {flag} {values.pop():g}")
    return "".join(parts)
