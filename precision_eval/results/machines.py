"""Runs of several machines side by side: rows are machines, and every time is a ratio to that machine's own baseline.

A *machine* is the hardware and torch version of an environment; a folder with records of several is taken apart, and
two folders are never pooled, even of one machine. Groups are compared where case digest, size, mode, threads, pinned
settings, baseline and the allocator's states are the same; what stands alone is named. Of two fixes one is ahead where
:func:`~precision_eval.results.choose.comparing.difference` calls it on that machine; an order *holds* where every
machine calls the same, and *turns over* where two call opposite ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from precision_eval.core.environment import stored_environments
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.formatting import grouped, join
from precision_eval.core.records import RECORDS_NAME, Record, RecordFile, latest
from precision_eval.results.choose.comparing import difference, leaders
from precision_eval.results.contributed import folder_of
from precision_eval.results.model import Group, Row, figure_of, order_of
from precision_eval.results.reading import Run, groups_of, load_run, log_ratios, pins_of

TIMES, DRIFTS = "time", "drift"
UNRECORDED = "left alone"
"""State of the allocator in records that do not name it, made before there was a choice."""

_NO_NAME = re.compile(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b")

APART = 1.25
"""Factor between the ratios of two machines, beyond their intervals, from which on a fix is said to depend on them."""

PAGE_FAULTS = 2.0
"""Factor of page faults per call from which on two machines are said to differ in them."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Hardware and torch version of the records of one folder; `name` is unique among those that are compared.

    `half_formats` says with which instructions a processor computes in them; empty where no environment tells.
    """

    name: str
    facts: Mapping[str, str]
    run: Path
    commits: tuple[str, ...]
    records: tuple[Record, ...] = field(repr=False)
    half_formats: str = ""

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """What can be compared with one another on this machine."""
        return groups_of(self.records, run=str(self.run))


@dataclass(frozen=True, kw_only=True)
class PairOrder:
    """Two fixes on one axis: which is ahead on which machine (``better``: the first), and first over second."""

    axis: str
    first: str
    second: str
    relations: Mapping[str, str]
    ratios: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """``holds``, ``turns over``, or ``not called everywhere``."""
        called = set(self.relations.values()) & {"better", "worse"}
        if len(called) > 1:
            return "turns over"
        return "holds" if called and len(set(self.relations.values())) == 1 else "not called everywhere"


@dataclass(frozen=True, kw_only=True)
class MachineComparison:
    """One group on several machines, by their names."""

    groups: Mapping[str, Group]

    @property
    def title(self) -> str:
        """Text such as ``voice · default · eager · 1 thread``."""
        return _place(next(iter(self.groups.values())))

    @property
    def fixes(self) -> tuple[str, ...]:
        """Every fix that any machine has."""
        return tuple(sorted({row.fix for group in self.groups.values() for row in group.fixes}, key=order_of))

    @property
    def cured(self) -> bool:
        """Whether any fix cures the case on any machine."""
        return any(group.curing for group in self.groups.values())

    def row(self, machine: str, fix: str) -> Row | None:
        """Return a fix's row on a machine; None where it was not measured there."""
        return next((row for row in self.groups[machine].fixes if row.fix == fix), None)

    def fastest(self, machine: str) -> tuple[str, ...]:
        """Return the fixes that take least time there: one, and what is not told apart from it."""
        return tuple(row.fix for row in leaders(self.groups[machine], TIMES))

    @cached_property
    def orders(self) -> tuple[PairOrder, ...]:
        """The order of every two fixes that run on at least two machines, in time and in drift."""
        pairs = (self._order(axis, *pair) for axis in (TIMES, DRIFTS) for pair in combinations(self.fixes, 2))
        return tuple(pair for pair in pairs if len(pair.relations) > 1)

    def _order(self, axis: str, first: str, second: str) -> PairOrder:
        relations, ratios = {}, {}
        for name, group in self.groups.items():
            rows = [self.row(name, fix) for fix in (first, second)]
            curing = [row for row in rows if row is not None and row.status == "passed"]
            apart = difference(group, axis, *curing) if len(curing) == 2 else None
            if apart is not None and math.isfinite(apart.log):
                relations[name], ratios[name] = apart.relation, math.exp(apart.log)
        return PairOrder(axis=axis, first=first, second=second, relations=relations, ratios=ratios)

    @property
    def depends_on_machine(self) -> dict[str, dict[str, float]]:
        """Fixes whose ratio to the baseline differs between two machines beyond their intervals and :data:`APART`."""
        times = {
            fix: {name: row.time for name in self.groups if (row := self.row(name, fix)) is not None and row.time}
            for fix in self.fixes
        }
        return {
            fix: {name: time.value for name, time in own.items()}
            for fix, own in times.items()
            if own and max(time.low for time in own.values()) > APART * min(time.high for time in own.values())
        }

    @property
    def cured_on_some(self) -> dict[str, dict[str, str]]:
        """Fixes that run on one machine and not on another: fix to its status by machine."""
        statuses = {
            fix: {name: row.status for name in self.groups if (row := self.row(name, fix)) is not None}
            for fix in self.fixes
        }
        return {fix: own for fix, own in statuses.items() if "passed" in own.values() and len(set(own.values())) > 1}

    def unlike(self, *fixes: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield what differs between machines in how fixes ran: kernel of attention, page faults; machine to value."""
        for fix in fixes:
            rows = {name: row for name in self.groups if (row := self.row(name, fix)) is not None}
            traces = {name: data for name, row in rows.items() if (data := row.data("trace"))}
            backends = {name: str(data["backend"]) for name, data in traces.items() if "backend" in data}
            if len(set(backends.values())) > 1:
                yield f"attention of {fix}", backends
            faults = {
                name: count
                for name, row in rows.items()
                if (count := figure_of(row.data("latency"), "page_faults_per_call")) is not None
            }
            if len(faults) > 1 and max(faults.values()) >= 1.0 + PAGE_FAULTS * min(faults.values()):
                yield f"page faults per call of {fix}", {name: f"{count:.0f}" for name, count in faults.items()}


@dataclass(frozen=True, kw_only=True)
class MergedRuns:
    """Machines, what they have in common, and what stands apart: one line each."""

    machines: tuple[Machine, ...]
    comparisons: tuple[MachineComparison, ...]
    apart: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()


def merged(folders: Sequence[Path]) -> MergedRuns:
    """Read runs and put their machines side by side."""
    read = [_read(folder) for folder in folders]
    machines = _named([machine for own, _ in read for machine in own])
    _check_none_twice(machines)
    if len(machines) < 2:
        raise ParameterError(f"{folders[0]} holds records of one machine, {machines[0].name}; give runs of 2 or more")
    groups = [(machine.name, group) for machine in machines for group in machine.groups]
    by_place = grouped((_place(group), (name, group)) for name, group in groups if not group.fault)
    alike = [(title, own) for title, pairs in by_place.items() for own in _alike(pairs)]
    comparisons = [MachineComparison(groups=dict(pairs)) for _, pairs in alike if len(pairs) > 1]
    alone = [(title, *pairs[0]) for title, pairs in alike if len(pairs) == 1]
    by_machine = grouped((name, title) for title, name, _ in alone if len(by_place[title]) == 1)
    apart = [
        *(f"{name}: {group.fault}" for name, group in groups if group.fault),
        *(f"{title} of {name}: {_condition_text(group)}" for title, name, group in alone if len(by_place[title]) > 1),
        *(f"of {name} alone: {join(titles)}" for name, titles in by_machine.items()),
    ]
    return MergedRuns(
        machines=machines,
        comparisons=tuple(sorted(comparisons, key=lambda comparison: comparison.title)),
        apart=tuple(apart),
        damage=tuple(line for _, damage in read for line in damage),
    )


def _read(path: Path) -> tuple[list[Machine], tuple[str, ...]]:
    """Read a folder, or a run as one file: its machines, and what is damaged."""
    with folder_of(path) as folder:
        run = load_run(folder)
        return list(_machines_of(run, path)), run.damage


def _machines_of(run: Run, given: Path) -> Iterator[Machine]:
    """Yield the machines of a folder, still without names, once their records have been checked."""
    path = run.directory / RECORDS_NAME
    environments = stored_environments(run.directory)
    by_facts: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in RecordFile(path).read().records:
        if problem := _tampered(record, environments):
            raise RecordError(f"{given}: {problem}; give it as `precision-eval run` wrote it")
        by_facts.setdefault(tuple(facts_of(environments[record.environment]).items()), []).append(record)
    for facts, records in by_facts.items():
        shas = dict.fromkeys(record.environment for record in records)
        packages = [environments[sha].get("package") or {} for sha in shas]
        commits = sorted({str(package.get("git_commit"))[:12] for package in packages})
        newest = tuple(latest(records).values())
        told = [formats for sha in shas if (formats := (environments[sha].get("cpu") or {}).get("half_formats"))]
        half = "; ".join(f"{dtype}: {join(flags) or 'none'}" for dtype, flags in (told[0] if told else {}).items())
        yield Machine(name="", facts=dict(facts), run=given, commits=tuple(commits), half_formats=half, records=newest)


def _tampered(record: Record, known: Mapping[str, Any]) -> str:
    """Say what of a record contradicts itself or its environment; empty where nothing does."""
    cell = f"{record.case}/{record.fix}/{record.mode}@{record.device}:{record.size}{pins_of(record)}#{record.measure}"
    if record.cell != cell:
        return f"the record of {record.cell} holds {cell}"
    if record.environment not in known:
        return f"{record.cell} was measured in environment {record.environment[:12]}, whose file is not there"
    data = record.data or {}
    if record.measure != "latency" or record.status != "passed" or "ratio" not in data:
        return ""
    logs = log_ratios(data)
    if logs and not min(logs) - 1e-6 <= math.log(data["ratio"]) <= max(logs) + 1e-6:
        return f"the ratio of {record.cell} is {data['ratio']:g}, beyond all its samples"
    return ""


def facts_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what makes a machine: its hardware and its torch."""
    cpu, device, torch = (environment.get(name) or {} for name in ("cpu", "device", "torch"))
    name = str(device.get("name") or "cpu")
    facts = {
        "hardware": device.get("model") or cpu.get("model"),
        "torch": torch.get("version"),
        "cores": cpu.get("usable_cores"),
        "instructions": torch.get("cpu_capability"),
        "device": None if name == "cpu" else name,
    }
    return {key: str(value) for key, value in facts.items() if value is not None}


def _named(machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """Name each machine by its hardware, and by as much more as tells it from the others."""
    facts = [machine.facts for machine in machines]
    names = [" ".join(_NO_NAME.sub(" ", own.get("hardware", "unknown")).split()) for own in facts]
    for fact, text in (("torch", "torch {}"), ("cores", "{} cores"), ("instructions", "{}"), ("device", "{}")):
        names = _distinguished(names, [text.format(own.get(fact, "?")) for own in facts])
    names = _distinguished(names, [str(machine.run) for machine in machines])
    return tuple(replace(machine, name=name) for machine, name in zip(machines, names, strict=True))


def _distinguished(names: list[str], additions: list[str]) -> list[str]:
    """Add to the names that several have, where it makes a difference."""
    variants = grouped(zip(names, additions, strict=True))
    return [
        f"{name}, {addition}" if len(set(variants[name])) > 1 else name
        for name, addition in zip(names, additions, strict=True)
    ]


def _check_none_twice(machines: Iterable[Machine]) -> None:
    """Refuse one measurement that is given twice, such as a run and a copy of it."""
    owners: dict[tuple[str, str, str, float], Machine] = {}
    for machine in machines:
        for record in machine.records:
            key = (record.cell, record.environment, record.started_at, record.wall_s)
            owner = owners.setdefault(key, machine)
            if record.wall_s and owner is not machine:
                what = f"{owner.run} and {machine.run} hold the same measurement of {record.cell}"
                raise RecordError(f"{what}; give one of the two")


def _place(group: Group) -> str:
    """Return what is measured, without the device: ``voice · default · eager · 1 thread``."""
    return group.title.replace(f"{group.device}, ", "")


def _condition(group: Group) -> tuple[str, str, str]:
    """Return the case's digest, and under what was timed: baseline and state of the allocator; empty without times."""
    digest = next(record.case_digest for row in group.fixes for record in row.records.values())
    states = sorted({str(data.get("memory", UNRECORDED)) for row in group.fixes if (data := row.data("latency"))})
    return digest, group.baseline or "", ",".join(states)


def _condition_text(group: Group) -> str:
    digest, baseline, memory = _condition(group)
    return f"definition {digest[:8]}" + (
        f", times to {baseline} and memory {memory}, as on no other" if baseline else ""
    )


def _alike(pairs: Sequence[tuple[str, Group]]) -> list[list[tuple[str, Group]]]:
    """Split the groups of one place by condition; what has no times goes with any times of its definition."""
    conditions = [_condition(group) for _, group in pairs]
    timed = {condition[0]: condition for condition in reversed(conditions) if condition[1]}
    kinds = [condition if condition[1] else timed.get(condition[0], condition) for condition in conditions]
    return list(grouped(zip(kinds, pairs, strict=True)).values())
