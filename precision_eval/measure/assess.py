"""Whether the error of an attention is what its format costs, or more.

The rule is that of FlashAttention's tests: the error against float64 is at most twice that of plain attention in the
same dtype. Plain are here eager attention and each of torch's own kernels that takes the operands. A second rule looks
for a bias along the reference, which finds a wrong scale long before it is twice a rounding. Both see large faults: an
error that spreads like a rounding and is smaller than one passes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from precision_eval.fixes.pins import SDPA_BACKENDS
from precision_eval.stats.sequential import student_quantile

# As in FlashAttention's tests: errors of two correct orders of summation differ by less.
FACTOR = 2.0
# Two-sided probability of the quantile of Student's t that a bias has to exceed.
CHANCE = 1e-6


def plain_attention(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor, scale: float | None) -> Tensor:
    """Attention written out, each step stored in the operands' dtype: softmax(q·kᵀ·scale)·v under the mask."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = (query @ key.mT * scale).masked_fill(~mask, -math.inf)
    return logits.softmax(-1) @ value


def assess_attention(
    output: Tensor, exact: Tensor, operands: tuple[Tensor, Tensor, Tensor], *, mask: Tensor, scale: float | None
) -> dict[str, object]:
    """Compare an attention's error with that of plain attention in the same dtype.

    `output` (B, H, L, D) is in the dtype of `operands`, which lie on the device that computed it; `exact` is float64
    attention on the operands as the fix casts them. Returns the verdict and, where it is *worse*, the reasons.
    """
    plain = _yardsticks(*operands, mask=mask, scale=scale)
    yardsticks = [exact.to(output.dtype), *(yardstick.to(exact.device) for yardstick in plain)]
    reasons = []
    error, worst = _largest_error(output, exact), max(_largest_error(yardstick, exact) for yardstick in yardsticks)
    if error > FACTOR * worst:
        reasons.append(f"largest error {error:.3g}; plain attention in {output.dtype} has at most {worst:.3g}")
    bias, largest_bias = bias_z(output, exact), max(abs(bias_z(yardstick, exact)) for yardstick in yardsticks)
    rows = exact[..., 0].numel()
    if rows > 1 and abs(bias) > max(student_quantile(CHANCE, rows - 1.0), FACTOR * largest_bias):
        reasons.append(f"outputs are too {'large' if bias > 0 else 'small'} by {abs(bias):.3g} standard errors")
    return {"verdict": "worse" if reasons else "as expected of the format", "reasons": reasons}


def bias_z(output: Tensor, exact: Tensor) -> float:
    """Mean gain of the rows over its standard error; elements of one row share operands and are no samples."""
    reference = exact.flatten(0, -2)  # (rows, D)
    error = output.double().flatten(0, -2) - reference
    gains = (error * reference).sum(-1) / reference.square().sum(-1).clamp_min(torch.finfo(torch.float64).tiny)
    deviation = float(gains.std()) if len(gains) > 1 else 0.0
    return float(gains.mean()) / (deviation / math.sqrt(len(gains))) if deviation else 0.0


def _largest_error(output: Tensor, exact: Tensor) -> float:
    return float((output.double() - exact).abs().max())


def _yardsticks(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor, scale: float | None) -> Iterator[Tensor]:
    yield plain_attention(query, key, value, mask=mask, scale=scale)
    for backend in SDPA_BACKENDS.values():
        with warnings.catch_warnings(), sdpa_kernel(getattr(SDPBackend, backend)):
            warnings.simplefilter("ignore")  # they say why a kernel is not used
            try:
                yield F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
            except RuntimeError:  # this kernel does not take these operands
                continue
