"""The tools that judge the same pairs of calls: this suite and its rivals, each by its own code as installed.

A judge takes a baseline, a candidate, a budget in seconds for the pair and a seed, and returns what it says. A tool may
apply several rules to one measurement. Rivals are development extras and are imported on use.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from precision_eval.core.errors import UnsupportedError
from validation.latency.calls import Call

# Name of a rule in the trials to its name in figures and plots; the tool's own default comes first.
RULES: dict[str, str] = {
    "ours": "compare_latency",
    "asv_1.1": "asv, factor 1.1",
    "asv_1.01": "asv, factor 1.01",
    "pytest_median_2": "pytest-benchmark median:2%",
    "torch_iqr": "torch.utils.benchmark, disjoint IQRs",
    "ttest_0.01": "t-test per iteration, p < 0.01",
}


@dataclass(frozen=True, kw_only=True)
class Judged:
    said: dict[str, str]
    ratio: float
    base_s: float
    low: float | None = None
    high: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Judge(Protocol):
    def __call__(self, base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
        """Time both within the budget, and say whether the candidate is slower or faster."""


def installed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"{module} is not installed ({error}); the other tools come with pip install 'precision-eval[dev]'"
        ) from error


def say(*, slower: bool, faster: bool) -> str:
    """Turn a rule's two one-sided answers into a word; both at once are a contradiction and count as ``same``."""
    if slower == faster:
        return "same"
    return "slower" if slower else "faster"


def ours(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Compare the two with the settings a user gets by default; only the budget and the seed are given."""
    from precision_eval.measure.latency import compare_latency

    result = compare_latency({"base": base, "cand": candidate}, baseline="base", budget_s=budget_s, seed=seed)["cand"]
    extra = {"mde": result.minimum_detectable_effect, "clock": result.clock, "blocks": result.blocks}
    return Judged(
        said={"ours": result.verdict}, ratio=result.ratio, low=result.ratio_low, high=result.ratio_high,
        base_s=result.baseline_median_s, extra=extra | {"doubts": [d.split(":")[0][:32] for d in result.doubts]},
    )  # fmt: skip


# 1.1 is the default of ``asv compare`` and ``asv continuous``; 1.01 asks it for 1 %.
ASV_FACTORS = {"asv_1.1": 1.1, "asv_1.01": 1.01}
_ASV_ROUNDS = 2
_ASV_WARMUP_S = 0.1  # asv's own default on CPython; counted within the budget


def asv(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Time both with asv, two rounds each, and compare them as ``asv compare`` does; asv takes no seed."""
    samples: tuple[list[float], list[float]] = ([], [])
    for which in (1, 0, 0, 1):
        samples[which].extend(_asv_round((base, candidate)[which], round_s=budget_s / (2 * _ASV_ROUNDS)))
    return asv_compared(*samples)


def _asv_round(call: Call, *, round_s: float) -> list[float]:
    """Return the samples of one of asv's rounds, seconds per call."""
    settings = SimpleNamespace(repeat=(1, 1_000_000, max(round_s - _ASV_WARMUP_S, 0.01)), rounds=_ASV_ROUNDS)
    benchmark = installed("asv_runner.benchmarks.time").TimeBenchmark("time_call", call, [settings])
    benchmark.do_setup()
    samples: list[float] = benchmark.do_run()["samples"]
    return samples


def asv_compared(base_s: Sequence[float], candidate_s: Sequence[float]) -> Judged:
    compute_stats = installed("asv_runner.statistics").compute_stats
    better = installed("asv.commands.compare")._is_result_better
    base, base_stats = compute_stats(list(base_s), 1)
    cand, cand_stats = compute_stats(list(candidate_s), 1)
    first, second = (base_stats, list(base_s)), (cand_stats, list(candidate_s))
    said = {
        rule: say(slower=better(base, cand, first, second, factor), faster=better(cand, base, second, first, factor))
        for rule, factor in ASV_FACTORS.items()
    }
    return Judged(said=said, ratio=cand / base, base_s=base, extra={"samples": len(base_s)})


# What its command line defaults to. ``--benchmark-max-time`` alone is set: half of the budget.
_PYTEST_DEFAULTS: dict[str, Any] = {
    **{"disable_gc": False, "min_rounds": 5, "min_time": 0.000005, "precision": None, "confidence": 0.99},
    **{"warmup": False, "warmup_iterations": 100_000, "calibration_precision": 10, "disabled": False},
    **{"cprofile": False, "cprofile_loops": None, "cprofile_dump": False},
}


def pytest_benchmark(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Run both through the plugin's fixture, baseline first, and apply its check; the tool takes no seed."""
    return pytest_compared(*(_pytest_stats(call, max_time_s=budget_s / 2) for call in (base, candidate)))


def _pytest_stats(call: Call, *, max_time_s: float) -> Any:
    """Return the fixture's own record of one benchmark; only the test item around it is a stub."""
    timers, utils = installed("pytest_benchmark.timers"), installed("pytest_benchmark.utils")
    fixture = installed("pytest_benchmark.fixture").BenchmarkFixture(
        SimpleNamespace(name="test_call", nodeid="test_call"),
        timer=utils.NameWrapper(timers.default_timer),
        max_time=max_time_s,
        add_stats=lambda stats: None,
        logger=SimpleNamespace(debug=lambda *args, **kwargs: None),
        warner=lambda warning: None,
        **_PYTEST_DEFAULTS,
    )
    fixture(call)
    return fixture.stats


def pytest_compared(base: Any, candidate: Any) -> Judged:
    """Apply ``--benchmark-compare-fail=median:2%``, which is one-sided: for *faster* the two are exchanged."""
    check = installed("pytest_benchmark.utils").parse_compare_fail("median:2%")
    word = say(slower=bool(check.fails(candidate, base)), faster=bool(check.fails(base, candidate)))
    ratio, extra = candidate["median"] / base["median"], {"samples": base["rounds"]}
    return Judged(said={"pytest_median_2": word}, ratio=ratio, base_s=base["median"], extra=extra)


def torch_benchmark(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Measure both with ``Timer.blocked_autorange``, baseline first, and read the pair; the tool takes no seed."""
    from torch.utils.benchmark import Timer

    measured = [
        Timer(stmt="call()", globals={"call": call}, num_threads=1).blocked_autorange(min_run_time=budget_s / 2)
        for call in (base, candidate)
    ]
    return torch_compared(*measured)


def torch_compared(base: Any, candidate: Any) -> Judged:
    """Call two measurements different where the interquartile ranges that they print do not overlap."""
    _ = base.median, candidate.median  # computes the quartiles
    said = {"torch_iqr": say(slower=candidate._p25 > base._p75, faster=candidate._p75 < base._p25)}
    ratio = candidate.median / base.median
    return Judged(said=said, ratio=ratio, base_s=base.median, extra={"samples": len(base.raw_times)})


P_BELOW = 0.01


def ttest(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Time each call on its own, one function after the other, and test the means; there is nothing to seed."""
    return ttest_compared(_samples(base, budget_s / 2), _samples(candidate, budget_s / 2))


def _samples(call: Call, seconds: float) -> list[float]:
    """Time call after call until the time is over; at least twice, for a variance."""
    clock = time.perf_counter
    end_s = clock() + seconds
    samples: list[float] = []
    while clock() < end_s or len(samples) < 2:
        start_s = clock()
        call()
        samples.append(clock() - start_s)
    return samples


def ttest_compared(base_s: ArrayLike, candidate_s: ArrayLike) -> Judged:
    """Apply Welch's t-test; the interval is that of the difference, over the baseline's mean."""
    from scipy import stats

    base, candidate = np.asarray(base_s, dtype=np.float64), np.asarray(candidate_s, dtype=np.float64)
    test: Any = stats.ttest_ind(candidate, base, equal_var=False)
    interval = test.confidence_interval(confidence_level=0.95)
    mean_s = float(base.mean())
    differs = float(test.pvalue) < P_BELOW
    return Judged(
        said={"ttest_0.01": say(slower=differs and test.statistic > 0, faster=differs and test.statistic < 0)},
        ratio=float(candidate.mean()) / mean_s,
        low=1.0 + float(interval.low) / mean_s,
        high=1.0 + float(interval.high) / mean_s,
        base_s=mean_s,
        extra={"samples": int(base.size)},
    )


TOOLS: Mapping[str, Judge] = {
    "ours": ours,
    "asv": asv,
    "pytest_benchmark": pytest_benchmark,
    "torch": torch_benchmark,
    "ttest": ttest,
}
