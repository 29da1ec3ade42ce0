"""How often the regression gate errs, beside plain asv, on the same result sets.

A *set* is what one asv run would leave of a few cells: paired ratios of several processes, asv's own times, drift and
memory, all measured by one fresh interpreter whose children are forked, as asv's fork server does. The code is the same
in all sets, so base and head drawn from them are A/A. In the same rounds stand calls that do exactly 2 % and 5 % more
work; a head with a slowdown takes one cell's figures from those. Drift ×1.5 and +5 % memory are likewise measured of
calls that really have them. Nothing is simulated but what says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path

from precision_eval.core.environment import cpu_model
from precision_eval.core.errors import PrecisionEvalError
from validation.frame import Data, Experiment, Figure, Options, Trial


def conditions_of(options: Options) -> Data:
    """Return what sets of a pair share: settings, processor and torch, so that no pair spans two machines."""
    from validation.gate.cells import DESIGN

    settings = {"processes": options["processes"], "budget_s": options["budget_s"], "design": DESIGN}
    return {**settings, "cpu": cpu_model(), "torch": metadata.version("torch")}


def _trials(options: Options) -> list[Trial]:
    from validation.gate.tracked import tracked_cases

    here, count = conditions_of(options), options["tracked"]
    place = f"{here['processes']}/{here['budget_s']:g}/{here['design']}/{here['cpu']}/{here['torch']}"
    sets = [Trial(f"set/{seed}/{place}", seed) for seed in range(options["sets"])]
    tracked = tracked_cases() if count else []
    return sets + [Trial(f"tracked/{case}:{size}/{count}/{place}", (case, size)) for case, size in tracked]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Measure sets, each in an interpreter of its own and ``jobs`` at a time, then the tracked cells."""
    from validation.gate.tracked import measured

    here = conditions_of(options)
    with ThreadPoolExecutor(options["jobs"]) as pool:
        while batch := list(islice(trials, options["jobs"])):
            seeds = [trial for trial in batch if isinstance(trial.spec, int)]
            sets = pool.map(partial(one_set, options=options), [trial.spec for trial in seeds])
            for trial, found in zip(seeds, sets, strict=True):
                yield {"key": trial.key, "conditions": here, **found}
            for key, spec, _ in (trial for trial in batch if not isinstance(trial.spec, int)):
                yield {"key": key, "tracked": measured(*spec, options["tracked"])}


def one_set(seed: int, *, options: Options) -> Data:
    """Measure a set in a fresh interpreter."""
    wanted = json.dumps({"seed": seed, "processes": options["processes"], "budget_s": options["budget_s"]})
    command = [sys.executable, "-m", "validation.gate.measuring", wanted]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise PrecisionEvalError(f"set {seed} could not be measured; its message stands above; run again to go on")
    found: Data = json.loads(done.stdout.splitlines()[-1])
    return found


def _summary(lines: list[Data], options: Options) -> Data | None:
    """Rates over pairs of the last sets' conditions; None where there is no pair."""
    from precision_eval.results.gate import Margins
    from validation.gate import figures, tracked
    from validation.gate.rules import read_sets

    sets = [line for line in lines if "conditions" in line]
    here = [line for line in sets if line["conditions"] == sets[-1]["conditions"]]
    if len(here) < 2:
        return None
    pairs = figures.drawn_pairs(len(here), options["pairs"])
    with tempfile.TemporaryDirectory() as folder:
        rates = figures.all_figures(
            read_sets(here, Path(folder)), len(here), here[-1]["conditions"]["processes"], pairs
        )
    cells = [cell for line in lines for cell in line.get("tracked", ())]
    return {
        "conditions": {**here[-1]["conditions"], "sets": len(here), "pairs": len(pairs)},
        "figures": rates,
        "simulated": figures.simulated(gates=options["simulated"]),
        "spreads": figures.spreads(here),
        "tracked": tracked.figures(cells, margin=Margins().latency),
    }


def _figures(content: Data) -> list[Figure]:
    return [
        Figure(
            ", ".join(part for part in (one.get("rule"), one["what"]) if part),
            f"{100 * one['rate']:.2f} % [{100 * one['low']:.2f}, {100 * one['high']:.2f}]",
            one.get("target", ""),
            one.get("met"),
        )
        for one in (*content["figures"], *content["simulated"])
    ]


EXPERIMENT = Experiment(
    name="gate",
    title="the regression gate's false alarms and recall, beside asv on the same sets",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={
        "sets": (4, 24),
        "processes": (10, 150),
        "budget_s": (0.1, 0.1),
        "jobs": (1, 1),
        "pairs": (12, 120),
        "tracked": (0, 0),
        "simulated": (200, 5000),
    },
)
