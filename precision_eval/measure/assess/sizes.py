"""How large an honest error is expected to be, element by element, and the errors in units of it.

Conventions: two errors go side by side through every statistic, the candidate's (index 0) and the yardstick's (1).
The expected size has two parts:
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from precision_eval.measure.assess.pooled import Pooled

LEAST_ALPHA = 1e-4
ROUNDING_SHARE = 0.05  # of the rounding is taken for arithmetic too, so that an exact yardstick has a size
FLOOR = 2.0**-44  # of the mean square reference: float32 sums, where the reference happens to be nearly zero
TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of candidate and yardstick, and what they are held to."""

    pooled: Pooled
    error: Tensor
    row_square: Tensor
    yardstick_row_square: Tensor
    rounding_row_square: Tensor
    scale: Tensor
    z: Tensor
    z_reference: Tensor
    rounding_share: Tensor
    arithmetic_share: Tensor
    alpha: Tensor


def errors_of(pooled: Pooled) -> Errors:
    """Take the errors and scale them."""
    reference = pooled.reference
    error = torch.stack([pooled.candidate - reference, pooled.yardstick - reference])
    square = error.square()
    rounding = pooled.ulp.square() / 12.0
    row_square, rounding_row = square.mean(-1), rounding.mean(-1)
    yardstick_row = torch.maximum(row_square[1], rounding_row)
    beyond = yardstick_row - (1.0 - ROUNDING_SHARE) * rounding_row  # (groups, heads, rows)
    arithmetic = beyond[..., None] * _channel_pattern(square[1])
    alpha = ((row_square - rounding_row) / beyond.clamp_min(TINY)).flatten(1).median(-1).values.clamp_min(LEAST_ALPHA)
    truth = reference.square()
    floor = (truth.mean(-1, keepdim=True) + truth.mean((0, 2), keepdim=True)) * FLOOR
    scale = (alpha[:, None, None, None, None] * arithmetic + (rounding + floor)).clamp_min(TINY).rsqrt()
    inverse = scale.square()
    return Errors(
        pooled=pooled,
        error=error,
        row_square=row_square,
        yardstick_row_square=yardstick_row,
        rounding_row_square=rounding_row,
        scale=scale,
        z=(error * scale).float(),
        z_reference=(reference * scale).float(),
        rounding_share=(rounding * inverse).float(),
        arithmetic_share=(arithmetic * inverse).float(),
        alpha=alpha,
    )


def _channel_pattern(square: Tensor) -> Tensor:
    """Relative mean square by head and channel, drawn to 1 where there are few rows; (1, heads, 1, channels)."""
    samples = square.shape[0] * square.shape[2]
    mean = square.mean((0, 2, 3))[:, None]
    pattern = (square.sum((0, 2)) + 4.0 * mean) / (samples + 4.0)
    return (pattern / mean.clamp_min(TINY))[None, :, None, :]
