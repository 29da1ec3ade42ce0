"""The two sides of a gate in one process: their case built from each tree, on the same tensors, and called.

Conventions: whatever a tree sets for the whole process would act on the other side too: settings must agree, and
replaced functions of torch are refused. What a model raises under a fix is that fix's result.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precision_eval.core.cells import failure_of
from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import short
from precision_eval.core.targets import first_line, is_target
from precision_eval.fixes.packing import floating_leaves, pack
from precision_eval.fixes.storage import storage_bytes
from precision_eval.gate.result import GatePlan, SideFigures
from precision_eval.gate.source_trees import ModuleTree, SourceTree
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.float64_reference import Reference, check_available, device_of, reference_of
from precision_eval.measure.model_calls import CallOutcome

Tensors = tuple[torch.Tensor, ...]

BASE, HEAD = "base", "head"
REMEDY = "run each side into a folder of its own and compare by `precision-eval report BASE HEAD`"


@contextmanager
def blaming(tree: SourceTree) -> Iterator[None]:
    """Name the side in what its code raises, in place of a temporary folder."""
    try:
        yield
    except Exception as error:
        text = first_line(error).replace(f"{tree.root}/", "").replace(str(tree.root), "its root")
        text = text.removeprefix(f"{tree.title} ")
        raise ParameterError(f"{tree.title}: {text}") from error


def own_module(module: str) -> Any:
    """Return a module of this package; that of the active tree, where it holds this package itself."""
    return importlib.import_module(f"precision_eval.{module}")


@dataclass
class GateSide:
    modules: ModuleTree
    model: nn.Module
    inputs: Tensors
    fixes: dict[str, Any]
    size: str
    digest: str = ""

    def reference(self, inputs: Tensors) -> Reference:
        """Run the model in float64 on the inputs as stored."""
        with self.modules.active():
            subject = self.model if hasattr(self.model, "tensors") else pack(self.model, inputs)
            free_bytes = check_available(None, device_of((*inputs, *self.model.parameters())))
            return reference_of(subject, available_bytes=free_bytes)  # type: ignore[arg-type]

    @contextmanager
    def block(self, applied: Any) -> Iterator[None]:
        """Hold a fix of this side for a block of calls."""
        with self.modules.switched(), applied.agreeing():
            yield

    def put_on(self, fix: str, mode: str, stack: ExitStack) -> Any:
        """Put a fix on a copy of the model; returns it, or why it cannot be."""
        try:
            with self.modules.active():
                applied = self.fixes[fix].applied(copy.deepcopy(self.model), mode=mode)
                stack.enter_context(applied.stored())
        except Exception as error:  # noqa: BLE001 - whatever a model raises under a fix is that fix's result
            return _failure(fix, error)
        return applied

    def call(self, fix: str, applied: Any, inputs: Tensors, stored_bytes: int | None) -> GateCall | SideFigures:
        """Call once; returns what can be timed, or why it cannot."""
        if isinstance(applied, SideFigures):
            return applied
        try:
            with self.modules.active(), applied.agreeing():
                outputs = tuple(output.detach().clone() for output in floating_leaves(applied(*inputs)))
        except Exception as error:  # noqa: BLE001 - as above
            return _failure(fix, error)
        broken, total = CallOutcome(outputs, None).broken()
        if broken:
            return SideFigures(status="non_finite", reason=f"{broken} of {total} output values are NaN or infinite")
        candidate = Candidate(applied.bind(*inputs), partial(self.block, applied))
        return GateCall(candidate, applied, inputs, outputs, stored_bytes)


@dataclass(frozen=True)
class GateCall:
    candidate: Candidate
    applied: Any
    inputs: Tensors
    outputs: Tensors
    stored_bytes: int | None


def _failure(fix: str, error: Exception) -> SideFigures:
    outcome = failure_of(fix, error)
    return SideFigures(status=outcome.status, reason=outcome.reason or "")


# What a tree may set for the whole process, and so for the other side too; how it is read and set.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
}


def _settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def _torch_functions() -> dict[str, Any]:
    """Return what a tree might replace of torch, and operators, whose names the last definition takes over."""
    owners = {"torch": torch, "torch.nn.functional": nn.functional, "Tensor": torch.Tensor, "Module": nn.Module}
    functions = {
        f"{name}.{key}": "torch's" if _is_torch_code(value) else value  # torch itself replaces some as parts of it load
        for name, owner in owners.items()
        for key, value in vars(owner).items()
        if callable(value)
    }
    operators = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})
    return functions | {f"the operator {name}": operator for name, operator in operators.items()}


def _is_torch_code(value: Any) -> bool:
    code = getattr(value, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(Path(torch.__file__).parent)


def build_sides(
    trees: tuple[SourceTree, SourceTree], plan: GatePlan, case: str, process: int
) -> tuple[GateSide, GateSide, tuple[str, ...]]:
    """Build both sides, in turn first, on the same tensors; returns them with notes."""
    sides: dict[str, GateSide] = {}
    before, functions, after = _settings(), _torch_functions(), {}
    for tree in trees if process % 2 == 0 else trees[::-1]:
        for name, value in _settings().items():
            if value != before[name]:
                _SETTINGS[name][1](before[name])
        sides[tree.role] = _build(tree, plan, case, plan.seed + process)
        after[tree.role] = _settings()
        now = _torch_functions()
        replaced = [name for name, value in now.items() if functions.get(name, value) is not value]
        functions = now
        if replaced:
            raise ParameterError(
                f"{tree.title} replaces {', '.join(replaced[:3])} for the whole process, so the other side would run "
                f"with it; {REMEDY}"
            )
    for name, value in after[BASE].items():
        if after[HEAD][name] != value:
            raise ParameterError(
                f"{trees[0].title} leaves {name} at {value} and {trees[1].title} at {after[HEAD][name]}, a setting "
                f"of the whole process; {REMEDY}"
            )
    base, head = sides[BASE], sides[HEAD]
    _check_alike(base, head, trees)
    notes = _tie(base.model, head.model, take_values=True)
    if not all(map(torch.equal, base.inputs, head.inputs)):
        notes.append("head's factory makes other inputs than base's: both sides got base's")
    return base, head, tuple(notes)


def _build(tree: SourceTree, plan: GatePlan, case: str, seed: int) -> GateSide:
    with blaming(tree):
        modules = ModuleTree(tree)
        with modules.active():
            definition = own_module("cases.systems").case_by_id(case)
            size = plan.size or definition.default_sizes[0]
            built = definition.build(size, device=plan.device, seed=seed)
            fixes = {fix: own_module("fixes.catalog").fix_by_id(fix) for fix in plan.fixes}
        digest = "" if is_target(case) else str(definition.digest)  # a user's is of the source, which may change
        return GateSide(modules, built.model, tuple(built.inputs), fixes, size, digest)


def _check_alike(base: GateSide, head: GateSide, trees: tuple[SourceTree, SourceTree]) -> None:
    """Refuse a shipped case of another digest, and other kinds of inputs."""
    if base.digest != head.digest:
        raise ParameterError(
            f"the case is not the same computation on both sides: its digest is {base.digest[:12]} in "
            f"{trees[0].title} and {head.digest[:12]} in {trees[1].title}; compare commits that agree on it"
        )
    before, after = (", ".join(map(_kind, side.inputs)) or "none" for side in (base, head))
    if before != after:
        raise ParameterError(
            f"the case is not the same computation on both sides: inputs are {before} in {trees[0].title} and "
            f"{after} in {trees[1].title}; compare sides whose factories return inputs of the same shapes and dtypes"
        )


def _kind(tensor: torch.Tensor) -> str:
    return f"{short(tensor.dtype)} {tuple(tensor.shape)}"


def _tie(base: nn.Module, head: nn.Module, *, take_values: bool = False) -> list[str]:
    """Let head's tensors use base's memory where names, shapes, dtypes and layouts agree; returns what differed."""
    different, alone = 0, 0
    base_tensors = _tensors(base)
    for name, tensor in _tensors(head).items():
        other = base_tensors.get(name)
        if other is None or _kind(other) != _kind(tensor):
            alone += 1
            continue
        equal = torch.equal(other, tensor)
        if not (equal or take_values):
            continue
        different += not equal
        if other.stride() == tensor.stride() and other.untyped_storage().nbytes() == tensor.untyped_storage().nbytes():
            tensor.data = other.data
        else:
            tensor.data.copy_(other.data)
    notes = []
    if different:
        notes.append(f"{different} of head's tensors held other values than base's of that name, and took base's")
    if alone:
        notes.append(f"{alone} of head's tensors have no like in base and keep their own values and memory")
    return notes


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, and tensors that modules keep as plain attributes."""
    attributes = {
        f"attribute {path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }
    return {**dict(model.named_parameters()), **dict(model.named_buffers()), **attributes}


def call_pair(
    base: GateSide, head: GateSide, fix: str, mode: str, stack: ExitStack
) -> tuple[GateCall | SideFigures, GateCall | SideFigures]:
    """Put a fix on both sides, on the same tensors, and call each once."""
    applied = [side.put_on(fix, mode, stack) for side in (base, head)]
    failed = [isinstance(side, SideFigures) for side in applied]
    stored = [None if bad else storage_bytes(side.model) for side, bad in zip(applied, failed, strict=True)]
    inputs = [() if bad else side.prepare(base.inputs) for side, bad in zip(applied, failed, strict=True)]
    if not any(failed):
        _tie(applied[0].model, applied[1].model)
        if list(map(_kind, inputs[0])) == list(map(_kind, inputs[1])):
            inputs[1] = inputs[0]
    first = base.call(fix, applied[0], inputs[0], stored[0])
    second = head.call(fix, applied[1], inputs[1], stored[1])
    if isinstance(first, GateCall) and isinstance(second, GateCall):
        check_shapes(first.outputs, second.outputs, f"base under {fix}", f"head under {fix}")
    return first, second


def check_shapes(before: Tensors, after: Tensors, base: str, head: str) -> None:
    shapes = [[tuple(output.shape) for output in outputs] for outputs in (before, after)]
    if shapes[0] != shapes[1]:
        raise ParameterError(
            f"the case is not the same computation on both sides: outputs are {shapes[0]} in {base} and {shapes[1]} in "
            f"{head}; compare sides that return outputs of the same shapes"
        )
