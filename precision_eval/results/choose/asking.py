"""A question to a run: which groups, under which limits, by which policy; and the answer for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, RecordError, unknown_name
from precision_eval.results.choose.choosing import Choice, choose_from
from precision_eval.results.choose.comparing import Constraints
from precision_eval.results.choose.lengths import SWEPT_CASE, nearest_in_length, planned_memory, timed_by_sweep
from precision_eval.results.choose.policies import check_policy
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
    sweep: Path | None = None
    plan: Path | None = None


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
            "constraints": self.question.constraints.to_dict(),
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
    asked = _matching(groups, question)
    faulty = [group for group in asked if group.fault]
    chosen: Sequence[Group] = [group for group in asked if not group.fault]
    if faulty and not chosen:
        raise RecordError(faulty[0].fault)
    if question.sweep is None:
        chosen = nearest_in_length(chosen, length=length, batch=batch)
    else:  # a sweep has times of its own at every length and batch: no size of what it swept is dropped
        swept = [group for group in chosen if group.case == SWEPT_CASE and not group.pins]
        others = [group for group in chosen if group not in swept]
        chosen = (*swept, *nearest_in_length(others, length=length, batch=batch))
        chosen = timed_by_sweep(chosen, question.sweep, length=length, batch=batch)
    if question.plan is not None:
        chosen = planned_memory(chosen, question.plan, length=length, batch=batch)
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
        unanswered=(*((group, str(lack)) for group, lack in lacking), *((one, one.fault) for one in faulty)),
    )


def _matching(groups: Sequence[Group], question: Question) -> tuple[Group, ...]:
    """Return the groups asked for, or say what the run holds instead."""
    found = tuple(groups)
    for kind, patterns in (("case", question.cases), ("size", question.sizes), ("mode", question.modes)):
        held = sorted({getattr(group, kind) for group in found})
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in held):
                raise unknown_name(kind, pattern, held)
        found = tuple(g for g in found if any(fnmatchcase(getattr(g, kind), pattern) for pattern in patterns))
    device = question.device
    if device is not None:
        held = sorted({group.device for group in found})
        found = tuple(group for group in found if group.device == device or group.device.partition(":")[0] == device)
        if not found:
            raise ParameterError(f"the run holds nothing of device '{device}', only {', '.join(held)}")
    if question.threads is not None:
        counts = sorted({group.threads for group in found})
        found = tuple(group for group in found if group.threads == question.threads)
        if not found:
            raise ParameterError(f"the run holds nothing with {question.threads} threads, only {counts}")
    return found
