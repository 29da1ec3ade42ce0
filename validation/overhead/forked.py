"""A plain model beside the same model after the suite was there: two processes forked from one.

Seconds of processor time per call. A fresh interpreter builds a model and calls it; then it forks twice.
One child stays as it is; the other imports the measures, observes a call, probes one, puts a fix on and takes it off.
Both hold the very same pages of memory at the same addresses, so that nothing but what the suite leaves behind can tell
them apart. They take turns in random order, one block each a round. Linux and macOS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from precision_eval.core.workers import call_isolated, use_one_blas_thread

_BLOCK_S = 0.005
_BOTH = ("plain", "suite")


def forked_blocks(case: str, size: str, *, rounds: int, seed: int) -> dict[str, list[float]]:
    """Time both in a fresh pair of processes."""
    use_one_blas_thread()
    times_s: dict[str, list[float]] = call_isolated(_taking_turns, case, size, rounds, seed, start="spawn")
    return times_s


def plain_call(case: str, size: str) -> Callable[[], object]:
    """Build a case in float32, with no fix and nothing of the measures in it."""
    import torch

    from precision_eval.cases.systems import case_by_id

    built = case_by_id(case).build(size, device="cpu", seed=0)
    model = built.model.float()

    @torch.no_grad()
    def call() -> object:
        return model(*built.inputs)

    call.model, call.inputs = model, built.inputs  # type: ignore[attr-defined]
    return call


def _use_and_leave(call: Any) -> None:
    """Use what observes, once each, and leave it."""
    import torch

    from precision_eval.fixes.catalog import fix_by_id
    from precision_eval.measure import drift, latency, memory  # noqa: F401 - imported as a user would
    from precision_eval.trace.attention import probing
    from precision_eval.trace.capture import observe

    with torch.no_grad():
        observe(call.model, call.inputs)
    with probing():
        call()
    with fix_by_id("kv_to_query").applied(call.model) as applied:
        applied(*call.inputs)


def _block_s(call: Callable[[], object], calls: int) -> float:
    """Processor time per call: both only compute, and it does not count what other processes take."""
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def _serve(connection: Connection, call: Callable[[], object], prepare: Callable[[], object]) -> None:
    """Be a child: prepare, then time a block whenever asked, until asked for none."""
    import gc

    import torch

    torch.set_num_threads(1)
    prepare()
    gc.collect()
    gc.disable()
    connection.send(_block_s(call, 5))
    while calls := connection.recv():
        connection.send(_block_s(call, calls))


def _forked(call: Callable[[], object], prepare: Callable[[], object]) -> tuple[int, Connection]:
    ours, theirs = Pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _serve(theirs, call, prepare)
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    return child, ours


def _taking_turns(case: str, size: str, rounds: int, seed: int) -> dict[str, list[float]]:
    """Fork the two and have them take turns."""
    import torch

    torch.set_num_threads(1)
    call = plain_call(case, size)
    for _ in range(3):
        call()
    rng = np.random.default_rng(seed)
    prepare: dict[str, Callable[[], object]] = {"plain": lambda: None, "suite": partial(_use_and_leave, call)}
    children = {_BOTH[turn]: _forked(call, prepare[_BOTH[turn]]) for turn in rng.permutation(2)}
    first_s = min(connection.recv() for _, connection in children.values())
    calls = max(1, round(_BLOCK_S / first_s))
    times_s: dict[str, list[float]] = {name: [] for name in _BOTH}
    for _ in range(rounds):
        for turn in rng.permutation(2):
            connection = children[_BOTH[turn]][1]
            connection.send(calls)
            times_s[_BOTH[turn]].append(connection.recv())
    for child, connection in children.values():
        connection.send(0)
        os.waitpid(child, 0)
    return times_s
