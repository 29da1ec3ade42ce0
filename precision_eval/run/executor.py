"""A ``concurrent.futures`` executor that runs every call in a fresh process, and outlives whatever happens there.

Conventions: a call that returns or raises behaves as on any executor, except that what it raised arrives as
:class:`WorkerRaisedError` with the original type, message and traceback as text. A worker that dies, hangs or runs out
of memory becomes :class:`WorkerCrashedError`, :class:`WorkerTimedOutError` or :class:`WorkerOutOfMemoryError`. Nothing
polls: the parent sleeps until the worker answers, dies or is late, so a timed cell is undisturbed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import platform
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from precision_eval.core.cells import is_out_of_memory
from precision_eval.core.errors import ParameterError, PrecisionEvalError

BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS")
"""Read by numpy's BLAS when it is loaded; its second thread spins between calls, on the core of another worker."""

_GRACE_S = 5.0
"""How long a worker that has answered may take to end before it is killed."""

_SEND_LIMIT_S = 60.0
"""How long a worker may take to send what it has begun to send; one stopped in the middle would block the parent."""

_START_LIMIT_S = 300.0
"""How long a process may take to begin its call; the first one waits for the imports of the fork server."""


class WorkerError(PrecisionEvalError, RuntimeError):
    """A worker gave no result."""


class WorkerRaisedError(WorkerError):
    """The call raised; the original traceback is in `remote_traceback`."""

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback


class WorkerCrashedError(WorkerError):
    """The worker died before it answered."""


class WorkerTimedOutError(WorkerError):
    """The worker did not answer in time and was killed."""


class WorkerOutOfMemoryError(WorkerError):
    """The worker reached its memory limit, or the machine's."""


class WorkerStoppedError(WorkerError):
    """The executor was stopped while the worker ran."""


@dataclass(frozen=True)
class _Answer:
    """What a worker sends back; first of all that it has begun."""

    begun: bool = False
    value: Any = None
    error: str | None = None
    remote_traceback: str = ""
    out_of_memory: bool = False


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
        self.max_workers = max_workers
        self.timeout_s = timeout_s
        self.memory_limit_bytes = memory_limit_bytes
        for variable in BLAS_THREADS:
            os.environ.setdefault(variable, "1")  # torch has its own count, set per cell
        self._context: Any = multiprocessing.get_context("spawn" if platform.system() == "Darwin" else "forkserver")
        if platform.system() != "Darwin":
            self._context.set_forkserver_preload(list(preload))
        self._supervisors = ThreadPoolExecutor(max_workers, thread_name_prefix="supervisor")
        self._stopped, self._stop = self._context.Pipe(duplex=False)
        self._stop_lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule ``fn(*args, **kwargs)`` in a fresh process."""
        return self._supervisors.submit(self._supervise, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Finish what runs; see :meth:`concurrent.futures.Executor.shutdown`."""
        self._supervisors.shutdown(wait=wait, cancel_futures=cancel_futures)

    def stop(self) -> None:
        """Cancel what waits and kill what runs, now."""
        with self._stop_lock:
            if not self._stop.closed:
                self._stop.close()  # readable (end of file) in every supervisor
        self.shutdown(wait=True, cancel_futures=True)

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

    def _supervise(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a process for one call and wait for whichever comes first: answer, death, lateness, stop."""
        ours, theirs = self._context.Pipe(duplex=True)
        process = self._context.Process(target=_worker, args=(theirs, self.memory_limit_bytes, fn, args, kwargs))
        process.start()
        theirs.close()
        try:
            if not self._heard(ours, process, _START_LIMIT_S):
                raise WorkerTimedOutError(f"the worker had not begun within {_START_LIMIT_S:g} s and was killed")
            answer = _received(ours, process)
            if answer is not None and answer.begun:
                if not self._heard(ours, process, self.timeout_s):
                    raise WorkerTimedOutError(f"no answer within {self.timeout_s:g} s; the worker was killed")
                answer = _received(ours, process)
            process.join(_GRACE_S)
            if answer is None:
                raise _death(process.exitcode)
        finally:
            _kill(process)
            ours.close()
        return _unpacked(answer)

    def _heard(self, connection: Connection, process: Any, timeout_s: float | None) -> bool:
        """Sleep until a worker says something or dies; False where it takes too long."""
        ready = wait([connection, process.sentinel, self._stopped], timeout=timeout_s)
        if self._stopped in ready:
            raise WorkerStoppedError("stopped before it had answered")
        return bool(ready)


def _received(connection: Connection, process: Any) -> _Answer | None:
    """Return a worker's answer, None where it died without a whole one or did not send it whole in time."""
    overdue = threading.Event()

    def give_up() -> None:
        overdue.set()
        _kill_group(process.pid)  # then reading ends, by end of file

    late = threading.Timer(_SEND_LIMIT_S, give_up)
    late.daemon = True
    late.start()
    try:
        answer = connection.recv() if connection.poll() else None
    except (EOFError, OSError, pickle.UnpicklingError):  # OSError: the end of the file in the middle of an answer
        if overdue.is_set():
            raise WorkerTimedOutError(f"half an answer after {_SEND_LIMIT_S:g} s; the worker was killed") from None
        return None
    finally:
        late.cancel()
    return answer if isinstance(answer, _Answer) else None


def _unpacked(answer: _Answer) -> Any:
    """Return the value of an answer, or raise what it tells."""
    if answer.error is None:
        return answer.value
    if answer.out_of_memory:
        raise WorkerOutOfMemoryError(answer.error)
    raise WorkerRaisedError(answer.error, answer.remote_traceback)


def _death(exitcode: int | None) -> WorkerCrashedError:
    """Say how a worker died."""
    if exitcode is not None and exitcode < 0:
        known = -exitcode in set(signal.Signals)
        name = signal.Signals(-exitcode).name if known else f"signal {-exitcode}"
        hint = "; perhaps the system was out of memory" if name == "SIGKILL" else ""
        return WorkerCrashedError(f"the worker was killed by {name}{hint}")
    return WorkerCrashedError(f"the worker ended with code {exitcode} before it had answered")


def _kill(process: Any) -> None:
    """Kill a worker with everything it has started."""
    _kill_group(process.pid)
    if process.is_alive():
        process.kill()
    process.join()
    process.close()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _worker(
    connection: Connection,
    memory_limit_bytes: int | None,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Run one call in the new process and send its answer."""
    os.setpgid(0, 0)  # its own group: Ctrl-C reaches the parent only, and the group can be killed as a whole
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    _be_killed_with_the_fork_server()
    _be_the_first_to_go()
    if memory_limit_bytes is not None:
        _limit_memory(memory_limit_bytes)
    connection.send(_Answer(begun=True))
    try:
        answer = _Answer(value=fn(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - the boundary of the process: it goes on as text, to be raised there
        text = traceback.format_exc()
        answer = _Answer(
            error=f"{type(error).__name__}: {error}", remote_traceback=text, out_of_memory=is_out_of_memory(error)
        )
    try:
        connection.send(answer)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        connection.send(_Answer(error=f"the result of {getattr(fn, '__qualname__', fn)} cannot be sent: {error}"))


def _end_with_parent(connection: Connection) -> None:
    """Wait for the parent's end of the pipe to close without the worker being reaped: then the parent is gone."""
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(os.getpgrp(), signal.SIGKILL)


def _be_killed_with_the_fork_server() -> None:
    """Ask the Linux kernel to kill this worker when the fork server ends, as it does with the parent."""
    if platform.system() != "Linux":
        return
    import ctypes
    from multiprocessing import forkserver

    server: Any = getattr(forkserver, "_forkserver", None)
    if getattr(server, "_forkserver_alive_fd", None) is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _be_the_first_to_go() -> None:
    """Ask the Linux kernel to end this worker rather than its parent when memory runs out."""
    path = Path("/proc/self/oom_score_adj")
    if path.exists():
        with suppress(PermissionError):
            path.write_text("800")


def _limit_memory(limit_bytes: int) -> None:
    """Limit the private memory that this process may map; other systems than Linux do not enforce it."""
    if platform.system() == "Linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
