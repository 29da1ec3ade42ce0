"""A question to a run: which groups, under which limits, by which policy, at what length; and the answer of each.

Conventions: the length and rows of a size are its case's :class:`~precision_eval.cases.base.Extent`. A case without one
stands for every length. Of several lengths the nearest that was measured answers, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from precision_eval.cases.base import Extent
from precision_eval.cases.systems import CASES
from precision_eval.core.errors import ParameterError, RecordError, matching
from precision_eval.core.formatting import grouped
from precision_eval.results.choose.choosing import Choice, check_policy, choose_from
from precision_eval.results.choose.comparing import Constraints
from precision_eval.results.model import Group, MissingMeasureError


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a run."""

    policy: str = "balanced"
    constraints: Constraints = field(default_factory=Constraints)
    cases: tuple[str, ...] = ("*",)
    sizes: tuple[str, ...] = ("*",)
    modes: tuple[str, ...] = ("*",)
    device: str | None = None
    threads: int | None = None
    length: int | None = None
    batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a question."""

    question: Question
    choices: tuple[Choice, ...]
    unanswered: tuple[tuple[Group, str], ...] = ()

    @property
    def found(self) -> bool:
        """Whether every case has a fix to take, in some mode and size."""
        taken = {choice.group.case for choice in self.choices if choice.fix is not None}
        groups = (*(choice.group for choice in self.choices), *(group for group, _ in self.unanswered))
        return {group.case for group in groups} <= taken

    @property
    def refused(self) -> bool:
        """Whether some case has no fix to take in any mode and size, although its records can be compared."""
        taken = {choice.group.case for choice in self.choices if choice.fix is not None}
        return not {choice.group.case for choice in self.choices} <= taken

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "policy": self.question.policy,
            "constraints": asdict(self.question.constraints),
            "found": self.found,
            "choices": [choice.to_dict() for choice in self.choices],
            "unanswered": [{"group": group.title, "lacks": lacks} for group, lacks in self.unanswered],
        }


def answer(groups: Sequence[Group], question: Question) -> Answer:
    """Answer a question from groups."""
    check_policy(question.policy)
    for name in ("length", "batch", "threads"):
        value = getattr(question, name)
        if value is not None and value < 1:
            raise ParameterError(f"{name} is {value}; expected a whole number above 0")
    length, batch = question.length, question.batch
    asked = matching_groups(groups, question)
    faulty = [group for group in asked if group.fault]
    chosen: Sequence[Group] = [group for group in asked if not group.fault]
    if faulty and not chosen:
        raise RecordError(faulty[0].fault)
    chosen = nearest_in_length(chosen, length=length, batch=batch)
    choices: list[Choice] = []
    lacking: list[tuple[Group, MissingMeasureError]] = []
    for group in chosen:
        try:
            choices.append(choose_from(group, question.constraints, policy=question.policy))
        except MissingMeasureError as error:
            lacking.append((group, error))
    answered = {choice.group.case for choice in choices if choice.group.curing}
    for group, lack in lacking:
        if group.case not in answered:
            raise lack
    return Answer(
        question=question,
        choices=tuple(choices),
        unanswered=(*((group, str(lack)) for group, lack in lacking), *((group, group.fault) for group in faulty)),
    )


def matching_groups(groups: Sequence[Group], question: Question) -> tuple[Group, ...]:
    """Return the groups asked for, or say what the run holds instead."""
    matched = tuple(groups)
    for kind, patterns in (("case", question.cases), ("size", question.sizes), ("mode", question.modes)):
        names = matching(kind, patterns, sorted({getattr(group, kind) for group in matched}))
        matched = tuple(group for group in matched if getattr(group, kind) in names)
    device, threads = question.device, question.threads
    if device is not None:
        held = sorted({group.device for group in matched})
        matched = tuple(group for group in matched if device in (group.device, group.device.partition(":")[0]))
        if not matched:
            raise ParameterError(f"the run holds nothing of device '{device}', only {', '.join(held)}")
    if threads is not None:
        counts = sorted({group.threads for group in matched})
        matched = tuple(group for group in matched if group.threads == threads)
        if not matched:
            raise ParameterError(f"the run holds nothing with {threads} threads, only {counts}")
    return matched


def extent_of(case: str, size: str) -> Extent | None:
    """Return the extent of a case's size; None where it has none, or is a user's."""
    definition = next((one for one in CASES if one.id == case and size in one.sizes), None)
    return None if definition is None or definition.extent is None else definition.extent(size)


def nearest_in_length(groups: Sequence[Group], *, length: int | None, batch: int | None) -> tuple[Group, ...]:
    """Keep the sizes of a batch, and of each case, mode and pin the size nearest to a length."""
    if batch is not None:
        groups = _of_batch(groups, batch)
    if length is None:
        return tuple(groups)
    nearest: list[Group] = []
    alike = grouped(((group.case, group.mode, group.device, group.threads, group.pins), group) for group in groups)
    for members in alike.values():
        extents = [(extent, group) for group in members if (extent := extent_of(group.case, group.size)) is not None]
        if not extents:
            nearest += [
                _with_note(group, f"{group.size} has no length and answers for {length:,}") for group in members
            ]
            continue
        extent, group = min(extents, key=lambda pair: _distance(pair[0], length))
        if extent.length != length:
            group = _with_note(group, f"measured at length {extent.length:,}, asked for {length:,}")
        nearest.append(group)
    return tuple(nearest)


def _distance(extent: Extent, length: int) -> tuple[float, int]:
    return abs(math.log(extent.length / length)), -extent.length


def _of_batch(groups: Sequence[Group], batch: int) -> list[Group]:
    extents = [(extent_of(group.case, group.size), group) for group in groups]
    fitting = [group for extent, group in extents if extent is None or extent.rows == batch]
    if not fitting and groups:
        rows = sorted({extent.rows for extent, _ in extents if extent is not None})
        raise ParameterError(f"no size in the run has {batch} rows, only {', '.join(map(str, rows))}; omit --batch")
    return fitting


def _with_note(group: Group, note: str) -> Group:
    return replace(group, notes=(*group.notes, note))
