"""What a sampler's own rounding does, apart from the model's: the sampler alone, on the float64 twin's logits.

MetaVoice keeps guidance, softmax and the cumulative sum of top-p in the model's precision
(``fam/llm/fast_inference_utils.py``), so that its nucleus moves even where attention is perfect. Every position of a
call is a draw of its own; shares and means are over them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from precision_eval.cases.base import BuiltCase
from precision_eval.core.errors import ParameterError


@dataclass(frozen=True)
class SamplerDrift:
    """A sampler in one dtype against float64, over the positions of a call."""

    dtype: str
    settings_dtype: str
    positions: int
    changed_nucleus: float
    total_variation: float
    kept: float
    kept_in_float64: float
    cast_changed_nucleus: float
    cast_total_variation: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record."""
        return asdict(self)


def sampler_drift(built: BuiltCase, dtype: torch.dtype, *, settings: torch.dtype | None = None) -> SamplerDrift:
    """Run a MetaVoice case's sampler alone, in a dtype and in float64."""
    from precision_eval.cases.systems.metavoice_model import MetaVoice, sampler_rounding

    if not isinstance(built.model, MetaVoice):
        raise ParameterError(f"{type(built.model).__name__} has no sampler of its own; the metavoice cases have")
    with torch.no_grad():
        inputs = (x.double() if x.is_floating_point() else x for x in built.inputs)
        logits = built.model.in_float64()(*inputs)[0]  # (2, s, V)
        found = [
            sampler_rounding(logits[:, [s]], dtype=dtype, settings=settings).to_dict() for s in range(logits.shape[1])
        ]

    def mean(name: str) -> float:
        return sum(float(one[name]) for one in found) / len(found)

    return SamplerDrift(
        dtype=str(dtype).removeprefix("torch."),
        settings_dtype=str(settings or dtype).removeprefix("torch."),
        positions=len(found),
        changed_nucleus=sum(one["boundary_flips"] > 0 for one in found) / len(found),
        total_variation=mean("total_variation"),
        kept=mean("kept"),
        kept_in_float64=mean("kept_in_float64"),
        cast_changed_nucleus=sum(one["input_cast_flips"] > 0 for one in found) / len(found),
        cast_total_variation=mean("input_cast_total_variation"),
    )
