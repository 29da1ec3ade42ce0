"""Drift of a tensor from its reference: the same computation in float64, on the same stored inputs.

Conventions: everything here is computed in float64 on the CPU. *output* is what a cell returns, in its dtype,
*reference* the float64 output, *noise* their difference. What float64 arithmetic gives on the operands as cast splits
the noise: input cast before it, compute and output rounding after it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.formats import short, ulp
from precision_eval.stats.sequential import student_quantile

QUANTILES = (0.5, 0.99, 1.0)


@dataclass(frozen=True)
class Split:
    """Where the noise comes from: mean squares, in the square of the output's units."""

    input_cast_mse: float
    compute_mse: float
    output_rounding_mse: float
    cross_mse: float
    total_mse: float


@dataclass(frozen=True)
class Drift:
    relative_error: float
    rms_error: float
    yardstick_dtype: str
    rms_ratio: float | None
    bias_z: float
    relative_bias: float
    ulp_quantiles: dict[str, float]
    max_abs_error: float
    cosine_distance: float
    split: Split | None
    assessment: dict[str, Any] | None = None


def over_seeds(errors: Sequence[float]) -> dict[str, Any]:
    """Geometric mean of a relative error over seeds, with the 95 % Student interval of its logarithm."""
    # Where every seed gives the same error, the case draws nothing from it.
    if len(errors) < 2 or min(errors) <= 0.0 or len(set(errors)) == 1:
        return {}
    logs, count = [math.log(error) for error in errors], len(errors)
    half = student_quantile(0.05, count - 1.0) * statistics.stdev(logs) / math.sqrt(count)
    middle = statistics.fmean(logs)
    ends = {"": 0.0, "_low": -half, "_high": half}
    interval = {f"relative_error{end}": math.exp(middle + shift) for end, shift in ends.items()}
    return {**interval, "seeds": count, "relative_error_by_seed": list(errors)}


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _mean_square(tensor: torch.Tensor) -> float:
    return float(tensor.square().mean())


def split_noise(output: torch.Tensor, reference: torch.Tensor, on_cast_inputs: torch.Tensor) -> Split:
    reference, on_cast_inputs = wide(reference), wide(on_cast_inputs)
    input_cast = on_cast_inputs - reference
    output_rounding = wide(on_cast_inputs.to(output.dtype)) - on_cast_inputs
    compute = wide(output) - reference - input_cast - output_rounding
    pairs = input_cast * compute + compute * output_rounding + input_cast * output_rounding
    return Split(
        input_cast_mse=_mean_square(input_cast),
        compute_mse=_mean_square(compute),
        output_rounding_mse=_mean_square(output_rounding),
        cross_mse=2.0 * float(pairs.mean()),
        total_mse=_mean_square(wide(output) - reference),
    )


def tensor_drift(
    output: torch.Tensor,
    reference: torch.Tensor,
    *,
    yardstick: torch.Tensor,
    on_cast_inputs: torch.Tensor | None = None,
) -> Drift:
    _check(output, reference, yardstick)
    truth = wide(reference).reshape(-1)
    values = wide(output).reshape(-1)
    noise = values - truth
    rms = math.sqrt(_mean_square(noise))
    same_operands = truth if on_cast_inputs is None else wide(on_cast_inputs).reshape(-1)
    yardstick_rms = math.sqrt(_mean_square(wide(yardstick).reshape(-1) - same_operands))
    arithmetic_rms = math.sqrt(_mean_square(values - same_operands))
    in_ulps = noise.abs() / ulp(truth, short(output.dtype))
    ordered = in_ulps.sort().values
    return Drift(
        relative_error=float(noise.norm() / truth.norm()),
        rms_error=rms,
        yardstick_dtype=short(yardstick.dtype),
        rms_ratio=arithmetic_rms / yardstick_rms if yardstick_rms else None,
        bias_z=_bias_z(noise * truth.sign()),
        relative_bias=float(noise.dot(truth) / truth.dot(truth)),
        ulp_quantiles={str(q): float(ordered[math.ceil(q * len(ordered)) - 1]) for q in QUANTILES},
        max_abs_error=float(noise.abs().max()),
        cosine_distance=_cosine_distance(values, truth),
        split=None if on_cast_inputs is None else split_noise(output, reference, on_cast_inputs),
    )


def _check(output: torch.Tensor, reference: torch.Tensor, yardstick: torch.Tensor) -> None:
    if not output.shape == reference.shape == yardstick.shape:
        raise ParameterError(
            f"output {tuple(output.shape)}, reference {tuple(reference.shape)} and yardstick {tuple(yardstick.shape)} "
            "differ in shape; they have to be the same call's outputs"
        )
    if reference.dtype is not torch.float64:
        raise ParameterError(f"the reference is {reference.dtype}; compute it in float64")
    if not reference.isfinite().all():
        raise UnsupportedError("the reference itself is not finite, so nothing can be held to it; use other inputs")
    if not all(bool(t.isfinite().all()) for t in (output, yardstick)):
        raise ParameterError("an output is not finite; that is the status non_finite and has no drift")
    if not reference.any():
        raise UnsupportedError("the reference is zero everywhere, so no relative error exists; use other inputs")


def _bias_z(signed: torch.Tensor) -> float:
    """Mean over its standard error; zero where nothing varies."""
    spread = float(signed.std()) / math.sqrt(len(signed)) if len(signed) > 1 else 0.0
    return float(signed.mean()) / spread if spread else 0.0


def _cosine_distance(values: torch.Tensor, truth: torch.Tensor) -> float:
    """One minus the cosine, without the cancellation that 1 − cos would have for small angles."""
    size = values.norm()
    if size == 0:
        return 1.0
    return float((values / size - truth / truth.norm()).square().sum() / 2)
