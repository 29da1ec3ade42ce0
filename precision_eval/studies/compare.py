"""What candidates of one's own cost, side by side: time, drift and memory of any calls.

Conventions: all candidates are called with the same inputs and without gradients. Time is the paired ratio to the
baseline's, below 1 = faster, measured in this process (:mod:`precision_eval.measure.latency`); on CUDA it is the
device's time, of graphs, with the ratio of calls launched from Python beside it. Drift is
‖output − reference‖₂ / ‖reference‖₂, the largest over the floating outputs; the reference is float64. Memory is in
bytes: what a module stores in parameters and buffers, and the allocator's peak of one call on top. A candidate that
raises, or whose output is not finite, is a row with that status and no error. This module imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from precision_eval.cases.own import own_case
from precision_eval.core.cells import failure_of
from precision_eval.core.errors import ParameterError
from precision_eval.core.figures import DriftFigures, LatencyFigures
from precision_eval.core.formats import short
from precision_eval.core.formatting import shortened
from precision_eval.fixes.outside import Fixed, in_dtype
from precision_eval.fixes.packing import as_arguments, floating_leaves
from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure.candidates import is_tensor
from precision_eval.measure.float64_reference import check_available, device_of, reference_of
from precision_eval.measure.isolation import watch_device
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.memory import cpu_allocated_peak_bytes, cuda_peak_bytes
from precision_eval.measure.model_calls import CallOutcome, attempt, output_error, run_fresh, subject_of
from precision_eval.measure.placement import sharing, values_carried
from precision_eval.measure.timers import LaunchedTimer
from precision_eval.report.loading import FixComparison, LoadedChoice, paragraphs
from precision_eval.results.model import Group, Row, exact
from precision_eval.results.reading import drift_estimate, figure_doubts, log_ratios, ratio_estimate, row_doubts
from precision_eval.stats.paired import PairedRatio

Reference = nn.Module | Callable[..., Any] | torch.Tensor
_REFERENCE = "full_float32"
_OF_RUNS = "; run with --set processes=5 or more"
_LONGEST_REASON = 200


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one candidate costs."""

    name: str
    status: str
    reason: str = ""
    drift: float | None = None
    latency: PairedRatio | None = None
    launched: PairedRatio | None = None  # on CUDA, where `latency` is the device's time
    stored_bytes: int | None = None
    peak_bytes: int | None = None

    def __repr__(self) -> str:
        parts = [f"{self.status} ({shortened(self.reason, limit=_LONGEST_REASON)})" if self.reason else self.status]
        parts += [] if self.drift is None else [f"drift {self.drift:.2g}"]
        parts += [] if self.latency is None else [str(self.latency)]
        parts += [] if self.launched is None else [f"launched from Python {self.launched.ratio:.4f} ×"]
        return f"<{self.name}: {'; '.join(parts)}>"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Costs(Mapping[str, Cost]):
    """Candidates side by side: a mapping of names to :class:`Cost` that shows itself as a table.

    Attributes
    ----------
    rows : mapping of str to Cost
        In the order of the candidates.
    baseline : str
        That the times are ratios to.
    reference : str
        What drift is held to: ``"float64"``, ``"float64, layer by layer"``, ``"float32"``, ``"as given"`` or empty.
    device : str
    threads : int
        Intra-op threads.
    doubts : tuple of str
        What was not, or not fully, measured, and why.
    """

    rows: Mapping[str, Cost]
    baseline: str
    reference: str
    device: str
    threads: int
    doubts: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Cost:
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def comparison(self) -> FixComparison:
        """The same as a run's comparison is held, for the engine that chooses."""
        return FixComparison(group=_group(self), noun="candidate")

    def choose(self, *, policy: str = "balanced", **limits: Any) -> LoadedChoice:
        """Say which candidate to take, and why.

        Parameters
        ----------
        policy : {"quality", "balanced", "speed"}
            See :mod:`precision_eval.results.choose.choosing`.
        max_drift, max_memory, min_speed : float, str or int, optional
            As in :func:`precision_eval.choose`; memory as a ratio (``"0.6x"``) is to a candidate ``full_float32``, and
            only modules have a memory.

        Returns
        -------
        LoadedChoice

        Raises
        ------
        MissingMeasureError
            What the policy or a limit needs was not measured.
        ParameterError
            A limit cannot be used.
        """
        memory = str(limits.get("max_memory", ""))
        if memory.strip().endswith(("x", "X", "×")) and _REFERENCE not in self:
            raise ParameterError(
                f"max_memory='{memory}' is a ratio to the candidate {_REFERENCE}, which is not among "
                f"{', '.join(self)}; give a size, such as '16MiB'"
            )
        return self.comparison.choose(policy=policy, **limits)

    def __repr__(self) -> str:
        table = repr(self.comparison).partition("\n")[2]  # without its title
        return "\n".join([table, *(f"doubt: {doubt}" for doubt in self.doubts)])

    def _repr_html_(self) -> str:
        reference = [f"drift: to {self.reference}"] if self.reference else []
        return self.comparison._repr_html_() + paragraphs([*reference, *(f"doubt: {doubt}" for doubt in self.doubts)])


def compare(
    candidates: Mapping[str, Callable[..., Any]],
    *inputs: Any,
    baseline: str,
    reference: Reference | None = None,
    latency: bool = True,
    memory: bool = True,
    budget_s: float = 2.0,
    seed: int = 0,
) -> Costs:
    """Measure what candidates cost: paired latency, drift to a float64 reference, memory.

    Parameters
    ----------
    candidates : mapping of str to callable
        Modules, functions, or what :func:`~precision_eval.fixes.outside.fixed` returns. They are called as they are,
        so a module that keeps a cache writes it. Each must give the same output when it is called again.
    *inputs : object
        What every candidate is called with; a single dict holds keyword arguments.
    baseline : str
        Name of the candidate that times are ratios to.
    reference : torch.nn.Module, callable or torch.Tensor, optional
        A module: a float64 copy of it is called, whatever its own dtypes are, so one that raises will do. A function:
        called with the floating inputs in float64. A tensor: the output itself. Without one, no drift is measured.
    latency, memory : bool
        Measure it.
    budget_s : float
        Seconds for the timing of all candidates together.
    seed : int
        Of the order in which candidates are timed.

    Returns
    -------
    Costs

    Raises
    ------
    ParameterError
        The baseline is not a candidate, a candidate cannot be called, or the reference does not give float64.
    CandidateError
        A candidate cannot be timed: it does not repeat, changes its inputs, returns nothing, or is too short.

    Examples
    --------
    >>> import torch
    >>> from precision_eval import compare, fixed
    >>> model = torch.nn.Linear(64, 64).half()  # raises where its input is float32
    >>> candidates = {"as shipped": model, "kv_to_query": fixed(model, "kv_to_query")}
    >>> costs = compare(candidates, torch.ones(1, 64), baseline="kv_to_query", reference=model)
    >>> costs["as shipped"].status, costs["kv_to_query"].drift < 1e-6
    ('raised', True)
    """
    _check(candidates, baseline)
    args, kwargs = as_arguments(inputs)
    truth, name, doubts = _truth(reference, inputs, args, kwargs)
    ready = {key: _Ready.of(candidate, args, kwargs) for key, candidate in candidates.items()}
    outcomes = {key: candidate.tried() for key, candidate in ready.items()}
    rows = {key: _untimed(key, outcomes[key], truth, ready[key].module) for key in candidates}
    passed = [key for key, row in rows.items() if row.status == "passed"]
    outputs = (output for key in passed for output in outcomes[key].outputs or ())
    carried = (value for key in passed for value in values_carried(ready[key].call) if is_tensor(value))
    device = device_of((*carried, *outputs))
    unlike = [key for key in passed if truth is not None and rows[key].drift is None]
    doubts += (
        (f"no drift of {', '.join(unlike)}: its outputs have other shapes than the reference's",) if unlike else ()
    )
    if memory:
        rows |= {key: replace(rows[key], peak_bytes=ready[key].peak_bytes(device)) for key in passed}
    if latency:
        timed, more = _timed(rows, ready, baseline=baseline, budget_s=budget_s, seed=seed, device=str(device))
        rows, doubts = rows | timed, (*doubts, *more)
    threads = torch.get_num_threads()
    return Costs(rows=rows, baseline=baseline, reference=name, device=str(device), threads=threads, doubts=doubts)


@dataclass(frozen=True)
class _Ready:
    """A candidate with its inputs: a call without arguments, what is in force around it, whose storage is counted."""

    call: Callable[[], Any]
    block: Callable[[], AbstractContextManager[Any]]
    module: nn.Module | None

    @classmethod
    def of(cls, candidate: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Ready:
        if isinstance(candidate, Fixed):
            return cls(candidate.bound(args, kwargs), candidate.applied.agreeing, candidate.model)
        module = candidate if isinstance(candidate, nn.Module) else None
        return cls(partial(candidate, *args, **kwargs), torch.no_grad, module)

    def tried(self) -> CallOutcome:
        with self.block():
            return attempt(lambda: floating_leaves(self.call()))

    def peak_bytes(self, device: torch.device) -> int | None:
        if device.type not in ("cpu", "cuda"):
            return None
        with self.block():
            self.call()  # fills whatever is filled once
            if device.type == "cuda":
                return cuda_peak_bytes(self.call, (), device)[0]
            return cpu_allocated_peak_bytes(self.call, ())


def _check(candidates: Mapping[str, Callable[..., Any]], baseline: str) -> None:
    if baseline not in candidates:
        raise ParameterError(f"baseline '{baseline}' is not a candidate; candidates: {', '.join(candidates) or 'none'}")
    for name, candidate in candidates.items():
        if not callable(candidate):
            raise ParameterError(f"candidate '{name}' is a {type(candidate).__name__}; expected a module or a function")


def _truth(
    reference: Reference | None, inputs: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[torch.Tensor, ...] | None, str, tuple[str, ...]]:
    """Outputs of the reference, its name, and doubts."""
    if reference is None:
        return None, "", ()
    if isinstance(reference, nn.Module):
        subject = subject_of(reference, inputs)
        free_bytes = check_available(None, device_of((*subject.tensors, *subject.parameters())))
        truth = reference_of(subject, available_bytes=free_bytes, draws=None)
        return truth.outputs, truth.name, truth.doubts
    if not callable(reference) and not isinstance(reference, torch.Tensor):
        raise ParameterError(
            f"the reference is a {type(reference).__name__}; expected a module, a function or a tensor"
        )
    wide_args, wide_kwargs = in_dtype((args, kwargs), torch.float64)
    with torch.no_grad():
        outputs = floating_leaves(
            reference if isinstance(reference, torch.Tensor) else reference(*wide_args, **wide_kwargs)
        )
    dtypes = {short(output.dtype) for output in outputs}
    if dtypes != {"float64"}:
        given = ", ".join(sorted(dtypes)) or "nothing floating"
        raise ParameterError(f"the reference gives {given}; expected float64: compute it from float64 operands")
    return outputs, "as given", ()


def _untimed(name: str, outcome: CallOutcome, truth: tuple[torch.Tensor, ...] | None, module: nn.Module | None) -> Cost:
    stored = None if module is None else storage_bytes(module)
    if outcome.error is not None:
        failure = failure_of(name, outcome.error)
        return Cost(name=name, status=failure.status, reason=failure.reason or "", stored_bytes=stored)
    broken, total = outcome.broken(truth)
    if broken:
        reason = f"{broken} of {total} output values are not finite"
        return Cost(name=name, status="non_finite", reason=reason, stored_bytes=stored)
    return Cost(name=name, status="passed", drift=output_error(outcome.outputs, truth), stored_bytes=stored)


def _timed(
    rows: Mapping[str, Cost], ready: Mapping[str, _Ready], *, baseline: str, budget_s: float, seed: int, device: str
) -> tuple[dict[str, Cost], tuple[str, ...]]:
    """Time the candidates that passed, each once per round."""
    passed = {name: row for name, row in rows.items() if row.status == "passed"}
    if baseline not in passed:
        return {}, (f"time was not measured: the baseline {baseline} is {rows[baseline].status}",)
    candidates = {name: Candidate(ready[name].call, ready[name].block) for name in passed}
    if len(candidates) < 2:
        return {}, ("time was not measured: it is a ratio of two, and one candidate passes",)
    timing = partial(compare_latency, candidates, baseline=baseline, device=device, seed=seed, redraw=True)
    on_cuda = device.startswith("cuda")
    launched: Mapping[str, PairedRatio] = {}
    with watch_device(device, "warn" if on_cuda else None) as watched, sharing(candidates, baseline):
        if on_cuda:  # what Python adds to the device's own time; first, as a profiler would slow launches
            launched = timing(budget_s=budget_s / 2.0, timer=LaunchedTimer(device))
        ratios = timing(budget_s=budget_s / 2.0 if on_cuda else budget_s, graph=on_cuda, check=not on_cuda)
    every = [*watched.doubts, *(doubt for ratio in ratios.values() for doubt in ratio.doubts)]
    doubts = {doubt.partition(":")[0]: doubt for doubt in every}  # one of a kind
    timed = {name: replace(passed[name], latency=ratio, launched=launched.get(name)) for name, ratio in ratios.items()}
    return timed, tuple(doubts.values())


@dataclass(frozen=True, kw_only=True)
class CandidateRow(Row):
    """A candidate, whose figures come from no record."""

    timed: LatencyFigures | None = None

    @cached_property
    def latency(self) -> LatencyFigures | None:
        return self.timed


class CandidateGroup(Group):
    """A group of candidates that are no fixes of a case: what is missing is asked for in another way."""

    def command(self, measure: str | None = None) -> str:
        """Return the argument that adds a measure."""
        return f"compare(..., {'reference=model' if measure == 'drift' else f'{measure}=True'})"


def _group(costs: Costs) -> Group:
    """Arrange the figures in the model of results, in the order of the candidates."""
    timed = any(cost.latency is not None for cost in costs.values())
    group = CandidateGroup(
        case="candidates",
        size="as given",
        mode="eager",
        device=costs.device,
        threads=costs.threads,
        rows=tuple(_row(cost, costs.baseline, timed=timed) for cost in costs.values()),
        baseline=costs.baseline if timed else None,
    )
    return replace(group, doubts=tuple(doubt.removesuffix(_OF_RUNS) for doubt in figure_doubts(group)))


def _row(cost: Cost, baseline: str, *, timed: bool) -> Row:
    """Return a candidate as a row of the model; what did not pass has no figures."""
    if cost.status != "passed":
        return Row(fix=cost.name, status=cost.status, reason=cost.reason or None)
    data = {} if cost.latency is None else cost.latency.to_dict()
    data |= {} if cost.launched is None else {"launched": cost.launched.to_dict()}
    latency = msgspec.convert(data, LatencyFigures) if data else None
    drift = None if cost.drift is None else DriftFigures(relative_error=cost.drift)
    is_baseline = timed and cost.name == baseline
    both_bytes = cost.peak_bytes is not None and cost.stored_bytes is not None
    figures = {"time": latency or is_baseline, "drift": drift, "memory": both_bytes}
    return CandidateRow(
        fix=cost.name,
        timed=latency if cost.launched is not None else None,
        time=exact(1.0) if is_baseline else None if latency is None else ratio_estimate(latency),
        time_logs=() if latency is None or is_baseline else log_ratios(latency),
        processes=1 if latency is not None or is_baseline else 0,
        session="compare",
        verdict=None if cost.latency is None else cost.latency.verdict,
        median_s=None if cost.latency is None else cost.latency.median_s,
        drift=None if drift is None else drift_estimate(drift),
        stored_bytes=cost.stored_bytes if both_bytes else None,
        peak_bytes=cost.peak_bytes if both_bytes else None,
        missing={axis: "not measured" for axis, figure in figures.items() if not figure},
        doubts=row_doubts(cost.name, baseline, latency, drift, None, twin=False),
    )


def compared_factories(targets: Sequence[str], *, budget_s: float = 2.0, seed: int = 0) -> str:
    """Compare the calls of factories, the first as the baseline; returns the table with the distances as text."""
    if len(targets) < 2 or len(set(targets)) < len(targets):
        raise ParameterError(f"compare was given {', '.join(targets)}; give two or more factories, each once")
    cases = {target: own_case(target, seed=seed) for target in targets}
    (first, inputs), *others = ((target, case.arguments(seed)) for target, case in cases.items())
    for target, given in others:
        if not _same(inputs, given):
            raise ParameterError(
                f"{first} and {target} return different inputs, so outputs cannot be compared; return the same in all"
            )
    models = {target: case.module() for target, case in cases.items()}
    training = [target for target, case in cases.items() if case.model.training]
    if training:
        raise ParameterError(f"the model of {' and '.join(training)} is in training mode; call .eval() on it")
    costs = compare(models, *inputs, baseline=first, reference=models[first], budget_s=budget_s, seed=seed)
    outcomes = {target: run_fresh(subject_of(model, inputs)) for target, model in models.items()}
    lines = [repr(costs)]
    for first, second in itertools.combinations(targets, 2):
        distance = output_error(outcomes[second].outputs, outcomes[first].outputs)
        if distance is not None:
            lines.append(f"{second} is {distance:.2g} from {first} (relative error of the output)")
    return "\n".join(lines)


def _same(first: Any, second: Any) -> bool:
    (ours, shape), (theirs, other_shape) = pytree.tree_flatten(first), pytree.tree_flatten(second)
    return shape == other_shape and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else type(a) is type(b)
        for a, b in zip(ours, theirs, strict=True)
    )
