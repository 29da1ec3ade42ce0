"""What injected faults do to a run: every fault at every stage, with real runs.

A trial is one fault at one stage. The faults of a scenario share its commands, so a scenario of which a trial is
missing is played as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.robustness import harness
from validation.robustness.injector import MAIN_STAGES, WORKER_STAGES
from validation.robustness.scenarios import Scenario, scenarios

if TYPE_CHECKING:
    from validation.robustness.harness import FaultOutcome

_STAGES = (MAIN_STAGES[0], *WORKER_STAGES, *MAIN_STAGES[1:], "between")


def _trials(options: Options) -> list[Trial]:
    return [Trial(key, scenario) for scenario in scenarios(options.size) for key in dict.fromkeys(scenario.keys)]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Play every scenario of which a trial is missing, at the same time."""
    plays = list({trial.spec.name: trial.spec for trial in trials}.values())
    with ThreadPoolExecutor(max(1, len(plays))) as pool:
        for outcomes in pool.map(_played, plays):
            yield from (asdict(outcome) for outcome in outcomes)


def _played(scenario: Scenario) -> list[FaultOutcome]:
    with TemporaryDirectory() as folder:
        return harness.play(scenario, Path(folder))


def _outcomes(lines: list[Data]) -> list[FaultOutcome]:
    return [harness.FaultOutcome(**{**line, "problems": tuple(line["problems"])}) for line in lines]


def _figures(lines: list[Data]) -> list[Figure]:
    outcomes = _outcomes(lines)
    kept, n = sum(outcome.kept for outcome in outcomes), len(outcomes)
    kinds, stages = len({one.kind for one in outcomes}), len({one.stage for one in outcomes})
    return [
        Figure(
            f"faults injected into real runs, {kinds} kinds over {stages} stages",
            f"{kept} of {n} faults: no finished cell lost, the run resumed and ended",
            "all",
            kept == n,
        ),
        *(_of_kind(kind, outcomes) for kind in dict.fromkeys(one.kind for one in outcomes)),
    ]


def _of_kind(kind: str, outcomes: list[FaultOutcome]) -> Figure:
    """Say what the hit cell came to at each stage, and where a promise was broken."""
    here = sorted((outcome for outcome in outcomes if outcome.kind == kind), key=lambda one: _STAGES.index(one.stage))
    seen = [f"{one.stage}: {one.seen or 'not seen'}{'' if one.kept else ' (broken)'}" for one in here]
    return Figure(kind.replace("_", " "), "; ".join(seen))


EXPERIMENT = Experiment(
    name="robustness",
    title="faults injected into real runs: is a finished cell lost, does the run resume and end",
    trials=_trials,
    run=_run,
    figures=_figures,
)
