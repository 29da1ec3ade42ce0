"""How sharp attention is at the call itself: its largest logit, and the entropy of its rows.

A model whose attention is nearly uniform forgives any precision, so every drift figure comes with these two. Fused
kernels hand out neither, so both are computed again from query and key. Imports torch.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

# Keys and scores are taken in parts of about so many elements, which stay in a processor's cache.
_PART_ELEMENTS = 1 << 18


@dataclass
class AttentionSharpness:
    max_abs_logit: float = 0.0
    calls: int = 0
    _entropies: list[float] = field(default_factory=list)

    @property
    def entropy_nats(self) -> float:
        """Mean entropy of the attention rows; ``exp`` of it is the effective number of positions."""
        return sum(self._entropies) / len(self._entropies) if self._entropies else math.nan

    def add(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> None:
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


def why_unfused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Ask torch why each fused kernel of CUDA refuses a call of attention; empty where this torch does not say."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, **dict(zip(names, args, strict=False)), **kwargs}
    cuda: Any = torch.backends.cuda
    try:
        params = cuda.SDPAParams(*(given[name] for name in names), given.get("enable_gqa", False))
    except (AttributeError, TypeError):  # of an older torch
        return ""
    reasons = []
    for kernel in ("flash", "efficient"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            getattr(cuda, f"can_use_{kernel}_attention")(params, True)
        if caught:
            reasons.append(f"{kernel}: {str(caught[0].message).partition(' (Triggered')[0].rstrip('.')}")
    return "; ".join(reasons)


@contextmanager
def probing(*, every: int = 1) -> Iterator[AttentionSharpness]:
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
