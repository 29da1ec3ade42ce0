"""Figures that describe an error for a reader: bias, quantiles, places, the split."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from precision_eval.measure.assess.pooled import Pooled, Tensors, stacked
from precision_eval.measure.assess.results import Bias, WorstPlace
from precision_eval.measure.drift import Split, split_noise

QUANTILES = (0.5, 0.99, 0.999, 1.0)


def bias_of(error: Tensor, pooled: Pooled) -> Bias:
    """Bias along the reference, in relative terms of the dtype, and in ULPs."""
    gain = float((error * pooled.reference).sum() / pooled.reference.square().sum().clamp_min(1e-300))
    outward = (error * pooled.reference.sign() / pooled.ulp).clamp(-1.0, 1.0).mean()
    return Bias(gain_eps=gain / pooled.format.eps, ulp=float(outward))


def ulp_quantiles(error: Tensor, pooled: Pooled) -> dict[str, float]:
    """Quantiles of the absolute error in ULPs at the reference."""
    in_ulps = (error / pooled.ulp).abs().flatten().numpy()
    at = [math.ceil(q * len(in_ulps)) - 1 for q in QUANTILES]
    ordered = np.partition(in_ulps, at)
    return {str(q): float(ordered[i]) for q, i in zip(QUANTILES, at, strict=True)}


def worst_places(error: Tensor, honest: Tensor, rounding: Tensor) -> tuple[WorstPlace, WorstPlace, WorstPlace]:
    """Worst row, head and channel by their ratio to the mean square error of honest computations there."""

    def worst(axes: tuple[int, ...]) -> WorstPlace:
        ratio = error.square().mean(axes) / torch.maximum(honest.mean(axes), rounding.mean(axes))
        at = int(ratio.argmax())
        index = torch.unravel_index(torch.tensor(at), ratio.shape)
        return WorstPlace(index=tuple(int(i) for i in index), rms_ratio=math.sqrt(float(ratio.flatten()[at])))

    return worst((3,)), worst((0, 2, 3)), worst((0, 2))


def pooled_split(candidate: Tensors, on_cast_inputs: Tensors, pooled: Pooled) -> Split | None:
    """Split the error of all calls together; None where something is not finite."""
    found = stacked(candidate, "candidate", pooled.calls, pooled.shape, {pooled.dtype})
    cast = stacked(on_cast_inputs, "on_cast_inputs", pooled.calls, pooled.shape, {torch.float64})
    if not (found.isfinite().all() and pooled.kept.all()):
        return None
    return split_noise(found.to(pooled.dtype), pooled.exact, cast)
