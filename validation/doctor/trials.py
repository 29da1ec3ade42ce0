"""The trials: is the planted line located, is a clean model left alone, and what does observing cost?

The clean models are the small ones and transformers' own in several dtypes, and three cases that mix on purpose. Cost
is that of an observed forward beside an unobserved one, paired, in one process. The observed call is what the doctor
runs, set-up included: naming every tensor, the hooks, the mode and the judgement. *Dtypes* follows dtypes only; *dtypes
and values* also looks at every value, which is what ``examine`` does.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from precision_eval.cases.systems import case_by_id
from precision_eval.core.formats import short
from precision_eval.doctor.diagnosis import Diagnosis, Finding
from precision_eval.doctor.examination import examine
from precision_eval.doctor.findings import findings_of
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.model_calls import observe_call
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
    return located(plant, diagnosed(plant.make))


def located(plant: Plant, diagnosis: Diagnosis) -> Data:
    """Hold a diagnosis to the truth."""
    first = diagnosis.first_split
    truth, told = (plant.file, plant.line, plant.module), _where(first)
    accepted = {truth, *plant.others}
    return {
        "name": plant.name,
        "held_out": plant.is_held_out,
        "truth": _text(truth),
        "told": "" if first is None else _text(told),
        "is_located": told in accepted,
        "is_in_module": first is not None and told[2] in {module for _, _, module in accepted},
        "is_fault": first is not None and first.severity == "fault",
        "status": diagnosis.status,
        "where_raised": _where(diagnosis.raised) in accepted,
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


def first_finding(plant: Plant) -> Data:
    """Seconds from the call of the doctor to its first finding, and to its end, fixes tried and timed."""
    told: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = plant.make()
        started = time.perf_counter()
        examine(model, *inputs, first=lambda _: told.append(time.perf_counter() - started))
        return {"name": plant.name, "first_s": told[0], "whole_s": time.perf_counter() - started}


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


class _Autocast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu"):
            return self.model(*args, **kwargs)


def _autocast(make: Make) -> Built:
    model, inputs = make(SINGLE)
    return _Autocast(model).eval(), inputs


def _case(case: str) -> Built:
    built = case_by_id(case).build("tiny", device="cpu", seed=0)
    return built.model, tuple(built.inputs)


# ---- what observing costs

MOST = 3.0
"""Of an unobserved forward."""

SIZES = ((32, 12), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))
"""Width and length."""


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.project(self.first(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.second(x))))


def cost(dtype: str, width: int, length: int, *, budget_s: float) -> list[dict[str, Any]]:
    """Ratios of an observed to an unobserved forward of four layers."""
    torch.manual_seed(0)
    of_torch = getattr(torch, dtype)
    model = nn.Sequential(*(Block(width) for _ in range(4))).eval().to(of_torch)
    subject = ExaminedModel(model, (torch.randn(1, length, width, dtype=of_torch),), {})
    plain, watched, counted = (copy.deepcopy(subject) for _ in range(3))
    ratios = compare_latency(
        {
            "forward": Candidate(torch.no_grad()(lambda: plain(*plain.tensors))),
            "nothing, in an empty function mode": Candidate(lambda: _under(BaseTorchFunctionMode(), plain)),
            "nothing, in an empty dispatch mode": Candidate(lambda: _under(_EmptyDispatch(), plain)),
            "dtypes": Candidate(lambda: _observe(watched, of_torch, values=False)),
            "dtypes and values": Candidate(lambda: _observe(counted, of_torch, values=True)),
        },
        baseline="forward",
        budget_s=budget_s,
        check=False,
    )
    return [
        {
            **{"dtype": dtype, "width": width, "length": length, "observing": name},
            **{"ratio": ratio.ratio, "low": ratio.ratio_low, "high": ratio.ratio_high},
            **{"forward_ms": 1e3 * ratio.baseline_median_s, "is_met": ratio.ratio <= MOST},
            "doubts": list(ratio.doubts),
        }
        for name, ratio in ratios.items()
    ]


class _EmptyDispatch(TorchDispatchMode):
    """Sees every operation below autograd and does nothing: what torch's own counters are made of."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _under(mode: Any, subject: ExaminedModel) -> object:
    with torch.no_grad(), mode:
        return subject(*subject.tensors)


def _observe(subject: ExaminedModel, dtype: torch.dtype, *, values: bool) -> object:
    observer, outcome = observe_call(
        subject, lambda: subject(*subject.tensors), subject.tensors, base=dtype, values=values
    )
    return findings_of(observer, outcome.outputs or (), None, broken=False), outcome
