"""How well the doctor locates faults, and what observing costs.

A *plant* is a model that is clean, and one edit that makes dtypes split: a stored tensor, an input, or what a module
returns is brought to another dtype. Where that tensor first meets another dtype is written down with the plant, as a
module's path and a line, before any detector looks: in this package's own models by a comment at the end of the line
(``# @name``), in transformers' classes by a pattern that the line matches. A plant is *located* where the first split
has that module and that line. Every second plant, by the hash of its name, was not looked at while rules were settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

from precision_eval.stats import wilson_interval
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import plain_share, share_text

LEAST_LOCATED, MOST_ALARMS = 0.95, 0
HALVES = {False: "settled on", True: "held out"}


def _trials(options: Options) -> list[Trial]:
    from validation.doctor.cost import SIZES
    from validation.doctor.library import library_plants
    from validation.doctor.location import clean_models
    from validation.doctor.plants import is_held_out, small_plants

    wanted = {"settled": (False,), "held-out": (True,), "both": (False, True)}[options["half"]]
    plants = [plant for plant in (*small_plants(), *library_plants()) if is_held_out(plant.name) in wanted]
    costs = product(("float32", "bfloat16"), SIZES)
    found = {
        "plants": [Trial(f"plant/{plant.name}", ("plant", plant)) for plant in plants],
        "clean": [Trial(f"clean/{name}", ("clean", (name, make))) for name, make in clean_models().items()],
        "cost": [Trial(f"cost/{dtype}/{w}/{n}", ("cost", (dtype, w, n))) for dtype, (w, n) in costs],
    }
    return [trial for part in options["parts"] for trial in found[part]]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    import torch

    from validation.doctor.cost import cost
    from validation.doctor.location import alarms, locate

    torch.set_num_threads(1)
    for key, (kind, what), _ in trials:
        found: Any
        if kind == "plant":
            found = asdict(locate(what))
        else:
            found = alarms(*what) if kind == "clean" else cost(*what, budget_s=options["budget_s"])
        yield {"key": key, kind: found}


def _summary(lines: list[Data], options: Options) -> Data:
    of = {kind: [line[kind] for line in lines if kind in line] for kind in ("plant", "clean", "cost")}
    halves = {}
    for held_out, name in HALVES.items():
        part = [one for one in of["plant"] if one["held_out"] is held_out]
        if part:
            halves[name] = _half(part)
    content: Data = {}
    if of["plant"]:
        content["plants"] = {**halves, "plants": of["plant"]}
    if of["clean"]:
        alarms = sum(bool(one["faults"]) for one in of["clean"])
        content["clean"] = {"alarms": alarms, "total": len(of["clean"]), "target": MOST_ALARMS, "models": of["clean"]}
    if of["cost"]:
        content["cost"] = [row for rows in of["cost"] for row in rows]
    return content


def _half(part: list[Data]) -> Data:
    hits, total = sum(one["is_located"] for one in part), len(part)
    low, high = wilson_interval(hits / total, total)
    silent = [one for one in part if not one["where_raised"]]
    return {
        "located": hits, "total": total, "share": hits / total, "low": low, "high": high, "target": LEAST_LOCATED,
        "is_met": hits / total >= LEAST_LOCATED, "beyond_traceback": len(silent),
        "located_beyond_traceback": sum(one["is_located"] for one in silent),
    }  # fmt: skip


def _figures(content: Data) -> list[Figure]:
    plants, clean, figures = content.get("plants", {}), content.get("clean"), []
    for name in HALVES.values():
        if name in plants:
            half = plants[name]
            beyond = plain_share(half["located_beyond_traceback"], half["beyond_traceback"])
            found = f"{share_text(half['located'], half['total'])}; where no traceback points there already, {beyond}"
            target = f"≥ {100 * half['target']:.0f} %"
            figures.append(Figure(f"planted faults located to module and line, {name}", found, target, half["is_met"]))
    missed = [one for one in plants.get("plants", ()) if not one["is_located"]]
    for one in missed:
        text = f"at {one['truth']}, told {one['told'] or 'nothing'} ({one['status']})"
        figures.append(Figure(f"missed: {one['name']}", text))
    if clean:
        alarms, target = f"{clean['alarms']} of {clean['total']}", clean["target"]
        figures.append(Figure("clean models called faulty", alarms, str(target), clean["alarms"] <= target))
        named = [one for one in clean["models"] if one["faults"]]
        figures += [Figure(f"false alarm: {one['name']}", "; ".join(one["faults"])) for one in named]
    return figures + [_cost_figure(row) for row in content.get("cost", ())]


def _cost_figure(row: Data) -> Figure:
    """A ratio to a plain forward; what has a target is what ``examine`` observes."""
    from validation.doctor.cost import MOST

    model = f"{row['dtype']}, width {row['width']}, length {row['length']}"
    name = f"observing {row['observing']} ÷ plain forward of {row['forward_ms']:.3g} ms, {model}"
    judged = row["observing"] == "dtypes and values"
    found = f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
    return Figure(name, found, f"≤ {MOST:g}" if judged else "", row["is_met"] if judged else None)


_PARTS = ("plants", "clean", "cost")
EXPERIMENT = Experiment(
    name="doctor",
    title="planted dtype faults: located or not; clean models; what observing costs",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={"parts": (_PARTS, _PARTS), "half": ("both", "both"), "budget_s": (4.0, 4.0)},
)
