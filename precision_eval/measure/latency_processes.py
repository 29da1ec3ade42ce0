"""The same comparison in several fresh processes, one after the other.

Conventions: a process fixes its memory layout for as long as it lives, so each is one draw. Fresh processes are
spawned, never forked from the caller, and each first takes memory of random size, so that heaps are not laid out alike.
"""

from __future__ import annotations

import functools
import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from precision_eval.core.errors import CandidateError, ParameterError, PrecisionEvalError
from precision_eval.stats import PairedRatio, over_processes

_PADDING_BYTES = 1 << 16
_PADDINGS = 64


def compare_in_processes(candidates: Any, *, processes: int, budget_s: float, **options: Any) -> dict[str, PairedRatio]:
    """Run :func:`~precision_eval.measure.latency.compare_latency` in several processes and combine the ratios."""
    try:
        payload = pickle.dumps((candidates, budget_s / processes, options))
    except Exception as error:
        raise ParameterError(
            f"the candidates cannot be sent to a fresh process ({type(error).__name__}: {error}); give a function, "
            "importable by name, that builds and returns them"
        ) from error
    context = multiprocessing.get_context("spawn")
    found = [_in_fresh_process(context, payload, index) for index in range(processes)]
    return combined(found)


def combined(found: Sequence[dict[str, PairedRatio]]) -> dict[str, PairedRatio]:
    """Combine the results of several processes, candidate by candidate."""
    names = list(found[0])
    return {name: over_processes([results[name] for results in found], candidates=len(names)) for name in names}


def take_random_memory(seed: int) -> list[np.ndarray]:
    """Take small and large pieces of memory of random size; they last as long as the list is held."""
    rng = np.random.default_rng(seed)
    sizes = [*rng.integers(1, _PADDING_BYTES, _PADDINGS), *rng.integers(1, 64 * _PADDING_BYTES, 4)]
    return [np.ones(int(size), dtype=np.uint8) for size in sizes]


def _in_fresh_process(context: Any, payload: bytes, index: int) -> dict[str, PairedRatio]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, payload, index))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        process.join()
        raise CandidateError(
            f"process {index + 1} ended with exit code {process.exitcode} before it had measured; run the candidates "
            "with processes=1 to see why"
        ) from None
    finally:
        ours.close()
        process.join()
    if isinstance(answer, str):
        raise CandidateError(f"in process {index + 1}: {answer}")
    return answer


def _answer(connection: Connection, payload: bytes, index: int) -> None:
    """Measure in this process and send the results, or what was wrong as text."""
    padding = take_random_memory(index)
    measure = functools.partial(_measured, payload, index)
    connection.send(_or_message(measure))
    connection.close()
    del padding


def _measured(payload: bytes, index: int) -> dict[str, PairedRatio]:
    from precision_eval.measure.latency import compare_latency

    candidates, budget_s, options = pickle.loads(payload)  # noqa: S301 - our own parent's bytes
    options["seed"] += index
    return compare_latency(candidates, budget_s=budget_s, **options)


def _or_message(measure: Callable[[], dict[str, PairedRatio]]) -> dict[str, PairedRatio] | str:
    try:
        return measure()
    except PrecisionEvalError as error:
        return str(error)
