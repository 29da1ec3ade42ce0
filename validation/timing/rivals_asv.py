"""asv as installed: its own timing loop, its own statistics, its own comparison."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from validation.timing.calls import Call
from validation.timing.tools import Judged, installed, say

FACTORS = {"asv_1.1": 1.1, "asv_1.01": 1.01}
"""1.1 is the default of ``asv compare`` and ``asv continuous``; 1.01 asks it for 1 %."""

_ROUNDS = 2
_WARMUP_S = 0.1  # asv's own default on CPython; counted within the budget


def judge(base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
    """Time both with asv, two rounds each, and compare them as ``asv compare`` does; asv takes no seed."""
    round_s = budget_s / (2 * _ROUNDS)
    samples: dict[str, list[float]] = {"base": [], "cand": []}
    calls = {"base": base, "cand": candidate}
    for name in ("cand", "base", "base", "cand"):
        samples[name] += _one_round(calls[name], round_s=round_s)
    return compared(samples["base"], samples["cand"])


def _one_round(call: Call, *, round_s: float) -> list[float]:
    """Return the samples of one of asv's rounds, seconds per call."""
    settings = SimpleNamespace(repeat=(1, 1_000_000, max(round_s - _WARMUP_S, 0.01)), rounds=_ROUNDS)
    benchmark = installed("asv_runner.benchmarks.time").TimeBenchmark("time_call", call, [settings])
    benchmark.do_setup()
    samples: list[float] = benchmark.do_run()["samples"]
    return samples


def compared(base_s: Sequence[float], candidate_s: Sequence[float]) -> Judged:
    """Compare two sets of samples by asv's rule."""
    compute_stats = installed("asv_runner.statistics").compute_stats
    better = installed("asv.commands.compare")._is_result_better
    base, base_stats = compute_stats(list(base_s), 1)
    cand, cand_stats = compute_stats(list(candidate_s), 1)
    base_ss, cand_ss = (base_stats, list(base_s)), (cand_stats, list(candidate_s))
    said = {
        rule: say(
            slower=better(base, cand, base_ss, cand_ss, factor), faster=better(cand, base, cand_ss, base_ss, factor)
        )
        for rule, factor in FACTORS.items()
    }
    return Judged(said=said, ratio=cand / base, base_s=base, extra={"samples": len(base_s)})
