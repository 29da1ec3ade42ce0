"""Disk that a sweep over torch versions needs, and whether it is there.

Conventions: sizes in bytes; a GB is 10^9 bytes. What is needed is stated before anything is installed, at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precision_eval.core.errors import PrecisionEvalError

RESERVE_BYTES = 1_000_000_000  # kept free for downloads under way, asv's checkouts and the results

# Measured on x86-64 Linux under Python 3.11, rounded up to 10 MB: torch alone as installed, with stub libraries.
SLIM_BYTES = {
    "2.6.0": 1_580_000_000,
    "2.7.1": 1_650_000_000,
    "2.8.0": 1_730_000_000,
    "2.9.1": 1_760_000_000,
    "2.10.0": 1_790_000_000,
    "2.11.0": 1_170_000_000,
    "2.12.1": 1_160_000_000,
    "2.13.0": 1_130_000_000,
    "2.14.1": 1_180_000_000,
    "2.15.0": 1_180_000_000,
}
# For a version that is not listed: the largest slim one, the CPU build of 2.13.0, the CUDA builds with their libraries.
LARGEST_BYTES = {"cpu": 800_000_000, "slim": 1_800_000_000, "cuda": 7_000_000_000}
OTHER_BYTES = 600_000_000  # numpy, scipy, numba, librosa, ...: once under uv, per version under pip


class DiskSpaceError(PrecisionEvalError, OSError):
    """What is about to be installed does not fit."""


def expected_bytes(version: str, build: str, *, shared: bool, first: bool) -> int:
    """Return what an environment takes at most, before it is made."""
    torch_bytes = SLIM_BYTES.get(version, LARGEST_BYTES[build]) if build == "slim" else LARGEST_BYTES[build]
    return torch_bytes + (OTHER_BYTES if first or not shared else 0)


def check_room(needed: Sequence[int], *, free: int, where: Path, keep: bool) -> int:
    """Return what the sweep needs at its fullest, or refuse."""
    peak = (sum(needed) if keep else max(needed)) + RESERVE_BYTES if needed else 0
    if peak > free:
        remedy = "name fewer --versions, or another disk with --environments"
        if keep and len(needed) > 1:
            remedy = f"give --remove-environments ({gigabytes(max(needed) + RESERVE_BYTES)} at a time), {remedy}"
        raise DiskSpaceError(
            f"{len(needed)} environments need {gigabytes(peak)}, {gigabytes(free)} are free at {where}; {remedy}"
        )
    return peak


def check_cache_room(needed: Sequence[int], *, free: int, where: Path) -> None:
    """Refuse where an installer's cache on another disk than the environments would not fit."""
    peak = sum(needed) + RESERVE_BYTES if needed else 0
    if peak > free:
        raise DiskSpaceError(
            f"uv's cache at {where} is on another disk than the environments and may take {gigabytes(peak)}, "
            f"{gigabytes(free)} are free there; name fewer --versions, or set UV_CACHE_DIR to the environments' disk, "
            "where the two share their files"
        )


def gigabytes(size: int) -> str:
    """Return a size in GB (10^9 bytes)."""
    return f"{size / 1e9:.1f} GB"
