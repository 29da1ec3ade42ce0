"""Calls in forked children of a process that has imported torch and started nothing, each with a limit.

Conventions: seconds. Forking is sound because the parent has run no torch operation and has started no thread of its
own; each child begins alike within milliseconds, and what a fix does there (a crash, a hang, changed global state)
stays there. On macOS, where forking is unsafe, children are spawned. A child leads its own process group, which is
killed as a whole; it also sets itself an alarm, so that none outlives its limit where the parent was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ChildFailure:
    """Why a child gave no answer."""

    status: str
    reason: str


@dataclass
class _Child:
    index: int
    process: Any
    connection: Connection
    deadline_s: float


def in_children(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, at_once: int, limit_s: float
) -> list[Any]:
    """Call a function once per argument tuple, each call in a fresh child."""
    context: Any = multiprocessing.get_context("spawn" if platform.system() == "Darwin" else "fork")
    waiting = deque(enumerate(arguments))
    running: list[_Child] = []
    answers: list[Any] = [None] * len(arguments)
    with _terminated_as_exit():
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(_started(context, function, *waiting.popleft(), limit_s=limit_s))
                for child in _finished(running):
                    running.remove(child)
                    answers[child.index] = _answer_of(child, limit_s)
        finally:
            for child in running:
                _end(child)
    return answers


def _started(
    context: Any, function: Callable[..., Any], index: int, arguments: tuple[Any, ...], *, limit_s: float
) -> _Child:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(theirs, function, arguments, limit_s))
    process.start()
    theirs.close()
    return _Child(index, process, ours, time.monotonic() + limit_s)


def _finished(running: Sequence[_Child]) -> list[_Child]:
    """Sleep until a child answers, dies or is late; return those."""
    soonest = min(child.deadline_s for child in running)
    ready = wait([child.connection for child in running], timeout=max(0.0, soonest - time.monotonic()))
    now = time.monotonic()
    return [child for child in running if child.connection in ready or child.deadline_s <= now]


def _answer_of(child: _Child, limit_s: float) -> Any:
    try:
        if not child.connection.poll():
            return ChildFailure(status="timed_out", reason=f"no answer within {limit_s:g} s; it was killed")
        return child.connection.recv()
    except (EOFError, OSError):
        child.process.join()
        return ChildFailure(status="crashed", reason=f"the process ended with exit code {child.process.exitcode}")
    finally:
        _end(child)


def _end(child: _Child) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)
    if child.process.is_alive():
        child.process.kill()
    child.process.join()
    child.connection.close()


def _call(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], limit_s: float) -> None:
    """Answer in the child."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)
    signal.alarm(int(limit_s) + 5)
    connection.send(function(*arguments))
    connection.close()


@contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """Let SIGTERM, by which a benchmarking tool ends what is late, pass through the code that ends the children."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
