"""How well the doctor locates faults in code that it has not seen, and what observing costs.

A *plant* is a model in which dtypes split or numbers are lost; where that happens was written down before the doctor
ran on it. It is *located* where the first split has that module and line. Its careful twin, models of real
architectures and small models that mix on purpose are clean: every fault that is named there is a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch

from precision_eval.core.formats import short
from validation.doctor.fixed_point import count_settled, settle, settled_figures, targets
from validation.doctor.scenes import BRAIN, HALF, SINGLE
from validation.doctor.trials import MOST, SIZES, alarms, clean_models, cost, score
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import share_text

LEAST_LOCATED, LEAST_SILENT, LEAST_VERIFIED = 0.95, 0.85, 0.90
_PARTS = ("seventh", "fixed-point", "clean", "cost")


def _trials(options: Options) -> list[Trial]:
    return [trial for part in options["parts"] for trial in _of_part(part, options["round"])]


def _of_part(part: str, round_: str) -> list[Trial]:
    """List the trials of a part; the libraries of the others are not loaded."""
    if part == "clean":
        return [Trial(f"clean/{name}", ("clean", (name, make))) for name, make in clean_models().items()]
    if part == "cost":
        sizes = product(("float32", "bfloat16"), SIZES)
        return [Trial(f"cost/{dtype}/{w}/{n}", ("cost", (dtype, w, n))) for dtype, (w, n) in sizes]
    from validation.doctor.seventh import SET  # loads transformers and diffusers

    if part == "fixed-point":
        return [Trial(f"fixed-point/{target.rpartition('/')[2]}", ("settled", (target,))) for target in targets(SET)]
    trials = [Trial(f"{round_}/plant/{plant.name}", ("plant", (round_, plant))) for plant in SET.plants()]
    for (name, make), dtype in product(SET.clean(), (HALF, BRAIN, SINGLE)):
        words = f"{name} in {short(dtype)}"
        spec = (round_, words, lambda make=make, dtype=dtype: make(dtype))
        trials.append(Trial(f"{round_}/twin/{words}", ("twin", spec)))
    return trials


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    torch.set_num_threads(1)
    functions: dict[str, Callable[..., Any]] = {
        "plant": lambda round_, plant: {"round": round_, **score(plant)},
        "twin": lambda round_, name, make: {"round": round_, **alarms(name, make)},
        "clean": alarms,
        "settled": lambda target: {"target": target.rpartition("/")[2], **settle(target)},
        "cost": lambda *size: cost(*size, budget_s=options["budget_s"]),
    }
    for key, (kind, spec), _ in trials:
        yield {"key": key, kind: functions[kind](*spec)}


def _summary(lines: list[Data], options: Options) -> Data:
    content: Data = {}
    for kind, name in (("plant", "plants"), ("twin", "twins")):
        for row in (line[kind] for line in lines if kind in line):
            content.setdefault("rounds", {}).setdefault(row["round"], {}).setdefault(name, []).append(row)
    content |= {"rounds": {round_: count(**parts) for round_, parts in content.get("rounds", {}).items()}}
    if settled := [line["settled"] for line in lines if "settled" in line]:
        content["fixed_point"] = count_settled(settled)
    if clean := [line["clean"] for line in lines if "clean" in line]:
        content["clean"] = {"total": len(clean), "alarms": [row for row in clean if row["faults"]]}
    if costs := [line["cost"] for line in lines if "cost" in line]:
        content["cost"] = costs
    return content


def count(plants: Sequence[Data] = (), twins: Sequence[Data] = ()) -> Data:
    """Count a round, and keep what was missed, what did not cure and what was called faulty."""
    hits = [plant for plant in plants if plant.get("is_located")]
    silent = [plant for plant in plants if plant.get("status", "raised") != "raised"]
    cures = [(plant["name"], cure) for plant in plants for cure in plant.get("cures", ())]
    return {
        "located": len(hits), "total": len(plants), "silent": len(silent),
        "silent_located": sum(plant["is_located"] for plant in silent),
        "verified": sum(plant["has_verified_change"] for plant in hits), "cures": len(cures),
        "true_cures": sum(cure["is_true"] for _, cure in cures), "clean_models": len(twins),
        "alarms": [row for row in twins if row["faults"]],
        "missed": [{name: value for name, value in plant.items() if name != "cures"} for plant in plants
                   if plant not in hits],
        "no_cures": [{"name": name, **cure} for name, cure in cures if not cure["is_true"]],
    }  # fmt: skip


def _figures(content: Data) -> list[Figure]:
    figures = [figure for name, round_ in content.get("rounds", {}).items() for figure in round_figures(name, round_)]
    figures += settled_figures(content.get("fixed_point", {}))
    if clean := content.get("clean"):
        alarmed = len(clean["alarms"])
        figures.append(Figure("clean models called faulty", f"{alarmed} of {clean['total']}", "0", alarmed == 0))
        figures += _alarms(clean["alarms"])
    return figures + _cost_figures(content.get("cost", ()))


def round_figures(name: str, counts: Data) -> list[Figure]:
    hits, total, clean = counts["located"], counts["total"], counts["clean_models"]
    shares = (
        ("blind plants located", hits, total, LEAST_LOCATED),
        ("of these, silent ones", counts["silent_located"], counts["silent"], LEAST_SILENT),
        ("a suggested change run, no fault left", counts["verified"], hits, LEAST_VERIFIED),
        ("fixes said to cure that do", counts["true_cures"], counts["cures"], 1.0),
        ("clean ones left alone", clean - len(counts["alarms"]), clean, 1.0),
    )
    figures = [_share(f"{what}, {name}", *numbers) for what, *numbers in shares]
    for plant in counts["missed"]:
        text = plant.get("refused") or f"at {plant['truth']}; the doctor: {plant['place'] or 'nothing'}"
        figures.append(Figure(f"missed, {name}: {plant['name']}", text))
    figures += [
        Figure(f"no cure, {name}: {cure['name']}", f"{cure['fix']}: {cure['why']}") for cure in counts["no_cures"]
    ]
    return figures + _alarms(counts["alarms"])


def _share(name: str, hits: int, total: int, least: float) -> Figure:
    target = "all" if least == 1.0 else f"≥ {100 * least:.0f} %"
    return Figure(name, share_text(hits, total), target, hits >= least * total if total else None)


def _alarms(models: Sequence[Data]) -> list[Figure]:
    return [Figure(f"false alarm: {model['name']}", "; ".join(model["faults"])) for model in models]


def _cost_figures(costs: Sequence[Data]) -> list[Figure]:
    """The largest ratio to a plain forward in each dtype, and the ratio of each size."""
    rows: dict[str, list[Data]] = {}
    for row in costs:
        rows.setdefault(row["dtype"], []).append(row)
    figures = []
    for dtype, sizes in rows.items():
        ratios = {
            f"{row['forward_ms']:.3g} ms": f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in sizes
        }
        worst = max(sizes, key=lambda row: float(row["ratio"]))
        text = f"{worst['ratio']:.2f} [{worst['low']:.2f}, {worst['high']:.2f}] at {worst['forward_ms']:.3g} ms"
        name = f"observing dtypes and values ÷ a plain forward, the largest of {len(sizes)} sizes in {dtype}"
        figures.append(Figure(name, text, f"≤ {MOST:g}", all(row["is_met"] for row in sizes), ratios))
    return figures


EXPERIMENT = Experiment(
    name="doctor",
    title="planted dtype faults: located or not; clean models; what observing costs",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={"parts": (_PARTS, _PARTS), "round": ("seventh set, again", "seventh set, again"), "budget_s": (4.0, 4.0)},
)
