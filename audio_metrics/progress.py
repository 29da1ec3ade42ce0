"""Reports of how much of a long file is done."""

from __future__ import annotations

from collections.abc import Callable


def part_of(on_progress: Callable[[float], None] | None, start: float, share: float) -> Callable[[float], None]:
    """A report for one part of the work: its fractions 0 to 1 become `start` to ``start + share`` of the whole."""

    def report(fraction: float) -> None:
        if on_progress is not None:
            on_progress(min(1.0, start + share * fraction))

    return report
