"""What an experiment offers, and the list of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

from precision_eval.core.errors import unknown_name

Size = Literal["quick", "full"]
Progress = Callable[[int, int, str], None]
"""Called as ``progress(done, total, what)`` after every trial, the resumed ones included."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of an experiment's result."""

    name: str
    target: str
    found: str
    met: bool | None
    rivals: dict[str, str]


class ExperimentModule(Protocol):
    """What the module of an experiment holds."""

    def run(self, out: Path, *, size: Size, progress: Progress) -> None:
        """Run the trials that are missing in ``out/NAME.jsonl``."""

    def figures(self, out: Path) -> list[Figure]:
        """Make the figures from the trials alone; empty where there are none."""

    def plot(self, out: Path) -> list[Path]:
        """Draw ``out/NAME*.png`` from the trials alone; return the files."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment, as data."""

    name: str
    title: str
    module: str

    def load(self) -> ExperimentModule:
        """Import the module."""
        return cast(ExperimentModule, importlib.import_module(self.module))


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        name="latency",
        title="verdicts on latency: false alarms, power, coverage, beside other tools",
        module="validation.latency",
    ),
    Experiment(
        name="faults",
        title="planted numeric faults and honest variations, judged by five rules",
        module="validation.faults",
    ),
    Experiment(name="memory", title="tensors of known size", module="validation.memory"),
    Experiment(name="overhead", title="what measuring costs", module="validation.overhead"),
    Experiment(
        name="divergence",
        title="first divergence, and its prediction from margins",
        module="validation.divergence",
    ),
    Experiment(
        name="robustness",
        title="faults injected into real runs: is a finished cell lost, does the run resume and end",
        module="validation.robustness",
    ),
)


def experiment_by_name(name: str) -> Experiment:
    """Look an experiment up."""
    for entry in EXPERIMENTS:
        if entry.name == name:
            return entry
    raise unknown_name("experiment", name, (entry.name for entry in EXPERIMENTS))
