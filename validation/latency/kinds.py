"""What ``compare_latency`` says in 2 s of four kinds of call, on this machine under its present load.

A trial compares two callables on the same tensors. Where a slowdown is planted, an empty loop follows both: of no turn,
and of the turns that last 1 % of a call, measured at the start of the trial to some 2 %. Each trial stores how busy
other processes were; figures are by processor, quiet apart from loaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import repeat
from statistics import median

import numpy as np

from precision_eval.core.environment import cpu_model, usable_cores
from precision_eval.core.workers import call_isolated
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.latency.figures import ENOUGH, Test, covers, is_flagged, says
from validation.latency.load import Bystanders
from validation.latency.rivals import ours
from validation.report import judged_share

Call = Callable[[], object]
Make = Callable[[], Call]  # a callable of its own at each call, on the same tensors


def _decode(seed: int) -> Make:
    """Return attention of one query on two caches in turn: the same values, laid out in two ways."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 8, 1, 64, generator=generator)
    by_head = torch.randn(2, 1, 8, 512, 64, generator=generator)  # keys and values, each (B, H, L, D)
    caches = [by_head, by_head.transpose(2, 3).contiguous().transpose(2, 3)]

    def make() -> Call:
        turn = 0

        def call() -> object:
            nonlocal turn
            turn = 1 - turn
            keys, values = caches[turn]
            return torch.nn.functional.scaled_dot_product_attention(query, keys, values)

        return call

    return make


def _linear(seed: int) -> Make:
    import torch

    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(4, 384, generator=generator), torch.randn(384, 384, generator=generator)
    return lambda: lambda: torch.nn.functional.linear(x, weight)


def _matmul(seed: int) -> Make:
    import torch

    a, b = torch.randn(2, 544, 544, generator=torch.Generator().manual_seed(seed))
    return lambda: lambda: torch.mm(a, b)


def _python(seed: int) -> Make:
    values = list(range(seed, seed + 4000))
    return lambda: lambda: sum(value & 3 for value in values)


# A call lasts some 0.1 ms, 30 µs, 4 ms and 0.2 ms on a core of 2023.
KINDS: dict[str, Callable[[int], Make]] = {"decode": _decode, "linear": _linear, "matmul": _matmul, "python": _python}

BUDGET_S = 2.0
DELTAS = (0.0, 0.01)
QUIET_CORES = 0.15  # cores in use by others up to which a trial counts as quiet
_LONG_SHARE, _TURN_S = 0.2, 8e-9
_TOGETHER = 8  # trials in one process
_SHORT = ("decode", "linear", "python")  # below 1 ms


def _trials(options: Options) -> list[Trial]:
    place = f"{cpu_model()}/{usable_cores()}/{metadata.version('torch')}"
    return [  # in turn, so that a stopped campaign has some of each
        Trial(f"{kind}/{delta:g}/{number}/{place}", (kind, delta, number), BUDGET_S)
        for number in range(options["trials"])
        for kind in KINDS
        for delta in DELTAS
    ]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Measure some trials per process: where code and tensors lie is drawn anew by each."""
    while some := [trial for _, trial in zip(range(_TOGETHER), trials, strict=False)]:
        measured = call_isolated(_measured, [trial.spec for trial in some], start="spawn")
        for trial, line in zip(some, measured, strict=True):
            yield {"key": trial.key, **line}


def _measured(specs: list[tuple[str, float, int]]) -> list[Data]:
    import torch

    torch.set_num_threads(1)
    for kind in {kind for kind, _, _ in specs}:
        make = KINDS[kind](0)
        ours(make(), make(), budget_s=0.05, seed=0)  # so that no trial pays for imports
    return [_compared(*spec) for spec in specs]


def _compared(kind: str, delta: float, seed: int) -> Data:
    make = KINDS[kind](seed)
    base, candidate = make(), make()
    planted = 0.0
    if delta > 0.0:
        (base, _), (candidate, planted) = slower(base, 0.0), slower(candidate, delta)
    bystanders, start_s = Bystanders(), time.perf_counter()
    judged = ours(base, candidate, budget_s=BUDGET_S, seed=seed)
    elapsed_s, others = time.perf_counter() - start_s, bystanders.cores()
    return {
        "kind": kind, "delta": delta, "planted": planted, "said": judged.said["ours"], "ratio": judged.ratio,
        "low": judged.low, "high": judged.high, "mde": judged.extra["mde"], "base_s": judged.base_s,
        "elapsed_s": elapsed_s, "others": round(others, 3), "load_average": os.getloadavg()[0], "cpu": cpu_model(),
        "cores": usable_cores(),
    }  # fmt: skip


def slower(call: Call, delta: float) -> tuple[Call, float]:
    """Return a call that is followed by an empty loop, and how much longer it lasts for it, in processor time.

    What a turn of the loop lasts is read behind the call itself, where it is as warm as it will be: a long loop's time
    less none's, in turn, as medians over pairs of calls, of which every second one of a kind may last longer.
    """
    if delta == 0.0:
        return _followed(call, 0), 0.0
    turns = max(200, round(_LONG_SHARE * _pair_s(call) / _TURN_S))
    plain, long = _followed(call, 0), _followed(call, turns)
    readings = [(_pair_s(plain), _pair_s(long)) for _ in range(60)]
    once_s, longer_s = (median(reading[which] for reading in readings) for which in (0, 1))
    each_s = (longer_s - once_s) / turns
    times = round(delta * once_s / each_s)
    return _followed(call, times), times * each_s / once_s


def _followed(call: Call, turns: int) -> Call:
    def followed() -> object:
        output = call()
        for _ in repeat(None, turns):
            pass
        return output

    return followed


def _pair_s(call: Call) -> float:
    """Processor time of a call, over two that follow each other: waiting for a processor is not counted."""
    start_s = time.thread_time()
    call()
    call()
    return (time.thread_time() - start_s) / 2.0


def _figures(lines: list[Data]) -> list[Figure]:
    figures: list[Figure] = []
    for cpu in dict.fromkeys(line["cpu"] for line in lines):
        here = [line for line in lines if line["cpu"] == cpu]
        for name, quiet in (("quiet", True), ("loaded", False)):
            of_load = [line for line in here if (line["others"] <= QUIET_CORES) is quiet]
            if of_load:
                figures += _figures_of_load(of_load, f"{cpu}, {name}", quiet=quiet)
    return figures


def _figures_of_load(lines: list[Data], place: str, *, quiet: bool) -> Iterator[Figure]:
    same, slowed = ([line for line in lines if (line["delta"] > 0.0) is planted] for planted in (False, True))

    def share(name: str, among: list[Data], test: Test, target: str) -> Figure:
        return judged_share(f"{place}: {name}", sum(map(test, among)), len(among), target, enough=ENOUGH)

    yield share("equal calls told apart", same, is_flagged, "≤ 0.5 %")
    yield share("+1 % found in 2 s", slowed, says("slower"), "≥ 95 %" if quiet else "≥ 85 %")
    short = [line for line in same if line["kind"] in _SHORT]
    yield share("equal calls below 1 ms settled", short, says("equivalent"), "≥ 90 %" if quiet else "")
    yield share("95 % interval holds 1 on equal calls", same, covers, "93–97 %")
    promised = [line for line in slowed if line["planted"] >= line["mde"]]
    yield share("found where the detectable effect is at most 1 %", promised, says("slower"), "≥ 80 %")
    yield share("wrong in sign", slowed, says("faster"), "0")
    slowest = float(np.quantile([line["elapsed_s"] for line in lines], 0.95)) / BUDGET_S
    yield Figure(f"{place}: 95th percentile of wall time ÷ budget", f"{slowest:.3f}", "≤ 1.1", slowest <= 1.1)


EXPERIMENT = Experiment(
    name="kinds",
    title="verdicts on latency in 2 s, on four kinds of call, on this machine under its load",
    trials=_trials,
    run=_run,
    figures=_figures,
    settings={"trials": (3, 60)},
)
