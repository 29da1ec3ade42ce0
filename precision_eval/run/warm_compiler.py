"""Imported once by the fork server, so that no worker repeats what the compiler finds out about this machine.

Inductor asks three things in each process that compiles: which vector instructions the C++ compiler and the processor
share (it builds a library and loads it in another Python, which imports torch for that), the digest of torch's own
sources, and its own modules. Workers are forked and inherit the answers. Nothing is compiled for a model here, so what
a worker compiles, or finds in Inductor's cache of compiled graphs, is what it would be without this. What fails here
is met again by the worker that needs it, and is the result of its cell.
"""

from __future__ import annotations

import importlib
import warnings
from contextlib import suppress


def ask() -> None:
    """Have the compiler find out about the machine; starts no thread and touches no device."""
    importlib.import_module("torch._inductor.compile_fx")  # and Dynamo with it
    from torch._inductor.codecache import torch_key
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with suppress(RuntimeError, OSError):  # no C++ compiler, no folder to write to
        pick_vec_isa()
    with suppress(OSError):
        torch_key()


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own parts
    ask()
