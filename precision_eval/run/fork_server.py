"""Imported first by the fork server: it imports the rest, prints nothing, and is gone as soon as its parent is.

What it imports stands in the environment, as multiprocessing would end the server at the first error; what fails here
is met again by the worker that needs it, and is told there. Ctrl-C is the parent's to answer.
"""

import atexit
import contextlib
import ctypes
import importlib
import os
import platform
import shutil
import signal

SERVED = "PRECISION_EVAL_FORK_SERVER"
"""Variable of the environment: the parent's number, its folder of sockets, then the modules to import, by line."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _signalled_when_the_parent_ends(number: int) -> None:
    """Have Linux signal this process when the thread that started it ends; 0: no longer."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _serve(parent: int, sockets: str, modules: list[str]) -> None:
    """Import what workers need, and arrange the end."""

    def end_at_once(*_: object) -> None:
        shutil.rmtree(sockets, ignore_errors=True)  # which a killed parent leaves
        os._exit(0)  # unloading torch takes seconds

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    before = signal.signal(signal.SIGTERM, end_at_once)
    _signalled_when_the_parent_ends(signal.SIGTERM)  # importing, it does not hear that the parent is gone
    if os.getppid() != parent:
        end_at_once()
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):  # a broken torch may raise anything
            importlib.import_module(name)
    _signalled_when_the_parent_ends(0)
    signal.signal(signal.SIGTERM, before)
    atexit.register(end_at_once)


if SERVED in os.environ:
    _parent, _sockets, *_modules = os.environ.pop(SERVED).split("\n")
    _serve(int(_parent), _sockets, _modules)
