"""How a fix computes attention: softmax in float32, or one of torch's kernels alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from precision_eval.core.errors import UnsupportedError, check_known
from precision_eval.fixes.pins import SDPA_BACKENDS, pin_sdpa


class AttentionCall(NamedTuple):
    """The rest of what scaled_dot_product_attention is given, in its order and with its defaults."""

    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def masked(scores: Tensor, mask: Tensor | None, call: AttentionCall) -> Tensor:
    """Put scores (..., L, S) under a mask of booleans or addends, or of all later positions where it is causal."""
    if call.is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.to(scores.dtype)


class SoftmaxInFloat32(TorchFunctionMode):
    """Computes scaled_dot_product_attention in steps: scores in the query's dtype, the softmax in float32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention or getattr(func, "__name__", "") == "scaled_dot_product_attention":
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any
    ) -> Tensor:
        # q: (..., L, E), k: (..., S, E), v: (..., S, Ev)
        call = AttentionCall(*rest, **named)
        if call.dropout_p:
            raise UnsupportedError(f"attention in steps has no dropout; this call has dropout_p {call.dropout_p}")
        factor = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        if call.enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
        # einsum and not @, which is a site of its own
        logits = torch.einsum("...qd,...kd->...qk", query, key.to(query.dtype)) * factor
        shares = masked(logits, attn_mask, call).softmax(-1, dtype=torch.float32).to(value.dtype)
        return torch.einsum("...qk,...kd->...qd", shares, value)


# Name in ``Fix.compute``: a context in which calls compute so.
SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "softmax_float32": SoftmaxInFloat32,
    **{f"sdpa_{backend}": partial(pin_sdpa, backend) for backend in SDPA_BACKENDS},
}


def compute_with(setting: str) -> AbstractContextManager[Any]:
    check_known("setting of compute", setting, SETTINGS)
    return SETTINGS[setting]()
