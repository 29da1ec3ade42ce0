"""What the trials measure: cells, and their calls with more work, more drift, more memory.

A call repeats its fix's call :data:`UNITS` times; a slowed one does so (1 + delta) times as often, so that delta is
exact in work. Ratios are to ``full_float32``, repeated as often, or to the anchor. (Shorter calls with counted extra
work were tried: they slowed by 3 to 5 % where 2 was meant, for whatever follows a call costs it more than its own
time.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

BASELINE = "full_float32"
MODE = "eager"
DESIGN = 1
"""Of the sets; raised when what is measured changes, so that old sets and new ones never meet in a pair."""

SIZE = "tiny"
UNITS = 100
DELTAS = (0.02, 0.05)
DRIFT_FACTOR = 1.5
MEMORY_FACTOR = 1.05

GROUPS: Mapping[str, tuple[str, ...]] = {
    "attention-decode": ("kv_to_query", "query_to_half", "bfloat16"),
    "attention-prefill": ("kv_to_query", "query_to_half"),
}
"""Case to the fixes that are timed beside each other."""
CELLS = tuple((case, fix) for case, fixes in GROUPS.items() for fix in fixes)

PLAIN = "plain"
SLOWER = tuple(f"slower_{round(100 * delta)}" for delta in DELTAS)
TIMED = {PLAIN: UNITS} | {name: UNITS + round(UNITS * delta) for name, delta in zip(SLOWER, DELTAS, strict=True)}
"""Timed variants of a fix, with their units."""

Call = Callable[..., Any]


def drifting(call: Call, exact: torch.Tensor, factor: float) -> Call:
    """Return a call whose error is larger by a factor: exact + factor · (output − exact)."""
    return lambda *inputs: (exact + factor * (call(*inputs).double() - exact)).float()


def holding(call: Call, extra_bytes: int) -> Call:
    """Return a call that holds so many bytes more while it runs."""

    def held(*inputs: Any) -> Any:
        extra = torch.empty(extra_bytes, dtype=torch.uint8)
        output = call(*inputs)
        del extra
        return output

    return held
