"""Figures that describe an error for a reader: bias, quantiles, places, the split."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from precision_eval.core.errors import ParameterError
from precision_eval.measure.assess.pooled import Pooled, Tensors
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


def pooled_split(candidate: Tensors, reference: Tensors, on_cast_inputs: Tensors, pooled: Pooled) -> Split | None:
    """Split the error of all calls together; None where something is not finite."""
    listed = [[t] if isinstance(t, Tensor) else list(t) for t in (candidate, reference, on_cast_inputs)]
    _check_cast(listed)
    found, exact, cast = (torch.stack([t.detach().cpu() for t in ts]) for ts in listed)
    if not (found.isfinite().all() and pooled.kept.all()):
        return None
    return split_noise(found, exact, cast)


def _check_cast(listed: Sequence[Sequence[Tensor]]) -> None:
    found, _, cast = listed
    shapes = {tuple(t.shape) for t in (*found, *cast)}
    if len(found) != len(cast) or len(shapes) > 1 or any(t.dtype is not torch.float64 for t in cast):
        raise ParameterError(
            f"on_cast_inputs holds {len(cast)} tensors of {', '.join(sorted({str(t.dtype) for t in cast}))} for "
            f"{len(found)} candidates, shapes {', '.join(map(str, sorted(shapes)))}; give one of float64 and of the "
            "candidate's shape per call: float64 arithmetic on the operands as cast"
        )
