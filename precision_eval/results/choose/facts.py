"""What the records say about each fix of one group, as the engine reads it.

Conventions: a *group* is case × size × mode × device × threads × pinned settings; its *contenders* are the fixes
with which the case runs and stays finite. Times are ratios to the group's baseline (below 1 = faster), drift is the
relative error to float64, memory is in bytes. An :class:`Estimate` keeps the interval of the record and what stands
behind it. Nothing is measured or chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from precision_eval.core.errors import PrecisionEvalError

ONE_INPUT = 0.10
"""Relative difference below which two drifts from one seeded input each are not told apart."""

ONE_PROCESS = 0.05
"""Relative difference in time below which one process alone tells nothing apart: it draws its memory layout once, which
is worth up to several per cent for as long as it lives. A judgement; the choice bench puts it to the test."""

SAME_TIME = 0.002
"""Relative difference in time that counts as none; the margin of the latency measure."""

SAME_MEMORY = 0.01
"""Relative difference in memory that counts as none."""

MEASURE_OF: Mapping[str, str] = {"time": "latency", "drift": "drift", "memory": "memory"}
"""The measure that gives each axis; the voice's drift comes from ``teacher_forced_drift``."""

_PIN_FLAGS = {"sdpa": "sdpa-backend"}  # a cell's id has the short name


class MissingMeasureError(PrecisionEvalError, LookupError):
    """A choice needs a measure that the records do not hold; the message names it and the command that adds it."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A positive figure with its interval.

    Attributes
    ----------
    value, low, high : float
        As recorded; equal where the figure is exact.
    confidence : float
        Of the interval.
    degrees : float
        Degrees of freedom behind the interval; 0 where it is exact or a band by convention.
    """

    value: float
    low: float
    high: float
    confidence: float = 0.95
    degrees: float = 0.0

    @property
    def log(self) -> float:
        """Natural logarithm of the value; minus infinity for 0."""
        return math.log(self.value) if self.value > 0.0 else -math.inf

    @cached_property
    def standard_error(self) -> float:
        """Of the logarithm; 0 where nothing was estimated."""
        if self.degrees <= 0.0 or not 0.0 < self.low <= self.high:
            return 0.0
        from precision_eval.stats import student_quantile

        return (math.log(self.high) - math.log(self.low)) / 2.0 / student_quantile(1.0 - self.confidence, self.degrees)

    def to_dict(self) -> dict[str, float]:
        """Plain data: value and interval."""
        return {"value": self.value, "low": self.low, "high": self.high}


def exact(value: float) -> Estimate:
    """Return a figure without uncertainty."""
    return Estimate(value=value, low=value, high=value)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One fix of a group.

    Attributes
    ----------
    fix : str
    status : str
        Of the row; see :func:`~precision_eval.results.choose.reading.status_of`.
    reason : str or None
        The message that came with a status other than passed.
    time : Estimate or None
        Ratio to the baseline's time; exactly 1 for the baseline.
    time_logs : tuple of float
        Log-ratios to the baseline: one per process, or one per round where one process measured.
    processes : int
        That measured the time; 0 where it was not measured.
    session : str
        What was timed together; only within one are log-ratios paired.
    verdict : str or None
        As recorded, against the baseline.
    median_s : float or None
        Time of a call, seconds.
    drift : Estimate or None
    paired_drift : bool
        The interval comes from several streams; otherwise it is the convention of one input.
    stored_bytes, peak_bytes : int or None
        Weights and caches; what a call allocates on top.
    diverged, streams : int or None
        Free-running streams that left the reference's tokens, of how many.
    survival : Estimate or None
        Fraction of streams still on the reference's tokens at the end (Kaplan–Meier, its own interval).
    sound : Estimate or None
        Distance of the audio to the reference's (MCD), as a ratio to the noise floor's.
    missing : mapping of str to str
        Axis (``time``, ``drift``, ``memory``) to why it has no figure.
    doubts : tuple of str
        What the records say against the figures.
    """

    fix: str
    status: str = "passed"
    reason: str | None = None
    time: Estimate | None = None
    time_logs: tuple[float, ...] = ()
    processes: int = 0
    session: str = ""
    verdict: str | None = None
    median_s: float | None = None
    drift: Estimate | None = None
    paired_drift: bool = False
    stored_bytes: int | None = None
    peak_bytes: int | None = None
    diverged: int | None = None
    streams: int | None = None
    survival: Estimate | None = None
    sound: Estimate | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int | None:
        """Storage and peak together."""
        return None if self.peak_bytes is None else (self.stored_bytes or 0) + self.peak_bytes

    def estimate(self, axis: str) -> Estimate | None:
        """Return the figure of an axis: ``time``, ``drift`` or ``memory``."""
        if axis == "memory":
            return None if self.memory_bytes is None else exact(float(self.memory_bytes))
        return self.time if axis == "time" else self.drift

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the raw log-ratios."""
        estimates = {name: getattr(self, name) for name in ("time", "drift", "survival", "sound")}
        plain = {name: None if found is None else found.to_dict() for name, found in estimates.items()}
        names = ("fix", "status", "reason", "verdict", "median_s", "processes", "stored_bytes", "peak_bytes")
        rest = {name: getattr(self, name) for name in (*names, "memory_bytes", "diverged", "streams")}
        return rest | plain | {"missing": dict(self.missing), "doubts": list(self.doubts)}


@dataclass(frozen=True, kw_only=True)
class Group:
    """What can be compared with one another.

    Attributes
    ----------
    case, size, mode, device : str
    threads : int
    rows : tuple of Contender
        Every fix, those that do not run included.
    baseline : str or None
        Of the time ratios; None where no time was measured.
    noise_floor : Estimate or None
        The baseline against itself.
    null_off : bool
        Its verdict is faster or slower.
    run : str
        Folder of the run, for commands in messages.
    pins : str
        Settings of torch that were pinned, as in a cell's id: ``",sdpa=math"``; empty without any.
    doubts : tuple of str
        What speaks against the comparison as a whole.
    notes : tuple of str
        Where figures come from, if not from this run at this size.
    fault : str
        Why its records cannot be compared; there are no rows then. Empty where they can.
    """

    case: str
    size: str
    mode: str
    device: str
    threads: int
    rows: tuple[Contender, ...]
    baseline: str | None = None
    noise_floor: Estimate | None = None
    noise_floor_off: bool = False
    run: str = "RUN"
    pins: str = ""
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fault: str = ""

    @property
    def title(self) -> str:
        """Text such as ``voice · default · eager · cpu, 1 thread``."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        pins = self.pins.replace(",", ", ").replace("=", " ")
        return f"{self.case} · {self.size} · {self.mode} · {self.device}, {threads}{pins}"

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """The fixes that cure it."""
        return tuple(row for row in self.rows if row.status == "passed")

    @property
    def failing(self) -> tuple[Contender, ...]:
        """The fixes that do not."""
        return tuple(row for row in self.rows if row.status != "passed")

    @cached_property
    def time_reach(self) -> float:
        """Difference of log-times up to which nothing is called: margin, noise floor that is off, one process alone."""
        reach = math.log1p(SAME_TIME)
        timed = [row for row in self.contenders if row.time is not None and row.fix != self.baseline]
        if any(row.processes == 1 for row in timed):
            reach = max(reach, math.log1p(ONE_PROCESS))
        if self.noise_floor_off and self.noise_floor is not None and self.noise_floor.low > 0.0:
            reach = max(reach, abs(math.log(self.noise_floor.low)), abs(math.log(self.noise_floor.high)))
        return reach

    def row(self, fix: str) -> Contender:
        """Return the row of a fix.

        Raises
        ------
        KeyError
            It has none.
        """
        for row in self.rows:
            if row.fix == fix:
                return row
        raise KeyError(fix)

    def command(self, measure: str | None = None) -> str:
        """Return the command that adds a measure to this group; without one, every measure."""
        parts = [f"--case {self.case} --size {self.size} --mode {self.mode} --device {self.device}"]
        pinned = [pin.partition("=") for pin in self.pins.split(",") if pin]
        parts += [f"--{_PIN_FLAGS.get(name, name)} {value}" for name, _, value in pinned]
        parts.append(f"--threads {self.threads}{'' if measure is None else f' --measure {measure}'} --out {self.run}")
        return f"precision-eval run {' '.join(parts)}"

    def measure_of(self, axis: str) -> str:
        """Return the measure that gives an axis of this case."""
        return "teacher_forced_drift" if axis == "drift" and self.case == "voice" else MEASURE_OF[axis]

    def with_rows(self, rows: tuple[Contender, ...]) -> Group:
        """Return the same group with other rows."""
        return replace(self, rows=rows)
