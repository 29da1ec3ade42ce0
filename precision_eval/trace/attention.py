"""Attention written out, so that scores and probabilities are tensors, and how sharp it is at the call itself.

Fused kernels hand out neither. They keep scores in float32 whatever the operands are, and may round probabilities for
the product with v: a fused kernel is about the same as attention written out with both held; the map measures how
nearly. A model whose attention is nearly uniform forgives any precision, so every drift figure stands beside the
largest logit and the entropy. Imports torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from precision_eval.fixes.compute import AttentionCall, masked
from precision_eval.fixes.patches import eager_swaps, no_fused_encoder, swapped
from precision_eval.fixes.sites import Function, Site


def attention_written_out(tag: Callable[[str], None]) -> Function:
    """Make attention that stores each step in the operands' dtype: softmax(q·kᵀ·scale + mask)·v."""

    def scaled_dot_product_attention(
        query: torch.Tensor,  # (..., Hq, Lq, D)
        key: torch.Tensor,  # (..., Hk, Lk, D)
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> torch.Tensor:
        call = AttentionCall(*rest, **options)
        tag("scores")
        groups = query.shape[-3] // key.shape[-3] if call.enable_gqa else 1
        if groups > 1:
            key, value = (t.repeat_interleave(groups, dim=-3) for t in (key, value))
        scores = query @ key.mT
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        if factor != 1.0:  # multiplying by one rounds nothing
            scores = scores * factor
        scores = masked(scores, attn_mask, call)
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


_PART_ELEMENTS = 1 << 18
"""Keys and scores are taken in parts of about so many elements, which stay in a processor's cache."""


@dataclass
class AttentionSharpness:
    """Running summary over the calls seen."""

    max_abs_logit: float = 0.0
    calls: int = 0
    _entropies: list[float] = field(default_factory=list)

    @property
    def entropy_nats(self) -> float:
        """Mean entropy of the attention rows; ``exp`` of it is the effective number of positions."""
        return sum(self._entropies) / len(self._entropies) if self._entropies else math.nan

    def add(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> None:
        """Account one call."""
        query, key = query.detach(), key.detach()
        batch, heads, queries, width = query.shape
        kept, slots = key.shape[1:3]
        groups = heads // kept
        dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), torch.float32)
        allowed = None if mask is None else mask.expand(batch, heads, queries, slots)
        step = max(1, _PART_ELEMENTS // (slots * max(width, groups * queries)))
        largest, entropies = [], []
        with torch.autocast(query.device.type, enabled=False):
            scaled = query.to(dtype) * (width**-0.5 if scale is None else scale)
            scaled = scaled.reshape(batch, kept, groups * queries, width)
            for b, h in itertools.product(range(batch), range(0, kept, step)):
                scores = scaled[b, h : h + step] @ key[b, h : h + step].to(dtype).mT
                scores = scores.view(-1, queries, slots)
                forbidden = None if allowed is None else ~allowed[b, h * groups : (h + step) * groups]
                largest.append(_largest(scores, forbidden))
                entropies.append(_entropies(scores, forbidden).sum(dtype=torch.float64))
        self.calls += 1
        self.max_abs_logit = max(self.max_abs_logit, float(torch.stack(largest).max()))
        self._entropies.append(float(torch.stack(entropies).sum()) / (batch * heads * queries))


def _largest(scores: Tensor, forbidden: Tensor | None) -> Tensor:
    """Largest magnitude among allowed finite scores; sets the forbidden ones to zero."""
    if forbidden is not None:
        scores.masked_fill_(forbidden, 0.0)
    least, most = scores.aminmax()
    largest = torch.maximum(-least, most)
    return largest if largest.isfinite() else scores.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().amax()


def _entropies(scores: Tensor, forbidden: Tensor | None) -> Tensor:
    """Entropy of each row in nats: log Σ eˢ − Σ p·s, which spares the logarithm of every p."""
    masked = scores if forbidden is None else scores.masked_fill(forbidden, -math.inf)
    peak = masked.amax(dim=-1, keepdim=True)
    weights = (masked - peak).exp_()  # forbidden: 0
    total = weights.sum(dim=-1)
    expected = weights.mul_(scores - peak).sum(dim=-1) / total  # a forbidden score is finite here
    return total.log_() - expected


@contextmanager
def probing(*, every: int = 1) -> Iterator[AttentionSharpness]:
    """Observe the eager attention calls inside the block."""
    sharpness = AttentionSharpness()
    seen = itertools.count(1)
    call_on = F.scaled_dot_product_attention

    def observed(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **options: Any
    ) -> Tensor:
        if next(seen) % every == 0:
            with _disable_current_modes():  # the trace has no business here, and would cost every operation
                sharpness.add(query, key, attn_mask, options.get("scale"))
        return call_on(query, key, value, attn_mask, *rest, **options)

    F.scaled_dot_product_attention = cast(Any, observed)
    try:
        yield sharpness
    finally:
        F.scaled_dot_product_attention = call_on
