"""Settings of the arithmetic that a fix asks for: attention written out in stated dtypes, and torch's own switches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from precision_eval.core.errors import UnsupportedError, unknown_name
from precision_eval.fixes.pins import sdpa_pinned


class AttentionWrittenOut(TorchFunctionMode):
    """Computes scaled_dot_product_attention in steps, the scores and the softmax in dtypes of their own."""

    def __init__(self, *, scores: torch.dtype | None, softmax: torch.dtype | None) -> None:
        super().__init__()
        self.scores, self.softmax = scores, softmax

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Attend in steps; everything else as it is."""
        if func is F.scaled_dot_product_attention or getattr(func, "__name__", "") == "scaled_dot_product_attention":
            return self.attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Attend: q (..., L, E), k (..., S, E), v (..., S, Ev)."""
        if dropout_p:
            raise UnsupportedError(f"attention written out has no dropout; this call has dropout_p {dropout_p}")
        dtype, factor = self.scores or query.dtype, query.shape[-1] ** -0.5 if scale is None else scale
        if enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
        # einsum and not @, which is a site of its own
        logits = torch.einsum("...qd,...kd->...qk", query.to(dtype), key.to(dtype)) * factor
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            logits = logits.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            logits = logits + attn_mask.to(logits.dtype)
        shares = logits.softmax(-1, dtype=self.softmax).to(value.dtype)
        return torch.einsum("...qk,...kd->...qd", shares, value)


@contextmanager
def _half_reductions() -> Iterator[None]:
    cuda: Any = torch.backends.cuda
    if not hasattr(cuda, "allow_fp16_bf16_reduction_math_sdp"):
        raise UnsupportedError(f"torch {torch.__version__} has no allow_fp16_bf16_reduction_math_sdp")
    allowed = cuda.fp16_bf16_reduction_math_sdp_allowed()
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_pinned("math"):
            yield
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(allowed)


@contextmanager
def _matmul(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "scores_stored": partial(AttentionWrittenOut, scores=None, softmax=None),
    "softmax_float32": partial(AttentionWrittenOut, scores=None, softmax=torch.float32),
    "scores_float32": partial(AttentionWrittenOut, scores=torch.float32, softmax=torch.float32),
    "half_reductions": _half_reductions,
    "matmul_high": partial(_matmul, "high"),
    "matmul_medium": partial(_matmul, "medium"),
    "deterministic": _deterministic,
}
"""Name in ``Fix.compute`` → a context in which calls compute so."""


def computed_as(setting: str) -> AbstractContextManager[Any]:
    """Return the context of a setting."""
    if setting not in SETTINGS:
        raise unknown_name("setting of compute", setting, SETTINGS)
    return SETTINGS[setting]()
