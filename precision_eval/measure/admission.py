"""Whether a case or a candidate from outside can be measured: called once before anything is planned; imports torch.

Conventions: this runs in a process of its own, as a user's file may do anything. What cannot be measured is refused
with one :class:`~precision_eval.core.errors.ParameterError`, which for a candidate is the result of its cells. That a
model raises an error, as shipped or under a candidate, is what is measured, and no reason to refuse it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.own import SIZE, built, digest_of, own_case, parts_of
from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell, Options, is_out_of_memory
from precision_eval.core.environment import usable_device
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import first_line, is_target, source_digest
from precision_eval.fixes.apply import make_change
from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id
from precision_eval.fixes.choices import Mode, Storage
from precision_eval.fixes.packing import floating_leaves, token_leaves
from precision_eval.measure.candidates import REPEAT_TOLERANCE
from precision_eval.measure.model_calls import CallOutcome, attempt, difference, subject_of


@dataclass(frozen=True)
class AdmittedCase:
    case: str
    digest: str
    measures: tuple[str, ...]
    parts: dict[str, str]


@dataclass(frozen=True)
class AdmittedCandidate:
    """What importing a candidate, and putting it on a model, has shown; `refused` says why it cannot be measured."""

    fix: str
    digest: str
    modes: tuple[Mode, ...] = Fix.modes
    storage: Storage = Fix.storage
    refused: str = ""


def admit_case(target: str, device: str, seed: int) -> AdmittedCase:
    """Call a factory twice and its model several times; refuse what does not repeat."""
    device = usable_device(device)
    case = built(target, SIZE, device=device, seed=seed)
    digest = digest_of(target, case)
    if digest_of(target, built(target, SIZE, device=device, seed=seed)) != digest:
        raise ParameterError(
            f"the factory {target} returns other weights or inputs each time, though the seeds of torch, numpy and "
            "random are set before it; give what draws numbers in it a fixed seed"
        )
    _check_model(target, case)
    _check_hooks(target, case, _check_calls(target, case), seed)
    return AdmittedCase(target, digest, case.own.measures, parts_of(case))


def admit_candidate(target: str, case_id: str, size: str, device: str, seed: int) -> AdmittedCandidate:
    """Put a candidate on a case's model and call it; refuse one that leaves the model as it was."""
    fix = fix_by_id(target)
    if "eager" in fix.modes and fix.change is not None:
        case = case_by_id(case_id).build(size, device=usable_device(device), seed=seed)
        shipped, outcome = _try(case, fix_by_id("as_shipped")), _try(case, fix)
        if isinstance(outcome.error, ParameterError):
            raise outcome.error
        if shipped.error is None and outcome.error is None and difference(shipped, outcome) == 0:
            _check_change(target, case.model, fix)
    return AdmittedCandidate(target, source_digest(target)[:16], fix.modes, fix.storage)


def _check_model(target: str, case: BuiltCase) -> None:
    if case.own.model.training:
        raise ParameterError(
            f"the model of {target} is in training mode, where dropout draws and norms change; call .eval() on it"
        )
    if not case.inputs:
        raise ParameterError(f"the inputs of {target} hold no tensor; a call without one has no reference")
    subject_of(case.own.module(), case.own.arguments())  # refuses dtypes that nothing here can compute
    try:
        copy.deepcopy(case.model)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ParameterError(
            f"the model of {target} cannot be copied ({first_line(error)}); each fix has a copy of its own: make it "
            "deep-copyable, for instance by detaching tensors kept as attributes"
        ) from error


def _check_calls(target: str, case: BuiltCase) -> str | None:
    """Refuse a call that draws random numbers, keeps state or returns nothing; return the first fix that cures."""
    for fix in FIXES:
        if "eager" not in fix.modes or fix.storage == "per_case":
            continue
        first = _try(case, fix)
        if first.outputs is not None:
            break
    else:
        return None  # nothing cures it, which is a result
    if not first.outputs:
        raise ParameterError(
            f"a call of {target} returns neither a floating tensor nor tokens, so there is nothing to compare"
        )
    if difference(first, _try(case, fix, seed=1)) > REPEAT_TOLERANCE:
        raise ParameterError(
            f"a call of {target} draws random numbers: two seeds give other outputs; give it a generator of its own, "
            "seeded in the call, or hand what it draws in as an input"
        )
    if difference(first, _try(case, fix, calls=2)) > REPEAT_TOLERANCE:
        raise ParameterError(
            f"a call of {target} keeps state: the second call gives another output than the first; reset it in "
            "OwnCase(call=...), which is called as call(model, *inputs)"
        )
    return fix.id


def _check_hooks(target: str, case: BuiltCase, cured: str | None, seed: int) -> None:
    """Decode two steps twice, and say the script, under a fix that cures; refuse what returns the wrong thing."""
    if cured is None:
        return
    from precision_eval.measure.decoding import Picks, decoding, synthesize_scripts

    cell = Cell(
        case=target, fixes=(cured,), mode="eager", device=case.inputs[0].device.type, size=SIZE, threads=1,
        measure="streams", options=Options(seed=seed),
    )  # fmt: skip
    what = "decoding"
    try:
        if case.own.decodes:
            runs = [Picks(), Picks()]
            with decoding(cell, cured, own_case(target, seed=seed)) as loop:
                for picks in runs:
                    loop(seed, picks, 2)
            if any(not torch.equal(*pair) for pair in zip(*(picks.logits for picks in runs), strict=True)):
                raise ParameterError(
                    "the second run gives other logits than the first; let state(model, seed), or the loop, begin anew"
                )
        what = "synthesize"
        if case.own.synthesize is not None:
            synthesize_scripts(cell, cured, own_case(target, seed=seed))
    except ParameterError as error:
        raise ParameterError(f"{what} of {target}: {error}") from error
    except Exception as error:
        raise ParameterError(
            f"{what} of {target} raises {type(error).__name__} under {cured}, which cures its call: "
            f"{first_line(error)}; expected that it works as the call does"
        ) from error


def _try(case: BuiltCase, fix: Fix, *, seed: int = 0, calls: int = 1) -> CallOutcome:
    """Call a copy of a case's model under a fix; return the outcome of the last of so many calls."""
    applied = fix.applied(copy.deepcopy(case.model))

    def call() -> tuple[torch.Tensor, ...]:
        with applied:
            inputs = applied.prepare(tuple(tensor.clone() for tensor in case.inputs))
            outputs = [applied(*inputs) for _ in range(calls)]
        return floating_leaves(outputs[-1]) or token_leaves(outputs[-1])

    return attempt(call, seed=seed)


def _check_change(target: str, model: nn.Module, fix: Fix) -> None:
    """Refuse a candidate after which a model that has the same outputs is also built and stored as before."""
    held, context = make_change(model, fix)
    if context is None and _fingerprint(held) == _fingerprint(model):
        raise ParameterError(
            f"the candidate {target} changes nothing: the model's parts, tensors and output are as without it; "
            "expected that it changes the model, returns another one, or returns a context manager"
        )


def _fingerprint(model: nn.Module) -> list[Any]:
    """Types, plain attributes, own methods and hooks of each part; dtype and content of each tensor."""
    parts: list[Any] = []
    for path, module in model.named_modules():
        plain = {
            name: repr(value)
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str | torch.dtype) or (callable(value) and name[0] != "_")
        }
        hooks = (len(module._forward_hooks), len(module._forward_pre_hooks))
        parts.append((path, type(module), plain, hooks))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        parts.append((name, tensor.dtype, tuple(tensor.shape), hashlib.sha256(content.data).hexdigest()))
    return parts


def admit(
    cases: Sequence[str], candidates: Sequence[str], subject: tuple[str, str], device: str, seed: int
) -> tuple[list[AdmittedCase], list[AdmittedCandidate]]:
    """Admit cases, then candidates on the case and size named by `subject`."""
    return (
        [admit_case(target, device, seed) for target in cases if is_target(target)],
        [_admit_or_explain(target, subject, device, seed) for target in candidates],
    )


def _admit_or_explain(target: str, subject: tuple[str, str], device: str, seed: int) -> AdmittedCandidate:
    """Admit a candidate; one that is refused has a digest of the reason, as its code may not be there."""
    try:
        return admit_candidate(target, *subject, device, seed)
    except ParameterError as error:
        return AdmittedCandidate(target, hashlib.sha256(str(error).encode()).hexdigest()[:16], refused=str(error))
