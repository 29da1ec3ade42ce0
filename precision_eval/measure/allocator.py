"""States of the C library's allocator: where the copy that a cast makes is put.

glibc takes blocks above a threshold from the system and hands them back when they are freed: each call then begins with
pages that the system must clear, a page fault per 4 KiB. Below the threshold a block is kept and used again, for
nothing. The threshold grows with the blocks that a process has freed, up to 32 MiB, so what a cast costs depends on
what the process did before. In the state *grown* the threshold is at its most; in *kept* every freed block is kept.
"""

from __future__ import annotations

import ctypes
import math
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precision_eval.core.errors import UnsupportedError, check_known

if TYPE_CHECKING:
    from precision_eval.measure.blocks import Candidate

# State of every latency unless another is asked for: every C library can be put into it.
GROWN, KEPT = "grown", "kept"
MEMORY_STATES = (GROWN, KEPT)

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h
_JUST_BELOW_LARGEST_BYTES = (32 << 20) - (16 << 10)  # DEFAULT_MMAP_THRESHOLD_MAX on 64 bits, less header and page
_LARGEST_BYTES = 32 << 20  # a block of this size comes from the heap's free room, or else from the system
_IS_MAPPED = 0b10  # in the size field before a block: it came from the system
_MOST_BLOCKS = 64  # where glibc is told never to map, its heap grows by every block
_LEAST_CALLS, _MOST_CALLS, _PROBE_S = 6, 64, 0.02


@contextmanager
def in_memory_state(state: str) -> Iterator[None]:
    """Time in a state of the allocator: put it there, for good, and for the block take what is free of large room."""
    hold_memory(state)
    with take_large_room(state):
        yield


def hold_memory(state: str) -> None:
    """Put this process's allocator into a state, for good."""
    check_known("state of memory", state, MEMORY_STATES)
    library = _c_library()
    if state == GROWN:
        with take_large_room(GROWN):  # or the block comes from the heap's free room, and freeing it sets nothing
            library.free(library.malloc(_JUST_BELOW_LARGEST_BYTES))
        return
    if platform.libc_ver()[0] != "glibc":
        raise UnsupportedError(f"memory {state} needs glibc; the C library is another on {platform.system()}")
    for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)):
        if library.mallopt(name, value) != 1:
            raise UnsupportedError(f"memory {state}: the C library refused mallopt({name}, {value})")


@contextmanager
def take_large_room(state: str) -> Iterator[int]:
    """Leave the heap no free room for a block of 32 MiB; give back what was taken."""
    library = _c_library()
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


def return_free_memory() -> None:
    """Give the system the pages that the heap holds free, where the C library is glibc."""
    library = _c_library()
    if _is_glibc(library):
        library.malloc_trim(ctypes.c_size_t(0))


def page_faults_without_room(candidate: Candidate) -> float:
    """Count the page faults of a warm call that finds no room for a block of 32 MiB in the heap."""
    with candidate.block():
        candidate.call()
        with take_large_room(GROWN):
            # Within some calls small blocks find another place for good, and large ones never do. Where the heap is in
            # many pieces that takes one call for each place that a call before cut too short for the next.
            least, calls, end_s = math.inf, 0, time.perf_counter() + _PROBE_S
            while least and (calls < _LEAST_CALLS or (calls < _MOST_CALLS and time.perf_counter() < end_s)):
                least, calls = min(least, _page_faults(candidate)), calls + 1
            return least


def _page_faults(candidate: Candidate) -> float:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    candidate.call()
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def _c_library() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    return library


def _is_glibc(library: Any) -> bool:
    """Whether this process's malloc is glibc's, and not that of a library loaded before it."""
    if platform.libc_ver()[0] != "glibc":
        return False
    glibc = ctypes.cast(ctypes.CDLL("libc.so.6").malloc, ctypes.c_void_p)
    return glibc.value == ctypes.cast(library.malloc, ctypes.c_void_p).value


def _is_mapped(block: int | None) -> bool:
    """Whether a block of glibc's came from the system by itself; so does none at all, for want of memory."""
    if block is None:
        return True
    return bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & _IS_MAPPED)
