"""``concurrent.futures`` executors that run calls in processes of their own, and outlive whatever happens there.

Conventions: a call that returns or raises behaves as on any executor, except that every failure arrives as one of the
errors of :mod:`precision_eval.core.workers`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from precision_eval.core.environment import collect_here
from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import (
    OF_THE_TERMINAL,
    Function,
    Worker,
    WorkerAnswer,
    WorkerRaisedError,
    WorkerStoppedError,
    context_of,
    use_one_blas_thread,
)
from precision_eval.run.preload import COMPILER, MODULES

_GRACE_S = 1.0
"""Time for supervisors to end what they watch."""

GPU_NODES = tuple(map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
"""Where a GPU is reached: NVIDIA's driver, AMD's, and that of Windows' subsystem for Linux."""

WORKER_MODULES = ("precision_eval.trace.capture", "precision_eval.measure.system_drift")
"""What nearly every worker imports while it measures."""


def modules_to_preload(*names: str, compiled: bool) -> tuple[str, ...]:
    """Return what the fork server imports once; not the compiler where that might wake up CUDA before a fork."""
    if any(node.exists() for node in GPU_NODES):
        return ("torch",)
    compiler = ("torch._dynamo", COMPILER) if compiled else ()
    return ("torch", *WORKER_MODULES, *names, *compiler)


def environment_seen_by(executor: Executor, device: str, *, first: str = "") -> dict[str, Any]:
    """Describe the environment in a worker, as this process never loads torch; refuse a device that is not there.

    Where workers are kept, it is the one that is called `first`.
    """
    submit = partial(executor.submit_to, first) if isinstance(executor, KeptExecutor) else executor.submit
    try:
        environment: dict[str, Any] = submit(collect_here, device).result()
    except WorkerRaisedError as error:
        raise (error.__cause__ if isinstance(error.__cause__, ParameterError) else error) from None
    return environment


def _start_fork_server(context: Any, preload: Sequence[str]) -> None:
    """Have a fork server that no signal of the terminal reaches, which are the parent's to answer."""
    context.set_forkserver_preload(["precision_eval.run.preload"])
    os.environ[MODULES] = " ".join(preload)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_TERMINAL)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        del os.environ[MODULES]


def _end_fork_server() -> None:
    """Kill this process's fork server, which may still be importing; the next worker has a new one."""
    server: Any = forkserver
    with suppress(ProcessLookupError, ChildProcessError, TypeError):  # TypeError: there is none
        pid = server._forkserver._forkserver_pid
        os.kill(pid, signal.SIGKILL)
        if hasattr(os, "waitid"):  # not on macOS; until it is dead, the next worker would be asked of it
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class IsolatedExecutor(Executor):
    """Runs each call in its own fresh process."""

    def __init__(
        self,
        max_workers: int = 1,
        *,
        timeout_s: float | None = None,
        memory_limit_bytes: int | None = None,
        preload: Sequence[str] = ("torch",),
    ) -> None:
        if max_workers < 1:
            raise ParameterError(f"max_workers is {max_workers}; at least 1 is needed")
        if timeout_s is not None and not timeout_s > 0:
            raise ParameterError(f"timeout_s is {timeout_s}; expected seconds above 0, or None for no limit")
        self.timeout_s = timeout_s
        self.memory_limit_bytes = memory_limit_bytes
        use_one_blas_thread()
        context = context_of("forkserver")
        if context.get_start_method() == "forkserver":
            _start_fork_server(context, preload)
        self._supervisors = ThreadPoolExecutor(max_workers, thread_name_prefix="supervisor")
        self._stopped, self._stop = context.Pipe(duplex=False)
        self._stop_lock = threading.Lock()

    def submit(self, fn: Function, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule ``fn(*args, **kwargs)`` in a fresh process, which alone imports a function given by its place."""
        return self._supervisors.submit(self._supervise, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish what runs; see :meth:`concurrent.futures.Executor.shutdown`."""
        self._supervisors.shutdown(wait=wait, cancel_futures=cancel_futures)

    def stop(self) -> None:
        """Cancel what waits and kill what runs, now."""
        self.shutdown(wait=False, cancel_futures=True)  # first: who loses a worker takes the next call
        with self._stop_lock:
            if not self._stop.closed:
                self._stop.close()  # readable (end of file) in every supervisor
        importing = threading.Timer(_GRACE_S, _end_fork_server)  # it starts no worker, and answers no supervisor
        importing.start()
        try:
            self.shutdown(wait=True)
        finally:
            importing.cancel()
            importing.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what runs; after an error, such as Ctrl-C, kill it instead."""
        if error is None:
            self.shutdown(wait=True)
        else:
            self.stop()

    def _supervise(self, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a process for one call, and end it."""
        worker = self._start(fn, args, kwargs)
        try:
            return self._answer(worker).result()
        finally:
            worker.end()

    def _start(self, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *, stays: bool = False) -> Worker:
        limits: dict[str, Any] = {"timeout_s": self.timeout_s, "memory_limit_bytes": self.memory_limit_bytes}
        return Worker("forkserver", fn, args, kwargs, **limits, stays=stays)

    def _answer(self, worker: Worker) -> WorkerAnswer:
        """Wait for whichever comes first: answer, death, lateness, stop."""
        answer = None
        while answer is None:
            left_s = None if worker.deadline_s is None else max(0.0, worker.deadline_s - time.monotonic())
            ready = wait([*worker.waited_on, self._stopped], timeout=left_s)
            if self._stopped in ready:
                raise WorkerStoppedError("stopped before it had answered")
            answer = worker.take(ready=bool(ready))
        return answer


class KeptExecutor(IsolatedExecutor):
    """Runs the calls of one name, one after the other, in one worker, until a call of another name or one that fails.

    A worker that dies, hangs, raises or gives a :class:`LastAnswer` is lost, and the next call has a new one.
    """

    def __init__(self, **limits: Any) -> None:
        super().__init__(1, **limits)
        self._kept: tuple[str, Worker] | None = None

    def submit_to(self, name: str, fn: Function, /, *args: Any) -> Future[Any]:
        """Schedule ``fn(*args)`` in the worker of that name."""
        return self._supervisors.submit(self._supervise_kept, name, fn, args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self._end_kept()

    def _end_kept(self) -> None:
        if self._kept is not None:
            self._kept[1].end()
        self._kept = None

    def _supervise_kept(self, name: str, fn: Function, args: tuple[Any, ...]) -> Any:
        if self._kept is None or self._kept[0] != name or not self._kept[1].hand(fn, args):
            self._end_kept()
            self._kept = (name, self._start(fn, args, {}, stays=True))
        worker = self._kept[1]
        try:
            return self._answer(worker).result()
        finally:
            if not worker.goes_on:
                self._end_kept()
