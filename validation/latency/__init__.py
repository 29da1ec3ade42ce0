"""Verdicts on latency: how often they are wrong and what they can see, compared with other tools on the same calls.

A trial times a pair of calls whose difference is known exactly (:mod:`.calls`), on the machine left alone or under
bursting competitors (:mod:`.load`), by this suite or by asv, pytest-benchmark, torch.utils.benchmark or a t-test
(:mod:`.rivals`), each within the same budget. Stopped anywhere, the trials on file are useful (:mod:`.schedule`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.latency.figures import all_figures, outcomes
from validation.latency.load import LOADS, under_load
from validation.latency.rivals import TOOLS
from validation.latency.schedule import schedule
from validation.latency.worker import measuring_process

# Trials of both loads: some eight minutes, so that either load starts seldom and meets every hour of the host.
STRETCH = 160


def _trials(options: Options) -> list[Trial]:
    specs = schedule(options["tools"], equal=options["equal"], slower=options["slower"])
    return [Trial(spec.key, spec, spec.budget_s) for spec in specs]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Measure in stretches of one load each: one worker, and the load started once."""
    for number in count():
        stretch = list(islice(trials, STRETCH))
        if not stretch:
            return
        for load in LOADS if number % 2 == 0 else LOADS[::-1]:
            here = [trial.spec for trial in stretch if trial.spec.load == load]
            if here:
                with under_load(load, seed=number), measuring_process() as measure:
                    yield from map(measure, here)


def _figures(lines: list[Data]) -> list[Figure]:
    return all_figures(outcomes(lines))


EXPERIMENT = Experiment(
    name="latency",
    title="verdicts on latency: false alarms, power and coverage, compared with other tools",
    trials=_trials,
    run=_run,
    figures=_figures,
    settings={"tools": (tuple(TOOLS), tuple(TOOLS)), "equal": (8, 400), "slower": (3, 120)},
)
