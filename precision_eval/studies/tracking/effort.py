"""How much is measured: :data:`FULL` for a history, :data:`QUICK` to see that everything runs.

Conventions: seconds. A sweep that visits torch versions in rounds times one process of the paired latency at each
visit and says which in :data:`PROCESS_VARIABLE`: the number is part of the seed of its order and memory. Quick figures
are no data: fewer processes, shorter streams, and tiny sizes where there are any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from precision_eval.core.cells import Options
from precision_eval.core.errors import ParameterError

DEVICE = "cpu"
THREADS = 1
"""Intra-op threads: what a history needs is the same every time, and a runner's cores are not its own."""

PROCESS_VARIABLE = "PRECISION_EVAL_LATENCY_PROCESS"
"""Number of the one process to time, from 0; all of an effort's where it is not set."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Sizes of the measuring."""

    name: str
    options: Options
    tiny: bool = False
    compiled_fixes: tuple[str, ...] | None = None
    limit_s: float = 240.0


FULL = Effort(name="full", options=Options(minutes=1 / 6, streams=4, steps=100, budget_s=0.3, processes=3))
QUICK = Effort(
    name="quick",
    options=Options(minutes=1 / 60, streams=1, steps=10, budget_s=0.02, processes=1),
    tiny=True,
    compiled_fixes=("as_shipped", "full_float32"),
)


def process_numbers(effort: Effort, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """Return the numbers of the processes in which latencies are to be timed."""
    return numbers_of_processes(effort.options.processes, environ)


def numbers_of_processes(count: int, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """Return the numbers of `count` processes, or the one that :data:`PROCESS_VARIABLE` asks for."""
    asked = (os.environ if environ is None else environ).get(PROCESS_VARIABLE)
    if not asked:
        return tuple(range(count))
    if not asked.isdecimal():
        raise ParameterError(f"{PROCESS_VARIABLE} is {asked!r}; expected the number of a process, or unset it")
    return (int(asked),)
