"""What the trials measure: cells, and their calls with more work, more drift, more memory.

A call repeats its fix's call :data:`UNITS` times; a slowed one does so (1 + delta) times as often, so
that delta is exact in work. Ratios are to ``full_float32``, repeated as often, or to the anchor. (Shorter calls with
counted extra work were tried: they slowed by 3 to 5 % where 2 was meant, for whatever follows a call costs it more than
its own time.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BASELINE = "full_float32"
MODE = "eager"
DESIGN = 1
"""Of the sets; raised when what is measured changes, so that old sets and new ones never meet in a pair."""

SIZE = "tiny"
UNITS = 100
DELTAS = (0.02, 0.05)
DRIFT_FACTOR = 1.5
MEMORY_FACTOR = 1.05

PLAIN = "plain"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cells that are timed beside each other."""

    case: str
    fixes: tuple[str, ...]


GROUPS: tuple[Group, ...] = (
    Group(case="attention-decode", fixes=("kv_to_query", "query_to_half", "bfloat16")),
    Group(case="attention-prefill", fixes=("kv_to_query", "query_to_half")),
)

CELLS: tuple[tuple[str, str], ...] = tuple((group.case, fix) for group in GROUPS for fix in group.fixes)


def slowed(delta: float) -> str:
    """Return the name of a slowed variant: ``slower_2``, in per cent."""
    return f"slower_{round(100 * delta)}"


def variants() -> dict[str, int]:
    """Return the timed variants of a fix with their units."""
    return {PLAIN: UNITS} | {slowed(delta): UNITS + round(UNITS * delta) for delta in DELTAS}


class Drifting:
    """A call whose error is larger by a factor: exact + factor · (output − exact)."""

    def __init__(self, call: Any, exact: Any, factor: float) -> None:
        self._call, self._exact, self._factor = call, exact, factor

    def __call__(self, *inputs: Any) -> Any:
        output = self._call(*inputs)
        return (self._exact + self._factor * (output.double() - self._exact)).float()


class Holding:
    """A call that holds so many bytes more while it runs."""

    def __init__(self, call: Any, extra_bytes: int) -> None:
        self._call, self._extra_bytes = call, extra_bytes

    def __call__(self, *inputs: Any) -> Any:
        import torch

        held = torch.empty(self._extra_bytes, dtype=torch.uint8)
        output = self._call(*inputs)
        del held
        return output
