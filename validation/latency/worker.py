"""The process that measures: one trial after another, each on fresh data.

A process of its own keeps the parent's progress display out of the timing, and a new one per phase lets trials differ
in what one process fixes (where code and tensors lie). One intra-op thread. What tools print goes to standard error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import Any

from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.workers import context_of
from validation.latency.calls import CALLS, call_by_name, make_pair
from validation.latency.load import Bystanders
from validation.latency.rivals import TOOLS, Judge
from validation.latency.schedule import TrialSpec

_PRACTICE_S = 0.05

Measure = Callable[[TrialSpec], dict[str, Any]]


def run_trial(spec: TrialSpec, *, judge: Judge | None = None) -> dict[str, Any]:
    """Run one trial in this process; return it as plain data: six decimals for ratios, three digits for times."""
    judge = judge or _practised(spec.tool)
    base, candidate = make_pair(call_by_name(spec.call), spec.delta, seed=spec.seed)
    for call in (base, candidate):
        call()
    bystanders, start_s = Bystanders(), time.perf_counter()
    judged = judge(base, candidate, budget_s=spec.budget_s, seed=spec.seed)
    elapsed_s, others = time.perf_counter() - start_s, bystanders.cores()
    interval = {name: round(value, 6) for name in ("low", "high") if (value := getattr(judged, name)) is not None}
    return {
        "key": spec.key, "said": judged.said, "ratio": round(judged.ratio, 6), **interval,
        "base_s": _short(judged.base_s), "elapsed_s": round(elapsed_s, 2), "others": round(others, 2),
        "pid": os.getpid(), **{name: _short(value) for name, value in judged.extra.items()},
    }  # fmt: skip


def _short(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


@cache
def _practised(tool: str) -> Judge:
    """Return a tool's judge once it has judged a pair, so that no trial pays for its imports."""
    judge = TOOLS[tool]
    judge(*make_pair(CALLS[0], 0.0, seed=0), budget_s=_PRACTICE_S, seed=0)
    return judge


def _begin() -> None:
    import torch

    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)


@contextmanager
def measuring_process() -> Iterator[Measure]:
    """Start a process, yield what has one trial measured in it, and end it."""
    with ProcessPoolExecutor(1, mp_context=context_of("spawn"), initializer=_begin) as pool:

        def measure(spec: TrialSpec) -> dict[str, Any]:
            try:
                return pool.submit(run_trial, spec).result()
            except BrokenProcessPool as error:
                raise PrecisionEvalError(
                    f"the measuring process ended before {spec.key} was done; see its message above; run again to "
                    "go on after the last trial on file"
                ) from error

        yield measure
