"""Is the planted line found, and is a clean model left alone? The clean models are the small ones and transformers' own
in several dtypes, and three cases that mix on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.diagnose.doctor.diagnosis import Diagnosis, Finding
from precision_eval.diagnose.doctor.examination import examine
from precision_eval.trace.operations import short
from validation.doctor import library, small
from validation.doctor.plants import BRAIN, HALF, SINGLE, Plant
from validation.doctor.small import Built, Make
from validation.frame import Data


def diagnosed(make: Callable[[], Built]) -> Diagnosis:
    """Examine a model without trying fixes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = make()
        return examine(model, *inputs, fixes=False, compiled=False)


def _where(finding: Finding | None) -> tuple[str, int, str]:
    if finding is None or finding.place is None:
        return "", 0, ""
    return finding.place.file.rpartition("/")[2], finding.place.line, finding.module


def locate(plant: Plant) -> Data:
    """Examine a plant and hold what the doctor says to the truth."""
    diagnosis = diagnosed(plant.make)
    first = diagnosis.first_split
    truth, told = (plant.file, plant.line, plant.module), _where(first)
    return {
        "name": plant.name,
        "held_out": plant.is_held_out,
        "truth": _text(truth),
        "told": "" if first is None else _text(told),
        "is_located": told == truth,
        "is_in_module": first is not None and told[2] == truth[2],
        "is_fault": first is not None and first.severity == "fault",
        "status": diagnosis.status,
        "where_raised": _where(diagnosis.raised) == truth,
        "has_verified_change": any(patch.verified for patch in diagnosis.patches),
        "changes_source": any(patch.verified and patch.diff for patch in diagnosis.patches),
    }


def _text(where: tuple[str, int, str]) -> str:
    return f"{where[0]}:{where[1]} in {where[2] or 'the model itself'}"


def alarms(name: str, make: Callable[[], Built]) -> Data:
    """Examine a clean model; return what the doctor says of it."""
    diagnosis = diagnosed(make)
    faults = [f"{fault.kind} at {_text(_where(fault))}" for fault in diagnosis.faults]
    return {"name": name, "faults": faults, "risks": len(diagnosis.of("risk")), "notes": len(diagnosis.of("note"))}


# dia-encode is clean where torch's RMS norm gives back half, from torch 2.8 on
_CASES = ("dia-encode", "cogvideo-t5-encoder-stock", "metavoice-t4")


def clean_models() -> dict[str, Callable[[], Built]]:
    """List the clean models."""
    models: dict[str, Callable[[], Built]] = {}
    for make in (*small.MODELS, *library.MODELS):
        for dtype in (HALF, BRAIN, SINGLE):
            models[f"{make.__name__} in {short(dtype)}"] = partial(make, dtype)
    for make in (small.decoder, small.biased, small.cross_reader, library.whisper):
        models[f"{make.__name__} in float32 under autocast"] = partial(_autocast, make)
    return models | {f"case {case}": partial(_case, case) for case in _CASES}


class _Autocast(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        with torch.autocast("cpu"):
            return self.model(*args, **kwargs)


def _autocast(make: Make) -> Built:
    model, inputs = make(SINGLE)
    return _Autocast(model).eval(), inputs


def _case(case: str) -> Built:
    built = case_by_id(case).build("tiny", device="cpu", seed=0)
    return built.model, tuple(built.inputs)
