"""Figures that describe an error for a reader: quantiles, tails, places, the split, and what lies below the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from precision_eval.core.errors import ParameterError
from precision_eval.measure.assess.pooled import Pooled, Tensors
from precision_eval.measure.assess.results import Floor, Tails, WorstPlace
from precision_eval.measure.assess.sizes import TINY, Errors
from precision_eval.measure.assess.statistics import GAIN_MARGIN, TAIL, Measured
from precision_eval.measure.drift import Split, split_noise

QUANTILES = (0.5, 0.99, 0.999, 1.0)
FAR = 4.0


def ulp_quantiles(errors: Errors) -> dict[str, float]:
    """Quantiles of the candidate's absolute error in ULPs at the reference."""
    in_ulps = (errors.error[0] / errors.pooled.ulp).abs().flatten().numpy()
    at = [math.ceil(q * len(in_ulps)) - 1 for q in QUANTILES]
    ordered = np.partition(in_ulps, at)
    return {str(q): float(ordered[i]) for q, i in zip(QUANTILES, at, strict=True)}


def tails_of(errors: Errors) -> Tails:
    """Large errors, beside the yardstick's."""
    size = errors.error.abs().flatten(1)
    top = size.topk(max(1, size.shape[1] // TAIL), dim=1).values
    least = float(errors.pooled.ulp.max()) / 2.0
    far = (size > FAR * errors.row_square[1].mean().sqrt().clamp_min(TINY)).double().mean(1)
    return Tails(
        max_ratio=float(top[0, 0]) / max(float(top[1, 0]), least),
        q999_ratio=float(top[0, -1]) / max(float(top[1, -1]), least),
        beyond_4_rms=float(far[0]),
        yardstick_beyond_4_rms=float(far[1]),
    )


def worst_places(errors: Errors) -> tuple[WorstPlace, WorstPlace, WorstPlace]:
    """Worst row, head and channel by their ratio to the yardstick's error there."""
    rounding = errors.pooled.ulp.square() / 12.0
    square = errors.error.square()

    def worst(axes: tuple[int, ...]) -> WorstPlace:
        plain = torch.maximum(square[1].mean(axes), rounding.mean(axes))
        ratio = square[0].mean(axes) / plain
        at = int(ratio.argmax())
        index = torch.unravel_index(torch.tensor(at), ratio.shape)
        return WorstPlace(index=tuple(int(i) for i in index), rms_ratio=math.sqrt(float(ratio.flatten()[at])))

    return worst((3,)), worst((0, 2, 3)), worst((0, 2))


def pooled_split(candidate: Tensors, reference: Tensors, on_cast_inputs: Tensors, pooled: Pooled) -> Split | None:
    """Split the error of all calls together; None where something is not finite."""
    listed = [[t] if isinstance(t, Tensor) else list(t) for t in (candidate, reference, on_cast_inputs)]
    _check_cast(listed)
    if pooled.judged < pooled.reference.numel():
        return None
    found, exact, cast = (torch.stack([t.detach().cpu() for t in ts]) for ts in listed)
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


def floor_of(of: Measured, limits: Mapping[str, float], eps: float) -> Floor:
    """The smallest faults that would have been seen."""
    return Floor(
        rms_ratio=min(limits["rms_ratio"], limits["typical_row_ratio"], limits["mean_ratio"]),
        gain_eps=limits["gain"] * math.hypot(of.gain_standard_error, GAIN_MARGIN * eps) / eps,
        row_rms_ratio=limits["worst_row"],
        element_sizes=limits["largest"],
        rows=of.rows,
    )
