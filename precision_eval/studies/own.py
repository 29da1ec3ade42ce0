"""Calls that factories of one's own make, side by side; imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precision_eval.cases.own import own_case
from precision_eval.core.errors import ParameterError
from precision_eval.measure.model_calls import relative_error, run_fresh, subject_of
from precision_eval.studies.compare import compare


def compared_factories(targets: Sequence[str], *, budget_s: float = 2.0, seed: int = 0) -> str:
    """Compare the calls of factories, the first as the baseline; returns the table with the distances as text."""
    if len(targets) < 2 or len(set(targets)) < len(targets):
        raise ParameterError(f"compare was given {', '.join(targets)}; give two or more factories, each once")
    cases = {target: own_case(target, seed=seed) for target in targets}
    (first, inputs), *others = ((target, case.arguments(seed)) for target, case in cases.items())
    for target, given in others:
        if not _same(inputs, given):
            raise ParameterError(
                f"{first} and {target} return other inputs, so outputs cannot be compared; return the same in all"
            )
    models = {target: case.module() for target, case in cases.items()}
    training = [target for target, case in cases.items() if case.model.training]
    if training:
        raise ParameterError(f"the model of {' and '.join(training)} is in training mode; call .eval() on it")
    costs = compare(models, *inputs, baseline=first, reference=models[first], budget_s=budget_s, seed=seed)
    outcomes = {target: run_fresh(subject_of(model, inputs)) for target, model in models.items()}
    lines = []
    for one, other in itertools.combinations(targets, 2):
        before, after = outcomes[one].outputs, outcomes[other].outputs
        if before is not None and after is not None and [t.shape for t in before] == [t.shape for t in after]:
            distance = max(relative_error(b, a) for a, b in zip(before, after, strict=True))
            lines.append(f"{other} is {distance:.2g} from {one} (relative error of the output)")
    return "\n".join([repr(costs), *lines])


def _same(one: Any, other: Any) -> bool:
    some, shape = pytree.tree_flatten(one)
    others, other_shape = pytree.tree_flatten(other)
    return shape == other_shape and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else type(a) is type(b)
        for a, b in zip(some, others, strict=True)
    )
