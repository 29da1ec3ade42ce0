"""Calls in processes of their own: started, heard, limited, and ended with everything they have started.

Conventions: limits are in seconds and bytes. A call that raises arrives as :class:`WorkerRaisedError`, with what was
raised as its cause where that can be sent. A worker that dies, hangs or runs out of memory becomes
:class:`WorkerCrashedError`, :class:`WorkerTimedOutError` or :class:`WorkerOutOfMemoryError`. Nothing polls: the parent
sleeps until a worker answers, dies or is late, so timed work is undisturbed. A worker may be spawned, come from a fork
server, or be forked, which is sound only where the parent has run no torch operation and started no thread; one that
uses CUDA spawns in the place of forking, as a forked child could not use it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import platform
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from precision_eval.core.cells import is_out_of_memory
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.targets import imported

Start = Literal["spawn", "forkserver", "fork"]
Function = Callable[..., Any] | str
"""What is called; as text, ``module:function``, which is imported in the worker alone."""

BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS")
"""Read by numpy's BLAS when it is loaded; its second thread spins between calls, on the core of another worker."""

_GRACE_S = 5.0
"""How long a worker that has answered may take to end before it is killed."""

_SEND_LIMIT_S = 60.0
"""How long a worker may take to send what it has begun to send; one stopped in the middle would block the parent."""

_START_LIMIT_S = 300.0
"""How long a process may take to begin its call; the first one waits for the imports of the fork server."""

STOPPING = (signal.SIGTERM, signal.SIGHUP)
"""What a batch system or a shutdown sends, and a terminal that closes."""

# Signals of a terminal: the parent answers them, and the fork server, which starts workers, has them blocked.
OF_THE_TERMINAL = (signal.SIGINT, signal.SIGHUP)

AGAIN_S = 2.0
"""So soon after another a signal is the same wish to stop; later it is a new one, since loading torch may lose one."""

_MAIN_HIDDEN = threading.Lock()

_NO_SERVER = "the process that starts workers has ended; see whether `python -c 'import torch'` ends by itself"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class WorkerError(PrecisionEvalError, RuntimeError):
    """A worker gave no result."""

    status = "crashed"


class WorkerRaisedError(WorkerError):
    """The call raised; the original traceback is in `remote_traceback`, what was raised is the cause if it was sent."""

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback


class WorkerCrashedError(WorkerError):
    """The worker died before it answered."""


class WorkerTimedOutError(WorkerError):
    """The worker did not answer in time and was killed."""

    status = "timed_out"


class WorkerOutOfMemoryError(WorkerError):
    """The worker reached its memory limit, or the machine's."""

    status = "out_of_memory"


class WorkerStoppedError(WorkerError):
    """The work was stopped while the worker ran."""


@dataclass(frozen=True)
class WorkerAnswer:
    """What a worker sends back; first of all that it has begun."""

    begun: bool = False
    value: Any = None
    error: str | None = None
    remote_traceback: str = ""
    raised: bytes | None = None  # pickled, as not every exception can be made again
    out_of_memory: bool = False
    is_last: bool = False

    def result(self) -> Any:
        """Return the value, or raise what the worker reports."""
        if self.error is None:
            return self.value
        raised = None if self.raised is None else pickle.loads(self.raised)  # noqa: S301 - our own worker's bytes
        if self.out_of_memory:
            raise WorkerOutOfMemoryError(self.error) from raised
        raise WorkerRaisedError(self.error, self.remote_traceback) from raised


@dataclass(frozen=True)
class LastAnswer:
    """What a call returns in the place of a value where its process must not go on to another call."""

    value: Any


class Worker:
    """A fresh process for one call; where it `stays`, for further ones until one of them ends it."""

    def __init__(
        self,
        start: Start,
        function: Function,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        memory_limit_bytes: int | None = None,
        stays: bool = False,
    ) -> None:
        context: Any = context_of(start)
        ours, theirs = context.Pipe(duplex=True)
        copied = ours if context.get_start_method() == "fork" else None
        self.process = context.Process(
            target=_run_calls, args=(theirs, copied, memory_limit_bytes, stays, function, arguments, keywords or {})
        )
        try:
            with _without_main() if copied is None else nullcontext():
                self.process.start()
        except (EOFError, ConnectionError) as error:  # the fork server is gone, as where loading torch kills a process
            raise WorkerCrashedError(_NO_SERVER) from error
        poll_alone(self.process._popen)
        theirs.close()
        self.connection: Connection = ours
        self.timeout_s = timeout_s
        self.deadline_s: float | None = time.monotonic() + _START_LIMIT_S
        self.goes_on = False
        self._begun, self._stays = False, stays

    def hand(self, function: Function, arguments: tuple[Any, ...]) -> bool:
        """Hand a further call to a worker that goes on; say whether it has begun with it, or is gone."""
        self._begun, self.goes_on, self.deadline_s = False, False, time.monotonic() + _START_LIMIT_S
        try:
            self.connection.send((function, arguments, {}))
            return self.take(ready=self.connection.poll(_START_LIMIT_S)) is None
        except (OSError, WorkerError):
            return False

    @property
    def waited_on(self) -> tuple[Any, ...]:
        """What becomes ready when the worker says something or dies."""
        return (self.connection, self.process.sentinel)

    def take(self, *, ready: bool) -> WorkerAnswer | None:
        """Receive what the worker said, None where it has only begun; raise where it died or is late."""
        if not ready:
            if not self._begun:
                raise WorkerTimedOutError(f"the worker had not begun within {_START_LIMIT_S:g} s and was killed")
            raise WorkerTimedOutError(f"no answer within {self.timeout_s:g} s; the worker was killed")
        answer = _received(self.connection, self.process)
        if answer is not None and answer.begun:
            self._begun = True
            self.deadline_s = None if self.timeout_s is None else time.monotonic() + self.timeout_s
            return None
        self.goes_on = self._stays and answer is not None and answer.error is None and not answer.is_last
        if not self.goes_on:
            self.process.join(_GRACE_S)
        if answer is None:
            raise _death(self.process.exitcode)
        return answer

    def end(self) -> None:
        """Kill the worker with everything it has started."""
        _kill_group(self.process.pid)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the caller's script from multiprocessing, which would run it again in every worker that is not forked."""
    main: Any = sys.modules["__main__"]
    with _MAIN_HIDDEN:
        hidden = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
        vars(main).update(dict.fromkeys(hidden))
        try:
            yield
        finally:
            vars(main).update(hidden)


def context_of(start: Start) -> Any:
    """Return the way to start processes; macOS, where forking is unsafe, spawns, and so does who uses CUDA.

    Python's resource tracker is running then, with a closed terminal's signal held back: it would end before its
    parent, and print a traceback for each thing that the parent then gives back.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    torch = sys.modules.get("torch")
    in_use = start == "fork" and torch is not None and torch.cuda.is_initialized()
    return multiprocessing.get_context("spawn" if in_use or platform.system() == "Darwin" else start)


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch at one intra-op thread; also a decorator."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def use_one_blas_thread() -> None:
    """Have workers to come load numpy's BLAS with one thread; torch has its own count."""
    for variable in BLAS_THREADS:
        os.environ.setdefault(variable, "1")


def call_isolated(function: Function, *arguments: Any, start: Start = "fork", timeout_s: float | None = None) -> Any:
    """Return ``function(*arguments)`` from a process of its own, or raise a :class:`WorkerError`."""
    (answer,) = call_each(function, [arguments], start=start, timeout_s=timeout_s)
    if isinstance(answer, WorkerError):
        raise answer
    return answer


def call_each(
    function: Function,
    arguments: Sequence[tuple[Any, ...]],
    *,
    start: Start = "fork",
    at_once: int = 1,
    timeout_s: float | None = None,
) -> list[Any]:
    """Call a function once per tuple of arguments, each in a fresh process; a lost call's answer is its error."""
    waiting = deque(enumerate(arguments))
    running: dict[int, Worker] = {}
    answers: list[Any] = [None] * len(arguments)
    with signals_raise():
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    index, given = waiting.popleft()
                    running[index] = Worker(start, function, given, timeout_s=timeout_s)
                for index, answer in _next_answers(running):
                    answers[index] = answer
                    running.pop(index).end()
        finally:
            for worker in running.values():
                worker.end()
    return answers


def _next_answers(running: dict[int, Worker]) -> list[tuple[int, Any]]:
    """Sleep until a worker says something, dies or is late; return what has been settled."""
    deadlines = [worker.deadline_s for worker in running.values() if worker.deadline_s is not None]
    timeout_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
    ready = set(wait([one for worker in running.values() for one in worker.waited_on], timeout=timeout_s))
    now, settled = time.monotonic(), []
    for index, worker in running.items():
        is_ready = not ready.isdisjoint(worker.waited_on)
        if is_ready or (worker.deadline_s is not None and worker.deadline_s <= now):
            try:
                answer = worker.take(ready=is_ready)
                if answer is not None:
                    settled.append((index, answer.result()))
            except WorkerError as error:
                settled.append((index, error))
    return settled


def _received(connection: Connection, process: Any) -> WorkerAnswer | None:
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
        late.join()  # the next worker may be forked, which is sound without threads only
    return answer if isinstance(answer, WorkerAnswer) else None


def poll_alone(popen: Any) -> None:
    """Let one thread at a time ask how a process ended: of two, one would read the end of the pipe as code 255.

    multiprocessing itself asks after every process whenever it starts another.
    """
    lock, poll = threading.Lock(), popen.poll

    def asked(flag: int = os.WNOHANG) -> int | None:
        with lock:
            answer: int | None = poll(flag)
            return answer

    popen.poll = asked


def _death(exitcode: int | None) -> WorkerCrashedError:
    if exitcode is not None and exitcode < 0:
        known = -exitcode in set(signal.Signals)
        name = signal.Signals(-exitcode).name if known else f"signal {-exitcode}"
        hint = "; perhaps the system was out of memory" if name == "SIGKILL" else ""
        return WorkerCrashedError(f"the worker was killed by {name}{hint}")
    return WorkerCrashedError(f"the worker ended with code {exitcode} before it had answered")


def _kill_group(number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def _run_calls(
    connection: Connection,
    copied: Connection | None,
    memory_limit_bytes: int | None,
    stays: bool,
    *call: Any,
) -> None:
    """Run a call in the new process and send its answer; where it stays, the calls that come after it too."""
    if copied is not None:
        copied.close()  # the parent's end, copied by forking: held open here, it would never tell that the parent died
    for number in STOPPING:
        if callable(signal.getsignal(number)):  # the parent's, copied by forking
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_THE_TERMINAL)
    os.setpgid(0, 0)  # its own group: Ctrl-C reaches the parent only, and the group can be killed as a whole
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_hear_parent, args=(connection, calls), daemon=True).start()
    _be_killed_with_the_starter()
    _be_the_first_to_go()
    if memory_limit_bytes is not None:
        _limit_memory(memory_limit_bytes)
    while _answer_call(connection, *call) and stays:
        call = pickle.loads(calls.get())  # noqa: S301 - our own parent's bytes


def _answer_call(connection: Connection, function: Function, arguments: Any, keywords: Any) -> bool:
    """Run one call and send its answer; say whether another may follow it."""
    _send(connection, WorkerAnswer(begun=True))
    answer = _answer_of(function, arguments, keywords)
    try:
        _send(connection, answer)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        name = getattr(function, "__qualname__", function)
        answer = WorkerAnswer(error=f"the result of {name} cannot be sent: {error}")
        _send(connection, answer)
    return answer.error is None and not answer.is_last


def _send(connection: Connection, answer: WorkerAnswer) -> None:
    """Send to the parent, or end where it is gone."""
    try:
        connection.send(answer)
    except (BrokenPipeError, ConnectionResetError):
        _kill_group(os.getpgrp())


def _answer_of(function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> WorkerAnswer:
    try:
        called = imported(function) if isinstance(function, str) else function
        value = called(*arguments, **keywords)
        is_last = isinstance(value, LastAnswer)
        return WorkerAnswer(value=value.value if is_last else value, is_last=is_last)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: it goes on in the parent
        return WorkerAnswer(
            error=f"{type(error).__name__}: {error}",
            remote_traceback=traceback.format_exc(),
            raised=_pickled(error),
            out_of_memory=is_out_of_memory(error),
        )


def _pickled(error: Exception) -> bytes | None:
    """Return an exception as bytes; None where it cannot be made again from them, as many cannot."""
    try:
        content = pickle.dumps(error)
        same = type(pickle.loads(content)) is type(error)  # noqa: S301 - bytes of this very process
    except Exception:  # noqa: BLE001 - any class may refuse, in any way; its text is sent all the same
        return None
    return content if same else None


def _hear_parent(connection: Connection, calls: SimpleQueue[bytes]) -> None:
    """Take further calls, until the parent's end of the pipe closes without the worker being reaped: it is gone."""
    try:
        while True:
            calls.put(connection.recv_bytes())
    except (EOFError, OSError):
        _kill_group(os.getpgrp())


def _be_killed_with_the_starter() -> None:
    """Ask the Linux kernel to kill this worker when the fork server, or the thread that forked it, ends."""
    if platform.system() != "Linux":
        return
    import ctypes
    from multiprocessing import forkserver

    server: Any = getattr(forkserver, "_forkserver", None)
    if getattr(server, "_forkserver_alive_fd", None) is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


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


@contextmanager
def signals_raise(error_of: Callable[[int], BaseException] = lambda number: SystemExit(128 + number)) -> Iterator[None]:
    """Let ``STOPPING`` pass through the code that ends workers and displays, which one right after it does not disturb.

    A signal that somebody else answers or, as ``nohup`` does, ignores is left to them.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    last_s = -AGAIN_S

    def stop(number: int, _: object) -> None:
        nonlocal last_s
        if time.monotonic() < last_s + AGAIN_S:  # monotonic() counts from the start of the machine or before
            return
        last_s = time.monotonic()
        raise error_of(number)

    answered = [number for number in STOPPING if signal.getsignal(number) is signal.SIG_DFL]
    for number in answered:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in answered:
            signal.signal(number, signal.SIG_DFL)
