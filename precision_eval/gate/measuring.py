"""Base and head of a repository side by side: both imported by one process, on the same tensors, timed in turn.

Conventions: every process is forked from a parent that has imported torch and run nothing, and has a seed of its own
for weights and inputs. It builds both sides' case (in turn first), gives head base's inputs, and lets head's parameters
and buffers use base's memory where names, shapes and dtypes agree, so that where tensors lie is the same for both. Then
a fix of base and of head are timed in the same rounds, with the allocator held as in a run, beside a fixed numpy
computation, the anchor. Two processes run at once where there are cores and memory for it. Drift of both sides is to
one reference, base's model in float64. This module imports torch.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.core.cells import failure_of
from precision_eval.core.environment import cpu_model, resolved_device, usable_cores
from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import short
from precision_eval.core.formatting import counted
from precision_eval.core.targets import first_line, is_target
from precision_eval.core.workers import WorkerError, WorkerRaisedError, call_each
from precision_eval.fixes.packing import floating_leaves, packed
from precision_eval.fixes.storage import storage_bytes
from precision_eval.gate import (
    FigureChange,
    GateCell,
    GateResult,
    Margins,
    PairFigures,
    SideFigures,
    judge_pairs,
    split_by_look,
)
from precision_eval.gate.source_trees import ModuleTree, SourceTree, source_trees
from precision_eval.history.timing import anchor_call
from precision_eval.measure.allocator import GROWN, memory_held
from precision_eval.measure.blocks import Candidate, Rounds, judged_clock
from precision_eval.measure.float64_reference import Reference, check_available, reference_of
from precision_eval.measure.latency import sized_rounds, take_random_memory
from precision_eval.measure.memory import call_memory, peak_rss_bytes
from precision_eval.measure.model_calls import CallOutcome, output_error, relative_error
from precision_eval.measure.timers import HostTimer, timer_for
from precision_eval.stats import Location, paired_log_ratios, student_location

Tensors = tuple[torch.Tensor, ...]

BASE, HEAD, ANCHOR = "base", "head", "anchor"
MIN_ROUNDS = 15
SECOND_LOOK_SHARE = 0.3
MOST_TIMES_PROCESSES = 4
_ANCHOR_SHARE = 0.1
_ANCHOR_ROUNDS = 5
_PROCESS_LIMIT_S = 600.0
_MOST_LANES = 2  # what was tried
_MEMORY_SHARE = 0.5
_OTHER_COMPUTATION = 1e-6  # of the output, in float64; what is nearer may be a step that the code holds in float32
_STORED = "measure each side by `precision-eval run` and compare the two run folders"


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """What is compared, and how long.

    Attributes
    ----------
    cases : tuple of str
        Ids of cases, or where factories are written, the same place in both trees.
    fixes : tuple of str
        Ids of fixes, or where candidates are written.
    modes : tuple of str
    size : str or None
        Of the cases; None for each case's own.
    device : str
    threads : int
    seed : int
        Of the first process; the others count on.
    processes : int
    budget_s : float
        Seconds of timing per fix, all processes together. What is undecided then gets further processes, for at most
        three tenths of the time that the first took.
    """

    cases: tuple[str, ...]
    fixes: tuple[str, ...]
    modes: tuple[str, ...] = ("eager",)
    size: str | None = None
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    processes: int = 5
    budget_s: float = 5.0


@dataclass(frozen=True)
class ProcessFigures:
    """What one process measured of a case, and what it noted about the two sides."""

    pairs: dict[GateCell, PairFigures]
    notes: tuple[str, ...] = ()
    peak_rss_bytes: int = 0


def gate_trees(
    base: str,
    head: str,
    plan: GatePlan,
    *,
    margins: Margins,
    required: Sequence[str],
    progress: Callable[[str], None] = lambda text: None,
) -> GateResult:
    """Compare two commits or folders; raise :class:`ParameterError` where that is not possible."""
    with source_trees(base, head) as trees:
        progress("calling both sides")
        importlib.import_module("precision_eval.cases.adapters.models")  # here, and not by each process again
        plan = replace(plan, device=_isolated(resolved_device, plan.device))
        for case in plan.cases:
            for tree in trees if is_target(case) else ():
                _isolated(_admit, tree, plan, case)
            _isolated(_check_sides, trees, plan, case)
        began_s = time.monotonic()
        progress(f"process 1 of {plan.processes}")  # one by one: what they take says how many fit beside each other
        figures = [_isolated(measured_in_process, trees, plan, case, 0) for case in plan.cases]
        lanes = _lanes(plan, max(one.peak_rss_bytes for one in figures))
        jobs: list[tuple[Any, ...]] = [
            (trees, plan, case, process) for process in range(1, plan.processes) for case in plan.cases
        ]
        for at in range(0, len(jobs), lanes):
            progress(f"process {jobs[at][-1] + 1} of {plan.processes}")
            figures += _isolated_each(measured_in_process, jobs[at : at + lanes], lanes)
        judged = partial(_judged, figures, trees=trees, margins=margins, required=required)
        result = judged()
        undecided, settled = split_by_look(result)
        if not undecided:
            return result
        looked_s = time.monotonic()
        end_s = looked_s + SECOND_LOOK_SHARE * (looked_s - began_s)
        cases = tuple(dict.fromkeys(cell.case for cell in undecided))
        further = range(plan.processes, MOST_TIMES_PROCESSES * plan.processes)
        jobs = [(trees, plan, case, process, undecided) for process in further for case in cases]
        for at in range(0, len(jobs), lanes):
            progress(f"{counted(len(undecided), 'cell')} undecided: process {jobs[at][3] + 1}")
            figures += _isolated_each(measured_in_process, jobs[at : at + lanes], lanes)
            if time.monotonic() >= end_s and at + lanes >= len(cases):
                break
        return judged(settled=settled)


def _lanes(plan: GatePlan, peak_rss_bytes: int) -> int:
    """Return how many processes run at once: a core and memory for each; what both sides share in a process cancels."""
    if plan.device != "cpu":
        return 1
    fitting = int(_MEMORY_SHARE * check_available(None) / max(peak_rss_bytes, 1))
    return max(1, min(_MOST_LANES, usable_cores() // plan.threads, fitting))


def _judged(
    figures: Sequence[ProcessFigures],
    *,
    trees: tuple[SourceTree, SourceTree],
    margins: Margins,
    required: Sequence[str],
    settled: Sequence[FigureChange] = (),
) -> GateResult:
    cells = {cell: [f.pairs[cell] for f in figures if cell in f.pairs] for one in figures for cell in one.pairs}
    machine = {"torch": torch.__version__, "machine": cpu_model() or "unknown"}
    return judge_pairs(
        cells,
        names=(trees[0].name, trees[1].name),
        remarks=(machine, machine),
        margins=margins,
        required=required,
        doubts=tuple(dict.fromkeys(note for one in figures for note in one.notes)),
        settled=settled,
    )


def _isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    return _isolated_each(function, [arguments], 1)[0]


def _isolated_each(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], at_once: int) -> list[Any]:
    answers = call_each(function, arguments, at_once=at_once, timeout_s=_PROCESS_LIMIT_S)
    for answer in answers:
        if isinstance(answer, WorkerRaisedError):
            raise answer.__cause__ or answer from None
        if isinstance(answer, WorkerError):
            raise ParameterError(f"base and head could not be called in one process: {answer}; {_STORED}") from answer
    return answers


def _admit(tree: SourceTree, plan: GatePlan, case: str) -> None:
    """Refuse, before anything is timed, a side that cannot be measured."""
    torch.set_num_threads(plan.threads)
    modules = ModuleTree(tree)
    with _blamed(tree), modules.active():
        _api("measure.admission").admitted_case(case, plan.device, plan.seed)


def _check_sides(trees: tuple[SourceTree, SourceTree], plan: GatePlan, case: str) -> None:
    """Refuse sides that cannot be in one process, or are not the same computation."""
    torch.set_num_threads(plan.threads)
    base, head, _ = _sides(trees, plan, case, 0)
    for own, given in zip(getattr(head.model, "tensors", ()), base.inputs, strict=False):
        own.data = given.data
    exact = [_reference(side, base.inputs) for side in (base, head)]
    if not all(found.name.startswith("float64") for found in exact):
        return
    before, after = (found.outputs or () for found in exact)
    _check_shapes(before, after, *(tree.title for tree in trees))
    apart = max(map(relative_error, after, before), default=0.0)
    if apart > _OTHER_COMPUTATION:
        raise ParameterError(
            f"the case is not the same computation on both sides: in float64, where casts to narrower formats do "
            f"nothing, the output of {trees[1].title} is {apart:.2g} of its size away from that of {trees[0].title}; "
            "compare sides that compute the same"
        )


def _check_shapes(before: Tensors, after: Tensors, base: str, head: str) -> None:
    """Refuse sides that return outputs of other shapes."""
    shapes = [[tuple(output.shape) for output in outputs] for outputs in (before, after)]
    if shapes[0] != shapes[1]:
        raise ParameterError(
            f"the case is not the same computation on both sides: outputs are {shapes[0]} in {base} and {shapes[1]} in "
            f"{head}; compare sides that return outputs of the same shapes"
        )


@contextmanager
def _blamed(tree: SourceTree) -> Iterator[None]:
    """Name the side in what its code raises, in place of a temporary folder."""
    try:
        yield
    except Exception as error:
        text = first_line(error).replace(f"{tree.root}/", "").replace(str(tree.root), "its root")
        text = text.removeprefix(f"{tree.title} ")
        raise ParameterError(f"{tree.title}: {text}") from error


def _api(module: str) -> Any:
    """Return a module of this package; that of the active tree, where it holds this package itself."""
    return importlib.import_module(f"precision_eval.{module}")


@dataclass
class GateSide:
    """One side's case, built in this process."""

    role: str
    modules: ModuleTree
    model: nn.Module
    inputs: Tensors
    fixes: dict[str, Any]
    size: str
    digest: str = ""

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
            return _failed(fix, error)
        return applied

    def called(self, fix: str, applied: Any, inputs: Tensors, stored_bytes: int | None) -> GateCall | SideFigures:
        """Call once; returns what can be timed, or why it cannot."""
        if isinstance(applied, SideFigures):
            return applied
        try:
            with self.modules.active(), applied.agreeing():
                outputs = tuple(output.detach().clone() for output in floating_leaves(applied(*inputs)))
        except Exception as error:  # noqa: BLE001 - as above
            return _failed(fix, error)
        broken, total = CallOutcome(outputs, None).broken()
        if broken:
            return SideFigures(status="non_finite", reason=f"{broken} of {total} output values are NaN or infinite")
        candidate = Candidate(partial(applied, *inputs), partial(self.block, applied))
        return GateCall(candidate, applied, inputs, outputs, stored_bytes)


@dataclass(frozen=True)
class GateCall:
    """A fix of one side, ready to be timed, with what it returned."""

    candidate: Candidate
    applied: Any
    inputs: Tensors
    outputs: Tensors
    stored_bytes: int | None


def _failed(fix: str, error: Exception) -> SideFigures:
    outcome = failure_of(fix, error)
    return SideFigures(status=outcome.status, reason=outcome.reason or "")


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
}
"""What a tree may set for the whole process, and so for the other side too; how it is read and set."""


def _settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def _torch_functions() -> dict[str, Any]:
    """Return what a tree might replace of torch, operators defined in Python included.

    What torch writes anew itself, as parts of it load, is as it was.
    """
    owners = {"torch": torch, "torch.nn.functional": nn.functional, "Tensor": torch.Tensor, "Module": nn.Module}
    functions = {
        f"{name}.{key}": "torch's" if _is_torch_code(value) else value
        for name, owner in owners.items()
        for key, value in vars(owner).items()
        if callable(value)
    }
    operators = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})  # a second one takes a name over
    return functions | {f"the operator {name}": operator for name, operator in operators.items()}


def _is_torch_code(value: Any) -> bool:
    code = getattr(value, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(Path(torch.__file__).parent)


def _sides(
    trees: tuple[SourceTree, SourceTree], plan: GatePlan, case: str, process: int
) -> tuple[GateSide, GateSide, tuple[str, ...]]:
    """Build both sides, in turn first, on the same tensors; returns them with notes."""
    sides: dict[str, GateSide] = {}
    before, functions, after = _settings(), _torch_functions(), {}
    for tree in trees if process % 2 == 0 else trees[::-1]:
        for name, value in _settings().items():
            if value != before[name]:
                _SETTINGS[name][1](before[name])
        sides[tree.role] = _built(tree, plan, case, plan.seed + process)
        after[tree.role] = _settings()
        now = _torch_functions()
        replaced = [name for name, value in now.items() if functions.get(name, value) is not value]
        functions = now
        if replaced:
            raise ParameterError(
                f"{tree.title} replaces {', '.join(replaced[:3])} for the whole process, so the other side would run "
                f"with it; {_STORED}"
            )
    for name, value in after[BASE].items():
        if after[HEAD][name] != value:
            raise ParameterError(
                f"{trees[0].title} leaves {name} at {value} and {trees[1].title} at {after[HEAD][name]}, which is one "
                f"for a whole process; {_STORED}"
            )
    base, head = sides[BASE], sides[HEAD]
    _check_alike(base, head, trees)
    notes = _tied(base.model, head.model, take_values=True)
    if not all(map(torch.equal, base.inputs, head.inputs)):
        notes.append("head's factory makes other inputs than base's: base's were given to both")
    return base, head, tuple(notes)


def _built(tree: SourceTree, plan: GatePlan, case: str, seed: int) -> GateSide:
    with _blamed(tree):
        modules = ModuleTree(tree)
        with modules.active():
            found = _api("cases.systems").case_by_id(case)
            size = plan.size or found.default_sizes[0]
            built = found.build(size, device=plan.device, seed=seed)
            fixes = {fix: _api("fixes.catalog").fix_by_id(fix) for fix in plan.fixes}
        digest = "" if is_target(case) else str(found.digest)  # of one's own it is of the source, which may change
        return GateSide(tree.role, modules, built.model, tuple(built.inputs), fixes, size, digest)


def _check_alike(base: GateSide, head: GateSide, trees: tuple[SourceTree, SourceTree]) -> None:
    """Refuse sides that are not the same computation: a shipped case of another digest, other kinds of inputs."""
    if base.digest != head.digest:
        raise ParameterError(
            f"the case is not the same computation on both sides: its digest is {base.digest[:12]} in "
            f"{trees[0].title} and {head.digest[:12]} in {trees[1].title}; compare commits that agree on it"
        )
    kinds = [[_kind(tensor) for tensor in side.inputs] for side in (base, head)]
    if kinds[0] != kinds[1]:
        described = [", ".join(own) or "none" for own in kinds]
        raise ParameterError(
            f"the case is not the same computation on both sides: inputs are {described[0]} in {trees[0].title} and "
            f"{described[1]} in {trees[1].title}; compare sides whose factories return alike inputs"
        )


def _kind(tensor: torch.Tensor) -> str:
    return f"{short(tensor.dtype)} {tuple(tensor.shape)}"


def _tied(base: nn.Module, head: nn.Module, *, take_values: bool = False) -> list[str]:
    """Let head's tensors use base's memory where names, shapes, dtypes and layouts agree."""
    notes, others, alone = [], 0, 0
    kept = _tensors(base)
    for name, tensor in _tensors(head).items():
        own = kept.get(name)
        if own is None or _kind(own) != _kind(tensor):
            alone += 1
            continue
        equal = torch.equal(own, tensor)
        if not (equal or take_values):
            continue
        others += not equal
        if own.stride() == tensor.stride() and own.untyped_storage().nbytes() == tensor.untyped_storage().nbytes():
            tensor.data = own.data
        else:
            tensor.data.copy_(own.data)
    if others:
        notes.append(f"{others} of head's tensors held other values than base's of that name, and took base's")
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


def measured_in_process(
    trees: tuple[SourceTree, SourceTree],
    plan: GatePlan,
    case: str,
    process: int,
    only: frozenset[GateCell] | None = None,
) -> ProcessFigures:
    """Measure the fixes of a case on both sides, all or those of some cells, in this process."""
    padding = take_random_memory(process)
    torch.set_num_threads(plan.threads)
    base, head, notes = _sides(trees, plan, case, process)
    reference: Tensors | None = None
    pairs, doubts = {}, list(notes)
    for fix, mode in itertools.product(plan.fixes, plan.modes):
        cell = GateCell(case, fix, mode, base.size, plan.device)
        if not all(mode in side.fixes[fix].modes for side in (base, head)) or cell not in (only or {cell}):
            continue
        with ExitStack() as stack:
            calls = _called_pair(base, head, fix, mode, stack)
            log_ratio, seconds, to_anchor = _timed(*calls, plan, process)
            if reference is None and any(isinstance(call, GateCall) for call in calls):
                found = _reference(base, base.inputs)
                reference, doubts = found.outputs or (), [*doubts, *found.doubts]
            sides = [
                _with_exact(call, reference, seconds.get(role), to_anchor.get(role), memory=process == 0)
                for role, call in zip((BASE, HEAD), calls, strict=True)
            ]
        pairs[cell] = PairFigures(
            base=sides[0],
            head=sides[1],
            log_ratio=None if log_ratio is None else log_ratio.estimate,
            standard_error=0.0 if log_ratio is None else log_ratio.standard_error,
            elapsed_s=plan.budget_s / plan.processes,
        )
    del padding
    return ProcessFigures(pairs, tuple(doubts), peak_rss_bytes())


def _called_pair(
    base: GateSide, head: GateSide, fix: str, mode: str, stack: ExitStack
) -> tuple[GateCall | SideFigures, GateCall | SideFigures]:
    """Put a fix on both sides, on the same tensors, and call each once."""
    applied = [side.put_on(fix, mode, stack) for side in (base, head)]
    stored = [None if isinstance(one, SideFigures) else storage_bytes(one.model) for one in applied]
    inputs = [() if isinstance(one, SideFigures) else one.prepare(base.inputs) for one in applied]
    if not any(isinstance(one, SideFigures) for one in applied):
        _tied(applied[0].model, applied[1].model)
        if list(map(_kind, inputs[0])) == list(map(_kind, inputs[1])):
            inputs[1] = inputs[0]
    first = base.called(fix, applied[0], inputs[0], stored[0])
    second = head.called(fix, applied[1], inputs[1], stored[1])
    if isinstance(first, GateCall) and isinstance(second, GateCall):
        _check_shapes(first.outputs, second.outputs, f"base under {fix}", f"head under {fix}")
    return first, second


def _timed(
    base: GateCall | SideFigures, head: GateCall | SideFigures, plan: GatePlan, process: int
) -> tuple[Location | None, dict[str, float], dict[str, float]]:
    """Time a fix of both sides in the same rounds; returns the log-ratio, seconds, and ratios to the anchor."""
    if isinstance(base, SideFigures) or isinstance(head, SideFigures):
        return None, {}, {}
    candidates = {BASE: base.candidate, HEAD: head.candidate}
    timer, budget_s = timer_for(plan.device), plan.budget_s / plan.processes
    on_host = isinstance(timer, HostTimer)  # no clock but the host's sees a computation by numpy
    with memory_held(GROWN):
        rounds = sized_rounds(candidates, timer, baseline=BASE, seed=plan.seed + process)
        rounds.run_until((1.0 - _ANCHOR_SHARE * on_host) * budget_s, min_rounds=MIN_ROUNDS)
        to_anchor = {}
        if on_host:
            anchored = Rounds(
                {**candidates, ANCHOR: Candidate(anchor_call())}, timer, {**rounds.calls, ANCHOR: 1}, plan.seed
            )
            anchored.run_until(_ANCHOR_SHARE * budget_s, min_rounds=_ANCHOR_ROUNDS)
            to_anchor = {role: math.exp(_log_ratio(anchored, role, ANCHOR).estimate) for role in candidates}
    clock = judged_clock(rounds, HEAD, BASE)
    seconds = {role: float(np.median(rounds.times_s[clock][role])) for role in candidates}
    return _log_ratio(rounds, HEAD, BASE), seconds, to_anchor


def _log_ratio(rounds: Rounds, name: str, baseline: str) -> Location:
    times_s = rounds.times_s[judged_clock(rounds, name, baseline)]
    return student_location(paired_log_ratios(times_s[name], times_s[baseline]))


def _reference(side: GateSide, inputs: Tensors) -> Reference:
    """Run a side's model in float64 on the inputs as stored."""
    with side.modules.active():
        subject = side.model if hasattr(side.model, "tensors") else packed(side.model, inputs)
        return reference_of(subject, available_bytes=check_available(None))  # type: ignore[arg-type]


def _with_exact(
    call: GateCall | SideFigures,
    reference: Tensors | None,
    seconds: float | None,
    to_anchor: float | None,
    *,
    memory: bool,
) -> SideFigures:
    """Add drift and memory to what was timed of one side."""
    if isinstance(call, SideFigures):
        return call
    peak = None
    if memory:
        with call.candidate.block():
            device = call.inputs[0].device.type
            peak = call_memory(call.applied, call.inputs, model=call.applied.model, device=device).allocated_peak_bytes
    drift = output_error(call.outputs, reference)
    return SideFigures(
        seconds=seconds, to_anchor=to_anchor, drift=drift, peak_bytes=peak, stored_bytes=call.stored_bytes
    )
