"""The measures that need nothing but a model and its inputs: trace, drift, memory, latency.

Conventions: each is a function ``(cell, run_dir) -> list[Outcome]`` that runs in a worker of its own. The case is
built from the run's seed, so that every cell sees the same stored inputs. Where the device has no kernels for a fix's
storage format, the cell is *unsupported*; where the output is not finite, it is *non_finite* and has no figures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.system import CachedAttention
from precision_eval.core.cells import Cell, Outcome, cause_of, failed, failure_of, is_out_of_memory, passed
from precision_eval.core.errors import CandidateError, MeasurementError, PrecisionEvalError, UnsupportedError
from precision_eval.core.formats import support
from precision_eval.core.workers import Start, WorkerError, call_isolated
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.catalog import Fix, fix_by_id
from precision_eval.fixes.packing import floating_leaves
from precision_eval.fixes.pins import set_tf32, unlike_pin
from precision_eval.measure.allocator import GROWN
from precision_eval.measure.kept import built_case
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.placement import (
    copy_sharing_parameters,
    give_own_memory,
    sharing,
    take_random_memory,
    writes_parameters,
)
from precision_eval.measure.timers import Cache, CudaTimer, LaunchedTimer
from precision_eval.stats.paired import PairedRatio
from precision_eval.stats.processes import over_processes

# What one process measured of a fix: why it cannot be timed, or its ratio by each clock, the judged one first.
Timed = Outcome | dict[str, PairedRatio]

BASELINE = "full_float32"
# Relative difference in latency that counts as none: ten times the constant bias of identical candidates.
MARGIN = 0.002

_HELD_IN_PLACE = "one placement: the compiler's graphs hold the addresses of tensors, so the interval is of one place"

_NOT_CAPTURED = (
    "not captured: torch's compiler made no CUDA graph of {} at {} places (TORCH_LOGS=perf_hints says why), so "
    "launches are in this time"
)

_NO_COPY = f"no copy: memory has no room for one of {BASELINE}, so its noise floor is of the same tensors"

_FREE_BASELINE = (
    "{} attention has no kernel for the baseline, which ran with torch's own choice: the ratio is of the backend too"
)


def trace(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Observe which dtypes and which backend really run, and whether the output is finite."""
    fix, built = _only_fix(cell), _built(cell)
    with _applied(cell, fix, built) as call:
        inputs = call.prepare(built.inputs)
        broken = _not_finite(fix, call(*inputs))
        if broken:
            return [broken]
        with _failing_as_suite(fix, "trace"):
            observed = _observed(cell, call, inputs)
    if built.own is not None:
        observed |= {"not_applicable": list(built.own.not_applicable), "tolerances": dict(built.own.tolerances)}
    unlike = unlike_pin(cell.options.sdpa_backend, observed)
    return [passed(fix, observed) if unlike is None else failed(fix, "unsupported", unlike)]


def _observed(cell: Cell, call: AppliedFix, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Observe a call that runs. Inductor fuses away what eager refuses, so a compiled graph may not run in eager."""
    from precision_eval.trace.capture import observe

    try:
        return observe(call, inputs).to_dict()
    except RuntimeError as error:
        if cell.mode == "eager":
            raise
        why = f"the compiled call runs, its graph does not in eager, so its dtypes were not observed: {error}"
        return {"backend": "unknown", "casts": [], "observed": "nothing", "graphs": None, "doubts": [why[:300]]}


def drift(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Compare one call with float64 on the same stored inputs."""
    from precision_eval.measure.drift import over_seeds
    from precision_eval.measure.system_drift import (
        OF_TOKENS,
        attention_drift,
        relative_error,
        system_drift,
        token_error,
    )

    fix = _only_fix(cell)
    data: dict[str, Any] = {}
    errors: list[float] = []
    seeds = cell.options.seeds or 1 if cell.mode == "eager" else 1  # each seed compiles anew
    for seed in range(cell.options.seed, cell.options.seed + seeds):
        built = _built(cell, seed)
        with _applied(cell, fix, BuiltCase(copy.deepcopy(built.model), built.inputs)) as call:
            output = call(*call.prepare(built.inputs))
            broken = _not_finite(fix, output)
            if broken:
                return [broken]
            with _failing_as_suite(fix, "drift"):
                if not floating_leaves(output):
                    errors.append(token_error(built, output))
                    data = data or {"relative_error": errors[0], "doubts": [OF_TOKENS]}
                elif data:
                    errors.append(relative_error(built, call))
                else:
                    measure = attention_drift if isinstance(built.model, CachedAttention) else system_drift
                    data = asdict(measure(built, call))
                    errors.append(data["relative_error"])
    return [passed(fix, data | over_seeds(errors))]


@contextmanager
def _failing_as_suite(fix: str, what: str) -> Iterator[None]:
    """Blame the suite where a call has run and its measuring raises: that is no result of the fix."""
    try:
        yield
    except PrecisionEvalError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        message = f"the {what} of '{fix}', which runs, was not measured: {type(error).__name__}: {error}"
        raise MeasurementError(message) from error


def memory(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Count what one call allocates, what is stored, and how large this worker has become."""
    from precision_eval.measure.memory import call_memory

    fix, built = _only_fix(cell), _built(cell)
    with _applied(cell, fix, built) as call:
        measured = call_memory(call, call.prepare(built.inputs), model=call.model, device=cell.device)
    return [passed(fix, asdict(measured))]


def latency(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Time all fixes of a cell side by side, as paired ratios to the baseline, in one process or in several.

    Of several states of the allocator each has processes of its own, as there is no way back from one.
    """
    processes, states = cell.options.processes, (cell.options.memory or GROWN).split(",")
    if processes == len(states) == 1:
        by_state = [[_time_once(cell, 0)]]
    else:
        cells = [replace(cell, options=replace(cell.options, memory=state)) for state in states]
        by_state = [[in_process(_time_once, cell, index) for index in range(processes)] for cell in cells]
    return [_as_outcome(fix, by_state) for fix in cell.fixes]


def _as_outcome(fix: str, by_state: Sequence[Sequence[dict[str, Timed]]]) -> Outcome:
    """Combine what each process measured of a fix; one that failed in any has that outcome.

    Plain data: the ratio that is judged, with those by other clocks inside it, and those of other allocator states.
    """
    states: list[dict[str, Any]] = []
    for processes in by_state:
        ratios: list[dict[str, PairedRatio]] = []
        for timed in [process[fix] for process in processes]:
            if isinstance(timed, Outcome):
                return timed
            ratios.append(timed)
        combined = ratios[0]
        if len(ratios) > 1:
            combined = {
                clock: over_processes([ratio[clock] for ratio in ratios], candidates=len(processes[0]))
                for clock in ratios[0]
            }
        judged, *rest = combined
        states.append(combined[judged].to_dict() | {clock: combined[clock].to_dict() for clock in rest})
    first, *others = states
    return passed(fix, first | ({"by_memory": {state["memory"]: state for state in others}} if others else {}))


def in_process(measure: Callable[[Cell, int], dict[str, Timed]], cell: Cell, process: int) -> dict[str, Timed]:
    """Return ``measure(cell, process)`` from a child of this worker."""
    try:
        # To ask torch for a CUDA device, as a worker has, already forbids a forked process to use it.
        start: Start = "spawn" if cell.device.startswith("cuda") else "fork"
        timed: dict[str, Timed] = call_isolated(_measure_in_child, measure, cell, process, start=start)
    except WorkerError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise CandidateError(f"process {process + 1} gave no result: {error}") from error
    return timed


def _measure_in_child(measure: Callable[[Cell, int], dict[str, Timed]], cell: Cell, process: int) -> dict[str, Timed]:
    padding = take_random_memory(process)
    set_tf32(cell.options.tf32, cell.device)  # a spawned child has not inherited it
    try:
        timed = measure(cell, process)
    except CandidateError as error:
        raise cause_of(error) from None  # a cause is lost on the way to another process
    del padding
    return timed


def _time_once(cell: Cell, process: int) -> dict[str, Timed]:
    built = _built(cell)
    with ExitStack() as stack:
        shares = _can_share_parameters(cell, built)
        prepare = partial(_prepare_beside_others, built=built, stack=stack, shares=shares)
        prepared = {fix: prepare(cell, fix) for fix in cell.fixes if fix != BASELINE}
        candidates = {fix: ready for fix, ready in prepared.items() if isinstance(ready, Candidate)}
        timed: dict[str, Timed] = {fix: ready for fix, ready in prepared.items() if isinstance(ready, Outcome)}
        if not candidates and BASELINE not in cell.fixes:
            return timed
        free, baseline = cell, prepare(cell, BASELINE)
        refused = baseline if isinstance(baseline, Outcome) else None
        if candidates and refused is not None and cell.options.sdpa_backend is not None:
            free = replace(cell, options=replace(cell.options, sdpa_backend=None))
            baseline = prepare(free, BASELINE)
        if isinstance(baseline, Outcome):
            reason = f"the baseline {BASELINE} cannot be timed: {baseline.reason}"
            return timed | {fix: failed(fix, baseline.status, reason) for fix in candidates} | {BASELINE: baseline}
        doubts: tuple[str, ...] = () if refused is None else (_FREE_BASELINE.format(cell.options.sdpa_backend),)
        try:
            twin = _copy_of_baseline(free, built, stack, shares=shares)
        except (RuntimeError, MemoryError) as error:
            if len(cell.fixes) > 1 or not is_out_of_memory(error):
                raise
            twin, doubts = baseline, (*doubts, _NO_COPY)
        clocks = _clocks(cell, is_bare=isinstance(built.model, CachedAttention))
        candidates |= {BASELINE: baseline}
        if cell.options.compile_mode is None:  # else the compiler's graphs hold the addresses of tensors
            stack.enter_context(sharing(candidates, BASELINE))
        timed |= _ratios(cell, process, candidates, twin, clocks, doubts)
        if refused is not None:  # what ran free is a reference and no answer to what runs under the pin
            timed[BASELINE] = refused
    return timed


def _can_share_parameters(cell: Cell, built: BuiltCase) -> bool:
    """Whether fixes may hold the parameters as shipped in one memory: on CUDA, where it is short, if no call writes."""
    if not cell.device.startswith("cuda") or cell.mode != "eager":
        return False
    for fix in cell.fixes:
        with ExitStack() as stack:
            ready = prepare_candidate(cell, fix, built, stack)
            if isinstance(ready, Candidate):
                return not writes_parameters(ready)
    return False


def _copy_of_baseline(cell: Cell, built: BuiltCase, stack: ExitStack, *, shares: bool) -> Candidate:
    """Prepare the baseline once more, in memory of its own."""
    twin = prepare_candidate(cell, BASELINE, built, stack, shares=shares)
    if isinstance(twin, Outcome):  # of the very computation that has just worked, so memory is short
        raise MemoryError(f"a copy of {BASELINE}: {twin.reason}")
    if shares:
        give_own_memory(twin, built.model)
    return twin


def _prepare_beside_others(
    cell: Cell, fix: str, *, built: BuiltCase, stack: ExitStack, shares: bool
) -> Candidate | Outcome:
    """Prepare one of several fixes. Where memory ends it is no one's doing: raise, so that they are run one by one."""
    ready = prepare_candidate(cell, fix, built, stack, shares=shares)
    if isinstance(ready, Outcome) and ready.status == "out_of_memory" and len(cell.fixes) > 1:
        raise MemoryError(ready.reason)
    return ready


def _clocks(cell: Cell, *, is_bare: bool) -> dict[str, dict[str, Any]]:
    """Return how `compare_latency` takes each time of a cell, the judged one first.

    On CUDA the device's time is judged: of a model as its steps leave the L2 cache, of a bare call of attention with an
    emptied one, as the other layers of a model would leave it.
    """
    if not cell.device.startswith("cuda"):
        return {"warm_l2": {}}
    caches: tuple[Cache, Cache] = ("cold", "warm") if is_bare else ("warm", "cold")
    clocks: dict[str, dict[str, Any]] = {}
    if cell.options.clock != "launched":
        for cache in caches:  # compiled calls that replay graphs of their own are timed as they are
            timer = partial(CudaTimer, cell.device, cache=cache, compiled_graphs=True)
            clocks[f"{cache}_l2"] = {"timer": timer()} if cell.options.compile_mode else {"graph": True, "cache": cache}
    if cell.options.clock != "device":
        clocks["launched"] = {"timer": LaunchedTimer(cell.device)}
    return clocks


def _ratios(
    cell: Cell,
    process: int,
    candidates: dict[str, Candidate],
    twin: Candidate,
    clocks: Mapping[str, dict[str, Any]],
    doubts: tuple[str, ...] = (),
) -> dict[str, Timed]:
    doubts += () if cell.options.compile_mode is None else (_HELD_IN_PLACE,)
    by_clock: dict[str, dict[str, PairedRatio]] = {fix: {} for fix in candidates}
    # On a CPU what differs by process is allowed for, or given processes.
    draws_places = cell.device.startswith("cuda") and cell.options.processes == 1 and cell.options.compile_mode is None
    judged, budget_s = next(iter(clocks)), cell.options.budget_s / cell.options.processes
    for clock, chosen in sorted(clocks.items(), key=lambda item: item[0] != "launched"):  # a profiler slows launches
        share = 1.0 if len(clocks) == 1 else 0.5 if clock == judged else 0.5 / (len(clocks) - 1)
        ratios = compare_latency(
            candidates,
            baseline=BASELINE,
            budget_s=share * budget_s,
            margin=MARGIN,
            device=cell.device,
            seed=cell.options.seed + process,
            noise_floor=twin,
            check=False,  # a step may write its cache; that every output is finite was seen when the fix was put on
            threads=cell.threads,
            memory=cell.options.memory or GROWN,
            redraw=None if draws_places else False,
            **chosen,
        )
        for fix, ratio in ratios.items():
            launched = {candidates[member].doubt for member in (fix, BASELINE) if clock != "launched"} - {""}
            by_clock[fix][clock] = replace(ratio, doubts=(*ratio.doubts, *doubts, *sorted(launched)))
    return {fix: {clock: of_fix[clock] for clock in clocks if clock in of_fix} for fix, of_fix in by_clock.items()}


def prepare_candidate(
    cell: Cell, fix: str, built: BuiltCase, stack: ExitStack, *, shares: bool = False
) -> Candidate | Outcome:
    """Put a fix on a copy of a model and call it once; return what can be timed, or why it cannot."""
    copied = copy_sharing_parameters if shares else copy.deepcopy
    try:
        with ExitStack() as own:  # what cannot be timed gives its memory back
            ready = call_once(cell, fix, BuiltCase(copied(built.model), built.inputs), own)
            if isinstance(ready, Candidate):
                stack.enter_context(own.pop_all())
        return ready
    except Exception as error:  # noqa: BLE001 - whatever a model raises under a fix is that fix's result
        return failure_of(fix, error)


def call_once(cell: Cell, fix: str, built: BuiltCase, stack: ExitStack) -> Candidate | Outcome:
    """Put a fix on a model, for as long as the stack is open, and call it once."""
    check_format(fix_by_id(fix), cell.device)
    applied = _applied(cell, fix, built)
    block = applied.agreeing if applied.sdpa_backend is None else applied.blocked
    stack.enter_context(applied.stored())
    inputs = applied.prepare(built.inputs)
    skips = _skipped_graphs(cell)
    with block():
        broken = _not_finite(fix, applied(*inputs))
    parts = _skipped_graphs(cell) - skips
    return broken or Candidate(applied.bind(*inputs), block, _NOT_CAPTURED.format(fix, parts) if parts else "")


def _skipped_graphs(cell: Cell) -> int:
    """Count the calls, and parts of calls, that torch's compiler was to capture as graphs and did not."""
    if cell.options.compile_mode is None:
        return 0
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])


def _applied(cell: Cell, fix: str, built: BuiltCase) -> AppliedFix:
    return AppliedFix(
        fix_by_id(fix),
        built.model,
        mode=cell.mode,
        sdpa_backend=cell.options.sdpa_backend,
        compile_mode=cell.options.compile_mode,
    )


def _only_fix(cell: Cell) -> str:
    """Return the one fix of an ungrouped cell, if the device can compute its format."""
    (fix,) = cell.fixes
    check_format(fix_by_id(fix), cell.device)
    return fix


def _built(cell: Cell, seed: int | None = None) -> BuiltCase:
    return built_case(cell, cell.options.seed if seed is None else seed)


def check_format(fix: Fix, device: str) -> None:
    if fix.storage in ("as_shipped", "per_case"):
        return
    supported = support(device, fix.storage)
    if supported.kind == "absent":
        raise UnsupportedError(f"{fix.storage} on {device}: {supported.reason}")


def _not_finite(fix: str, output: object) -> Outcome | None:
    for tensor in floating_leaves(output):
        broken = int((~torch.isfinite(tensor)).sum())
        if broken:
            return failed(fix, "non_finite", f"{broken} of {tensor.numel()} output values are NaN or infinite")
    return None
