"""Verdicts on latency: how often they are wrong, what they can see, beside other tools on the same calls and load.

Conventions: every trial times a pair of calls whose difference is known exactly
(:mod:`~validation.timing.calls`), on the machine left alone or beside bursting competitors
(:mod:`~validation.timing.load`), by this suite or by asv, pytest-benchmark, torch.utils.benchmark or a
t-test, each within the same budget. Trials go to ``OUT/latency.jsonl``. Full size may take hours; it stops after
:data:`LIMIT_VARIABLE` seconds where that environment variable is set, is useful wherever it stops, and goes on from
there when it is run again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from precision_eval.core.errors import ParameterError
from precision_eval.core.json_lines import TrialFile
from validation.catalog import Figure, Progress, Size

NAME = "latency"
LIMIT_VARIABLE = "PRECISION_EVAL_PROOF_LIMIT_S"


def run(out: Path, *, size: Size, progress: Progress, limit_s: float | None = None) -> None:
    """Run the trials that are missing in ``out/latency.jsonl``."""
    from validation.timing.load import under_load
    from validation.timing.schedule import phases, schedule
    from validation.timing.worker import Worker

    end_s = time.monotonic() + (_limit_from_environment() if limit_s is None else limit_s)
    file = TrialFile(out / f"{NAME}.jsonl")
    plan, on_file = schedule(size), file.keys()
    missing = [spec for spec in plan if spec.key not in on_file]
    done = len(plan) - len(missing)
    progress(done, len(plan), "on file")
    for number, (load, specs) in enumerate(phases(missing)):
        if time.monotonic() + specs[0].budget_s > end_s:
            return
        with under_load(load, seed=number), Worker({spec.tool for spec in specs}) as measure:
            for spec in specs:
                if time.monotonic() + spec.budget_s > end_s:
                    return
                file.append(measure(spec))
                done += 1
                progress(done, len(plan), spec.key)


def _limit_from_environment() -> float:
    text = os.environ.get(LIMIT_VARIABLE, "inf")
    try:
        return float(text)
    except ValueError as error:
        raise ParameterError(f"{LIMIT_VARIABLE} is {text!r}; expected seconds, such as 3600") from error


def figures(out: Path) -> list[Figure]:
    """Make the figures from the trials on file; empty where there are none."""
    from validation.timing.figures import all_figures, outcomes

    return all_figures(outcomes(TrialFile(out / f"{NAME}.jsonl").read()))


def plot(out: Path) -> list[Path]:
    """Draw ``out/latency_power`` and ``out/latency_estimates``, PNG and SVG; return the files, none without trials."""
    from validation.timing.figures import outcomes
    from validation.timing.plots import draw_all

    return draw_all(outcomes(TrialFile(out / f"{NAME}.jsonl").read()), out)
