"""What injected faults do to a run: every fault at every stage, with real runs.

Conventions: see :class:`~validation.catalog.Experiment`. A trial is one fault at one stage; the faults of a
scenario share its commands, so a scenario of which a trial is missing is played as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from validation.catalog import Figure, Progress, Size
    from validation.robustness.harness import Trial
    from validation.robustness.scenarios import Scenario

TRIALS_NAME = "robustness.jsonl"


def run(out: Path, *, size: Size, progress: Progress) -> None:
    """Play the scenarios of which trials are missing in ``out/robustness.jsonl``."""
    from concurrent.futures import ThreadPoolExecutor

    from precision_eval.core.json_lines import TrialFile
    from validation.robustness.scenarios import scenarios

    trials = TrialFile(out / TRIALS_NAME)
    known = trials.keys()
    plays = scenarios(size)
    total = sum(len(set(scenario.keys)) for scenario in plays)
    done = sum(len(set(scenario.keys) & known) for scenario in plays)
    progress(done, total, "found")
    missing = [scenario for scenario in plays if not set(scenario.keys) <= known]
    with ThreadPoolExecutor(max(1, len(missing))) as pool:
        for found in pool.map(_played, missing):
            for trial in found:
                trials.append(trial)
                done += trial["key"] not in known
                progress(done, total, trial["key"])


def _played(scenario: Scenario) -> list[dict[str, Any]]:
    from tempfile import TemporaryDirectory

    from validation.robustness.harness import play

    with TemporaryDirectory() as folder:
        return [trial.to_dict() for trial in play(scenario, Path(folder))]


def figures(out: Path) -> list[Figure]:
    """Count the faults after which everything promised held."""
    from validation.catalog import Figure

    trials = _trials(out)
    if not trials:
        return []
    kept = sum(trial.kept for trial in trials)
    found = f"{kept} of {len(trials)} faults: no finished cell lost, the run resumed and ended"
    stages = len({trial.stage for trial in trials})
    kinds = len({trial.kind for trial in trials})
    return [
        Figure(
            name=f"faults injected into real runs, {kinds} kinds over {stages} stages",
            target="all",
            found=found,
            met=kept == len(trials),
            rivals={},
        )
    ]


def plot(out: Path) -> list[Path]:
    """Draw the table of faults and stages as ``robustness.png``."""
    from validation.robustness.table import draw

    trials = _trials(out)
    return draw(trials, out) if trials else []


def _trials(out: Path) -> list[Trial]:
    from precision_eval.core.json_lines import TrialFile
    from validation.robustness.harness import Trial

    read = TrialFile(out / TRIALS_NAME).read()
    return [Trial(**{**trial, "problems": tuple(trial["problems"])}) for trial in read]
