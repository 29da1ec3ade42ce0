"""What may cost, and ways to change it; imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from precision_eval.doctor.diagnosis import CostKind
from precision_eval.doctor.repairs import Repair
from precision_eval.doctor.source import Insertion, source_line
from precision_eval.doctor.ways import Stored
from precision_eval.trace.dtype_flow import CodeLine
from precision_eval.trace.observer import ModuleCall


@dataclass
class Suspect:
    """Something that may cost, and the ways to change it, the one to prefer first."""

    kind: CostKind
    reason: str
    line: CodeLine | None
    call: ModuleCall | None
    ways: list[Callable[[], Repair | None]]
    elements: int
    count: int = 1
    lines: set[tuple[Any, int]] = field(default_factory=set)
    narrow: torch.dtype | None = None  # the format that a change computes in, whose rounding explains its drift
    most_waits: int | None = None  # of the call with the change
    is_fact: bool = False  # reported also where no change saves
    chosen: str = ""  # why what is wide may be meant so: the change is priced, and not proposed


def make_edit(insertions: list[Insertion], stored: Stored | None = None) -> Repair | None:
    """Make a change of the source and of what is stored; None where there is nothing to change."""
    if not insertions and not stored:
        return None
    repair = Repair(stored=dict(stored or {}))
    if insertions:
        repair.source.insert(dict.fromkeys(insertions))
    return repair


def line_of(code: CodeType | None, instruction: int) -> tuple[CodeType | None, int]:
    return code, 0 if code is None else source_line(code, instruction).line
