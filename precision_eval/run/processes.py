"""One latency group in several processes: each a child of the cell's worker, one after the other.

Conventions: the worker itself builds nothing, so it is small and has started neither threads nor a device when it is
forked (on macOS, where forking is unsafe, children are spawned). Each child takes memory of random size first, so that
heaps are not laid out alike.
"""

from __future__ import annotations

import multiprocessing
import platform
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from precision_eval.core.cells import Cell, Outcome, cause_of
from precision_eval.core.errors import CandidateError
from precision_eval.fixes.pins import set_tf32
from precision_eval.measure.latency_processes import take_random_memory
from precision_eval.measure.timers import Cache
from precision_eval.stats import PairedRatio, over_processes

Timed = Outcome | dict[Cache, PairedRatio]
"""What one process found of a fix: why it cannot be timed, or its ratio per state of the cache."""


def in_child(measure: Callable[[Cell, int], dict[str, Timed]], cell: Cell, process: int) -> dict[str, Timed]:
    """Run ``measure(cell, process)`` in a child and return what it returned."""
    context: Any = multiprocessing.get_context("spawn" if platform.system() == "Darwin" else "fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, measure, cell, process))
    child.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        child.join()
        raise CandidateError(f"process {process + 1} ended with exit code {child.exitcode} while it measured") from None
    finally:
        ours.close()
        child.join()
    if isinstance(answer, BaseException):
        raise answer
    found: dict[str, Timed] = answer
    return found


def over_all(found: Sequence[dict[str, Timed]]) -> dict[str, Timed]:
    """Combine the processes fix by fix; a fix that failed in one has that outcome."""
    return {fix: _combined([results[fix] for results in found], candidates=len(found[0])) for fix in found[0]}


def _combined(found: Sequence[Timed], *, candidates: int) -> Timed:
    ratios: list[dict[Cache, PairedRatio]] = []
    for one in found:
        if isinstance(one, Outcome):
            return one
        ratios.append(one)
    return {cache: over_processes([one[cache] for one in ratios], candidates=candidates) for cache in ratios[0]}


def _answer(connection: Connection, measure: Callable[[Cell, int], dict[str, Timed]], cell: Cell, process: int) -> None:
    padding = take_random_memory(process)
    try:
        set_tf32(cell.options.tf32, cell.device)  # a spawned child has not inherited it
        answer: object = measure(cell, process)
    except Exception as error:  # noqa: BLE001 - raised again in the worker, with its type
        answer = cause_of(error)  # a cause is lost on the way to another process
    connection.send(answer)
    connection.close()
    del padding
