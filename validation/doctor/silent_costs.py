"""What raises nothing and costs: is it found, is its saving right, and is a clean model left alone?

A plant (:mod:`.costly`) is examined as a user's model is. It *counts* where its careful twin, timed in pairs beside it,
is faster by more than the doctor's least saving, or takes fewer bytes by as much: a widening that this processor
computes as fast is no cost here, and must not be shown as one. It is *found* where a cost names one of its lines, or
where it is a setting the setting's kind. Its saving is *right* where the doctor's interval and the twins' overlap;
where the doctor states bytes alone, time being within its noise, these must be the twins' within a twentieth. A third
of the plants was not looked at while rules were settled. Clean models are the careful twins, real classes in three
dtypes, and the small clean models of the other trials::

    python -m validation silent-costs --out runs/silent-costs
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch

from precision_eval.doctor.costs import LEAST_SAVING
from precision_eval.doctor.diagnosis import SilentCost
from precision_eval.doctor.examination import examine
from precision_eval.doctor.remedies import LAYOUT, share_tensors
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.memory import call_memory
from precision_eval.measure.model_calls import subject_of
from validation.doctor.costly import CostPlant, clean_twins, cost_plants
from validation.doctor.small import Built
from validation.doctor.trials import clean_models
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import share_text

LEAST_FOUND, LEAST_RIGHT = 0.90, 0.90
LIKE_BYTES = 0.05
"""Share by which two writings of one change may differ in bytes: they hold other temporaries."""
_RECAST = ("autocast", "metavoice-t4")
"""Models whose float32 weights autocast casts at each call: a cost, and its saving is real."""
HALVES = {False: "settled on", True: "held out"}


def _costs(make: Callable[[], Built], budget_s: float) -> tuple[SilentCost, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = make()
        return examine(model, *inputs, fixes=False, costs=True, budget_s=budget_s).costs


def _data(cost: SilentCost) -> Data:
    price = cost.price
    return {
        "kind": cost.kind, "reason": cost.reason, "line": "" if cost.place is None else str(cost.place),
        "ratio": price.latency_ratio, "low": price.latency_low, "high": price.latency_high,
        "saved_bytes": price.saved_bytes, "change": str(cost.patch).splitlines()[:40],
    }  # fmt: skip


def planted(plant: CostPlant, budget_s: float) -> Data:
    """Examine a plant, and time it beside its careful twin."""
    truth = _twins(plant, budget_s)
    line: Data = {"name": plant.name, "kind": plant.kind, "held_out": plant.is_held_out, "truth": truth}
    try:
        costs = _costs(partial(plant.make, cured=False), budget_s)
    except Exception as error:  # noqa: BLE001 - a doctor that refuses or breaks has missed
        return line | {"refused": f"{type(error).__name__}: {str(error)[:200]}"}
    named = [cost for cost in costs if _names(cost, plant)]
    return line | {"costs": [_data(cost) for cost in costs], "found": _data(named[0]) if named else None}


def _names(cost: SilentCost, plant: CostPlant) -> bool:
    """Whether a cost names the plant's line; of a setting, its kind."""
    if cost.place is None or not plant.marker:
        return cost.kind == plant.kind and not plant.marker
    return cost.place.file.endswith("costly.py") and cost.place.line in plant.lines


def _twins(plant: CostPlant, budget_s: float) -> Data:
    """Ratio of the careful twin to the careless one, and the bytes that it saves, stored and at the peak of a call.

    They share the tensors that are alike; for the others the interval has the doctor's allowance.
    """
    subjects = {"careless": _subject(plant, cured=False), "careful": _subject(plant, cured=True)}
    share_tensors(subjects["careful"], subjects["careless"])
    candidates = {name: Candidate(partial(s, *s.tensors), torch.no_grad) for name, s in subjects.items()}
    ratio = compare_latency(candidates, baseline="careless", budget_s=budget_s, check=False)["careful"]
    taken = {}
    for name, subject in subjects.items():
        with torch.no_grad():
            memory = call_memory(subject, subject.tensors, model=subject, device="cpu")
        taken[name] = (memory.storage_bytes, memory.allocated_peak_bytes or 0)
    return {
        "ratio": ratio.ratio, "low": ratio.ratio_low * (1 - LAYOUT), "high": ratio.ratio_high * (1 + LAYOUT),
        "call_s": ratio.baseline_median_s, "saved_bytes": sum(taken["careless"]) - sum(taken["careful"]),
        "stored_bytes": taken["careless"][0],
    }  # fmt: skip


def _subject(plant: CostPlant, *, cured: bool) -> ExaminedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = plant.make(cured=cured)
        return subject_of(model, inputs)


def clean(make: Callable[[], Built], budget_s: float) -> Data:
    """Examine a clean model; what cannot be examined is no clean bill."""
    try:
        return {"costs": [_data(cost) for cost in _costs(make, budget_s)]}
    except Exception as error:  # noqa: BLE001 - a doctor that refuses or breaks
        return {"refused": f"{type(error).__name__}: {str(error)[:200]}", "costs": []}


def counts(line: Data) -> bool:
    """Whether a plant costs anything on this processor: its twin saves time beyond noise, or bytes and no time."""
    truth = line["truth"]
    faster = truth["high"] < 1 - LEAST_SAVING
    return bool(faster or (truth["saved_bytes"] > LEAST_SAVING * truth["stored_bytes"] and truth["low"] <= 1))


def is_right(line: Data) -> bool:
    """Whether a saving is the twins': their intervals of time overlap; where bytes alone are stated, those agree."""
    found, truth = line["found"], line["truth"]
    if found["ratio"] is None:
        return abs(found["saved_bytes"] - truth["saved_bytes"]) <= LIKE_BYTES * abs(truth["saved_bytes"])
    return bool(found["low"] <= truth["high"] and truth["low"] <= found["high"])


def _trials(options: Options) -> list[Trial]:
    halves = {"settled": (False,), "held-out": (True,), "both": (False, True)}[options["half"]]
    trials = [Trial(f"plant/{plant.name}", plant) for plant in cost_plants() if plant.is_held_out in halves]
    if options["half"] == "held-out":
        return trials
    twins = clean_twins() | {name: make for name, make in clean_models().items() if not name.endswith(_RECAST)}
    return trials + [Trial(f"clean/{name}", make) for name, make in twins.items()]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    torch.set_num_threads(1)
    for key, spec, _ in trials:
        if isinstance(spec, CostPlant):
            yield {"key": key, "plant": planted(spec, options["budget_s"])}
        else:
            yield {"key": key, "clean": {"name": key.partition("/")[2], **clean(spec, options["budget_s"])}}


def _summary(lines: list[Data], options: Options) -> Data:
    plants = [line["plant"] for line in lines if "plant" in line]
    models = [line["clean"] for line in lines if "clean" in line]
    halves = {name: counted([p for p in plants if p["held_out"] is half]) for half, name in HALVES.items()}
    refused = [model["name"] for model in models if "refused" in model]
    alarms = [model for model in models if model["costs"]]
    clean_ = {"total": len(models) - len(refused), "refused": refused, "alarms": alarms}
    return {"halves": halves, "all": counted(plants), "plants": plants, "clean": clean_}


def counted(plants: list[Data]) -> Data:
    """Count what is a cost here, what of it was found, and of that the savings that are right."""
    costly = [plant for plant in plants if counts(plant)]
    found = [plant for plant in costly if plant.get("found")]
    return {
        "planted": len(plants), "costly": len(costly), "found": len(found), "right": sum(map(is_right, found)),
        "timed": sum(p["found"]["ratio"] is not None for p in found),
        "faster": sum(p["truth"]["high"] < 1 - LEAST_SAVING for p in found),
        "shown_for_nothing": [p["name"] for p in plants if not counts(p) and p.get("found")],
    }  # fmt: skip


def _figures(content: Data) -> list[Figure]:
    figures = []
    for name, half in [*content["halves"].items(), ("all", content["all"])]:
        if not half["planted"]:
            continue
        words = f"of {half['planted']} plants {half['costly']} cost something on this processor"
        figures.append(_share(f"silent costs found, {name} ({words})", half["found"], half["costly"], LEAST_FOUND))
        figures.append(_share(f"of these, the stated saving right, {name}", half["right"], half["found"], LEAST_RIGHT))
        text = f"{half['timed']}; the twin is faster beyond noise in {half['faster']} of {half['found']}"
        figures.append(Figure(f"of these, a saving of time stated, {name}", text))
    clean_ = content["clean"]
    if clean_["total"]:
        text = f"{len(clean_['alarms'])} of {clean_['total']}"
        figures.append(Figure("clean models with a cost", text, "0", not clean_["alarms"]))
    figures += [Figure(f"false: {m['name']}", _shown(m["costs"][0])) for m in clean_["alarms"]]
    for plant in content["plants"]:
        figures += _miss(plant)
    return figures


def _share(name: str, hits: int, trials: int, target: float) -> Figure:
    if not trials:
        return Figure(name, "none")
    return Figure(name, share_text(hits, trials), f"≥ {100 * target:.0f} %", hits >= target * trials)


def _shown(cost: Data) -> str:
    time = "" if cost["ratio"] is None else f"{cost['ratio']:.3f} [{cost['low']:.3f}, {cost['high']:.3f}] of the time, "
    return f"{cost['kind']} at {cost['line'] or 'a setting'}: {time}{cost['saved_bytes']:+d} bytes saved"


def _miss(plant: Data) -> list[Figure]:
    truth = plant["truth"]
    twins = f"twin {truth['ratio']:.3f} [{truth['low']:.3f}, {truth['high']:.3f}]"
    if not counts(plant):
        shown = f"; shown: {_shown(plant['found'])}" if plant.get("found") else ""
        return [Figure(f"no cost here: {plant['name']}", twins + shown)]
    if not plant.get("found"):
        return [Figure(f"missed: {plant['name']}", f"{twins}; {plant.get('refused', '')}".rstrip("; "))]
    return [] if is_right(plant) else [Figure(f"saving off: {plant['name']}", f"{twins}; {_shown(plant['found'])}")]


EXPERIMENT = Experiment(
    name="silent-costs",
    title="planted silent costs: found or not, their saving; clean models",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={"half": ("both", "both"), "budget_s": (4.0, 8.0)},
)
