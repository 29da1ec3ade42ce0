"""How often the regression gate errs, beside plain asv, on the same result sets.

A *set* is what one asv run would leave of a few cells: paired ratios of several processes, asv's own times, drift and
memory, all measured by one fresh interpreter whose children are forked, as asv's fork server does. The code is the same
in all sets, so base and head drawn from them are A/A. In the same rounds stand calls that do exactly 2 % and 5 % more
work; a head with a slowdown takes one cell's figures from those. Drift ×1.5 and +5 % memory are likewise measured of
calls that really have them. Nothing is simulated but what says so.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path

from precision_eval.core.environment import cpu_model
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.workers import WorkerError, call_each
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.gate import figures
from validation.gate.measuring import DESIGN
from validation.gate.rules import read_sets
from validation.report import share_text, span

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def conditions_of(options: Options) -> Data:
    """Return what sets of a pair share: settings, processor and torch, so that no pair spans two machines."""
    settings = {"processes": options["processes"], "budget_s": options["budget_s"], "design": DESIGN}
    return {**settings, "cpu": cpu_model(), "torch": metadata.version("torch")}


def _trials(options: Options) -> list[Trial]:
    here = conditions_of(options)
    place = f"{here['processes']}/{here['budget_s']:g}/{here['design']}/{here['cpu']}/{here['torch']}"
    return [Trial(f"set/{seed}/{place}", seed) for seed in range(options["sets"])]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Measure sets, each in an interpreter of its own and ``jobs`` at a time."""
    here = conditions_of(options)
    while batch := list(islice(trials, options["jobs"])):
        for trial, answer in zip(batch, measured_sets([trial.spec for trial in batch], options), strict=True):
            if isinstance(answer, WorkerError):
                raise PrecisionEvalError(f"set {trial.spec} could not be measured ({answer}); run again to go on")
            yield {"key": trial.key, "conditions": here, **answer}


def measured_sets(seeds: list[int], options: Options) -> list[Data | WorkerError]:
    """Measure sets at once, each in a fresh interpreter."""
    given = [(seed, options["processes"], options["budget_s"]) for seed in seeds]
    return call_each("validation.gate.measuring:measured_set", given, start="spawn", at_once=len(given))


def _summary(lines: list[Data], options: Options) -> Data | None:
    """Rates over pairs of the last sets' conditions; None where there is no pair."""
    here = [line for line in lines if line["conditions"] == lines[-1]["conditions"]]
    if len(here) < 2:
        return None
    pairs = figures.drawn_pairs(len(here), options["pairs"])
    with tempfile.TemporaryDirectory() as folder:
        rates = figures.all_figures(
            read_sets(here, Path(folder)), len(here), here[-1]["conditions"]["processes"], pairs
        )
    return {
        "conditions": {**here[-1]["conditions"], "sets": len(here), "pairs": len(pairs)},
        "figures": rates,
        "simulated": figures.simulated(gates=options["simulated"]),
        "spreads": figures.spreads(here),
    }


def _figures(content: Data) -> list[Figure]:
    """The gate with all processes, beside fewer, other margins and asv; then what is simulated."""
    judged = f"gate, {content['conditions']['processes']} processes a side"
    others = _grouped([rate for rate in content["figures"] if rate["rule"] != judged])
    figures = []
    for rate in content["figures"]:
        if rate["rule"] == judged:
            what = rate["what"]
            figures.append(_figure(rate, {name: rates[what] for name, rates in others.items() if what in rates}))
    return figures + [_figure(rate, {}) for rate in content["simulated"]]


def _figure(rate: Data, rivals: dict[str, str]) -> Figure:
    hits = rate.get("count", round(rate["rate"] * rate["trials"]))
    text = share_text(hits, rate["trials"], interval=(rate["low"], rate["high"]))
    sign, _, bound = rate.get("target", "").partition(" ")
    return Figure(rate["what"], text, f"{sign} {100 * float(bound):g} %" if bound else "", rate.get("met"), rivals)


def _grouped(rates: list[Data]) -> dict[str, dict[str, str]]:
    """Rates of rules by what they are of; rules that differ in one number are one: ``3 / 5 / 10 processes``."""
    stems: dict[str, dict[str, dict[str, float]]] = {}
    for rate in rates:
        rules = stems.setdefault(_NUMBER.sub("#", rate["rule"]), {})
        rules.setdefault(rate["rule"], {})[rate["what"]] = rate["rate"]
    grouped: dict[str, dict[str, str]] = {}
    for stem, rules in stems.items():
        numbers = " / ".join(_NUMBER.findall(rule)[0] for rule in rules if _NUMBER.search(rule))
        texts = grouped.setdefault(stem.replace("#", numbers), {})
        for what in next(iter(rules.values())):
            texts[what] = " / ".join(f"{100 * of_rule[what]:.3g}" for of_rule in rules.values()) + " %"
    return grouped


def _notes(content: Data) -> list[str]:
    """How many trials count, and how far processes and sets scatter."""
    conditions, spreads = content["conditions"], content["spreads"].values()
    lines = [
        f"Figures are of the gate with all {conditions['processes']} processes a side. {conditions['sets']} sets of "
        f"{conditions['processes']} processes ({conditions['budget_s']:g} s each), {conditions['pairs']} pairs of "
        f"them; 95 % intervals of {span(sorted({one['independent_pairs'] for one in content['figures']}), 'd')} "
        "trials, the pairs without a common set.",
        f"One process scatters by {span([100 * one['process_sd'] for one in spreads], '.2g')} % (SD of a cell's "
        f"ratio); sets of equal code differ by {span([one['sets_over_processes'] for one in spreads], '.2g')} times "
        "the variance that this explains.",
    ]
    by_cell = [
        (rate, f"{one['what']}, {cell}")
        for one in content["figures"]
        if "target" in one
        for cell, rate in one.get("by_cell", {}).items()
    ]
    if by_cell:
        rate, where = min(by_cell, key=lambda least: least[0])
        lines.append(f"Least of a single cell: {100 * rate:.1f} % ({where}).")
    return [" ".join(lines)]


EXPERIMENT = Experiment(
    name="gate",
    title="the regression gate's false alarms and recall, beside asv on the same sets",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    notes=_notes,
    settings={
        "sets": (4, 24),
        "processes": (10, 150),
        "budget_s": (0.1, 0.1),
        "jobs": (1, 1),
        "pairs": (12, 120),
        "simulated": (200, 5000),
    },
)
