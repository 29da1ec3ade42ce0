"""One model of what a run recorded: rows of fixes, in groups of what can be compared, in a run.

A *group* is case × size × mode × device × threads × pinned settings; a *row* is everything recorded about one fix, or
about the reference, the noise floor or a control, with the figures that comparisons rest on. Times are ratios to the
group's baseline (below 1 = faster), drift is the relative error to float64, memory is in bytes. Nothing is measured,
compared or chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.figures import (
    AudioFigures,
    DivergenceFigures,
    DriftFigures,
    Figures,
    LatencyFigures,
    MemoryFigures,
    SoundFigures,
    TeacherForcedFigures,
    TraceFigures,
)
from precision_eval.core.formatting import command_line, grouped
from precision_eval.core.records import Record
from precision_eval.explain.messages import short_reason
from precision_eval.fixes.catalog import FIXES

if TYPE_CHECKING:
    from precision_eval.results.sound import SoundVerdict

ONE_INPUT = 0.10
"""Relative difference below which two drifts from one seeded input each are not told apart."""

ONE_PROCESS = 0.05
"""Relative difference in time below which one process alone tells nothing apart: what it draws once, where its code and
memory lie, is worth up to several per cent for as long as it lives, and places drawn within it do not show all of
that. A judgement; the choice bench puts it to the test."""

FRESH_MEMORY = 1.0
"""Relative difference in time below which one process tells nothing apart where a call takes fresh memory: the state of
the allocator moved the time of such a fix by a factor of 1.5 to 2.5 where it was tried."""

SAME_TIME = 0.002
"""Relative difference in time that counts as none; the margin of the latency measure."""

SAME_MEMORY = 0.01
"""Relative difference in memory that counts as none."""

DRIFTS: tuple[str, ...] = ("teacher_forced_drift", "drift")
"""The measures of drift; a case has one of them."""

ROLE_ORDER: tuple[str, ...] = ("reference", "fix", "noise_floor", "control")

MEASURE_OF: Mapping[str, str] = {"time": "latency", "drift": "drift", "memory": "memory"}
"""The measure that gives each axis; the voice's drift comes from ``teacher_forced_drift``."""

Measured = TypeVar("Measured", bound=Figures)

_PIN_SETTINGS = {"sdpa": "sdpa_backend"}  # a cell's id has the short name


class MissingMeasureError(PrecisionEvalError, LookupError):
    """A choice needs a measure that the records do not hold; the message names it and the command that adds it."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A positive figure with its interval, both as recorded; value and ends are equal where the figure is exact.

    `degrees` are those of freedom behind the interval; 0 where it is exact or a band by convention.
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
        from precision_eval.stats.sequential import student_quantile

        return (math.log(self.high) - math.log(self.low)) / 2.0 / student_quantile(1.0 - self.confidence, self.degrees)

    def to_dict(self) -> dict[str, float]:
        """Plain data: value and interval."""
        return {"value": self.value, "low": self.low, "high": self.high}


def exact(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Everything about one fix (or reference, noise floor, control) of a group.

    `status` is one word for all its measures and `reason` the message that came with it. `time` is the ratio to the
    baseline's time, exactly 1 for the baseline; `time_logs` are its logarithms, one per process, or per placement or
    round where one process measured; only within one `session` are they paired. `processes` is 0 where time was not
    measured. A drift that is not `paired_drift` is of one input, and its interval a convention. `diverged` counts
    free-running streams that left the reference's tokens, `survival` is the fraction that did not (Kaplan–Meier), and
    `sound` the verdict on what is heard, None where nothing was. `missing` says for an axis
    (``time``, ``drift``, ``memory``) why it has no figure. A row that did not pass has no figures, only records.
    """

    fix: str
    role: str = "fix"
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
    sound: SoundVerdict | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict, repr=False)

    @property
    def memory_bytes(self) -> int | None:
        """Storage and peak together."""
        return None if self.peak_bytes is None else (self.stored_bytes or 0) + self.peak_bytes

    def estimate(self, axis: str) -> Estimate | None:
        """Return the figure of an axis: ``time``, ``drift`` or ``memory``."""
        if axis == "memory":
            return None if self.memory_bytes is None else exact(float(self.memory_bytes))
        return self.time if axis == "time" else self.drift

    @property
    def fresh_memory(self) -> bool:
        """Whether one process timed it and its calls took fresh memory, which another process may not need."""
        return self.latency is not None and any(doubt.startswith("fresh memory") for doubt in self.latency.doubts)

    @property
    def incomplete(self) -> dict[str, tuple[str, str | None]]:
        """Measures whose status differs from the row's: measure to (status, reason)."""
        return {
            measure: (record.status, record.reason)
            for measure, record in self.records.items()
            if record.status not in (self.status, "passed")
        }

    @property
    def drift_logs(self) -> tuple[float, ...]:
        """Logarithms of the drift of each seed, in the seeds' order; empty where it is of one."""
        return tuple(math.log(error) for error in (self.errors.relative_error_by_seed if self.errors else ()))

    @cached_property
    def latency(self) -> LatencyFigures | None:
        """What the measure recorded; None where it did not pass. So are the next."""
        return figures_of(self.records, LatencyFigures)

    @cached_property
    def errors(self) -> DriftFigures | None:
        """The figures of the drift, of whichever kind the case has."""
        return figures_of(self.records, TeacherForcedFigures) or figures_of(self.records, DriftFigures)

    @cached_property
    def memory(self) -> MemoryFigures | None:
        return figures_of(self.records, MemoryFigures)

    @cached_property
    def trace(self) -> TraceFigures | None:
        return figures_of(self.records, TraceFigures)

    @cached_property
    def divergence(self) -> DivergenceFigures | None:
        return figures_of(self.records, DivergenceFigures)

    @cached_property
    def audio(self) -> AudioFigures | None:
        return figures_of(self.records, AudioFigures)

    @cached_property
    def heard(self) -> SoundFigures | None:
        return figures_of(self.records, SoundFigures)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the raw log-ratios."""
        estimates = {name: getattr(self, name) for name in ("time", "drift", "survival", "sound")}
        plain = {name: None if estimate is None else estimate.to_dict() for name, estimate in estimates.items()}
        names = ("fix", "status", "reason", "verdict", "median_s", "processes", "stored_bytes", "peak_bytes")
        rest = {name: getattr(self, name) for name in (*names, "memory_bytes", "diverged", "streams")}
        return rest | plain | {"missing": dict(self.missing), "doubts": list(self.doubts)}


@dataclass(frozen=True, kw_only=True)
class Group:
    """What can be compared with one another.

    `rows` are of every role, in the order of roles and of ``FIXES``. `machine` is empty where only one is read.
    `baseline` is what times are ratios to, None where no time was measured; `noise_floor` is the baseline against
    itself (the A/A check), which is off where its verdict is faster or slower: then no time is trusted. `run` is the
    folder, for commands in messages; `pins` are settings of torch as in a cell's id, ``",sdpa=math"``. `doubts` speak
    against the comparison as a whole, `notes` say which figures come from elsewhere or do not apply, `tolerances` are
    the limits of a case from outside, `fault` says why the records cannot be compared, and `cured_elsewhere` names
    (mode, fixes) that cure the case there and were not measured in this mode.
    """

    case: str
    size: str
    mode: str
    device: str
    threads: int
    rows: tuple[Row, ...]
    machine: str = ""
    baseline: str | None = None
    noise_floor: Estimate | None = None
    noise_floor_off: bool = False
    run: str = "RUN"
    pins: str = ""
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tolerances: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""
    cured_elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def title(self) -> str:
        """Text such as ``voice · default · eager · cpu, 1 thread``."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        pins = self.pins.replace(",", ", ").replace("=", " ")
        machine = f" · {self.machine}" if self.machine else ""
        return f"{self.case} · {self.size} · {self.mode} · {self.device}, {threads}{pins}{machine}"

    @property
    def slug(self) -> str:
        """Name for files, such as ``voice-default-eager-cpu``; with the threads where there are several."""
        pins = self.pins.replace(",", "-").replace("=", "-")
        threads = "" if self.threads == 1 else f"-{self.threads}-threads"
        return "-".join((self.case, self.size, self.mode, self.device)).replace(":", "") + pins + threads

    @property
    def where(self) -> str:
        """Device, pinned settings, and threads where there are several: ``cpu sdpa math 2 threads``."""
        threads = "" if self.threads == 1 else f" {self.threads} threads"
        return self.device + self.pins.replace(",", " ").replace("=", " ") + threads

    @property
    def fixes(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.role == "fix")

    @property
    def curing(self) -> tuple[Row, ...]:
        """The fixes with which the case runs and stays finite."""
        return tuple(row for row in self.fixes if row.status == "passed")

    @property
    def failing(self) -> tuple[Row, ...]:
        return tuple(row for row in self.fixes if row.status != "passed")

    @property
    def failing_by_status(self) -> dict[str, list[str]]:
        return grouped((row.status, row.fix) for row in self.failing)

    @property
    def failing_by_reason(self) -> dict[tuple[str, str], list[str]]:
        """The ids of these, by status and shortened message."""
        return grouped(((row.status, short_reason(row.reason)), row.fix) for row in self.failing)

    def is_like(self, other: Group) -> bool:
        """Say whether another group is the same case, size, device, threads and pinned settings, in whatever mode."""
        names = ("case", "size", "device", "threads", "pins", "machine")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def is_baseline(self, row: Row) -> bool:
        """Say whether times are ratios to this row's."""
        return row.fix == self.baseline and row.role == "fix"

    @property
    def clock(self) -> str:
        """What times are of on CUDA: ``device``, or ``launched`` where the host's are in them; empty elsewhere."""
        if any(row.latency is not None and row.latency.timed_by != "launched" for row in self.rows):
            return "device"
        return "launched" if self.device.startswith("cuda") else ""

    def time_interval(self, row: Row) -> tuple[float, float, float] | None:
        """Return a row's ratio of times with the ends of its interval; the baseline's is that of its twin, around 1."""
        if row.time is None:
            return None
        if self.is_baseline(row) and self.noise_floor is not None:
            return 1.0, min(1.0, self.noise_floor.low), max(1.0, self.noise_floor.high)
        return row.time.value, row.time.low, row.time.high

    def verdict_of(self, row: Row) -> str | None:
        """Return a row's verdict on its time, held to what the baseline shows against itself."""
        if row.verdict is None or row.time is None:
            return row.verdict
        if row.fresh_memory and abs(row.time.log) < math.log1p(FRESH_MEMORY) and not self.is_baseline(row):
            return "undecided"
        if not self.noise_floor_off:
            return row.verdict
        return "noise floor off" if self.is_baseline(row) else "undecided"

    @cached_property
    def time_reach(self) -> float:
        """Difference of log-times up to which nothing is called: margin, or one process alone; any if A/A failed."""
        if self.noise_floor_off:
            return math.inf
        timed = [row for row in self.curing if row.time is not None and row.fix != self.baseline]
        return math.log1p(ONE_PROCESS if any(row.processes == 1 for row in timed) else SAME_TIME)

    def reach_of(self, *rows: Row, doubting: bool = True) -> float:
        """Difference of log-times up to which nothing is called between these rows, their doubts counted or not."""
        fresh = doubting and any(row.fresh_memory for row in rows)
        return max(self.time_reach, math.log1p(FRESH_MEMORY) if fresh else 0.0)

    def fix_dicts(self) -> list[dict[str, Any]]:
        """Plain data of the fixes, with the verdicts that hold in this group."""
        return [row.to_dict() | {"verdict": self.verdict_of(row)} for row in self.fixes]

    def row(self, fix: str) -> Row:
        """Return the row of a fix; a KeyError where there is none."""
        for row in self.rows:
            if row.fix == fix:
                return row
        raise KeyError(fix)

    def command(self, measure: str | None = None) -> str:
        """Return the command that adds a measure to this group; without one, every measure."""
        words = {"case": self.case, "size": self.size, "mode": self.mode, "device": self.device}
        words |= {} if measure is None else {"measure": measure}
        settings = [("threads", str(self.threads))] if self.threads != 1 else []
        pinned = [pin.partition("=") for pin in self.pins.split(",") if pin]
        settings += [(_PIN_SETTINGS.get(name, name), value) for name, _, value in pinned]
        words["out"] = self.run
        options = [word for name in words for word in (f"--{name}", words[name])]
        return command_line(
            "run", *options, *(word for name, value in settings for word in ("--set", f"{name}={value}"))
        )

    def measure_of(self, axis: str) -> str:
        """Return the measure that gives an axis of this case."""
        return "teacher_forced_drift" if axis == "drift" and self.case == "voice" else MEASURE_OF[axis]


def order_of(fix: str) -> tuple[int, str]:
    """Return the place of a fix in ``FIXES``; ids that are not there come last, by name."""
    ids = [entry.id for entry in FIXES]
    return (ids.index(fix) if fix in ids else len(ids), fix)


def row_order(row: Row) -> tuple[int, int, str]:
    """Return the place of a row in its group: by role, then as in ``FIXES``."""
    role = ROLE_ORDER.index(row.role) if row.role in ROLE_ORDER else len(ROLE_ORDER)
    return (role, *order_of(row.fix))


def figures_of(records: Mapping[str, Record], kind: type[Measured]) -> Measured | None:
    """Return the figures of a kind among a fix's records; None where that measure did not pass."""
    return next((record.figures for record in records.values() if isinstance(record.figures, kind)), None)


def is_identical(row: Row) -> bool:
    """Tell whether a row's audio equals the reference's: no spectral distance at all, no finite distortion ratio."""
    if row.audio is None:
        return False
    to_reference = row.audio.against_reference
    return to_reference.log_spectral_distance_db.mean == 0.0 and to_reference.si_sdr_db.whole_file is None
