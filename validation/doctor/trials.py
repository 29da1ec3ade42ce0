"""The trials: is the planted line located, does a cure cure, is a clean model left alone, what does observing cost?

The clean models are the small ones and those of real architectures in three dtypes, and three cases that mix on
purpose. Cost is that of an observed forward over an unobserved one, paired, in one process, set-up included.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval import fixed
from precision_eval.cases.systems import case_by_id
from precision_eval.core.formats import short
from precision_eval.doctor.diagnosis import Diagnosis, Finding
from precision_eval.doctor.examination import examine
from precision_eval.doctor.findings import findings_of
from precision_eval.fixes.catalog import FIXES
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.fixes.storage import tensors_in
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.model_calls import observe_call, relative_error
from validation.doctor import architectures, small
from validation.doctor.scenes import BRAIN, HALF, SINGLE, Built, Make, Plant
from validation.frame import Data

MORE_DRIFT, ROUNDING = 2.0, 1e-6  # a cure may drift so many times what the doctor states, and by float32's rounding


def score(plant: Plant) -> Data:
    """Examine a plant with every fix, compare the answer with the truth, and run what is said to cure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, inputs = plant.make()
            diagnosis = examine(model, *inputs, latency=False)
    except Exception as error:  # noqa: BLE001 - a doctor that refuses or breaks has missed
        return {"name": plant.name, "refused": _sentence(error)}
    fixes = {fix.id for fix in FIXES}
    cures = [(remedy.fix, remedy.relative_error) for remedy in diagnosis.remedies if remedy.cures]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = _truth(plant)
        tried = [_try_cure(plant, fix, drift, truth) for fix, drift in cures if fix in fixes]
    return {**located(plant, diagnosis), "cures": tried}


def located(plant: Plant, diagnosis: Diagnosis) -> Data:
    first = diagnosis.first_split
    place = _where(first)
    return {
        "name": plant.name,
        "truth": _text(plant.truths[0]),
        "place": "" if first is None else _text(place),
        "is_located": place in plant.truths,
        "status": diagnosis.status,
        "has_verified_change": any(patch.verified for patch in diagnosis.patches),
    }


def _where(finding: Finding | None) -> tuple[str, int, str]:
    if finding is None or finding.place is None:
        return "", 0, ""
    return finding.place.file.rpartition("/")[2], finding.place.line, finding.module


def _text(where: tuple[str, int, str]) -> str:
    return f"{where[0]}:{where[1]} in {where[2] or 'the model itself'}"


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def _try_cure(plant: Plant, fix: str, stated: float | None, truth: list[torch.Tensor] | None) -> Data:
    """Put a fix on a fresh copy and compare its output with float64, where that runs."""
    model, inputs = plant.make()
    cure: Data = {"fix": fix, "is_true": False}
    try:
        outputs = _outputs(fixed(model, fix), inputs)
    except Exception as error:  # noqa: BLE001 - whatever a cure raises makes it no cure
        return cure | {"why": _sentence(error)}
    if not all(bool(output.isfinite().all()) for output in outputs):
        return cure | {"why": "not finite"}
    if truth is None or stated is None:
        return cure | {"is_true": True}
    drift = max((relative_error(a, b) for a, b in zip(outputs, truth, strict=True)), default=0.0)
    if drift <= MORE_DRIFT * stated + ROUNDING:
        return cure | {"is_true": True}
    return cure | {"why": f"drift {drift:.2g} where the doctor states {stated:.2g}"}


def _truth(plant: Plant) -> list[torch.Tensor] | None:
    """Run a float64 copy; None where an operation knows no float64, or the code itself narrows to what overflows."""
    model, (inputs,) = plant.make()
    wide = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    try:
        truth = _outputs(model.double(), (wide,))
    except RuntimeError:
        return None
    return truth if all(bool(output.isfinite().all()) for output in truth) else None


def _outputs(model: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Call a model with its dictionary of inputs; return the floating tensors of its output."""
    with torch.no_grad():
        result = model(**inputs[0])
    return [tensor for _, tensor in tensors_in("output", result) if tensor.is_floating_point()]


def alarms(name: str, make: Callable[[], Built]) -> Data:
    """Examine a clean model without fixes; what cannot be examined is no clean model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, inputs = make()
            diagnosis = examine(model, *inputs, fixes=False)
    except Exception as error:  # noqa: BLE001 - a doctor that refuses or breaks is no clean bill
        return {"name": name, "faults": [f"refused: {_sentence(error)}"]}
    return {"name": name, "faults": [f"{fault.kind} at {_text(_where(fault))}" for fault in diagnosis.faults]}


# dia-encode is clean where torch's RMS norm gives back half, from torch 2.8 on
_CASES = ("dia-encode", "cogvideo-t5-encoder-stock", "metavoice-t4")


def clean_models() -> dict[str, Callable[[], Built]]:
    models: dict[str, Callable[[], Built]] = {}
    for make in (*small.MODELS, *architectures.MODELS):
        for dtype in (HALF, BRAIN, SINGLE):
            models[f"{make.__name__} in {short(dtype)}"] = partial(make, dtype)
    for make in (small.decoder, small.biased):
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

MOST = 3.0  # times an unobserved forward
SIZES = ((32, 12), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))  # width and length


class Block(nn.Module):
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


def cost(dtype: str, width: int, length: int, *, budget_s: float) -> Data:
    """Ratio of an observed to an unobserved forward of four layers."""
    torch.manual_seed(0)
    of_torch = getattr(torch, dtype)
    model = nn.Sequential(*(Block(width) for _ in range(4))).eval().to(of_torch)
    subject = ExaminedModel(model, (torch.randn(1, length, width, dtype=of_torch),), {})
    plain, observed = (copy.deepcopy(subject) for _ in range(2))
    candidates = {
        "forward": Candidate(torch.no_grad()(lambda: plain(*plain.tensors))),
        "observed": Candidate(lambda: _observe(observed, of_torch)),
    }
    ratio = compare_latency(candidates, baseline="forward", budget_s=budget_s, check=False)["observed"]
    return {
        "dtype": dtype, "width": width, "length": length, "ratio": ratio.ratio, "low": ratio.ratio_low,
        "high": ratio.ratio_high, "forward_ms": 1e3 * ratio.baseline_median_s, "is_met": ratio.ratio <= MOST,
        "doubts": list(ratio.doubts),
    }  # fmt: skip


def _observe(subject: ExaminedModel, dtype: torch.dtype) -> object:
    observer, outcome = observe_call(
        subject, lambda: subject(*subject.tensors), subject.tensors, base=dtype, values=True
    )
    return findings_of(observer, outcome.outputs or (), None, broken=False), outcome
