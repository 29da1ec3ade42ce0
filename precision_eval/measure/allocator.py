"""Where a cast's copy is put: states of the C library's allocator, and the page faults that tell them apart.

A fix that makes a float32 copy of the cache at every step asks for large blocks and frees them again. glibc takes
blocks above a threshold from the system and hands them back when they are freed, so that each step begins with pages
that the system must first clear: a page fault per 4 KiB. Below the threshold the block is kept and used again, for
nothing. The threshold begins at 128 KiB, rises to the size of the blocks that a process has freed, and never exceeds
32 MiB: what a cast costs depends on what the process did before. Hence three states in which it does not:
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precision_eval.core.errors import UnsupportedError, check_known

if TYPE_CHECKING:
    from precision_eval.measure.blocks import Candidate

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # malloc.h
_JUST_BELOW_LARGEST_BYTES = (32 << 20) - (16 << 10)  # DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, less header and page
_LARGEST_BYTES = 32 << 20  # a block of this size comes from the heap's free room, or else from the system
_IS_MAPPED = 0b10  # in the size field before a block: it came from the system
_MOST_BLOCKS = 64  # where glibc is told never to map, its heap grows by every block
_LEAST_CALLS, _MOST_CALLS, _PROBE_S = 6, 64, 0.02
GROWN = "grown"
"""State of every latency unless another is asked for. Left alone, it depends on what the process freed before, which
moves a fix that copies the cache by a factor of two; every C library can be put into this one."""

_SETTINGS: dict[str, tuple[tuple[int, int], ...]] = {
    GROWN: (),
    "kept": ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)),
    "returned": ((_M_MMAP_THRESHOLD, 128 * 1024),),
    "untouched": (),
}
MEMORY_STATES = tuple(_SETTINGS)
UNSETTLED_STATES = (GROWN, "untouched")
"""Where a block beyond the threshold is put depends on the room that the heap happens to have."""


@contextmanager
def memory_held(state: str) -> Iterator[None]:
    """Time in a state of the allocator: put it there, for good, and for the block take what is free of large room."""
    hold_memory(state)
    with large_room_taken(state):
        yield


def hold_memory(state: str) -> None:
    """Put this process's allocator into a state, for good."""
    check_known("state of memory", state, _SETTINGS)
    if state == GROWN:
        _grow()
    if not _SETTINGS[state]:
        return
    library = _glibc()
    for name, value in _SETTINGS[state]:
        if library.mallopt(name, value) != 1:
            raise UnsupportedError(f"memory {state}: the C library refused mallopt({name}, {value})")


@contextmanager
def large_room_taken(state: str) -> Iterator[int]:
    """Leave the heap no free room for a block of 32 MiB; give back what was taken."""
    library = _allocator()
    if state != GROWN or not _is_glibc(library):
        yield 0
        return
    taken: list[int] = []
    while len(taken) < _MOST_BLOCKS:
        block = library.malloc(_LARGEST_BYTES)
        if _is_mapped(block):
            library.free(block)
            break
        taken.append(block)
    try:
        yield len(taken) * _LARGEST_BYTES
    finally:
        for block in taken:
            library.free(block)


def _is_glibc(library: Any) -> bool:
    """Say whether this process's malloc is glibc's own, and not that of a library loaded before it."""
    import ctypes

    if platform.libc_ver()[0] != "glibc":
        return False
    own, used = ctypes.CDLL("libc.so.6").malloc, library.malloc
    return ctypes.cast(own, ctypes.c_void_p).value == ctypes.cast(used, ctypes.c_void_p).value


def _is_mapped(block: int | None) -> bool:
    """Say whether a block of glibc's came from the system by itself; so does none at all, for want of memory."""
    import ctypes

    if block is None:
        return True
    return bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & _IS_MAPPED)


def _grow() -> None:
    """Take and free a block just below the largest threshold: freeing it sets the threshold to its size."""
    library = _allocator()
    with large_room_taken(GROWN):  # or the block comes from the heap's free room, and freeing it sets nothing
        library.free(library.malloc(_JUST_BELOW_LARGEST_BYTES))


def _allocator() -> Any:
    """Return the C library with the types of malloc and free."""
    import ctypes

    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    return library


def _glibc() -> Any:
    import ctypes

    found = platform.libc_ver()[0]
    if found != "glibc":
        raise UnsupportedError(
            f"the C library is {found or platform.system()}; memory kept and memory returned need glibc"
        )
    return ctypes.CDLL(None)


def page_faults_without_room(candidate: Candidate) -> float:
    """Count the page faults of a warm call that finds no room for a block of 32 MiB in the heap."""
    with candidate.block():
        candidate.call()
        with large_room_taken(GROWN):
            # Within some calls small blocks find another place for good, and large ones never do. Where the heap is in
            # many pieces that takes one call for each place that a call before cut too short for the next.
            least, calls, end_s = math.inf, 0, time.perf_counter() + _PROBE_S
            while least and (calls < _LEAST_CALLS or (calls < _MOST_CALLS and time.perf_counter() < end_s)):
                least, calls = min(least, _page_faults(candidate, calls=1)), calls + 1
            return least


def page_faults_per_call(candidate: Candidate) -> float:
    """Count the page faults of a call that runs after itself."""
    with candidate.block():
        candidate.call()
        return _page_faults(candidate, calls=4)


def _page_faults(candidate: Candidate, *, calls: int) -> float:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        candidate.call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls
