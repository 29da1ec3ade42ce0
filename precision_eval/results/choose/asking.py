"""A question to a run: which groups, under which limits, by which policy; and the answer of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from precision_eval.core.errors import ParameterError, RecordError, matching
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
        """Whether some case has no fix to take in any mode and size, although its records can be trusted."""
        taken = {choice.group.case for choice in self.choices if choice.fix is not None}
        return not {choice.group.case for choice in self.choices if choice.outcome != "could not tell"} <= taken

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.question.policy,
            "constraints": asdict(self.question.constraints),
            "found": self.found,
            "choices": [choice.to_dict() for choice in self.choices],
            "unanswered": [{"group": group.title, "lacks": lacks} for group, lacks in self.unanswered],
        }


def answer(groups: Sequence[Group], question: Question) -> Answer:
    check_policy(question.policy)
    if question.threads is not None and question.threads < 1:
        raise ParameterError(f"threads is {question.threads}; expected a whole number above 0")
    asked = matching_groups(groups, question)
    faulty = [group for group in asked if group.fault]
    chosen = [group for group in asked if not group.fault]
    if faulty and not chosen:
        raise RecordError(faulty[0].fault)
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
