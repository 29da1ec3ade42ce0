"""The groups of a run as the page shows them: records, choices of the engine, and the commands that measure them again.

Conventions: a *place* is one group of the engine (case × size × mode × device × threads × pins) together with the
report's section of the same records. Records of other thread counts never share a place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property

from precision_eval.core.errors import RecordError
from precision_eval.core.formatting import join
from precision_eval.core.records import Record
from precision_eval.report.html import path_in_commands
from precision_eval.results.choose import POLICIES, Choice, Group, MissingMeasureError, choose_from, groups_of
from precision_eval.results.choose.facts import MEASURE_OF
from precision_eval.results.choose.policies import NEEDS
from precision_eval.results.data import Row, Run, Section

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
class Place:
    """One group of a run."""

    run: Run = field(repr=False)
    section: Section = field(repr=False)
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
        axes = [axis for axis in NEEDS[policy] if all(one.estimate(axis) is None for one in self.group.contenders)]
        return f"{join([MEASURE_OF[axis] for axis in axes])} not measured" if axes else ""

    def _choice(self, policy: str) -> Choice | str:
        try:
            return choose_from(self.group, policy=policy)
        except (MissingMeasureError, RecordError) as lack:
            return str(lack)


def places_of(run: Run) -> tuple[Place, ...]:
    """Return the groups of a run that hold fixes, in the order of a report."""
    groups = {_key(group): group for group in groups_of(run.records, run=path_in_commands(run.directory))}
    alone = len({(group.device, group.threads) for group in groups.values()}) == 1
    found = []
    for threads in sorted({record.threads for record in run.records}):
        own = replace(run, records=tuple(record for record in run.records if record.threads == threads))
        for section in own.sections:
            key = (section.case, section.size, section.mode, section.device, threads, section.pins)
            if key in groups:
                name = re.sub(r"[^A-Za-z0-9]+", "-", f"{section.slug}-{threads}")
                found.append(Place(run=own, section=section, group=groups[key], key=name, alone=alone))
    return tuple(sorted(found, key=lambda place: (place.group.case, place.group.size)))


def _key(group: Group) -> tuple[str, str, str, str, int, str]:
    return group.case, group.size, group.mode, group.device, group.threads, group.pins


def _options(records: list[Record]) -> str:
    """Write the options that all of these records share."""
    parts = []
    for name, flag in _FLAGS.items():
        values = {record.options[name] for record in records if name in record.options}
        if len(values) == 1:
            parts.append(f" {flag} {values.pop():g}")
    return "".join(parts)
