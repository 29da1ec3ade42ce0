"""The blind plants over the architectures of transformers and diffusers: located, mended, and are the cures true?

Each round is scored once and kept: ``first`` before anybody looked at a miss, ``after looking`` once the doctor or a
truth was corrected. A fix that is said to cure is put on a fresh copy by ``precision_eval.fixed``: it must run, its
output be finite, and its drift to a float64 copy at most twice what the doctor said.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from precision_eval import fixed
from precision_eval.core.formats import short
from precision_eval.doctor.examination import examine
from precision_eval.fixes.catalog import FIXES
from precision_eval.fixes.storage import tensors_in
from precision_eval.measure.model_calls import relative_error
from validation.doctor.architectures import MODELS
from validation.doctor.blind import blind_plants
from validation.doctor.fourth import fourth_clean, fourth_plants
from validation.doctor.plants import BRAIN, HALF, SINGLE, Plant
from validation.doctor.second import second_clean, second_plants
from validation.doctor.small import Built, Make
from validation.doctor.third import third_clean, third_plants
from validation.doctor.trials import alarms, located
from validation.frame import Data, Figure, Trial
from validation.report import share_text

LEAST_LOCATED, LEAST_SILENT, LEAST_VERIFIED = 0.95, 0.85, 0.90
MORE_DRIFT, ROUNDING = 2.0, 1e-6
"""A cure may drift so many times more than was said, and by what float32 rounds."""


def _late(part: str, kind: str) -> Callable[[], Any]:
    """Import a set that loads transformers and diffusers with it, once its plants or clean models are asked for."""
    return lambda: getattr(importlib.import_module(f"validation.doctor.{part}"), f"{part}_{kind}")()


#: Of each set, what its rounds are called, its plants and its clean models.
SETS: dict[str, tuple[str, Callable[[], Iterator[Plant]], Callable[[], Iterable[tuple[str, Make]]]]] = {
    "architectures": ("", blind_plants, lambda: [(make.__name__, make) for make in MODELS]),
    "second": ("second set, ", second_plants, second_clean),
    "third": ("third set, ", third_plants, third_clean),
    "fourth": ("fourth set, ", fourth_plants, fourth_clean),
    **{part: (f"{part} set, ", _late(part, "plants"), _late(part, "clean")) for part in ("fifth", "sixth", "seventh")},
}


def sweep_trials(part: str, round_: str) -> list[Trial]:
    """List the plants of a set, then its clean models in three dtypes."""
    prefix, plants, clean = SETS[part]
    round_ = prefix + round_
    trials = [Trial(f"{round_}/blind/{plant.name}", ("blind", (round_, plant))) for plant in plants()]
    for called, make in clean():
        for dtype in (HALF, BRAIN, SINGLE):
            name = f"{called} in {short(dtype)}"
            spec = (round_, name, lambda make=make, dtype=dtype: make(dtype))
            trials.append(Trial(f"{round_}/sweep-clean/{name}", ("sweep-clean", spec)))
    return trials


def blind(round_: str, plant: Plant) -> Data:
    """Examine a plant with every fix, hold the answer to the truth, and run what is said to cure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, inputs = plant.make()
            diagnosis = examine(model, *inputs, latency=False)
    except Exception as error:  # noqa: BLE001 - a doctor that refuses or breaks has missed
        return {"round": round_, "name": plant.name, "refused": _sentence(error)}
    known = {fix.id for fix in FIXES}
    cures = [(remedy.fix, remedy.relative_error) for remedy in diagnosis.remedies if remedy.cures]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = _truth(plant)
        tried = [_tried(plant, fix, drift, truth) for fix, drift in cures if fix in known]
    return {"round": round_, **located(plant, diagnosis), "cures": tried}


def sweep_alarms(round_: str, name: str, make: Any) -> Data:
    """Examine a clean model; what cannot be examined is no clean model."""
    try:
        return {"round": round_, **alarms(name, make)}
    except Exception as error:  # noqa: BLE001 - a doctor that refuses or breaks is no clean bill
        return {"round": round_, "name": name, "faults": [f"refused: {_sentence(error)}"]}


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def _tried(plant: Plant, fix: str, said: float | None, truth: list[torch.Tensor] | None) -> Data:
    """Put a fix on a fresh copy and hold its output to float64, where that runs."""
    model, inputs = plant.make()
    tried: Data = {"fix": fix, "said": said, "drift": None, "is_true": False}
    try:
        outputs = _called(fixed(model, fix), inputs)
    except Exception as error:  # noqa: BLE001 - whatever a cure raises makes it no cure
        return tried | {"why": _sentence(error)}
    if not all(bool(output.isfinite().all()) for output in outputs):
        return tried | {"why": "not finite"}
    if truth is None:
        return tried | {"is_true": True}
    drift = max((relative_error(a, b) for a, b in zip(outputs, truth, strict=True)), default=0.0)
    tried |= {"drift": drift, "is_true": said is None or drift <= MORE_DRIFT * said + ROUNDING}
    return tried if tried["is_true"] else tried | {"why": f"drift {drift:.2g} where {said:.2g} was said"}


def _truth(plant: Plant) -> list[torch.Tensor] | None:
    """Run a float64 copy; None where an operation knows no float64, or the code itself narrows to what overflows."""
    try:
        truth = _called(*_in_float64(plant.make()))
    except RuntimeError:
        return None
    return truth if all(bool(output.isfinite().all()) for output in truth) else None


def _called(model: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Call a model with its dictionary of inputs; return the floating tensors of its output, those of caches left."""
    with torch.no_grad():
        result = model(**inputs[0])
    tensors = [tensor for name, tensor in tensors_in("output", result) if "past_key_values" not in name]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _in_float64(built: Built) -> Built:
    return built[0].double(), ({name: _widened(value) for name, value in built[1][0].items()},)


def _widened(value: Any) -> Any:
    """Bring a floating tensor, or a cache's keys and values, to float64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    for layer in getattr(value, "layers", ()):
        layer.keys, layer.values, layer.dtype = layer.keys.double(), layer.values.double(), torch.float64
    return value


def sweep_summary(lines: list[Data]) -> Data:
    """Count each round."""
    rounds: Data = {}
    for kind, name in (("blind", "plants"), ("sweep-clean", "clean")):
        for line in lines:
            if kind in line:
                rounds.setdefault(line[kind]["round"], {}).setdefault(name, []).append(line[kind])
    return {round_: {**_counted(**parts), **parts} for round_, parts in rounds.items()}


def _counted(plants: list[Data] = (), clean: list[Data] = ()) -> Data:  # type: ignore[assignment]
    hits = [plant for plant in plants if plant.get("is_located")]
    silent = [plant for plant in plants if plant.get("status", "raised") != "raised"]
    cures = [cure for plant in plants for cure in plant.get("cures", ())]
    return {
        "located": len(hits), "total": len(plants), "silent": len(silent),
        "silent_located": sum(plant["is_located"] for plant in silent),
        "verified": sum(plant["has_verified_change"] for plant in hits), "cures": len(cures),
        "true_cures": sum(cure["is_true"] for cure in cures), "clean_models": len(clean),
        "alarms": sum(bool(model["faults"]) for model in clean),
    }  # fmt: skip


def sweep_figures(rounds: Data) -> list[Figure]:
    """State each round in one row, then what it missed."""
    figures = []
    for name, counts in rounds.items():
        hits, total, least = counts["located"], counts["total"], f"≥ {100 * LEAST_LOCATED:.0f} %"
        located_text = share_text(hits, total) if total else ""
        clean = counts["clean_models"]
        columns = {
            "silent ones": _of(counts["silent_located"], counts["silent"], LEAST_SILENT),
            "a suggested change run, no fault left": _of(counts["verified"], hits, LEAST_VERIFIED),
            "fixes said to cure that do": _of(counts["true_cures"], counts["cures"], 1.0),
            "clean ones left alone": _of(clean - counts["alarms"], clean, 1.0),
        }
        met = hits >= LEAST_LOCATED * total if total else None
        figures.append(Figure(f"blind plants located, {name}", located_text, least, met, columns))
        figures += _misses(name, counts)
    return figures


def _of(hits: int, total: int, least: float) -> str:
    bound = "all" if least == 1.0 else f"{100 * least:.0f} %"
    return f"{hits} of {total}" + ("" if hits >= least * total else f" (missed: {bound})")


def _misses(name: str, counts: Data) -> list[Figure]:
    figures = []
    for plant in counts.get("plants", ()):
        if "refused" in plant:
            figures.append(Figure(f"refused, {name}: {plant['name']}", plant["refused"]))
            continue
        if not plant["is_located"]:
            text = f"at {plant['truth']}, told {plant['told'] or 'nothing'} ({plant['status']})"
            figures.append(Figure(f"missed, {name}: {plant['name']}", text))
        false = [f"{cure['fix']}: {cure['why']}" for cure in plant["cures"] if not cure["is_true"]]
        figures += [Figure(f"no cure, {name}: {plant['name']}", text) for text in false]
    for model in counts.get("clean", ()):
        if model["faults"]:
            figures.append(Figure(f"false alarm, {name}: {model['name']}", "; ".join(model["faults"])))
    return figures
