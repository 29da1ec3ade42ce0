"""One trial of each kind of overhead: the harness around a call, capture on, outputs with and without capture.

Seconds per call; ratios with 95 % intervals, 1 = no overhead. *Trace* is
:func:`~precision_eval.trace.capture.observe`, which also hands out the output that drift is computed from; *probe* is
:func:`~precision_eval.trace.attention.probing`, which accounts every attention call's operands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.core.workers import one_thread
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.fixes.sites import SITES
from precision_eval.measure.blocks import BLOCK_S, MIN_CALLS
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.timers import HostTimer
from precision_eval.stats.paired import PairedRatio, paired_ratio
from precision_eval.trace.attention import probing
from precision_eval.trace.capture import observe
from precision_eval.trace.observer import profiled
from validation.overhead.edits import MODELS

Trial = dict[str, Any]
_MARGIN = 0.001


def ratios(candidates: Mapping[str, Candidate], *, baseline: str, budget_s: float, seed: int) -> dict[str, PairedRatio]:
    """Compare latencies; outputs are not checked, as what observes returns more than the call does."""
    return compare_latency(
        candidates, baseline=baseline, budget_s=budget_s, margin=0.01, seed=seed, check=False, threads=1
    )


def summary(found: PairedRatio) -> dict[str, float]:
    values = (found.ratio, found.ratio_low, found.ratio_high, found.median_s, found.baseline_median_s, found.blocks)
    names = ("ratio", "low", "high", "median_s", "baseline_s", "blocks")
    return {name: float(f"{value:.6g}") for name, value in zip(names, values, strict=True)}


def steady_call(call_s: float) -> Callable[[], object]:
    """Make a call of about that length: sines into a tensor that is there already."""
    probe = torch.linspace(0.0, 1.0, 1 << 14)
    target = torch.empty_like(probe)
    fastest_s = min(_bare(partial(torch.sin, probe, out=target), 10)[0] for _ in range(20))
    n = max(1, round(probe.numel() * call_s / fastest_s))
    x = torch.linspace(0.0, 1.0, n)
    return partial(torch.sin, x, out=torch.empty_like(x))


def _bare(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Wall and processor time per call between one pair of readings."""
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(calls):
        call()
    wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns
    return wall_ns * 1e-9 / calls, cpu_ns * 1e-9 / calls


@one_thread()
def harness_trial(call_s: float, *, budget_s: float, seed: int) -> Trial:
    """Hold the harness's figure of a call, and the time of its whole block, to a bare loop of the same calls."""
    timer, rng = HostTimer(), np.random.default_rng(seed)
    call = steady_call(call_s)
    calls = max(MIN_CALLS, round(BLOCK_S / call_s))
    times: dict[str, list[float]] = {name: [] for name in ("wall", "cpu", "block", "bare_wall", "bare_cpu")}
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(times["wall"]) < 10:
        for which in rng.permutation(2):
            if which:
                wall_s, cpu_s = _bare(call, calls)
                times["bare_wall"].append(wall_s)
                times["bare_cpu"].append(cpu_s)
                continue
            start = time.perf_counter()
            reading = timer(call, calls)
            times["block"].append((time.perf_counter() - start) / calls)
            for clock, samples_s in reading.items():
                times[clock].append(float(samples_s.mean()))
    bare = {"wall": "bare_wall", "cpu": "bare_cpu", "block": "bare_wall"}
    return {
        name: summary(paired_ratio(times[name], times[base], baseline="bare", margin=_MARGIN, seed=seed))
        for name, base in bare.items()
    }


@one_thread()
def off_trial(case: str, size: str, *, budget_s: float, seed: int) -> Trial:
    """Latency of a model called through the suite with every capture off, over the model called by itself."""
    built = case_by_id(case).build(size, device="cpu", seed=0)
    model = built.model.float()
    applied = fix_by_id("full_float32").applied(model)
    with applied.stored():
        inputs = applied.prepare(built.inputs)
        with applied.agreeing():
            _both(applied, inputs)
        candidates = {
            "plain": Candidate(partial(model, *inputs), torch.no_grad),
            "suite": Candidate(applied.bind(*inputs), applied.agreeing),
        }
        return summary(ratios(candidates, baseline="plain", budget_s=budget_s, seed=seed)["suite"])


@one_thread()
def edit_trial(model: str, fix: str, *, budget_s: float, seed: int) -> Trial:
    """Latency of a launched call under a fix that casts, over the same cast written into the source."""
    kind, shape = MODELS[model]
    torch.manual_seed(seed)
    x, shipped = torch.randn(shape), kind()
    written = kind(fix)
    written.load_state_dict(shipped.state_dict())
    applied = fix_by_id(fix).applied(shipped)
    with applied.stored():
        candidates = {
            "written": Candidate(partial(written, x), torch.no_grad),
            "fix": Candidate(applied.bind(x), applied.agreeing),
        }
        return summary(ratios(candidates, baseline="written", budget_s=budget_s, seed=seed)["fix"])


@one_thread()
def on_trial(case: str, size: str, fix: str, *, budget_s: float, seed: int) -> Trial:
    """Latency of a call with trace, with probe and under torch's profiler, over the call alone."""
    built = case_by_id(case).build(size, device="cpu", seed=0)
    applied = fix_by_id(fix).applied(built.model)
    with applied.stored():
        inputs = applied.prepare(built.inputs)
        calls = {"plain": partial(applied, *inputs)}
        calls |= {name: partial(capture, applied, inputs) for name, capture in CAPTURES.items()}
        candidates = {name: Candidate(call, applied.agreeing) for name, call in calls.items()}
        compared = ratios(candidates, baseline="plain", budget_s=budget_s, seed=seed)
    return {name: summary(ratio) for name, ratio in compared.items()}


def _probed(call: AppliedFix, inputs: tuple[Any, ...]) -> Any:
    with probing():
        return call(*inputs)


def _both(call: AppliedFix, inputs: tuple[Any, ...]) -> Any:
    with probing():
        return observe(call, inputs).output


CAPTURES: dict[str, Callable[[AppliedFix, tuple[Any, ...]], Any]] = {
    "trace": lambda call, inputs: observe(call, inputs).output,
    "probe": _probed,
    "both": _both,
    "profiler": lambda call, inputs: profiled(call, inputs, memory=True).output,
}


@one_thread()
def same_trial(case: str, size: str, fix: str, *, mode: str) -> Trial:
    built = case_by_id(case).build(size, device="cpu", seed=0)
    with fix_by_id(fix).applied(built.model, mode=mode) as applied:
        before = _state()
        inputs = applied.prepare(built.inputs)
        try:
            expected = applied(*inputs)
        except RuntimeError as error:  # the bug that the case is there for
            return {"passed": False, "error": str(error)[:80]}
        same = {}
        for name, capture in CAPTURES.items():
            if mode == "eager" or name in ("trace", "profiler"):
                captured = capture(applied, inputs)
                same[name] = bits_equal(captured, expected) and bits_equal(applied(*inputs), expected)
        return {"passed": True, "same": same, "left": left_behind(before)}


def bits_equal(first: Any, second: Any) -> bool:
    """Say whether two outputs have the same shape, dtype and bits; NaN equals itself."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and (first.dtype, first.shape) == (second.dtype, second.shape)
            and torch.equal(_bytes(first), _bytes(second))
        )
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(bits_equal(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _state() -> list[object]:
    """What capture exchanges: the sites' names, the casting methods, and the depth of torch's stacks of modes."""
    names = [vars(site.owner).get(site.name) for site in SITES]
    casts = [vars(torch.Tensor).get(name) for name in ("to", "type", "type_as", "half", "float", "bfloat16", "double")]
    depths = [torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()]
    return [*names, *casts, *depths]


def left_behind(before: list[object]) -> int:
    """Count what differs from an earlier :func:`_state`."""
    return sum(then is not now for then, now in zip(before, _state(), strict=True))
