"""Where a cast's copy is put: states of the C library's allocator, and the page faults that tell them apart.

A fix that makes a float32 copy of the cache at every step asks for large blocks and frees them again. glibc takes
blocks above a threshold from the system and hands them back when they are freed, so that each step begins with pages
that the system must first clear: a page fault per 4 KiB. Below the threshold the block is kept and used again, for
nothing. The threshold begins at 128 KiB, rises to the size of the blocks that a process has freed, and never exceeds
32 MiB: what a cast costs depends on what the process did before. Hence three states in which it does not:

- ``grown``: the threshold is at its largest, as in a process that has loaded a model; by glibc's own rules from there
  on. Other C libraries are left as they are.
- ``kept``: freed memory stays with the process (``M_MMAP_MAX`` 0, ``M_TRIM_THRESHOLD`` off), as with allocators that
  keep what is freed.
- ``returned``: blocks of 128 KiB or more go back to the system at once (``M_MMAP_THRESHOLD`` fixed).
- ``untouched``: whatever the process's history makes of it, here the lengths that it has measured before.

References
----------
.. [1] Linux manual page mallopt(3): the dynamic mmap threshold, M_MMAP_MAX, M_TRIM_THRESHOLD.

Contents: :func:`hold_memory`, :func:`page_faults_per_call`.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from precision_eval.errors import UnsupportedError, unknown_name

if TYPE_CHECKING:
    from precision_eval.measure.latency import Candidate

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # malloc.h
_JUST_BELOW_LARGEST_BYTES = (32 << 20) - (16 << 10)  # DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, less header and page
_SETTINGS: dict[str, tuple[tuple[int, int], ...]] = {
    "grown": (),
    "untouched": (),
    "kept": ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)),
    "returned": ((_M_MMAP_THRESHOLD, 128 * 1024),),
}


def hold_memory(state: str) -> None:
    """Put this process's allocator into a state, for good.

    Parameters
    ----------
    state : {"grown", "kept", "returned", "untouched"}

    Raises
    ------
    UnsupportedError
        The C library has no such settings: it is not glibc.
    """
    if state not in _SETTINGS:
        raise unknown_name("state of memory", state, _SETTINGS)
    if state == "grown":
        _grow()
    if not _SETTINGS[state]:
        return
    library = _glibc()
    for name, value in _SETTINGS[state]:
        if library.mallopt(name, value) != 1:
            raise UnsupportedError(f"memory {state}: the C library refused mallopt({name}, {value})")


def _grow() -> None:
    """Take and free a block just below the largest threshold: freeing it sets the threshold to its size."""
    import ctypes

    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.free(library.malloc(_JUST_BELOW_LARGEST_BYTES))


def _glibc() -> Any:
    import ctypes

    found = platform.libc_ver()[0]
    if found != "glibc":
        raise UnsupportedError(
            f"the C library is {found or platform.system()}; memory kept and memory returned need glibc"
        )
    return ctypes.CDLL(None)


def page_faults_per_call(candidate: Candidate, *, calls: int = 4) -> float:
    """Count the page faults of a call that runs after itself.

    Parameters
    ----------
    candidate : Candidate
    calls : int

    Returns
    -------
    float
        Faults that needed no disk, per call, all threads.
    """
    import resource

    with candidate.block():
        candidate.call()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(calls):
            candidate.call()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls
