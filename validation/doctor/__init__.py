"""How well the doctor locates faults, and what observing costs.

A *plant* is a model that is clean, and one edit that makes dtypes split: a stored tensor, an input, or what a module
returns is brought to another dtype. Where that tensor first meets another dtype is written down with the plant, as a
module's path and a line, before any detector looks: in this package's own models by a comment at the end of the line
(``# @name``), in transformers' classes by a pattern that the line matches. A plant is *located* where the first split
has that module and that line, or one of the others that its author accepted. Every second plant, by the hash of its
name, was not looked at while rules were settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from statistics import median
from typing import Any

import torch

from precision_eval.stats import wilson_interval
from validation.doctor.plants import plants
from validation.doctor.sweep import SETS, blind, sweep_alarms, sweep_figures, sweep_summary, sweep_trials
from validation.doctor.trials import MOST, SIZES, alarms, clean_models, cost, first_finding, locate
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import plain_share, share_text

LEAST_LOCATED, LEAST_VERIFIED, MOST_ALARMS, MOST_TO_FIRST_S = 0.95, 0.90, 0, 3.0
EVERY = 4
"""Of the plants, those whose time to a finding is taken."""
HALVES = {False: "settled on", True: "held out"}


def _trials(options: Options) -> list[Trial]:
    return [trial for part in options["parts"] for trial in _of_part(part, options)]


def _of_part(part: str, options: Options) -> list[Trial]:
    """List the trials of a part; the libraries of the others are not loaded."""
    if part in SETS:
        return sweep_trials(part, options["round"])
    if part == "clean":
        return [Trial(f"clean/{name}", ("clean", (name, make))) for name, make in clean_models().items()]
    if part == "cost":
        sizes = product(("float32", "bfloat16"), SIZES)
        return [Trial(f"cost/{dtype}/{w}/{n}", ("cost", (dtype, w, n))) for dtype, (w, n) in sizes]
    if part == "speed":
        return [Trial(f"speed/{one.name}", ("speed", one)) for one in list(plants())[::EVERY]]
    wanted = {"settled": (False,), "held-out": (True,), "both": (False, True)}[options["half"]]
    return [Trial(f"plant/{one.name}", ("plant", one)) for one in plants() if one.is_held_out in wanted]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    torch.set_num_threads(1)
    measures: dict[str, Callable[[Any], Any]] = {
        "plant": locate,
        "clean": lambda model: alarms(*model),
        "cost": lambda size: cost(*size, budget_s=options["budget_s"]),
        "speed": first_finding,
        "blind": lambda spec: blind(*spec),
        "sweep-clean": lambda spec: sweep_alarms(*spec),
    }
    for key, (kind, what), _ in trials:
        yield {"key": key, kind: measures[kind](what)}


def _summary(lines: list[Data], options: Options) -> Data:
    content: Data = {}
    if located := [line["plant"] for line in lines if "plant" in line]:
        halves = {name: [one for one in located if one["held_out"] is half] for half, name in HALVES.items()}
        content["plants"] = {**{name: half_of(part) for name, part in halves.items() if part}, "plants": located}
    if clean := [line["clean"] for line in lines if "clean" in line]:
        called = sum(bool(one["faults"]) for one in clean)
        content["clean"] = {"alarms": called, "total": len(clean), "target": MOST_ALARMS, "models": clean}
    if costs := [row for line in lines for row in line.get("cost", ())]:
        content["cost"] = costs
    if speed := [line["speed"] for line in lines if "speed" in line]:
        content["speed"] = speed
    if rounds := sweep_summary(lines):
        content |= {
            "architectures": rounds,
            "command": f"python -m validation doctor --set parts={','.join(SETS)}",
        }
    return content


def half_of(part: list[Data]) -> Data:
    """Count the plants of a half that were located, those that a traceback does not point to, and what was mended."""
    hits, total = sum(one["is_located"] for one in part), len(part)
    low, high = wilson_interval(hits / total, total)
    silent = [one for one in part if not one["where_raised"]]
    return {
        "located": hits, "total": total, "share": hits / total, "low": low, "high": high, "target": LEAST_LOCATED,
        "is_met": hits / total >= LEAST_LOCATED, "beyond_traceback": len(silent),
        "located_beyond_traceback": sum(one["is_located"] for one in silent),
        "faults": sum(one["is_fault"] for one in part), "verified": sum(one["has_verified_change"] for one in part),
        "in_source": sum(one["changes_source"] for one in part),
    }  # fmt: skip


def _figures(content: Data) -> list[Figure]:
    located, figures = content.get("plants", {}), []
    for name in HALVES.values():
        if half := located.get(name):
            beyond = plain_share(half["located_beyond_traceback"], half["beyond_traceback"])
            text = f"{share_text(half['located'], half['total'])}; where no traceback points there already, {beyond}"
            target = f"≥ {100 * half['target']:.0f} %"
            figures.append(Figure(f"planted faults located to module and line, {name}", text, target, half["is_met"]))
            if "verified" in half:  # summaries of before changes were run have no such count
                figures.append(_verified_figure(name, half))
    for one in located.get("plants", ()):
        if not one["is_located"]:
            text = f"at {one['truth']}, told {one['told'] or 'nothing'} ({one['status']})"
            figures.append(Figure(f"missed: {one['name']}", text))
    if clean := content.get("clean"):
        text, target = f"{clean['alarms']} of {clean['total']}", clean["target"]
        figures.append(Figure("clean models called faulty", text, str(target), clean["alarms"] <= target))
        for one in clean["models"]:
            if one["faults"]:
                figures.append(Figure(f"false alarm: {one['name']}", "; ".join(one["faults"])))
    if speed := content.get("speed"):
        figures += _speed_figures(speed)
    figures += sweep_figures(content.get("architectures", {}))
    return figures + _cost_figures(content.get("cost", ()))


def _speed_figures(speed: list[Data]) -> list[Figure]:
    """The median of the toy models, and the slowest of them."""
    figures = []
    for key, words, target in (("first_s", "first finding", MOST_TO_FIRST_S), ("whole_s", "end, fixes timed", None)):
        seconds = sorted(one[key] for one in speed)
        middle = median(seconds)
        text = f"{middle:.2g} s, at most {seconds[-1]:.2g} s, of {len(seconds)} models"
        aim, met = ("", None) if target is None else (f"≤ {target:g} s", middle <= target)
        figures.append(Figure(f"from the call to the {words}, median", text, aim, met))
    return figures


def _verified_figure(name: str, half: Data) -> Figure:
    """Of the faults, those with a suggested change that was run and left no fault."""
    verified, faults = half["verified"], half["faults"]
    text = f"{share_text(verified, faults)}; {half['in_source']} of them by a change of the source"
    is_met = verified >= LEAST_VERIFIED * faults
    return Figure(f"suggested change run, no fault left, {name}", text, f"≥ {100 * LEAST_VERIFIED:.0f} %", is_met)


def _cost_figures(costs: Sequence[Data]) -> list[Figure]:
    """Ratios to plain forwards, short ones first; what has a target is what ``examine`` observes."""
    rows: dict[tuple[str, str], list[Data]] = {}
    for row in costs:
        rows.setdefault((row["observing"], row["dtype"]), []).append(row)
    figures = []
    for (observing, dtype), own in rows.items():
        judged = observing == "dtypes and values"
        lengths = " / ".join(f"{row['forward_ms']:.3g}" for row in own)
        text = "; ".join(f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in own)
        met = all(row["is_met"] for row in own) if judged else None
        name = f"observing {observing} ÷ plain forwards of {lengths} ms, {dtype}"
        figures.append(Figure(name, text, f"≤ {MOST:g} each" if judged else "", met))
    return figures


_PARTS = ("plants", "clean", "speed", "cost")
EXPERIMENT = Experiment(
    name="doctor",
    title="planted dtype faults: located or not; clean models; what observing costs",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={
        "parts": (_PARTS, _PARTS),
        "half": ("both", "both"),
        "round": ("first", "first"),
        "budget_s": (4.0, 4.0),
    },
)
