"""Attention written out, so that scores and probabilities are tensors that can be rounded; imports torch.

Fused kernels hand out neither. They keep scores in float32 whatever the operands are, and may round probabilities for
the product with v: a fused kernel is about the same as attention written out with both held; the map measures how
nearly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from precision_eval.fixes.patches import eager_swaps, no_fused_encoder, swapped
from precision_eval.fixes.sites import Function, Site


def attention_written_out(tag: Callable[[str], None]) -> Function:
    """Make attention that stores each step in the operands' dtype: softmax(q·kᵀ·scale + mask)·v."""

    def scaled_dot_product_attention(
        query: torch.Tensor,  # (..., Hq, Lq, D)
        key: torch.Tensor,  # (..., Hk, Lk, D)
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        tag("scores")
        groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1
        if groups > 1:
            key, value = (t.repeat_interleave(groups, dim=-3) for t in (key, value))
        scores = query @ key.mT
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        if factor != 1.0:  # multiplying by one rounds nothing
            scores = scores * factor
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            masked = attn_mask.dtype is torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if masked else scores + attn_mask.to(scores.dtype)
        tag("softmax")
        probabilities = scores.softmax(-1)
        tag("output")
        result = probabilities @ value
        tag("")
        return result

    return scaled_dot_product_attention


@contextmanager
def written_out(model: nn.Module, tag: Callable[[str], None]) -> Iterator[None]:
    """Put the written-out attention in the place of torch's for the time of a block."""
    attention = attention_written_out(tag)

    def replace(site: Site, original: Function) -> Function:
        return attention if site.site == "sdpa" else original

    with torch.no_grad(), no_fused_encoder(), swapped(eager_swaps(model, replace)):
        yield
