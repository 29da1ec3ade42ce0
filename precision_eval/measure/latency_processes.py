"""The same comparison in several fresh processes, one after the other.

Conventions: a process fixes its memory layout for as long as it lives, so each is one draw. Each first takes memory of
random size, so that heaps are not laid out alike. Callables of a user are compared in spawned processes; the processes
of a cell are forked from its worker, which builds nothing itself and so has started neither threads nor a device.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from precision_eval.core.cells import Cell, Outcome, cause_of
from precision_eval.core.errors import CandidateError, ParameterError
from precision_eval.core.workers import WorkerError, WorkerRaisedError, call_isolated
from precision_eval.fixes.pins import set_tf32
from precision_eval.measure.timers import Cache
from precision_eval.stats import PairedRatio, over_processes

Timed = Outcome | dict[Cache, PairedRatio]
"""What one process found of a fix: why it cannot be timed, or its ratio per state of the cache."""

Compare = Callable[..., dict[str, PairedRatio]]

_PADDING_BYTES = 1 << 16
_PADDINGS = 64


def compare_in_processes(
    compare: Compare, candidates: Any, *, processes: int, budget_s: float, **options: Any
) -> dict[str, PairedRatio]:
    """Run :func:`~precision_eval.measure.latency.compare_latency` in several processes and combine the ratios."""
    try:
        payload = pickle.dumps((candidates, budget_s / processes, options))
    except Exception as error:
        raise ParameterError(
            f"the candidates cannot be sent to a fresh process ({type(error).__name__}: {error}); give a function, "
            "importable by name, that builds and returns them"
        ) from error
    return combined([_compared(compare, payload, index) for index in range(processes)])


def combined(ratios: Sequence[dict[str, PairedRatio]]) -> dict[str, PairedRatio]:
    """Combine the results of several processes, candidate by candidate."""
    names = list(ratios[0])
    return {name: over_processes([results[name] for results in ratios], candidates=len(names)) for name in names}


def take_random_memory(seed: int) -> list[np.ndarray]:
    """Take small and large pieces of memory of random size; they last as long as the list is held."""
    rng = np.random.default_rng(seed)
    sizes = [*rng.integers(1, _PADDING_BYTES, _PADDINGS), *rng.integers(1, 64 * _PADDING_BYTES, 4)]
    return [np.ones(int(size), dtype=np.uint8) for size in sizes]


def _compared(compare: Compare, payload: bytes, index: int) -> dict[str, PairedRatio]:
    try:
        ratios: dict[str, PairedRatio] = call_isolated(_compare, compare, payload, index, start="spawn")
    except WorkerRaisedError as error:
        reason = error.__cause__ if isinstance(error.__cause__, CandidateError | ParameterError) else error
        raise CandidateError(f"in process {index + 1}: {reason}") from error
    except WorkerError as error:
        raise CandidateError(f"process {index + 1}: {error}; run the candidates with processes=1 to see why") from error
    return ratios


def _compare(compare: Compare, payload: bytes, index: int) -> dict[str, PairedRatio]:
    padding = take_random_memory(index)
    candidates, budget_s, options = pickle.loads(payload)  # noqa: S301 - our own parent's bytes
    options["seed"] += index
    ratios = compare(candidates, budget_s=budget_s, **options)
    del padding
    return ratios


def in_process(measure: Callable[[Cell, int], dict[str, Timed]], cell: Cell, process: int) -> dict[str, Timed]:
    """Return ``measure(cell, process)`` from a child of this worker; what it raises is raised here."""
    try:
        timed: dict[str, Timed] = call_isolated(_measure, measure, cell, process)
    except WorkerError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise CandidateError(f"process {process + 1} gave no result: {error}") from error
    return timed


def over_all(results: Sequence[dict[str, Timed]]) -> dict[str, Timed]:
    """Combine the processes fix by fix; a fix that failed in one has that outcome."""
    return {fix: _combined([timed[fix] for timed in results], candidates=len(results[0])) for fix in results[0]}


def _combined(results: Sequence[Timed], *, candidates: int) -> Timed:
    ratios: list[dict[Cache, PairedRatio]] = []
    for timed in results:
        if isinstance(timed, Outcome):
            return timed
        ratios.append(timed)
    return {cache: over_processes([one[cache] for one in ratios], candidates=candidates) for cache in ratios[0]}


def _measure(measure: Callable[[Cell, int], dict[str, Timed]], cell: Cell, process: int) -> dict[str, Timed]:
    padding = take_random_memory(process)
    set_tf32(cell.options.tf32, cell.device)  # a spawned child has not inherited it
    try:
        timed = measure(cell, process)
    except CandidateError as error:
        raise cause_of(error) from None  # a cause is lost on the way to another process
    del padding
    return timed
