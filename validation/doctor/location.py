"""Is the planted line found, and is a clean model left alone?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from precision_eval.diagnose.doctor.diagnosis import Diagnosis, Finding
from validation.doctor.plants import Built, Plant, is_held_out


@dataclass(frozen=True)
class Located:
    """One plant and what was told of it."""

    name: str
    held_out: bool
    truth: str
    told: str
    is_located: bool
    is_in_module: bool
    is_fault: bool
    status: str
    where_raised: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def diagnosed(make: Callable[[], Built]) -> Diagnosis:
    """Examine a model without trying fixes."""
    from precision_eval.diagnose.doctor.examination import examine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = make()
        return examine(model, *inputs, fixes=False, compiled=False)


def _where(finding: Finding | None) -> tuple[str, int, str]:
    if finding is None or finding.place is None:
        return "", 0, ""
    return finding.place.file.rpartition("/")[2], finding.place.line, finding.module


def locate(plants: Iterable[Plant]) -> list[Located]:
    """Examine each plant and hold what is told to the truth."""
    found = []
    for plant in plants:
        diagnosis = diagnosed(plant.make)
        first = diagnosis.first_split
        truth, told = (plant.file, plant.line, plant.module), _where(first)
        found.append(
            Located(
                name=plant.name,
                held_out=is_held_out(plant.name),
                truth=_text(truth),
                told="" if first is None else _text(told),
                is_located=told == truth,
                is_in_module=first is not None and told[2] == truth[2],
                is_fault=first is not None and first.severity == "fault",
                status=diagnosis.status,
                where_raised=_where(diagnosis.raised) == truth,
            )
        )
    return found


def _text(where: tuple[str, int, str]) -> str:
    return f"{where[0]}:{where[1]} in {where[2] or 'the model itself'}"


def false_alarms(models: dict[str, Callable[[], Built]]) -> list[dict[str, Any]]:
    """Examine clean models; tell what is said of each."""
    found = []
    for name, make in models.items():
        diagnosis = diagnosed(make)
        faults = [f"{fault.kind} at {_text(_where(fault))}" for fault in diagnosis.faults]
        risks = len(diagnosis.of("risk"))
        found.append({"name": name, "faults": faults, "risks": risks, "notes": len(diagnosis.of("note"))})
    return found


def share(hits: int, total: int) -> tuple[float, float, float]:
    """Share of hits with its 95 % interval (Wilson 1927)."""
    if total == 0:
        return math.nan, math.nan, math.nan
    z, p = 1.959964, hits / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return p, max(0.0, middle - half), min(1.0, middle + half)
