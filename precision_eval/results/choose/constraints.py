"""Limits that a fix must keep, and whether a contender keeps them: surely, surely not, or within noise.

Conventions: a limit is the largest figure allowed on an axis. A contender *meets* it where the most that its figure may
be does not exceed it, *fails* where even the least does, and is *doubtful* in between; no point estimate decides.
Speed is the inverse of the time ratio: 1.2 means the baseline's work in 1/1.2 of its time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from precision_eval.core.errors import ParameterError
from precision_eval.results.choose.comparing import AXES, bounds
from precision_eval.results.model import Group, MissingMeasureError, Row

State = Literal["meets", "fails", "doubtful"]

REFERENCE = "full_float32"
"""The fix that a ratio of memory refers to."""

FLAGS = {"time": "--min-speed", "drift": "--max-drift", "memory": "--max-memory"}

_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What a fix must keep; None leaves an axis free.

    Attributes
    ----------
    max_drift : float or None
        Relative error to float64, > 0.
    max_memory_bytes : int or None
        Storage and peak together.
    max_memory_ratio : float or None
        The same as a ratio to ``full_float32``'s; not together with `max_memory_bytes`.
    min_speed : float or None
        Ratio to the baseline (``full_float32``), > 0; above 1 is faster.

    Raises
    ------
    ParameterError
        A limit is not a positive finite number, or memory is limited twice.
    """

    max_drift: float | None = None
    max_memory_bytes: int | None = None
    max_memory_ratio: float | None = None
    min_speed: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_drift", "max_memory_bytes", "max_memory_ratio", "min_speed"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ParameterError(f"{name} is {value}; expected a finite number above 0")
        if self.max_memory_bytes is not None and self.max_memory_ratio is not None:
            raise ParameterError("memory is limited in bytes and as a ratio; give one of the two")

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that are limited."""
        limited = {
            "time": self.min_speed,
            "drift": self.max_drift,
            "memory": self.max_memory_bytes or self.max_memory_ratio,
        }
        return tuple(axis for axis in AXES if limited[axis] is not None)

    def limit(self, group: Group, axis: str) -> float | None:
        """Return the largest figure allowed on an axis of a group; None where it is free.

        Raises
        ------
        MissingMeasureError
            A ratio of memory is asked for, and ``full_float32`` has none in the group or does not run there.
        """
        if axis == "time":
            return None if self.min_speed is None else 1.0 / self.min_speed
        if axis == "drift":
            return self.max_drift
        if self.max_memory_ratio is None:
            return None if self.max_memory_bytes is None else float(self.max_memory_bytes)
        own = next((row for row in group.rows if row.fix == REFERENCE), None)
        if own is not None and own.status != "passed":
            raise MissingMeasureError(
                f"{group.title}: memory as a ratio needs that of {REFERENCE}, which is {own.status} here; give a size: "
                "--max-memory 2GiB"
            )
        reference = None if own is None else own.memory_bytes
        if reference is None:
            command = f"{group.command('memory')} --fix {REFERENCE}"
            raise MissingMeasureError(
                f"{group.title}: memory as a ratio needs that of {REFERENCE}, which is not measured; add it: {command}"
            )
        return self.max_memory_ratio * reference

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("max_drift", "max_memory_bytes", "max_memory_ratio", "min_speed")
        return {name: getattr(self, name) for name in names}


def state_of(group: Group, axis: str, contender: Row, limit: float) -> State:
    """Say whether a contender keeps a limit on one axis."""
    found = bounds(group, axis, contender)
    if found is None:
        return "fails"
    low, high = found
    if high <= limit:
        return "meets"
    return "fails" if low > limit else "doubtful"


def parse_memory(text: str) -> dict[str, int | float]:
    """Read a limit of memory."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z×]+)\s*", text)
    if found is not None and found[2] in ("x", "X", "×"):
        return {"max_memory_ratio": float(found[1])}
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ParameterError(
            f"--max-memory '{text}' is no size; write a number and a unit, such as 2GiB, or a ratio such as 0.6x"
        )
    return {"max_memory_bytes": int(float(found[1]) * unit)}
