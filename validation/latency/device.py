"""Equal and slowed calls on a planted device: how often ``compare_latency`` and other tools' rules tell them apart.

No card takes part. A clock of our own stands for the device's, and seconds pass only as calls, captures and moves of
tensors say. Planted are: a factor of each allocation of up to 0.3 %, as an H200 showed, and of each graph's memory; the
scatter of single calls, with outliers; launches by a host; a clock that wanders by 0.5 %. This suite's own code runs,
with the device exchanged. Of the other tools only the rules are written anew, by which they repeat, stop and estimate:
triton's do_bench and do_bench_cudagraph, torch.utils.benchmark's blocked_autorange, nvbench's relative standard
deviation and its entropy. The first two only give a time: more than half of the planted slowdown apart is told apart.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from precision_eval.core.formatting import duration_text
from precision_eval.core.table import make_table, to_markdown
from precision_eval.measure import blocks, graphs, latency
from precision_eval.measure.candidates import CUDA_EVENT_RESOLUTION_S
from precision_eval.measure.graphs import CudaDevice
from precision_eval.measure.placement import Draws
from precision_eval.measure.timers import Samples, Timer
from validation.frame import Data, Experiment, Figure, Options, Trial, each
from validation.latency.figures import covers, is_flagged, says
from validation.latency.rivals import say
from validation.report import judged_share, share_text

BUDGET_S = 1.0
CALLS_S = (1e-5, 5e-5, 1e-3, 1e-2)
DELTAS = (0.0, 0.01)
TENSORS = ("own", "shared")

_ALLOCATION, _POOL = (0.0015, 0.003), (0.0005, 0.001)  # standard deviation and most, relative
_SCATTER, _OUTLIERS, _OUTLIER = 0.004, 0.01, 0.05
_WANDERS, _COLD = 0.005, 0.01
_LAUNCH_S, _EVENT_S, _FLUSH_S, _CAPTURE_S, _MOVE_S = 6e-6, 1.5e-6, 5e-5, 4e-3, 2e-3
_APART = 0.005

Times = NDArray[np.float64]


class Device:
    """A device and its host: ``time`` for the code under trial, and what a call of a kernel lasts."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.now_s = 0.0
        self._phase, self._period_s = self.rng.uniform(0.0, 2.0 * math.pi), self.rng.uniform(3.0, 20.0)

    def perf_counter(self) -> float:
        return self.now_s

    def draw(self, effect: tuple[float, float]) -> float:
        """Draw the logarithm of a factor that a place has."""
        return float(np.clip(self.rng.normal(0.0, effect[0]), -effect[1], effect[1]))

    def times_s(self, kernel: Kernel, calls: int, *, pool: float = 0.0, after_s: float = 0.0) -> Times:
        """Return what so many calls last on the device, each after a flush or an event of `after_s`."""
        wanders = _WANDERS * math.sin(2.0 * math.pi * self.now_s / self._period_s + self._phase)
        clock = 1.0 + wanders + _COLD * math.exp(-self.now_s)
        each_s = kernel.seconds * clock * np.exp(kernel.memory.effect + pool + _SCATTER * self.rng.normal(size=calls))
        outliers = self.rng.random(calls) < _OUTLIERS
        times_s: Times = each_s * (1.0 + outliers * self.rng.exponential(_OUTLIER, calls))
        self.now_s += float(times_s.sum()) + calls * after_s
        return times_s


@dataclass
class Memory:
    effect: float


@dataclass
class Kernel:
    """What a call runs; called by the suite before its capture, which then goes by the kernel itself."""

    seconds: float
    memory: Memory

    def __call__(self) -> None: ...


@dataclass
class Captured:
    kernel: Kernel
    pool: float

    def __call__(self) -> None: ...


class PlantedCuda(CudaDevice):
    """What the suite needs of CUDA, on a planted device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def generators(self, call: Callable[[], object]) -> list[object]:
        return []

    def warm_up(self, call: Callable[[], object]) -> None:
        assert isinstance(call, Kernel)
        self.device.times_s(call, 3)

    def capture(self, call: Callable[[], object], *, again: bool = False) -> Captured:
        assert isinstance(call, Kernel)
        self.device.now_s += _CAPTURE_S
        return Captured(call, self.device.draw(_POOL))

    def graph_timer(self, cache: object) -> Timer:
        return GraphTimer(self.device)


@dataclass
class GraphTimer:
    device: Device
    clocks: tuple[str, ...] = ("cuda-graph-warm",)

    def __call__(self, call: Callable[[], object], calls: int) -> Samples:
        captured = call.replay if isinstance(call, graphs.Replay) else None
        assert isinstance(captured, Captured)
        return {self.clocks[0]: self.device.times_s(captured.kernel, calls, pool=captured.pool, after_s=_EVENT_S)}


@dataclass(frozen=True)
class Judged:
    said: str
    ratio: float
    low: float | None = None
    high: float | None = None


def ours(device: Device, base: Kernel, cand: Kernel, seed: int, *, redraw: bool | None = None) -> Judged:
    """Run the suite's own code with the device, its clock and the moving of tensors exchanged."""
    memories = {id(kernel.memory): kernel.memory for kernel in (base, cand)}.values()

    def draw() -> None:
        device.now_s += _MOVE_S
        for memory in memories:
            memory.effect = device.draw(_ALLOCATION)

    draws = None if redraw is False else Draws(draw, _MOVE_S)
    with ExitStack() as stack:
        for module in (latency, blocks, graphs):
            stack.enter_context(patch.object(module, "time", device))
        stack.enter_context(patch.object(latency, "CudaDevice", lambda name: PlantedCuda(device)))
        stack.enter_context(patch.object(latency, "draws_of", lambda *args, **options: draws))
        ratio = latency.compare_latency(
            {"base": base, "cand": cand}, baseline="base", budget_s=BUDGET_S, device="cuda", graph=True, seed=seed,
            check=False, redraw=redraw,
        )["cand"]  # fmt: skip
    return Judged(ratio.verdict, ratio.ratio, ratio.ratio_low, ratio.ratio_high)


def _estimate_s(device: Device, kernel: Kernel) -> float:
    return float(device.times_s(kernel, 5, after_s=_FLUSH_S).mean()) + _FLUSH_S


def do_bench(device: Device, kernel: Kernel) -> float:
    """triton.testing.do_bench: warm up for 25 ms, repeat for 100 ms with the cache flushed before each; the median."""
    estimate_s = _estimate_s(device, kernel)
    device.times_s(kernel, max(1, int(25e-3 / estimate_s)))
    times_s = device.times_s(kernel, max(1, int(100e-3 / estimate_s)), after_s=_FLUSH_S)
    return float(np.median(times_s + _EVENT_S * np.exp(0.3 * device.rng.normal(size=times_s.size))))


def do_bench_cudagraph(device: Device, kernel: Kernel) -> float:
    """triton.testing.do_bench_cudagraph: one graph of calls for 20 ms, replayed ten times; the mean."""
    calls = max(1, int(20e-3 / _estimate_s(device, kernel)))
    device.now_s += _CAPTURE_S
    pool = device.draw(_POOL)
    return float(np.mean([device.times_s(kernel, calls, pool=pool).mean() for _ in range(10)]))


def _launched_s(device: Device, kernel: Kernel, calls: int) -> float:
    """Wall clock of a loop of launched calls, to the end of their work: the host's time where that is longer."""
    device_s = device.times_s(kernel, calls)
    host_s = _LAUNCH_S * np.exp(0.2 * device.rng.normal(size=calls))
    return float(np.maximum(device_s, host_s).sum())


def blocked_autorange(device: Device, kernel: Kernel) -> Times:
    """torch.utils.benchmark: blocks long enough for its timer, for 0.2 s; seconds per call of each block."""
    calls, least_s = 1, 0.2
    while (block_s := _launched_s(device, kernel, calls)) < max(1e-7 / 1e-4, least_s / 1000) and block_s <= least_s:
        calls *= 10
    blocks_s: list[float] = []
    while sum(blocks_s) < least_s:
        blocks_s.append(_launched_s(device, kernel, calls))
    return np.array(blocks_s) / calls


def stdrel(device: Device, kernel: Kernel) -> tuple[float, float]:
    """Measure by nvbench's default criterion; returns the mean and the relative standard deviation.

    It ends after 0.5 s of work, once that deviation is below 0.5 %, or once it has moved by less than 5 % of itself;
    after 15 s in any case.
    """
    start_s, calls, total_s, squares, noises = device.now_s, 0, 0.0, 0.0, [math.inf]
    while device.now_s - start_s < 15.0:
        times_s = device.times_s(kernel, 16, after_s=_FLUSH_S)
        calls, total_s, squares = calls + 16, total_s + float(times_s.sum()), squares + float((times_s**2).sum())
        noises.append(math.sqrt(max(0.0, squares - total_s**2 / calls) / (calls - 1)) * calls / total_s)
        if total_s > 0.5 and (noises[-1] < 0.005 or _has_settled(noises[1:][-64:])):
            break
    return total_s / calls, noises[-1]


def _has_settled(noises: Sequence[float]) -> bool:
    return len(noises) > 4 and math.sqrt(np.mean((np.array(noises) / noises[-1] - 1.0) ** 2)) < 0.05


def entropy(device: Device, kernel: Kernel) -> tuple[float, float]:
    """Measure by nvbench's entropy criterion; returns the mean and the relative standard deviation.

    It ends once a line through the last 299 entropies of the times so far rises by no more than 0.048° a call and
    explains 36 % of their variance; after 15 s in any case (nvbench/detail/entropy_criterion.cxx, commit 182c77e4).
    It is asked every 16 calls, and times are distinct as far as CUDA documents that events are.
    """
    start_s, weighted, counts = device.now_s, 0.0, Counter[int]()
    times_s: list[float] = []
    entropies: deque[float] = deque(maxlen=299)
    while device.now_s - start_s < 15.0 and not _is_level(entropies):
        for time_s in device.times_s(kernel, 16, after_s=_FLUSH_S).tolist():
            times_s.append(time_s)
            key = round(time_s / CUDA_EVENT_RESOLUTION_S)
            weighted += _n_log_n(counts[key] + 1) - _n_log_n(counts[key])
            counts[key] += 1
            entropies.append(max(0.0, math.log2(len(times_s)) - weighted / len(times_s)))
    return float(np.mean(times_s)), float(np.std(times_s, ddof=1) / np.mean(times_s))


def _n_log_n(count: int) -> float:
    return count * math.log2(count) if count else 0.0


def _is_level(entropies: Sequence[float]) -> bool:
    if not entropies:
        return False
    if np.var(entropies) * len(entropies) < 1e-9:
        return True
    line = scipy.stats.linregress(range(len(entropies)), entropies)
    return bool(math.degrees(math.atan(line.slope)) <= 0.048 and line.rvalue**2 >= 0.36)


def _by_time(rule: Callable[[Device, Kernel], float], device: Device, base: Kernel, cand: Kernel, seed: int) -> Judged:
    base_s, cand_s = rule(device, base), rule(device, cand)
    ratio = cand_s / base_s
    return Judged(say(slower=ratio > 1.0 + _APART, faster=ratio < 1.0 - _APART), ratio)


def _by_quartiles(device: Device, base: Kernel, cand: Kernel, seed: int) -> Judged:
    first, second = blocked_autorange(device, base), blocked_autorange(device, cand)
    (low, high), (below, above) = (np.percentile(times_s, [25, 75]) for times_s in (first, second))
    return Judged(say(slower=below > high, faster=above < low), float(np.median(second) / np.median(first)))


def _by_noise(
    rule: Callable[[Device, Kernel], tuple[float, float]], device: Device, base: Kernel, cand: Kernel, seed: int
) -> Judged:
    """As nvbench's comparison does: apart by more than the smaller of the two deviations."""
    (base_s, base_noise), (cand_s, cand_noise) = rule(device, base), rule(device, cand)
    apart = (cand_s - base_s) / base_s
    least = min(base_noise, cand_noise)
    return Judged(say(slower=apart > least, faster=apart < -least), 1.0 + apart)


OURS = "ours"
Rule = Callable[[Device, Kernel, Kernel, int], Judged]
RULES: dict[str, tuple[str, Rule]] = {
    OURS: ("compare_latency", ours),
    "one_place": ("compare_latency, redraw=False", partial(ours, redraw=False)),
    "do_bench": ("triton do_bench, more than 0.5 % apart", partial(_by_time, do_bench)),
    "do_bench_cudagraph": ("triton do_bench_cudagraph, more than 0.5 % apart", partial(_by_time, do_bench_cudagraph)),
    "torch_iqr": ("torch.utils.benchmark, disjoint IQRs", _by_quartiles),
    "nvbench": ("nvbench, stdrel and its comparison", partial(_by_noise, stdrel)),
    "nvbench_entropy": ("nvbench, entropy and its comparison", partial(_by_noise, entropy)),
}


@dataclass(frozen=True)
class Spec:
    tensors: str
    delta: float
    call_s: float
    number: int

    @property
    def key(self) -> str:
        return f"{self.tensors}/{self.delta:g}/{self.call_s:g}/{self.number}"

    @classmethod
    def parse(cls, key: str) -> Spec:
        tensors, delta, call_s, number = key.split("/")
        return cls(tensors, float(delta), float(call_s), int(number))


def _trials(options: Options) -> list[Trial]:
    specs = [
        Spec(tensors, delta, call_s, number)
        for number in range(options["trials"])
        for tensors in TENSORS
        for delta in DELTAS
        for call_s in CALLS_S
    ]
    return [Trial(spec.key, spec) for spec in specs]


def _judged(spec: Spec) -> Data:
    """Judge a pair by each rule, on one device each that is planted alike."""
    seed = [spec.number, TENSORS.index(spec.tensors), DELTAS.index(spec.delta), CALLS_S.index(spec.call_s)]
    rows: dict[str, list[float | str | None]] = {}
    for name, (_, rule) in RULES.items():
        device = Device(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        memory = Memory(device.draw(_ALLOCATION))
        other = memory if spec.tensors == "shared" else Memory(device.draw(_ALLOCATION))
        pair = Kernel(spec.call_s, memory), Kernel(spec.call_s * (1.0 + spec.delta), other)
        found = rule(device, *pair, spec.number)
        rows[name] = [found.said, *map(_short, (found.ratio, found.low, found.high, device.now_s))]
    return {"rows": rows}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def outcomes(lines: Iterable[Data]) -> list[Data]:
    made = []
    for line in lines:
        spec = Spec.parse(line["key"])
        for rule, (said, ratio, low, high, elapsed_s) in line["rows"].items():
            where = {"tensors": spec.tensors, "delta": spec.delta, "call_s": spec.call_s, "number": spec.number}
            made.append(
                {**where, "rule": rule, "said": said, "ratio": ratio, "low": low, "high": high, "elapsed_s": elapsed_s}
            )
    return made


def _figures(lines: list[Data]) -> list[Figure]:
    cases = outcomes(lines)
    return [figure for tensors in TENSORS for figure in _figures_of(tensors, _of(cases, tensors=tensors))]


def _of(cases: Sequence[Data], **where: object) -> list[Data]:
    return [case for case in cases if all(case[name] == value for name, value in where.items())]


def _figures_of(tensors: str, here: list[Data]) -> Iterator[Figure]:
    place = f"{tensors} tensors"

    def share(name: str, delta: float, test: Callable[[Data], bool], target: str) -> Figure:
        among = {rule: _of(here, rule=rule, delta=delta) for rule in RULES}
        texts = {
            RULES[rule][0]: share_text(sum(map(test, theirs)), len(theirs))
            for rule, theirs in among.items()
            if rule != OURS and theirs and (test is not covers or theirs[0]["low"] is not None)
        }
        mine = among[OURS]
        return judged_share(f"{place}: {name}", sum(map(test, mine)), len(mine), target, rivals=texts, enough=20)

    yield share("equal calls told apart", 0.0, is_flagged, "≤ 1 %")
    yield share("95 % interval holds 1 on equal calls", 0.0, covers, "≥ 93 %")
    yield share("+1 % found in 1 s", 0.01, says("slower"), "≥ 95 %")
    yield share("95 % interval holds +1 %", 0.01, covers, "≥ 93 %")
    pairs = _in_two_processes(_of(here, rule=OURS))
    near = sum(abs(again["ratio"] / once["ratio"] - 1.0) <= 0.01 for once, again in pairs)
    yield judged_share(f"{place}: again in another process: within 1 %", near, len(pairs), "100 %", enough=20)
    # Both ratios scatter: of two normal estimates one lies in the other's 95 % interval in 83 % of pairs.
    inside = sum(once["low"] <= again["ratio"] <= once["high"] for once, again in pairs)
    yield judged_share(f"{place}: again: in the first's interval", inside, len(pairs), "≥ 83 %", enough=20)
    mine = [case["elapsed_s"] for case in _of(here, rule=OURS)]
    slowest = float(np.quantile(mine, 0.95))
    text = f"{slowest:.2f} s, mean {np.mean(mine):.2f} s"
    yield Figure(
        f"{place}: 95th percentile of a pair's time", text, f"≤ {1.1 * BUDGET_S:g} s", slowest <= 1.1 * BUDGET_S
    )


def _in_two_processes(cases: Sequence[Data]) -> list[tuple[Data, Data]]:
    """Pair the trials of each cell: each is on a device of its own, with places, a clock and its phase drawn anew."""
    numbered = {(case["delta"], case["call_s"], case["number"]): case for case in cases}
    return [
        (case, numbered[*cell, number + 1])
        for (*cell, number), case in numbered.items()
        if number % 2 == 0 and (*cell, number + 1) in numbered
    ]


def _notes(lines: list[Data]) -> list[str]:
    """Return the same of every rule as one table, for tensors of their own."""
    cases, rows = outcomes(lines), []
    for rule, (name, _) in RULES.items():
        mine = _of(cases, rule=rule)
        apart, slower = (
            _percent([test(case) for case in _of(mine, tensors="own", delta=delta)])
            for delta, test in ((0.0, is_flagged), (0.01, says("slower")))
        )
        rows.append((name, apart, slower, duration_text(float(np.mean([case["elapsed_s"] for case in mine])))))
    return [
        "Every rule on the same planted pairs, with own tensors; time on the device's clock.",
        to_markdown(make_table(("rule", "equal told apart", "+1 % found", "time of a pair"), rows)),
    ]


def _percent(hits: list[bool]) -> str:
    return f"{100 * np.mean(hits):.1f} %"


EXPERIMENT = Experiment(
    name="device",
    title="verdicts on a simulated device, no card: placement, launches and a wandering clock are planted",
    trials=_trials,
    run=each(_judged),
    figures=_figures,
    notes=_notes,
    settings={"trials": (6, 60)},
)
