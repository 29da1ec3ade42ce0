"""What injected faults do to a run: every fault at every stage, with real runs.

A trial is one fault at one stage. The faults of a scenario share its commands, so a scenario of which a trial is
missing is played as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.robustness import harness
from validation.robustness.injector import MAIN_STAGES, WORKER_STAGES
from validation.robustness.scenarios import Scenario, scenarios

_STAGES = (MAIN_STAGES[0], *WORKER_STAGES, *MAIN_STAGES[1:], "between")


def _trials(options: Options) -> list[Trial]:
    return [Trial(key, scenario) for scenario in scenarios(options.size) for key in dict.fromkeys(scenario.keys)]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Play every scenario of which a trial is missing, at the same time."""

    def played(scenario: Scenario) -> list[Data]:
        with TemporaryDirectory() as folder:
            return harness.play(scenario, Path(folder), stopped=stopped)

    stopped = threading.Event()
    plays = list({trial.spec.name: trial.spec for trial in trials}.values())
    with ThreadPoolExecutor(max(1, len(plays))) as pool:
        try:
            for outcomes in pool.map(played, plays):
                yield from outcomes
        finally:
            stopped.set()  # Ctrl-C reaches no thread


def _figures(lines: list[Data]) -> list[Figure]:
    """Say how many promises were kept, then what the hit cell came to, kind by kind and stage by stage."""
    kept, stages = sum(map(harness.is_kept, lines)), len({line["stage"] for line in lines})
    kinds = dict.fromkeys(line["kind"] for line in lines)
    name = f"faults injected into real runs, {len(kinds)} kinds over {stages} stages"
    text = f"{kept} of {len(lines)} faults: no finished cell lost, the run resumed and ended"
    figures = [Figure(name, text, "all", kept == len(lines))]
    for kind in kinds:
        here = sorted((line for line in lines if line["kind"] == kind), key=lambda one: _STAGES.index(one["stage"]))
        seen = (
            f"{one['stage']}: {one['seen'] or 'not seen'}{'' if harness.is_kept(one) else ' (broken)'}" for one in here
        )
        figures.append(Figure(kind.replace("_", " "), "; ".join(seen)))
    return figures


EXPERIMENT = Experiment(
    name="robustness",
    title="faults injected into real runs: is a finished cell lost, does the run resume and end",
    trials=_trials,
    run=_run,
    figures=_figures,
)
