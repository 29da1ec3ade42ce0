"""Values that a format cannot tell apart, or a cast to bool leaves out, where something hangs on them; imports torch.

Conventions: risks, as only the author knows what the values were. That a choice hangs on them is shown by a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from precision_eval.core.formats import short
from precision_eval.core.formatting import percent
from precision_eval.doctor.accuracy import finding_at
from precision_eval.doctor.diagnosis import Finding
from precision_eval.doctor.error_budget import moved_choices, run_rounded, run_steps
from precision_eval.doctor.source import source_line
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import in_wide, run_as
from precision_eval.trace.dtype_flow import HALVES, DtypeFlow
from precision_eval.trace.operations import WITH_WEIGHTS, kind_by_name
from precision_eval.trace.provenance import Provenance, ancestors, named_tensors
from precision_eval.trace.replay import Steps

# Values that a tensor has for each that it tells apart, and the share of choices that hang on what it does not.
ALIKE, MOVES = 4, 0.1


def find_bias_made_bool(observer: DtypeFlow, outputs: tuple[torch.Tensor, ...]) -> Finding | None:
    """Name a cast to bool of numbers that are no mask, where attention takes the result for one, or none else use."""
    used = {id(at) for output in outputs for at in ancestors(observer.tensors[output])}
    computed = [one for one in observer.bool_casts if not one[0].parents[0].is_stored]
    unused = [one for one in computed if id(one[0].parents[0]) not in used]
    if not (observer.bool_masks or unused):
        return None
    cast, values = (*observer.bool_masks, *unused)[0]
    how = "attention takes what it gives for a mask" if observer.bool_masks else "nothing else of them gets further"
    reason = (
        f"bool keeps of {values} different numbers only whether each is 0, and {how}: a bias is lost; hand a bias on "
        "as it is, and cast only a mask to bool"
    )
    return replace(finding_at(cast, "risk", reason), kind="as_bool", result="bool")


def find_collapsed(subject: ExaminedModel, observer: DtypeFlow) -> Finding | None:
    """Name a stored tensor in half that tells few of its values apart, where a choice hangs on the rest."""
    named = {name: tensor for _, name, tensor in named_tensors(subject, (), prefix=subject.prefix)}
    for chosen, choice in observer.chosen:
        for at, stored in _added(chosen):
            tensor = named[stored.name].detach() if stored.name in named else torch.empty(0)
            if not 2 < (values := tensor.unique().numel()) <= tensor.numel() / ALIKE:
                continue
            largest = float(tensor.abs().max())
            step = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(tensor.dtype).eps
            moved = _moved_within(subject, stored.name, step)
            if moved < MOVES:
                continue
            name = short(tensor.dtype)
            reason = (
                f"{stored.name} is stored in {name}, whose step at {largest:.3g} is {step:.2g}: its {tensor.numel()} "
                f"values become {values} different ones, and a change of half a step, which it cannot hold, moves "
                f"{percent(moved)} of what is chosen at {source_line(*choice)}; keep it in float32 where it is made "
                "and loaded: a later cast restores nothing"
            )
            return replace(finding_at(at, "risk", reason), kind="collapsed")
    return None


def _added(record: Provenance) -> Iterator[tuple[Provenance, Provenance]]:
    """The operations, back to those with weights, that what is chosen by is made by, with what is stored in half."""
    pending, seen = [record], set[int]()
    while pending:
        at = pending.pop()
        if id(at) in seen or at.is_stored or kind_by_name(at.name) in WITH_WEIGHTS:
            continue
        seen.add(id(at))
        for parent in at.parents:
            if parent.is_stored and parent.kind != "input" and parent.dtype in HALVES:
                yield at, parent
        pending += at.parents


def _moved_within(subject: ExaminedModel, name: str, step: float) -> float:
    """The share of choices in float64 that a change of a stored tensor by up to half a step moves."""
    runs: list[Steps] = []

    def through(twin: ExaminedModel, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        tensor = next(t for _, n, t in named_tensors(twin, (), prefix=twin.prefix) if n == name)
        drawn = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
        tensor.data = tensor.data + step * drawn.to(tensor.device)
        runs.append(run_steps(twin, inputs, {}))
        return runs[-1].outputs

    run_as(subject, in_wide, torch.float64, through=through)
    return moved_choices(runs[-1], run_rounded(subject, {}))
