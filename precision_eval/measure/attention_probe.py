"""How sharp attention is: the largest logit and the entropy, seen at the call itself.

A model whose attention is nearly uniform forgives any precision, so every drift figure stands beside these two. The
probe wraps ``torch.nn.functional.scaled_dot_product_attention`` outside whatever a fix does there, recomputes the
scores in float64 and passes the call on untouched. Eager only: a compiled graph no longer looks the function up.

Contents: :class:`AttentionSharpness`, :func:`probing`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor


@dataclass
class AttentionSharpness:
    """Running summary over the calls seen.

    Attributes
    ----------
    max_abs_logit : float
        Largest |q·k·scale| among allowed positions, over all calls accounted.
    calls : int
        Calls accounted.
    """

    max_abs_logit: float = 0.0
    calls: int = 0
    _entropies: list[float] = field(default_factory=list)

    @property
    def entropy_nats(self) -> float:
        """Mean entropy of the attention rows; ``exp`` of it is the effective number of positions."""
        return sum(self._entropies) / len(self._entropies) if self._entropies else math.nan

    def add(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None) -> None:
        """Account one call.

        Parameters
        ----------
        query : Tensor, shape (B, H, L, D)
        key : Tensor, shape (B, H or fewer, S, D)
        mask : Tensor, optional
            Bool, broadcastable to (B, H, L, S), True where allowed.
        scale : float, optional
            1/√D if not given.
        """
        q, k = query.double(), key.double()
        if k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        log_p = scores.log_softmax(dim=-1)
        p = log_p.exp()
        self.calls += 1
        self.max_abs_logit = max(self.max_abs_logit, float(scores[scores.isfinite()].abs().max()))
        self._entropies.append(float(-(p * log_p.masked_fill(p == 0, 0.0)).sum(dim=-1).mean()))


@contextmanager
def probing(*, every: int = 1) -> Iterator[AttentionSharpness]:
    """Observe the eager attention calls inside the block.

    Parameters
    ----------
    every : int
        Account the last of each so many calls; all of them run as they would.

    Yields
    ------
    AttentionSharpness
    """
    sharpness = AttentionSharpness()
    seen = itertools.count(1)
    call_on = F.scaled_dot_product_attention

    def observed(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if next(seen) % every == 0:
            sharpness.add(query, key, attn_mask, options.get("scale"))
        return call_on(query, key, value, attn_mask, dropout_p, is_causal, **options)

    F.scaled_dot_product_attention = cast(Any, observed)
    try:
        yield sharpness
    finally:
        F.scaled_dot_product_attention = call_on
