"""Base and head of a repository side by side: both imported by one process, on the same tensors, timed in turn.

Conventions: every process is forked from a parent that has imported torch and run nothing, and has a seed of its own
for weights and inputs. It builds both sides' case (in turn first), gives head base's inputs, and lets head's parameters
and buffers use base's memory where names, shapes and dtypes agree, so that where tensors lie is the same for both. Then
a fix of base and of head are timed in the same rounds, with the allocator held as in a run. Two processes run at once
where there are cores and memory for it. Drift of both sides is to one reference, base's model in float64. A case whose
code and results are the same on both sides is not timed. This module imports torch.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from precision_eval.core.environment import cpu_model, usable_cores, usable_device
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import counted
from precision_eval.core.targets import is_target
from precision_eval.core.workers import WorkerError, WorkerRaisedError, call_each
from precision_eval.gate.judging import judge_pairs, split_by_look
from precision_eval.gate.result import (
    FigureChange,
    GateCell,
    GatePlan,
    GateResult,
    Margins,
    PairFigures,
    SideFigures,
    check_kinds,
)
from precision_eval.gate.sides import (
    BASE,
    HEAD,
    REMEDY,
    GateCall,
    GateSide,
    Tensors,
    blaming,
    build_sides,
    call_pair,
    check_shapes,
    own_module,
)
from precision_eval.gate.source_trees import ModuleTree, SourceTree, source_trees
from precision_eval.measure.allocator import GROWN, in_memory_state
from precision_eval.measure.blocks import choose_clock
from precision_eval.measure.float64_reference import check_available
from precision_eval.measure.graphs import CudaDevice, candidates_on_device
from precision_eval.measure.latency import size_rounds
from precision_eval.measure.memory import call_memory, peak_rss_bytes
from precision_eval.measure.model_calls import output_error, relative_error
from precision_eval.measure.placement import take_random_memory
from precision_eval.measure.timers import timer_for
from precision_eval.stats.paired import paired_log_ratios
from precision_eval.stats.robust import Location, student_location

MIN_ROUNDS = 15
SECOND_LOOK_SHARE = 0.3
MOST_TIMES_PROCESSES = 4
_PROCESS_LIMIT_S = 600.0
_MOST_LANES = 2  # more has not been tried
_MEMORY_SHARE = 0.5
_OTHER_COMPUTATION = 1e-6  # of the output, in float64; what is nearer may be a step that the code holds in float32


@dataclass(frozen=True)
class ProcessFigures:
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
    check_kinds(required)
    with source_trees(base, head) as trees:
        progress("calling both sides")
        importlib.import_module("precision_eval.measure.latency")  # here, and not by each process again
        plan = replace(plan, device=_isolated(usable_device, plan.device))
        for case, tree in itertools.product(filter(is_target, plan.cases), trees):
            _isolated(_admit, tree, plan, case)
        unchanged = [case for case in plan.cases if _isolated(_are_same, trees, plan, case)]
        plan = replace(plan, cases=tuple(case for case in plan.cases if case not in unchanged))
        figures: list[ProcessFigures] = []
        result = partial(
            _result, figures, trees=trees, margins=margins, required=tuple(required), unchanged=tuple(unchanged),
            are_defaults=plan.are_defaults,
        )  # fmt: skip
        if not plan.cases:
            return result()
        began_s = time.monotonic()
        progress(f"process 1 of {plan.processes}")  # alone: what it takes says how many fit at once
        figures += [_isolated(measure_in_process, trees, plan, case, 0) for case in plan.cases]
        lanes = _lanes(plan, max(process.peak_rss_bytes for process in figures))
        jobs = [(trees, plan, case, process) for process in range(1, plan.processes) for case in plan.cases]
        for at in range(0, len(jobs), lanes):
            progress(f"process {jobs[at][-1] + 1} of {plan.processes}")
            figures += _isolated_each(measure_in_process, jobs[at : at + lanes], lanes)
        first = result()
        undecided, settled = split_by_look(first)
        if not undecided:
            return first
        limit_s = SECOND_LOOK_SHARE * (time.monotonic() - began_s)
        figures += _further_figures(trees, plan, undecided, lanes, limit_s, progress)
        return result(settled=settled)


def _further_figures(
    trees: tuple[SourceTree, SourceTree],
    plan: GatePlan,
    undecided: frozenset[GateCell],
    lanes: int,
    limit_s: float,
    progress: Callable[[str], None],
) -> list[ProcessFigures]:
    """Measure undecided cells in further processes, each case once at least, until the time is up."""
    figures: list[ProcessFigures] = []
    began_s = time.monotonic()
    cases = sorted({cell.case for cell in undecided})
    further = range(plan.processes, MOST_TIMES_PROCESSES * plan.processes)
    jobs = [(trees, plan, case, process, undecided) for process in further for case in cases]
    for at in range(0, len(jobs), lanes):
        if at >= len(cases) and time.monotonic() - began_s >= limit_s:
            break
        progress(f"{counted(len(undecided), 'cell')} undecided: process {jobs[at][3] + 1}")
        figures += _isolated_each(measure_in_process, jobs[at : at + lanes], lanes)
    return figures


def _lanes(plan: GatePlan, peak_rss_bytes: int) -> int:
    """Return how many processes run at once; what both sides share in a process cancels."""
    if plan.device != "cpu":
        return 1
    fitting = int(_MEMORY_SHARE * check_available(None) / max(peak_rss_bytes, 1))
    return max(1, min(_MOST_LANES, usable_cores() // plan.threads, fitting))


def _result(
    figures: Sequence[ProcessFigures],
    *,
    trees: tuple[SourceTree, SourceTree],
    margins: Margins,
    required: tuple[str, ...],
    unchanged: tuple[str, ...],
    are_defaults: bool,
    settled: Sequence[FigureChange] = (),
) -> GateResult:
    measured: dict[GateCell, list[PairFigures]] = {}
    for process in figures:
        for cell, pair in process.pairs.items():
            measured.setdefault(cell, []).append(pair)
    return judge_pairs(
        measured,
        names=(trees[0].name, trees[1].name),
        machine={"torch": torch.__version__, "machine": cpu_model() or "unknown"},
        margins=margins,
        required=required,
        doubts=tuple(dict.fromkeys(note for process in figures for note in process.notes)),
        settled=settled,
        unchanged=unchanged,
        are_defaults=are_defaults,
    )


def _isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    return _isolated_each(function, [arguments], 1)[0]


def _isolated_each(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], at_once: int) -> list[Any]:
    answers = call_each(function, arguments, at_once=at_once, timeout_s=_PROCESS_LIMIT_S)
    for answer in answers:
        if isinstance(answer, WorkerRaisedError):
            raise answer.__cause__ or answer from None
        if isinstance(answer, WorkerError):
            raise ParameterError(f"base and head could not be called in one process: {answer}; {REMEDY}") from answer
    return answers


def _admit(tree: SourceTree, plan: GatePlan, case: str) -> None:
    """Refuse, before anything is timed, a side that cannot be measured."""
    torch.set_num_threads(plan.threads)
    modules = ModuleTree(tree)
    with blaming(tree), modules.active():
        own_module("measure.admission").admit_case(case, plan.device, plan.seed)


def _are_same(trees: tuple[SourceTree, SourceTree], plan: GatePlan, case: str) -> bool:
    """Refuse sides that are not the same computation; say whether their code, data and results are the same."""
    torch.set_num_threads(plan.threads)
    opened: list[str] = []
    sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
    base, head, notes = build_sides(trees, plan, case, 0)
    for tensor, given in zip(getattr(head.model, "tensors", ()), base.inputs, strict=False):
        tensor.data = given.data
    _check_same_computation(base, head, trees)
    return not notes and _results_are_equal(base, head, plan) and _code_of(base, opened) == _code_of(head, opened)


def _check_same_computation(base: GateSide, head: GateSide, trees: tuple[SourceTree, SourceTree]) -> None:
    references = [side.reference(base.inputs) for side in (base, head)]
    if not all(reference.name.startswith("float64") for reference in references):
        return
    before, after = (reference.outputs or () for reference in references)
    check_shapes(before, after, *(tree.title for tree in trees))
    apart = max(map(relative_error, after, before), default=0.0)
    if apart > _OTHER_COMPUTATION:
        raise ParameterError(
            f"the case is not the same computation on both sides: in float64, where casts to narrower formats do "
            f"nothing, the output of {trees[1].title} differs from that of {trees[0].title} by {apart:.2g} relative; "
            "compare sides that compute the same"
        )


def _results_are_equal(base: GateSide, head: GateSide, plan: GatePlan) -> bool:
    """Call every fix of both sides, which also imports what is imported late, and compare bits."""
    for fix in plan.fixes:
        with ExitStack() as stack:
            mode = next(iter(base.fixes[fix].modes))
            calls = call_pair(base, head, fix, mode, stack)
            if not all(isinstance(call, GateCall) for call in calls):
                if calls[0] != calls[1]:
                    return False
            elif not all(map(torch.equal, *(call.outputs for call in calls if isinstance(call, GateCall)))):
                return False
    return True


def _code_of(side: GateSide, opened: Sequence[str]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the syntax of the modules that a side has imported, and the content of what else of it was opened."""
    root = side.modules.tree.root
    data = {Path(path) for path in opened if path.startswith(f"{root}/") and not path.endswith((".py", ".pyc"))}
    return side.modules.sources(), {str(path.relative_to(root)): path.read_bytes() for path in data if path.is_file()}


def measure_in_process(
    trees: tuple[SourceTree, SourceTree],
    plan: GatePlan,
    case: str,
    process: int,
    only: frozenset[GateCell] | None = None,
) -> ProcessFigures:
    padding = take_random_memory(process)
    torch.set_num_threads(plan.threads)
    base, head, unlike = build_sides(trees, plan, case, process)
    reference: Tensors | None = None
    pairs, doubts = {}, list(unlike)
    for fix, mode in itertools.product(plan.fixes, plan.modes):
        cell = GateCell(case, fix, mode, base.size, plan.device)
        if not all(mode in side.fixes[fix].modes for side in (base, head)) or cell not in (only or {cell}):
            continue
        with ExitStack() as stack:
            calls = call_pair(base, head, fix, mode, stack)
            log_ratio, seconds, notes = _time_pair(*calls, plan, process)
            doubts += [f"{fix} {mode}: {note}" for note in notes]
            if reference is None and any(isinstance(call, GateCall) for call in calls):
                exact = base.reference(base.inputs)
                reference, doubts = exact.outputs or (), [*doubts, *exact.doubts]
            sides = [
                _side_figures(call, reference, seconds.get(role), device=plan.device, with_memory=process == 0)
                for role, call in zip((BASE, HEAD), calls, strict=True)
            ]
        pairs[cell] = PairFigures(
            base=sides[0],
            head=sides[1],
            log_ratio=None if log_ratio is None else log_ratio.estimate,
            standard_error=0.0 if log_ratio is None else log_ratio.standard_error,
            budget_s=plan.budget_s / plan.processes,
        )
    del padding
    return ProcessFigures(pairs, tuple(doubts), peak_rss_bytes())


def _time_pair(
    base: GateCall | SideFigures, head: GateCall | SideFigures, plan: GatePlan, process: int
) -> tuple[Location | None, dict[str, float], tuple[str, ...]]:
    """Time a fix of both sides in the same rounds; returns the log-ratio, seconds per side, and doubts.

    On CUDA it is the device's time, of graphs where both sides can be captured.
    """
    if isinstance(base, SideFigures) or isinstance(head, SideFigures):
        return None, {}, ()
    candidates = {BASE: base.candidate, HEAD: head.candidate}
    doubts: tuple[str, ...] = ()
    if plan.device.startswith("cuda"):
        candidates, timer, doubts = candidates_on_device(candidates, CudaDevice(plan.device))
    else:
        timer = timer_for(plan.device)
    with in_memory_state(GROWN):
        rounds = size_rounds(candidates, timer, baseline=BASE, seed=plan.seed + process)
        rounds.run_until(plan.budget_s / plan.processes, min_rounds=MIN_ROUNDS)
    times_s = rounds.times_s[choose_clock(rounds, HEAD, BASE)]
    seconds = {role: float(np.median(times_s[role])) for role in candidates}
    return student_location(paired_log_ratios(times_s[HEAD], times_s[BASE])), seconds, doubts


def _side_figures(
    call: GateCall | SideFigures, reference: Tensors | None, seconds: float | None, *, device: str, with_memory: bool
) -> SideFigures:
    if isinstance(call, SideFigures):
        return call
    peak = None
    if with_memory:
        with call.candidate.block():
            peak = call_memory(call.applied, call.inputs, model=call.applied.model, device=device).allocated_peak_bytes
    drift = output_error(call.outputs, reference)
    return SideFigures(seconds=seconds, drift=drift, peak_bytes=peak, stored_bytes=call.stored_bytes)
