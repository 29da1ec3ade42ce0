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

import numpy as np

from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.robustness import harness
from validation.robustness.injector import MAIN_STAGES, WORKER_STAGES
from validation.robustness.scenarios import Scenario, scenarios

if TYPE_CHECKING:
    from validation.robustness.harness import FaultOutcome

_STAGES = (MAIN_STAGES[0], *WORKER_STAGES, *MAIN_STAGES[1:], "between")
_KEPT, _BROKEN = "#bfe3c8", "#f2b0a5"


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
    kept, n = sum(one.kept for one in outcomes), len(outcomes)
    kinds, stages = len({one.kind for one in outcomes}), len({one.stage for one in outcomes})
    return [
        Figure(
            f"faults injected into real runs, {kinds} kinds over {stages} stages",
            f"{kept} of {n} faults: no finished cell lost, the run resumed and ended",
            "all",
            kept == n,
        )
    ]


def _plots(lines: list[Data], out: Path) -> list[Path]:
    """Draw one row per kind of fault and one column per stage; a field says what the hit cell came to."""
    from precision_eval.core.drawing import new_figure, save

    outcomes = _outcomes(lines)
    stages = [stage for stage in _STAGES if any(one.stage == stage for one in outcomes)]
    kinds = list(dict.fromkeys(one.kind for one in outcomes))
    figure = new_figure(13.0, 0.42 * len(kinds) + 2.0)
    axes = figure.add_subplot()
    for one in outcomes:
        x, y = stages.index(one.stage), kinds.index(one.kind)
        axes.fill(*_square(x, y), color=_KEPT if one.kept else _BROKEN, lw=0)
        axes.text(x, y, _short(one.seen), ha="center", va="center", fontsize=7.5)
    axes.set(xlim=(-0.5, len(stages) - 0.5), ylim=(len(kinds) - 0.5, -0.5))
    axes.set_xticks(range(len(stages)), [_words(stage, 10) for stage in stages], fontsize=8.5)
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds], fontsize=8.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    kept = sum(one.kept for one in outcomes)
    axes.set_title(
        f"{kept} of {len(outcomes)} faults injected into real runs: no finished cell lost, the run resumed and ended",
        loc="left",
        pad=34,
    )
    return save(figure, out, "robustness")


def _square(x: float, y: float, half: float = 0.47) -> tuple[np.ndarray, np.ndarray]:
    return x + half * np.array([-1, 1, 1, -1]), y + half * np.array([-1, -1, 1, 1])


def _words(name: str, width: int) -> str:
    """Break a name over lines."""
    words = name.replace("between", "between commands").replace("_", " ")
    return "\n".join(words.split()) if len(words) > width else words


def _short(seen: str) -> str:
    return "several" if "," in seen else seen.replace("out_of_memory", "out of\nmemory").replace("_", " ")


EXPERIMENT = Experiment(
    name="robustness",
    title="faults injected into real runs: is a finished cell lost, does the run resume and end",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_plots,
)
