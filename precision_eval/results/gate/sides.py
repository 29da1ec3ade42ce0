"""What is compared: figures by place and metric, and what must be alike before they are.

Conventions: a figure's *identity* is what makes it comparable (digest of the case, version of the benchmark, seed,
unit); a side's *facts* are those of machine and build, which must agree, and its *remarks* those that may differ and
are shown (commit, torch version, Python).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from precision_eval.core.errors import ParameterError

Judgement = Literal["status", "paired", "drift", "memory", "shown"]

METRICS: Mapping[str, Judgement] = {
    "status": "status",
    "latency_ratio": "paired",
    "latency_to_anchor": "paired",
    "drift": "drift",
    "teacher_forced_drift": "drift",
    "peak_bytes": "memory",
    "stored_bytes": "memory",
    "audio_degradation": "shown",
    "divergence": "shown",
    "time": "shown",
    "peakmem": "shown",
}
"""How each metric is judged; of all of them more is worse. Others are shown. ``time`` and ``peakmem`` are a process's
own, with the machine's state in them, so that they cannot carry a verdict."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "status": ("status",),
    "latency": ("latency_ratio",),
    "absolute-speed": ("latency_to_anchor",),
    "drift": ("drift", "teacher_forced_drift"),
    "memory": ("peak_bytes", "stored_bytes"),
}
"""What can be required of a gate, and the metrics that judge it."""


class GateCell(NamedTuple):
    """Where a figure belongs."""

    case: str
    fix: str
    mode: str
    size: str
    device: str = ""
    environment: str = ""

    @property
    def label(self) -> str:
        """The cell's id: ``metavoice-decode/kv_to_query/eager@cpu:2048``."""
        device = f"@{self.device}" if self.device else ""
        environment = f" [{self.environment}]" if self.environment else ""
        return f"{self.case}/{self.fix}/{self.mode}{device}:{self.size}{environment}"


@dataclass(frozen=True, kw_only=True)
class GateFigure:
    """One metric of one place on one side."""

    state: str
    value: float | None = None
    status: str | None = None
    samples: tuple[float, ...] = ()
    unit: str = ""
    identity: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One result set."""

    name: str
    facts: Mapping[str, str]
    remarks: Mapping[str, str]
    figures: Mapping[tuple[GateCell, str], GateFigure]
    damage: tuple[str, ...] = ()


def check_alike(base: Mapping[str, str], head: Mapping[str, str], *, names: tuple[str, str]) -> None:
    """Refuse sides of other machines or builds."""
    differing = [f"{name} ({base[name]} against {head[name]})" for name in sorted(unlike(base, head))]
    if differing:
        raise ParameterError(
            f"{names[0]} and {names[1]} differ in {', '.join(differing)}: their latency and memory cannot be compared; "
            "measure both on one machine with builds of one kind"
        )


def unlike(base: Mapping[str, str], head: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that both mappings state and state differently."""
    return tuple(name for name in base if name in head and base[name] != head[name])
