"""What latencies can tell on this machine as it is now: false alarms, coverage, and the slowdown that is found.

Conventions: four kinds of call, each timed beside a second callable on the same tensors, so that nothing differs. The
series of rounds is cut into pieces, and each piece judged as a measurement of its own: that *measures* the rate of
false alarms and how often a 95 % interval holds 1. The slowdown that 95 % of measurements of 1, 2 or 10 s would find is
*predicted*, from the scatter of the rounds, which falls as 1/√time, and widened where pieces scatter more than their
rounds explain. What differs from process to process is in neither. Times are seconds, changes are relative.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from precision_eval.core.environment import self_test_machine
from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import one_thread
from precision_eval.measure.allocator import GROWN, memory_held
from precision_eval.measure.blocks import Candidate, judged_clock
from precision_eval.measure.latency import sized_rounds
from precision_eval.measure.timers import HostTimer
from precision_eval.stats import ERROR_RATE, LOOKS, look_errors, paired_ratio, student_quantile
from precision_eval.stats.paired import minimum_detectable_effect

Call = Callable[[], object]
Make = Callable[[], Call]
"""Returns a callable of its own at each call, on the same tensors."""

MARGIN = 0.002
POWER = 0.95
BUDGETS_S = (1.0, 2.0, 10.0)
_PIECES, _LEAST_ROUNDS = 40, 12
_SHARE = 0.9  # of the time; sizing and judging take the rest


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


KINDS: Mapping[str, tuple[str, Callable[[int], Make]]] = {
    "decode": ("decode, 2 caches in turn", _decode),
    "linear": ("small linear layer", _linear),
    "matmul": ("matrix product", _matmul),
    "python": ("loop in Python", _python),
}
"""Name: what it is, and its calls; some 0.1 ms, 30 µs, 4 ms and 0.2 ms on a core of 2023."""


def self_test(seconds: float = 10.0, *, seed: int = 0) -> dict[str, Any]:
    """Test what latencies can tell here; returns plain JSON data, as :data:`precision_eval.core.shapes.SELF_TEST`."""
    if not 1.0 <= seconds <= 3600.0:
        raise ParameterError(f"seconds is {seconds:g}; expected 1 to 3600")
    began, load = time.perf_counter(), os.getloadavg()[0]
    calls: dict[str, Any] = {}
    with one_thread():
        for number, (name, (title, kind)) in enumerate(KINDS.items()):
            left_s = seconds - (time.perf_counter() - began)
            calls[name] = {"title": title} | _tested(kind(seed), _SHARE * left_s / (len(KINDS) - number), seed)
    return {
        "machine": self_test_machine(),
        "made": datetime.now(UTC).isoformat(timespec="minutes"),
        "load_average": round(max(load, os.getloadavg()[0]), 2),
        "seconds": round(time.perf_counter() - began, 2),
        "calls": calls,
    }


def _tested(make: Make, budget_s: float, seed: int) -> dict[str, Any]:
    """Time two callables of one kind and judge the pieces of the series."""
    candidates = {"one": Candidate(make()), "other": Candidate(make())}
    with memory_held(GROWN):
        rounds = sized_rounds(candidates, HostTimer(), baseline="one", seed=seed)
        rounds.run_until(budget_s, min_rounds=2 * _LEAST_ROUNDS)
    times_s = {name: np.array(one) for name, one in rounds.times_s[judged_clock(rounds, "other", "one")].items()}
    return judged_series(times_s["other"], times_s["one"], elapsed_s=rounds.elapsed_s, seed=seed)


def judged_series(other_s: np.ndarray, one_s: np.ndarray, *, elapsed_s: float, seed: int) -> dict[str, Any]:
    """Judge block times of equal calls, as a whole and piece by piece."""
    count = max(2, min(_PIECES, one_s.size // _LEAST_ROUNDS))
    pieces = [
        paired_ratio(other, one, baseline="one", margin=MARGIN, seed=seed + number)
        for number, (other, one) in enumerate(
            zip(np.array_split(other_s, count), np.array_split(one_s, count), strict=True)
        )
    ]
    whole = paired_ratio(other_s, one_s, baseline="one", margin=MARGIN, seed=seed)
    error = math.log(whole.ratio_high / whole.ratio_low) / (2.0 * student_quantile(0.05, one_s.size - 1.0))
    between = float(np.std([math.log(piece.ratio) for piece in pieces], ddof=1)) / math.sqrt(count)
    widened = max(error, between)
    quantile = student_quantile(look_errors(ERROR_RATE, LOOKS)[-1], one_s.size - 1.0)

    def detectable(budget_s: float) -> float:
        after = widened * math.sqrt(elapsed_s / (_SHARE * budget_s))
        return minimum_detectable_effect(after, margin=MARGIN, direction_t=quantile, power=POWER)

    return {
        "call_s": float(f"{np.median(one_s):.4g}"),
        "ratio": [round(value, 6) for value in (whole.ratio_low, whole.ratio, whole.ratio_high)],
        "pieces": count,
        "piece_s": round(elapsed_s / count, 4),
        "alarms": sum(piece.verdict in ("faster", "slower") for piece in pieces),
        "covered": sum(piece.ratio_low <= 1.0 <= piece.ratio_high for piece in pieces),
        "rounds_per_s": round(one_s.size / elapsed_s, 1),
        "standard_error": float(f"{widened:.4g}"),
        "measured_s": round(elapsed_s, 3),
        "found": {f"{budget_s:g}": float(f"{detectable(budget_s):.4g}") for budget_s in BUDGETS_S},
    }
