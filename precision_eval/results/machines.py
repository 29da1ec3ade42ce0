"""Runs of several machines: the machine is part of what a group is.

Conventions: a *machine* is the hardware and torch version of an environment. Two folders are never pooled, even of one
machine, and every time is a ratio to the same machine's own baseline. Groups are put together where the case's digest,
size, mode, threads, pinned settings, baseline and the allocator's state are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precision_eval.core.environment import Environment, stored_environments
from precision_eval.core.errors import RecordError
from precision_eval.core.figures import fit
from precision_eval.core.formatting import grouped
from precision_eval.core.records import RECORDS_NAME, Record, RecordFile
from precision_eval.results.model import Group
from precision_eval.results.reading import groups_of, load_run

_MARKETING = re.compile(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The records of one machine in one folder; `name` is unique among the machines that are read together."""

    name: str
    facts: Mapping[str, str]
    run: Path
    records: tuple[Record, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """What can be compared on this machine, each group with the machine's name."""
        groups = groups_of(self.records, run=str(self.run))
        return tuple(replace(group, machine=self.name) for group in groups)


def load_machines(folders: Sequence[Path]) -> tuple[Machine, ...]:
    """Read the machines of several runs; refuse a measurement that is given twice."""
    machines = _named([machine for folder in folders for machine in _machines_of(folder)])
    owners: dict[tuple[Any, ...], Machine] = {}
    for machine in machines:
        for record in machine.records:
            key = (record.cell, record.environment, record.started_at, record.wall_s)
            if record.wall_s and owners.setdefault(key, machine) is not machine:
                both = f"{owners[key].run} and {machine.run}"
                raise RecordError(f"{both} hold the same measurement of {record.cell}; give one of the two")
    return machines


def _machines_of(folder: Path) -> list[Machine]:
    load_run(folder)  # refuses a folder without records
    environments = stored_environments(folder)
    by_facts: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in RecordFile(folder / RECORDS_NAME).read().records:
        facts = _facts_of(environments.get(record.environment, {}))
        by_facts.setdefault(tuple(facts.items()), []).append(record)
    return [
        Machine(name="", facts=dict(facts), run=folder, records=tuple(records)) for facts, records in by_facts.items()
    ]


def _facts_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what makes a machine: its hardware and its torch."""
    known = fit(environment, Environment, where="the environment")
    facts = {
        "hardware": known.device.model or known.cpu.model or "unknown machine",
        "torch": known.torch.version,
        "cores": known.cpu.usable_cores,
        "instructions": known.torch.cpu_capability,
        "device": None if known.device.name == "cpu" else known.device.name,
    }
    return {key: str(value) for key, value in facts.items() if value is not None}


def _named(machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """Name each machine by its hardware, and by as much more as distinguishes it from the others."""
    names = [" ".join(_MARKETING.sub(" ", machine.facts["hardware"]).split()) for machine in machines]
    for fact, text in (("torch", "torch {}"), ("cores", "{} cores"), ("instructions", "{}"), ("device", "{}")):
        names = _distinguish(names, [text.format(machine.facts.get(fact, "?")) for machine in machines])
    names = _distinguish(names, [str(machine.run) for machine in machines])
    return tuple(replace(machine, name=name) for machine, name in zip(machines, names, strict=True))


def _distinguish(names: Sequence[str], additions: Sequence[str]) -> list[str]:
    """Add to the names that several have, where it makes a difference."""
    variants = grouped(zip(names, additions, strict=True))
    return [
        f"{name}, {addition}" if len(set(variants[name])) > 1 else name
        for name, addition in zip(names, additions, strict=True)
    ]


def side_by_side(groups: Iterable[Group]) -> list[dict[str, Group]]:
    """Put groups of several machines together: machine → group, for each thing that was measured alike."""
    by_condition = grouped((_condition(group), group) for group in groups if not group.fault)
    return [{group.machine: group for group in alike} for alike in by_condition.values()]


def _condition(group: Group) -> tuple[Any, ...]:
    digests = {record.case_digest for row in group.fixes for record in row.records.values()}
    states = {str(row.latency.memory) for row in group.fixes if row.latency is not None}
    place = (group.case, group.size, group.mode, group.threads, group.pins)
    return (*place, group.baseline, *sorted(digests), *sorted(states))
