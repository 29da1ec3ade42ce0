"""The reference of drift: the model in float64, in float64 layer by layer, or in float32; imports torch.

Conventions: stored values are upcast, so that the reference is the same function of the same stored numbers. Casts to
narrower formats in the model's code do nothing there (:class:`.KeepingWide`), and plain dtype attributes become
float64. *Layer by layer* keeps parameters as they are stored and brings each module's own to float64 for the time of
its call only: the same numbers, in the memory of one layer. Where neither works, float32 is the reference, and the
distance from it says nothing about what is finer than float32. A model that draws random numbers has none: from one
seed, formats draw different numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from precision_eval.cases.modes import DrawnAs, KeepingWide
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import first_line
from precision_eval.fixes.packing import ExaminedModel, copy_model, in_dtype
from precision_eval.fixes.storage import set_dtype_attributes
from precision_eval.measure.model_calls import CallOutcome, attempt, difference, is_beyond
from precision_eval.trace.provenance import named_tensors

# Copies of the model in float64 that are alive at once, activations and the copy as stored included.
ROOM = 1.5

_DRAWS = "the model draws random numbers, which formats draw differently; drift was not measured"


@dataclass(frozen=True)
class Reference:
    """Outputs that drift is measured from.

    `unfit` are float64's outputs where they are not finite and cannot serve; `inside` counts the values of the float64
    call that are not finite, of a call that returns tokens.
    """

    outputs: tuple[torch.Tensor, ...] | None
    name: str
    doubts: tuple[str, ...] = ()
    unfit: tuple[torch.Tensor, ...] | None = None
    inside: int = 0


def reference_of(subject: ExaminedModel, *, available_bytes: int, draws: bool | None = False) -> Reference:
    if draws:
        return Reference(None, "", (_DRAWS,))
    reference = _first_that_runs(subject, available_bytes, seed=0)
    if draws is None and reference.outputs is not None:
        runs = (reference, *(_first_that_runs(subject, available_bytes, seed=seed) for seed in (0, 1)))
        first, again, other = (CallOutcome(run.outputs, None) for run in runs)
        if is_beyond(difference(first, other), difference(first, again)):
            return Reference(None, "", (_DRAWS,))
    return reference


def _first_that_runs(subject: ExaminedModel, available_bytes: int, *, seed: int) -> Reference:
    doubts: list[str] = []
    unfit: tuple[torch.Tensor, ...] | None = None
    needed_bytes = 8 * sum(tensor.numel() for _, _, tensor in named_tensors(subject, subject.tensors))
    if any(tensor.device.type == "mps" for tensor in subject.parameters()):
        doubts.append("mps has no float64")
    else:
        for name, hold, bytes_ in (
            ("float64", in_wide, ROOM * needed_bytes),
            ("float64, layer by layer", _by_layer, 0.0),
        ):
            if bytes_ > available_bytes:
                doubts.append(
                    f"float64 needs {bytes_ / 2**30:.3g} GiB, {available_bytes / 2**30:.3g} GiB are free: the "
                    "reference is float64 layer by layer"
                )
                continue
            reference = run_as(subject, hold, seed=seed)
            if _may_serve(subject, reference):
                return Reference(reference.outputs, name, tuple(doubts))
            unfit = unfit or reference.outputs
            doubts.append(f"no reference in {name}: {_why(reference)}")
    reference = run_as(subject, in_wide, torch.float32, seed=seed)
    if _may_serve(subject, reference):
        doubts.append("drift is held to float32, so what is finer than float32 is not seen")
        return Reference(reference.outputs, "float32", tuple(doubts), unfit)
    doubts.append(f"no reference in float32 either: {_why(reference)}; drift was not measured")
    return Reference(None, "", tuple(doubts), unfit)


def _may_serve(subject: ExaminedModel, outcome: CallOutcome) -> bool:
    """Whether an outcome can be the reference: no NaN; infinities only where no parameter overflowed when stored."""
    if outcome.outputs is None or any(bool(output.isnan().any()) for output in outcome.outputs):
        return False
    if outcome.broken()[0] == 0:
        return True
    floating = (p for p in subject.parameters() if p.is_floating_point() and p.element_size() > 1)
    return all(bool(parameter.isfinite().all()) for parameter in floating)


def _why(outcome: CallOutcome) -> str:
    if outcome.error is not None:
        return f"{type(outcome.error).__name__}: {first_line(outcome.error)}"
    return "its output is not finite"


def run_as(
    subject: ExaminedModel,
    hold: Callable[[ExaminedModel, torch.dtype], AbstractContextManager[None]],
    wide: torch.dtype = torch.float64,
    *,
    seed: int = 0,
    through: Callable[[ExaminedModel, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] | None = None,
) -> CallOutcome:
    """Call a copy held in a wider format, in which it draws what the model draws; `through` calls it in another way."""
    twin = copy_model(subject)
    drawing = DrawnAs(subject.drawn or ())
    inputs = in_dtype(twin.tensors, wide)

    def call() -> tuple[torch.Tensor, ...]:
        with hold(twin, wide), drawing:
            return twin(*inputs) if through is None else through(twin, inputs)

    outcome = attempt(call, seed=seed)
    if not drawing.drawn or subject.drawn is not None:
        return outcome
    fresh, drawing = copy_model(subject), DrawnAs()
    with drawing:
        attempt(lambda: fresh(*fresh.tensors), seed=seed)
    subject.drawn = tuple(drawing.drawn)
    return run_as(subject, hold, wide, seed=seed, through=through)


def _widen(model: nn.Module, dtype: torch.dtype, *, kinds: tuple[str, ...]) -> None:
    """Bring stored tensors and dtype attributes of a copy to a dtype, in place."""
    for kind, _, tensor in named_tensors(model, ()):
        if kind in kinds:
            tensor.data = tensor.data.to(dtype)
    set_dtype_attributes(model, dtype)


@contextmanager
def in_wide(twin: ExaminedModel, wide: torch.dtype) -> Iterator[None]:
    """Hold a copy in a wide format, in which casts to narrower ones do nothing."""
    _widen(twin, wide, kinds=("parameter", "buffer", "attribute"))
    with KeepingWide(wide):
        yield


@contextmanager
def _by_layer(twin: ExaminedModel, wide: torch.dtype) -> Iterator[None]:
    """Hold a copy so that each module's own parameters are wide while it is called."""
    _widen(twin, wide, kinds=("buffer", "attribute"))
    stored: list[list[tuple[nn.Parameter, torch.Tensor]]] = []

    def before(module: nn.Module, _: Any) -> None:
        narrower = [p for p in module.parameters(recurse=False) if p.is_floating_point() and p.dtype is not wide]
        stored.append([(parameter, parameter.data) for parameter in narrower])
        for parameter in narrower:
            parameter.data = parameter.data.to(wide)

    def after(*_: Any) -> None:
        for parameter, data in stored.pop():
            parameter.data = data

    handles = [
        module_hooks.register_module_forward_pre_hook(before),
        module_hooks.register_module_forward_hook(after, always_call=True),
    ]
    try:
        with KeepingWide(wide):
            yield
    finally:
        for handle in handles:
            handle.remove()


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """Return where a model runs: a GPU also where some of its tensors are on the CPU, as lengths often are."""
    devices = [tensor.device for tensor in tensors]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def check_available(available_bytes: int | None, device: torch.device | str = "cpu") -> int:
    """Return the memory that may be used: what the machine, or the GPU, has free, unless the caller says."""
    if available_bytes is None and torch.device(device).type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + held)
    if available_bytes is None:
        import psutil

        return int(psutil.virtual_memory().available)
    if available_bytes < 0:
        raise ParameterError(f"available_bytes is {available_bytes}; expected 0 or more")
    return available_bytes
