"""The model that is examined, in a shape in which everything can call it: tensors in, floating tensors out.

Conventions: the given model and inputs are never called; each run is on a copy, with the seeds of torch, numpy and
Python set alike. A copy costs the model's memory once more while it lives.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import short
from precision_eval.fixes.late_dynamo import forced_eager
from precision_eval.fixes.packing import ExaminedModel, copy_model, in_dtype, pack
from precision_eval.fixes.storage import tensors_in
from precision_eval.trace.dtype_flow import DtypeFlow
from precision_eval.trace.operations import EIGHT_BITS, FLOATS
from precision_eval.trace.provenance import ProvenanceMap, named_tensors
from precision_eval.trace.value_counts import ValueCounts

# Share of an output's values that may be zero and are not so in float64: those of near ties are far fewer.
MOST_ZEROS = 0.1

# Two differences of one origin, such as the order of a sum on a GPU, are taken to be within this factor.
BEYOND = 10.0


def subject_of(model: Any, inputs: tuple[Any, ...]) -> ExaminedModel:
    subject = pack(model, inputs)
    named = dict(zip(subject.names, subject.tensors, strict=True))
    for role, name, tensor in named_tensors(subject, named, prefix=subject.prefix):
        if tensor.dtype not in FLOATS and tensor.dtype not in EIGHT_BITS:
            raise ParameterError(
                f"the {role} '{name}' is {short(tensor.dtype)}; expected float16, bfloat16, float32, float64, or "
                "float8_e4m3fn or float8_e5m2 as storage: upcast it before the examination"
            )
        if tensor.device.type == "meta":
            raise ParameterError(
                f"the {role} '{name}' is on meta and has no values; load the weights on a device, not offloaded"
            )
        value: Any = tensor  # mypy takes no tensor for a subclass
        if is_traceable_wrapper_subclass(value):
            raise ParameterError(
                f"the {role} '{name}' is a {type(value).__name__}, such as shards and quantized weights are; expected "
                "a plain tensor: gather it (full_tensor()) or dequantize it before the examination"
            )
    return subject


@dataclass(frozen=True)
class CallOutcome:
    """What one call came to; `inside` counts the values of an observed call that are not finite, and all of them."""

    outputs: tuple[torch.Tensor, ...] | None
    error: Exception | None
    inside: tuple[int, int] = (0, 0)

    @property
    def are_tokens(self) -> bool:
        """Whether the outputs are integers, which are always finite."""
        return bool(self.outputs) and not any(output.is_floating_point() for output in self.outputs or ())

    def broken(self, truth: tuple[torch.Tensor, ...] | None = None, *, meant: int = 0) -> tuple[int, int]:
        """Count the output values that are not finite, and all.

        Of tokens that differ from the truth's, the values inside the observed call, where they are more than `meant`.
        """
        outputs = self.outputs or ()
        if self.are_tokens:
            broken, total = self.inside
            return (broken if broken > meant and output_error(outputs, truth) else 0), total
        lost = [~output.isfinite() for output in outputs]
        if truth is not None and [t.shape for t in truth] == [o.shape for o in outputs]:
            lost = [mask & (o != exact) for mask, o, exact in zip(lost, outputs, truth, strict=True)]
        return sum(int(mask.sum()) for mask in lost), sum(output.numel() for output in outputs)


# Put in the place of numpy's generator while it is seeded; copying its state there and back takes far longer.
_SPARE: list[np.random.MT19937] = []


@contextmanager
def seed_all(seed: int = 0) -> Iterator[None]:
    """Set the seeds of torch, numpy and Python for a block, and put back what was there."""
    state, generator = random.getstate(), mtrand.get_bit_generator()
    spare = _SPARE.pop() if _SPARE else np.random.MT19937()
    mtrand.set_bit_generator(spare)  # the global one is what models use
    try:
        # not torch.manual_seed: where CUDA is not in use, that keeps a stack trace for each call until it is
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(seed)
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        random.setstate(state)
        mtrand.set_bit_generator(generator)
        _SPARE.append(spare)


def attempt(call: Callable[[], tuple[torch.Tensor, ...]], *, seed: int = 0) -> CallOutcome:
    """Run a call with set seeds and without gradients; what it raises is its outcome."""
    try:
        with seed_all(seed), torch.no_grad():
            return CallOutcome(tuple(output.detach().clone() for output in call()), None)
    except SystemExit as error:
        raise ParameterError("the model ends the program when it is called; expected that it returns") from error
    except Exception as error:  # noqa: BLE001 - whatever a model raises is what is examined
        return CallOutcome(None, error)


def run_fresh(subject: ExaminedModel, *, seed: int = 0) -> CallOutcome:
    fresh = copy_model(subject)
    return attempt(lambda: fresh(*fresh.tensors), seed=seed)


@dataclass(frozen=True)
class Repeatability:
    outcome: CallOutcome
    difference: float
    carries_state: bool
    changed: tuple[str, ...]
    draws: bool


def run_twice(subject: ExaminedModel) -> Repeatability:
    """Call two copies, one of them once more, and a third with another seed; notes which parameters a call changes."""
    first = run_fresh(subject)
    fresh = copy_model(subject)
    versions = {name: parameter._version for name, parameter in fresh.named_parameters()}
    before = [(name, tensor, tensor.clone()) for _, name, tensor in named_tensors(fresh, (), prefix=fresh.prefix)]
    second = attempt(lambda: fresh(*fresh.tensors))
    updated = tuple(name for name, p in fresh.named_parameters() if p._version != versions.get(name, p._version))
    if updated and not subject.updated and _changes(subject, updated):
        subject.updated = updated
        return run_twice(subject)
    changed = tuple(name for name, tensor, was in before if not name.startswith("tensors[") and not _same(tensor, was))
    third = attempt(lambda: fresh(*fresh.tensors)) if second.error is None else second
    apart = difference(first, second)
    draws = is_beyond(difference(first, run_fresh(subject, seed=1)), apart)
    return Repeatability(first, apart, difference(second, third) > 0, changed, draws)


def _changes(subject: ExaminedModel, names: tuple[str, ...]) -> bool:
    """Whether a call changes parameters, in float64 at the latest: one that puts a parametrization on does not."""
    for dtype in (None, torch.float64):
        fresh = copy_model(subject).to(dtype)
        before = {name: fresh.get_parameter(name).clone() for name in names}
        outcome = attempt(lambda: fresh(*in_dtype(fresh.tensors, dtype)))  # noqa: B023 - called here
        now = dict(fresh.named_parameters())
        if outcome.error is not None and dtype is not None:
            return True  # nothing is known of it
        if not all(name in now and _same(now[name], was) for name, was in before.items()):
            return True
    return False


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype in EIGHT_BITS:  # of which torch neither replaces NaN nor compares
        left, right = left.float(), right.float()
    return left.shape == right.shape and torch.equal(left.nan_to_num(0.5), right.nan_to_num(0.5))


def is_beyond(distance: float, noise: float) -> bool:
    """Whether a difference is more than what calls that differ by `noise` from the same seed may show by chance."""
    return distance > BEYOND * noise


def difference(left: CallOutcome, right: CallOutcome) -> float:
    """Relative difference of two outcomes: 0 where alike, infinity where they are of another kind."""
    if left.outputs is None or right.outputs is None:
        return 0.0 if type(left.error) is type(right.error) else float("inf")
    if [(o.shape, o.dtype) for o in left.outputs] != [(o.shape, o.dtype) for o in right.outputs]:
        return float("inf")
    return max((relative_error(a, b) for a, b in zip(left.outputs, right.outputs, strict=True)), default=0.0)


def relative_error(output: torch.Tensor, truth: torch.Tensor) -> float:
    """‖output − truth‖₂ / ‖truth‖₂ in float64, over the values finite in both; infinity where others differ.

    Of integers, such as tokens, the share that differs.
    """
    if not output.is_floating_point():
        return float((output.cpu() != truth.cpu()).double().mean()) if output.numel() else 0.0
    a, b = (tensor.detach().to("cpu", torch.float64) for tensor in (output, truth))
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return float("inf")
    noise, norm = float((a - b)[finite].norm()), float(b[finite].norm())
    return 0.0 if noise == 0.0 else (noise / norm if norm else float("inf"))


def output_error(outputs: tuple[torch.Tensor, ...] | None, truth: tuple[torch.Tensor, ...] | None) -> float | None:
    """Largest relative error of outputs; None where there are none, or of other shapes."""
    if not outputs or not truth or [t.shape for t in truth] != [o.shape for o in outputs]:
        return None
    return max(relative_error(output, true) for output, true in zip(outputs, truth, strict=True))


def zeros_of(outputs: tuple[torch.Tensor, ...] | None, truth: tuple[torch.Tensor, ...] | None) -> tuple[float, float]:
    """Return the largest share of an output's values that are zero and not so in the truth, and the largest value."""
    largest = 0.0, 0.0
    for output, exact in zip(outputs or (), truth or (), strict=False):
        if output.shape == exact.shape and exact.numel() and output.is_floating_point():
            lost = exact[(output == 0) & (exact != 0)]
            if lost.numel():
                largest = max(largest, (lost.numel() / exact.numel(), float(lost.abs().max())))
    return largest


def base_dtype(subject: ExaminedModel) -> torch.dtype:
    """Dtype of most elements of the floating parameters; of the buffers, then of the inputs, where there are none.

    Float8 is storage, in which nothing computes, so it does not count. A model that brings its parameters to another
    format as it is called, as a sharded one does, is of that format once it was observed.
    """
    if subject.computes_in is not None:
        return subject.computes_in
    for tensors in (list(subject.parameters()), list(subject.buffers()), list(subject.tensors)):
        counts: Counter[torch.dtype] = Counter()
        for tensor in tensors:
            if tensor.dtype in FLOATS:
                counts[tensor.dtype] += tensor.numel()
        if counts:
            return counts.most_common(1)[0][0]
    return torch.get_default_dtype()


def _declared_wide(modules: list[tuple[str, nn.Module]], prefix: str) -> dict[str, frozenset[torch.dtype]]:
    """Read which parameters a model's class declares to be kept in float32, as transformers' classes do."""
    widths: dict[str, frozenset[torch.dtype]] = {}
    kinds = (
        ("_keep_in_fp32_modules", frozenset((torch.float16,))),
        ("_keep_in_fp32_modules_strict", frozenset((torch.float16, torch.bfloat16))),
    )
    for path, module in modules:
        for attribute, refused in kinds:
            # not getattr of the module, which searches all its parts for what most classes do not have
            names = vars(module).get(attribute) or getattr(type(module), attribute, None)
            if not names or isinstance(names, str):
                continue
            pattern = re.compile("|".join(rf"((^|\.){re.escape(str(name))}($|\.))" for name in names))
            for name, _ in module.named_parameters():
                if pattern.search(name):
                    full = (f"{path}.{name}" if path else name).removeprefix(prefix)
                    widths[full] = widths.get(full, frozenset()) | refused
    return widths


def module_paths(modules: list[tuple[str, nn.Module]], prefix: str) -> dict[int, str]:
    """Identity of each module of a subject → its path in the model as the user knows it."""
    return {id(m): "" if f"{path}." in prefix else path.removeprefix(prefix) for path, m in modules}


def observe_call(
    model: ExaminedModel,
    call: Callable[[], tuple[torch.Tensor, ...]],
    inputs: tuple[torch.Tensor, ...],
    *,
    base: torch.dtype,
    values: bool | ValueCounts,
    flow: type[DtypeFlow] = DtypeFlow,
) -> tuple[DtypeFlow, CallOutcome]:
    """Observe one call; `values` says whether results are counted, or by what; `flow` follows it."""
    modules, prefix = list(model.named_modules()), model.prefix
    declared = _declared_wide(modules, prefix)
    named = dict(zip(model.names, inputs, strict=True))
    stored = [
        entry
        for entry in named_tensors(model, named, prefix=prefix, by_path=modules)
        if not entry[1].startswith("tensors[")
    ]
    kept = frozenset(name for kind, name, t in stored if name in declared and t.dtype is not base)
    narrowed = frozenset(name for kind, name, t in stored if t.dtype in declared.get(name, ()))
    paths = module_paths(modules, prefix)
    observer = flow(ProvenanceMap(stored, kept), base, paths, watched=narrowed, values=values)

    def listen(name: str, value: Any) -> None:
        for path, tensor in tensors_in(name, value):
            observer.tensors.add("input", path, tensor)

    model.listener = listen
    kept_outputs: list[tuple[torch.Tensor, ...]] = []

    def run() -> tuple[torch.Tensor, ...]:
        kept_outputs.append(observer.observed(call))
        return ()

    try:
        with forced_eager():  # functions may be compiled by themselves too
            outcome = attempt(run)
    finally:
        model.listener = None
    outputs = kept_outputs[0] if kept_outputs else None
    return observer, CallOutcome(outputs, outcome.error, _values_inside(observer))


def _values_inside(observer: DtypeFlow) -> tuple[int, int]:
    """Count the values of a call that are not finite, and all; (0, 0) where none but a mask's is not finite."""
    if observer.numbers is None or not observer.numbers.broken:
        return 0, 0
    counts = observer.numbers.counts.values()
    return sum(count.non_finite for count in counts), sum(count.total for count in counts)
