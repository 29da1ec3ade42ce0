"""Is the planted line found, and is a clean model left alone? The clean models are the small ones and transformers' own
in several dtypes, and three cases that mix on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from precision_eval.diagnose.doctor.diagnosis import Diagnosis, Finding
from validation.doctor import library, small
from validation.doctor.plants import BRAIN, HALF, SINGLE, Plant, is_held_out
from validation.doctor.small import Built, Make
from validation.frame import Data


@dataclass(frozen=True)
class Located:
    """One plant and what was told of it."""

    name: str
    held_out: bool
    truth: str
    told: str
    is_located: bool
    is_in_module: bool
    is_fault: bool
    status: str
    where_raised: bool


def diagnosed(make: Callable[[], Built]) -> Diagnosis:
    """Examine a model without trying fixes."""
    from precision_eval.diagnose.doctor.examination import examine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = make()
        return examine(model, *inputs, fixes=False, compiled=False)


def _where(finding: Finding | None) -> tuple[str, int, str]:
    if finding is None or finding.place is None:
        return "", 0, ""
    return finding.place.file.rpartition("/")[2], finding.place.line, finding.module


def locate(plant: Plant) -> Located:
    """Examine a plant and hold what is told to the truth."""
    diagnosis = diagnosed(plant.make)
    first = diagnosis.first_split
    truth, told = (plant.file, plant.line, plant.module), _where(first)
    return Located(
        name=plant.name,
        held_out=is_held_out(plant.name),
        truth=_text(truth),
        told="" if first is None else _text(told),
        is_located=told == truth,
        is_in_module=first is not None and told[2] == truth[2],
        is_fault=first is not None and first.severity == "fault",
        status=diagnosis.status,
        where_raised=_where(diagnosis.raised) == truth,
    )


def _text(where: tuple[str, int, str]) -> str:
    return f"{where[0]}:{where[1]} in {where[2] or 'the model itself'}"


def alarms(name: str, make: Callable[[], Built]) -> Data:
    """Examine a clean model; tell what is said of it."""
    diagnosis = diagnosed(make)
    faults = [f"{fault.kind} at {_text(_where(fault))}" for fault in diagnosis.faults]
    return {"name": name, "faults": faults, "risks": len(diagnosis.of("risk")), "notes": len(diagnosis.of("note"))}


_SMALL = (
    small.decoder, small.classifier, small.diffuser, small.experts, small.recurrent, small.state_space, small.biased,
    small.mel, small.quantiser, small.vocoder, small.cross_reader, small.float_island,
    small.wide_residual, small.interleaved,
)  # fmt: skip
# dia-encode is clean where torch's RMS norm gives back half, from torch 2.8 on
_CASES = ("dia-encode", "cogvideo-t5-encoder-stock", "metavoice-t4")


def clean_models() -> dict[str, Callable[[], Built]]:
    """List the clean models."""
    found: dict[str, Callable[[], Built]] = {}
    for make in (*_SMALL, *library.MODELS):
        for dtype in (HALF, BRAIN, SINGLE):
            found[f"{make.__name__} in {_name(dtype)}"] = partial(make, dtype)
    for make in (small.decoder, small.biased, small.cross_reader, library.whisper):
        found[f"{make.__name__} in float32 under autocast"] = partial(_autocast, make)
    for case in _CASES:
        found[f"case {case}"] = partial(_case, case)
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
    from precision_eval.cases.systems import case_by_id

    built = case_by_id(case).build("tiny", device="cpu", seed=0)
    return built.model, tuple(built.inputs)
