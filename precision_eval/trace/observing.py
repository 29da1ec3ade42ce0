"""Sets an observer up around one call of a model; imports torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from precision_eval.diagnose.doctor.subject import PREFIX, Outcome, Subject, attempt
from precision_eval.trace.observer import Observer, observed_call
from precision_eval.trace.provenance import Table, named_tensors, tensors_in


def module_paths(model: nn.Module) -> dict[int, str]:
    """Path of each module by identity, the subject's own prefix taken off."""
    return {
        id(module): "" if f"{path}." == PREFIX else path.removeprefix(PREFIX) for path, module in model.named_modules()
    }


def declared_wide(model: nn.Module) -> dict[str, frozenset[torch.dtype]]:
    """Read which parameters a model's class declares to be kept in float32, as transformers' classes do."""
    found: dict[str, frozenset[torch.dtype]] = {}
    kinds = (
        ("_keep_in_fp32_modules", frozenset((torch.float16,))),
        ("_keep_in_fp32_modules_strict", frozenset((torch.float16, torch.bfloat16))),
    )
    for path, module in model.named_modules():
        for attribute, refused in kinds:
            # not getattr of the module, which searches all its parts for what most classes do not have
            names = vars(module).get(attribute) or getattr(type(module), attribute, None)
            if not names or isinstance(names, str):
                continue
            pattern = re.compile("|".join(rf"((^|\.){re.escape(str(name))}($|\.))" for name in names))
            for name, _ in module.named_parameters():
                if pattern.search(name):
                    full = (f"{path}.{name}" if path else name).removeprefix(PREFIX)
                    found[full] = found.get(full, frozenset()) | refused
    return found


def observe_call(
    model: Subject,
    call: Callable[[], tuple[torch.Tensor, ...]],
    inputs: tuple[torch.Tensor, ...],
    *,
    base: torch.dtype,
    values: bool,
) -> tuple[Observer, Outcome]:
    """Observe one call."""
    declared = declared_wide(model)
    named = dict(zip(model.names, inputs, strict=True))
    stored = [one for one in named_tensors(model, named, prefix=PREFIX) if not one[1].startswith("tensors[")]
    kept = frozenset(name for kind, name, t in stored if name in declared and t.dtype is not base)
    narrowed = frozenset(name for kind, name, t in stored if t.dtype in declared.get(name, ()))
    observer = Observer(Table(stored, kept), base, module_paths(model), watched=narrowed, values=values)
    table = observer.table

    def listen(name: str, value: Any) -> None:
        for path, tensor in tensors_in(name, value):
            table.add("input", path, tensor)

    model.listener = listen
    kept_outputs: list[tuple[torch.Tensor, ...]] = []

    def run() -> tuple[torch.Tensor, ...]:
        kept_outputs.append(observed_call(observer, call))
        return ()

    compiled = any(getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in model.modules())
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            outcome = attempt(run)
    finally:
        model.listener = None
    return observer, Outcome(kept_outputs[0] if kept_outputs else None, outcome.error)
