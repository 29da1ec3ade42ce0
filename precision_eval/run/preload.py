"""Imported once by the fork server, so that workers inherit their modules, and what the compiler asks of a machine.

What fails here is met again by the worker that needs it, and is the result of its cell.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import warnings
from contextlib import suppress
from pathlib import Path

MODULES = "PRECISION_EVAL_PRELOAD"
COMPILER = "torch._inductor.compile_fx"


def preload() -> None:
    """Import the modules that the environment names; starts no thread and touches no device."""
    for name in os.environ.get(MODULES, "").split():
        with suppress(Exception, SystemExit):  # a broken torch may raise anything
            importlib.import_module(name)
            if name == COMPILER:
                _ask_the_compiler()


def _ask_the_compiler() -> None:
    """Find out the processor's vector instructions and the digest of torch's sources, some seconds for each worker."""
    from torch._inductor.codecache import torch_key
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with suppress(RuntimeError, OSError):  # no C++ compiler, no folder to write to
        pick_vec_isa()
    torch_key()


def _kill_groups_of_workers() -> None:
    """Kill what workers have started with them: the kernel kills the workers alone, as one that is busy cannot."""
    with suppress(OSError):
        for path in Path("/proc/self/task").glob("*/children"):
            for number in map(int, path.read_text().split()):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(number, signal.SIGKILL)


if MODULES in os.environ:  # this is the fork server
    atexit.register(_kill_groups_of_workers)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own parts
    preload()
