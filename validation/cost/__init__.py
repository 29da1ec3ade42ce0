"""What asv costs its user: wall time of its two commands on a fresh checkout, the environment included.

Conventions: seconds; each command has a checkout of its own, at the commit of this one, and makes its environment there
(packages come from pip's cache or its index, as this machine is set up). Targets are fixed here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A command of asv, and how long it may take."""

    words: tuple[str, ...]
    target_s: float


TIMED: tuple[Timed, ...] = (
    Timed(words=("run", "--record-samples", "--show-stderr"), target_s=600.0),
    Timed(words=("run", "--quick", "--show-stderr"), target_s=120.0),
)
"""As in the Makefile's ``asv``, and as a smoke test."""
