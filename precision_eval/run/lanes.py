"""Lanes of this machine: a GPU or a set of cores each, one process per lane, set before anything there loads torch."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from precision_eval.core.environment import usable_cores
from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import context_of
from precision_eval.run.fork_server import FOR_THE_PARENT


@dataclass(frozen=True)
class Lane:
    """A GPU, or a set of cores; `name` as it was given."""

    name: str
    gpu: int | None = None
    cores: frozenset[int] = frozenset()


def lanes_of(text: str, *, device: str, threads: int) -> tuple[Lane, ...]:
    """Read lanes: a count, or each by commas, ``cuda:0,cuda:1`` or ``0-3,4-7``."""
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(usable_cores()))
    count = int(text) if text.isdecimal() else 0
    size = len(own) // count if count else 0
    if count and device == "cuda":
        lanes = [_lane(f"cuda:{number}", own) for number in range(count)]
    elif size:
        lanes = [Lane(f"{i + 1} of {count}", cores=frozenset(own[i * size : (i + 1) * size])) for i in range(count)]
    elif count:
        raise ParameterError(f"--executor local:{text}: {count} lanes on {len(own)} cores; give at most one per core")
    else:
        lanes = [_lane(part.strip(), own) for part in text.split(",")]
    for number, lane in enumerate(lanes):
        if problem := _problem(lane, lanes[:number], device=device, threads=threads):
            raise ParameterError(f"--executor local:{text}: lane {lane.name} {problem}")
    return tuple(lanes)


def _lane(text: str, own: Sequence[int]) -> Lane:
    if gpu := re.fullmatch(r"cuda:(\d+)", text):
        return Lane(text, gpu=int(gpu[1]))
    span = re.fullmatch(r"(\d{1,6})-(\d{1,6})", text)
    cores = frozenset(range(int(span[1]), int(span[2]) + 1)) if span else frozenset[int]()
    if not cores or not cores <= set(own):
        raise ParameterError(
            f"--executor local: lane '{text}' is none; give a count, GPUs as cuda:0,cuda:1, or cores of "
            f"{own[0]}-{own[-1]} as 0-3,4-7"
        )
    return Lane(text, cores=cores)


def _problem(lane: Lane, others: Sequence[Lane], *, device: str, threads: int) -> str:
    """Say why a lane cannot be one; empty where it can."""
    if (lane.gpu is None) == (device == "cuda"):
        return f"is none of --device {device}; give lanes of it, or --device {'cpu' if device == 'cuda' else 'cuda'}"
    if any(lane.cores & other.cores or (lane.gpu is not None and lane.gpu == other.gpu) for other in others):
        return "shares its device with another; give each GPU and core once"
    if lane.gpu is None and len(lane.cores) < threads:
        return f"has {len(lane.cores)} cores for {threads} threads; give fewer lanes or --threads"
    return ""


def enter_lane(lane: Lane) -> None:
    """Keep this process and all it starts to a lane, and end with the process that started it."""
    if lane.gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = visible.split(",") if visible else [str(number) for number in range(lane.gpu + 1)]
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[lane.gpu] if lane.gpu < len(gpus) else "-1"  # none: refused later
    elif hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, lane.cores)
    threading.Thread(target=_end_with_starter, daemon=True).start()


def _end_with_starter() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os._exit(1)


def serve_lane(lane: Lane, connection: Connection) -> None:
    """Be a lane: answer one call after the other, with its error where it raises."""
    for number in FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    enter_lane(lane)
    with suppress(EOFError, ConnectionError):  # the command is gone
        while True:
            function, call = connection.recv()
            try:
                answer = function(call)
            except Exception as error:  # noqa: BLE001 - the boundary of the process: it goes on in the parent
                answer = error
            connection.send(answer)
    os._exit(1)


class LocalLanes:
    """A process per lane of this machine; one that dies is started again.

    Each has a pipe and no queue: the semaphores of one are reported as leaked where the command is killed.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = len(lanes)
        self._started: dict[Lane, tuple[BaseProcess, Connection]] = {}
        self._changed = threading.Lock()
        self._free: SimpleQueue[Lane] = SimpleQueue()
        for lane in lanes:
            self._free.put(lane)

    def run(self, function: Callable[[Any], Any], call: Any) -> Any:
        """Run a call on the next lane that is free."""
        lane = self._free.get()
        try:
            process, connection = self._running(lane)
            connection.send((function, call))
            wait([connection, process.sentinel])
            if not connection.poll():
                raise EOFError(f"the process of lane {lane.name} has ended")
            answer = connection.recv()
        except (EOFError, OSError):
            self._end(lane)
            raise
        finally:
            self._free.put(lane)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _running(self, lane: Lane) -> tuple[BaseProcess, Connection]:
        """Return the process of a lane and the pipe to it, started where it is not running."""
        with self._changed:
            process, connection = self._started.get(lane, (None, None))
            if process is None or connection is None or not process.is_alive():
                if self.lanes == 0:
                    raise EOFError("the lanes are closed")
                context = context_of("spawn")
                connection, theirs = context.Pipe()
                process = context.Process(target=serve_lane, args=(lane, theirs))
                process.start()
                theirs.close()
                self._started[lane] = process, connection
            return process, connection

    def _end(self, lane: Lane) -> None:
        """End the process of a lane, which may be dying and still count as alive."""
        with self._changed:
            process, connection = self._started.pop(lane, (None, None))
        if process is not None and connection is not None:
            process.kill()
            process.join()
            connection.close()

    def close(self) -> None:
        """End the lanes, and with each what it runs."""
        with self._changed:
            self.lanes = 0
            for process, _ in self._started.values():
                process.kill()
                process.join()
