"""The fork server: it imports what workers need, prints nothing, and is gone as soon as its parent is.

It is a new interpreter that imports this module first, or a copy of a parent that has imported torch and done nothing.
What it imports stands in the environment, as multiprocessing would end the server at the first error; what fails here
is met again by the worker that needs it, and is told there. Ctrl-C is the parent's to answer.
"""

import atexit
import contextlib
import ctypes
import importlib
import itertools
import os
import platform
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any

SERVED = "PRECISION_EVAL_FORK_SERVER"
"""Variable of the environment: the parent's number, its folder of sockets, then the modules to import, by line."""

_forkserver: Any = forkserver
_util: Any = util
FOR_THE_PARENT = (signal.SIGINT, signal.SIGHUP)
"""Signals of a terminal, which reach the group: the parent ends, and the server, which cleans up, ends with it."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _signalled_when_the_parent_ends(number: int) -> None:
    """Have Linux signal this process when the thread that started it ends; 0: no longer."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def serve() -> Callable[[], None]:
    """Be the fork server that the environment describes: import what workers need; returns what ends it."""
    number, sockets, *modules = os.environ.pop(SERVED).split("\n")
    parent = int(number)

    def end_at_once(*_: object) -> None:
        _kill_groups_of_workers()
        shutil.rmtree(sockets, ignore_errors=True)  # which a killed parent leaves
        os._exit(0)  # unloading torch takes seconds

    for ended_by in FOR_THE_PARENT:
        signal.signal(ended_by, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)
    before = signal.signal(signal.SIGTERM, end_at_once)
    _signalled_when_the_parent_ends(signal.SIGTERM)  # importing, it does not hear that the parent is gone
    if os.getppid() != parent:
        end_at_once()
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):  # a broken torch may raise anything
            importlib.import_module(name)
    _signalled_when_the_parent_ends(0)
    signal.signal(signal.SIGTERM, before)
    return end_at_once


def _kill_groups_of_workers() -> None:
    """Kill what workers have started with them: the kernel kills the workers alone, perhaps before they can do it."""
    with contextlib.suppress(OSError, ValueError):
        started = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
        for number in map(int, itertools.chain(*started)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)


def end_fork_server() -> None:
    """Kill this process's fork server; the next worker has a new one."""
    with contextlib.suppress(ProcessLookupError, TypeError):  # TypeError: there is none
        os.kill(_forkserver._forkserver._forkserver_pid, signal.SIGKILL)


@contextlib.contextmanager
def copied_where_sound() -> Iterator[None]:
    """Let multiprocessing start its fork server as a copy of this process, where that is sound and saves imports."""
    if not _is_copy_sound():
        yield
        return
    before = _util.spawnv_passfds
    _util.spawnv_passfds = _copied
    try:
        yield
    finally:
        _util.spawnv_passfds = before


def _is_copy_sound() -> bool:
    """Say whether torch is imported, and no thread runs here, torch's own included, that a copy would lack."""
    return platform.system() == "Linux" and "torch" in sys.modules and len(list(Path("/proc/self/task").iterdir())) == 1


def _copied(path: bytes, arguments: list[str], passed: Iterable[int]) -> int:
    """Fork, and run in the copy what a new interpreter would be told to run; returns its number."""
    number = os.fork()
    if number:
        return number
    try:
        for descriptor in [int(link.name) for link in Path("/proc/self/fd").iterdir()]:
            if descriptor not in (0, 1, 2, *passed):
                with contextlib.suppress(OSError):  # of the listing itself
                    os.close(descriptor)
        _forkserver._forkserver._lock = threading.Lock()  # it was held where it was copied
        end = serve()
        with contextlib.suppress(SystemExit):
            exec(arguments[-1], {})  # noqa: S102 - multiprocessing's own line, which imports its main and calls it
        end()
    finally:
        os._exit(1)


if SERVED in os.environ:
    atexit.register(serve())
