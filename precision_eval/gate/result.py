"""What a gate is asked, what it compares and what it answers.

Conventions: a change is head over base, so above 1 is worse for every metric. A *cell* is where a figure belongs. A
gate is *green* where each kind of figures that is required has a verdict and nothing became worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from precision_eval.core.errors import ParameterError, check_known
from precision_eval.core.formatting import join, plural

Verdict = Literal["regression", "improvement", "no worse", "undecided", "shown"]
Outcome = Literal["regression", "could not tell", "no regression"]

# What can be required of a gate, and the metrics that judge it.
KINDS: Mapping[str, tuple[str, ...]] = {
    "status": ("status",),
    "latency": ("latency",),
    "drift": ("drift",),
    "memory": ("peak_bytes", "stored_bytes"),
}


class GateCell(NamedTuple):
    case: str
    fix: str
    mode: str
    size: str
    device: str

    @property
    def label(self) -> str:
        """The cell's id: ``metavoice-decode/kv_to_query/eager@cpu:2048``."""
        return f"{self.case}/{self.fix}/{self.mode}@{self.device}:{self.size}"


Key = tuple[GateCell, str]


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """What is compared, and how long.

    `cases` are ids, or where factories are written, the same place in both trees; `fixes` likewise. `seed` is of the
    first process; the others count on. `budget_s` is of timing per fix, all processes together. What is undecided then
    gets further processes, for at most three tenths of the time that the first took.
    """

    cases: tuple[str, ...]
    fixes: tuple[str, ...]
    modes: tuple[str, ...] = ("eager",)
    size: str | None = None
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    processes: int = 10
    budget_s: float = 5.0
    are_defaults: bool = False  # nobody named the fixes


@dataclass(frozen=True, kw_only=True)
class Margins:
    """What counts as no change.

    A latency is a *regression* where it surely grew by more than `latency`, and *no worse* where it surely grew by less
    than `clear` (None: than `latency`). With two values an unchanged cell passes after a quarter of the time.
    """

    latency: float = 0.005
    clear: float | None = 0.01
    drift: float = 1.1
    memory: float = 0.01

    def __post_init__(self) -> None:
        for name in ("latency", "memory"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise ParameterError(f"the margin of {name} is {value:g}; expected 0 to below 1, such as 0.01 or 1%")
        if not self.latency <= self.clear_latency < 1.0:
            raise ParameterError(f"the margin that clears is {self.clear:g}; expected {self.latency:g} to below 1")
        if not (self.drift >= 1.0 and math.isfinite(self.drift)):
            raise ParameterError(f"the margin of drift is {self.drift:g}; expected a factor of 1 or more, such as 1.2")

    @property
    def clear_latency(self) -> float:
        """Change of latency below which a cell is no worse."""
        return self.latency if self.clear is None else self.clear


@dataclass(frozen=True, kw_only=True)
class SideFigures:
    status: str = "passed"
    reason: str = ""
    seconds: float | None = None
    drift: float | None = None
    peak_bytes: int | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class PairFigures:
    """What one process measured of a fix on both sides; the log-ratio is of time, head over base."""

    base: SideFigures
    head: SideFigures
    log_ratio: float | None = None
    standard_error: float = 0.0
    budget_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FigureChange:
    place: GateCell
    metric: str
    verdict: Verdict
    base: float | str | None
    head: float | str | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    detectable: float | None = None
    processes: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The outcome of a gate.

    `unchanged` are cases whose code is the same on both sides, which are not timed; `doubts` speak against the verdict.
    """

    base: str
    head: str
    machine: Mapping[str, str]
    margins: Margins
    changes: tuple[FigureChange, ...]
    unchanged: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    required: tuple[str, ...] = field(default=("latency",))

    def of(self, verdict: Verdict) -> tuple[FigureChange, ...]:
        return tuple(change for change in self.changes if change.verdict == verdict)

    @property
    def outcome(self) -> Outcome:
        """One word for the whole gate: a regression counts before what could not be told."""
        return "regression" if self.of("regression") else "could not tell" if self.gaps else "no regression"

    @property
    def fixed(self) -> tuple[FigureChange, ...]:
        """Cells that fail at base and pass at head."""
        return tuple(change for change in self.of("improvement") if change.metric == "status")

    @property
    def gaps(self) -> tuple[str, ...]:
        """What keeps the gate from being green although nothing is known to be worse."""
        undecided = {change.metric for change in self.of("undecided")}
        is_open = [kind for kind in self.required if undecided & set(KINDS[kind])]
        gaps = [f"{join(is_open)} {plural(len(is_open), 'is', 'are')} undecided"] if is_open else []
        missing = [kind for kind in self.not_compared if kind in self.required and kind not in is_open]
        if missing and not self.fixed and (self.changes or not self.unchanged):
            gaps.append(f"no verdict on {join(missing)}")
        return tuple(gaps)

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Kinds of figures of which nothing has a verdict."""
        judged = {change.metric for change in self.changes if change.verdict not in ("shown", "undecided")}
        return tuple(kind for kind, metrics in KINDS.items() if not judged & set(metrics))


def check_kinds(required: Sequence[str]) -> None:
    for kind in required:
        check_known("kind of figures", kind, KINDS)
