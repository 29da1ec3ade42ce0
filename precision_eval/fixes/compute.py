"""Settings of the arithmetic that a fix asks for: attention written out in stated dtypes, and torch's own switches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from precision_eval.core.errors import UnsupportedError, check_known
from precision_eval.fixes.pins import SDPA_BACKENDS, sdpa_pinned


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


class AttentionReplaced(TorchFunctionMode):
    """Computes scaled_dot_product_attention by :meth:`attend`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: AttentionCall) -> Tensor:
        """Attend: q (..., L, E), k (..., S, E), v (..., S, Ev)."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Attend in steps; everything else as it is."""
        if func is F.scaled_dot_product_attention or getattr(func, "__name__", "") == "scaled_dot_product_attention":
            return self._called(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _called(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any
    ) -> Tensor:
        return self.attend(query, key, value, attn_mask, AttentionCall(*rest, **named))


class AttentionWrittenOut(AttentionReplaced):
    """Attends in steps, the scores and the softmax in dtypes of their own."""

    def __init__(self, *, scores: torch.dtype | None, softmax: torch.dtype | None) -> None:
        super().__init__()
        self.scores, self.softmax = scores, softmax

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: AttentionCall) -> Tensor:
        """Attend in steps."""
        if call.dropout_p:
            raise UnsupportedError(f"attention written out has no dropout; this call has dropout_p {call.dropout_p}")
        dtype, factor = self.scores or query.dtype, query.shape[-1] ** -0.5 if call.scale is None else call.scale
        if call.enable_gqa:
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
        # einsum and not @, which is a site of its own
        logits = torch.einsum("...qd,...kd->...qk", query.to(dtype), key.to(dtype)) * factor
        shares = masked(logits, mask, call).softmax(-1, dtype=self.softmax).to(value.dtype)
        return torch.einsum("...qk,...kd->...qd", shares, value)


class FlexAttention(AttentionReplaced):
    """Attends by flex_attention, which takes keys and values in a lower precision than the query."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: AttentionCall) -> Tensor:
        """Attend in four dimensions."""
        if call.dropout_p or query.ndim != 4:
            given = f"{query.ndim}, dropout_p {call.dropout_p}"
            raise UnsupportedError(f"flex attention takes four dimensions, no dropout; this call has {given}")
        from torch.nn.attention.flex_attention import flex_attention

        shape = (*query.shape[:3], key.shape[2])
        mask = None if mask is None else mask.expand(shape)

        def modified(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
            if call.is_causal:
                score = torch.where(row >= column, score, -math.inf)
            if mask is None:
                return score
            if mask.dtype is torch.bool:
                return torch.where(mask[batch, head, row, column], score, -math.inf)
            return score + mask[batch, head, row, column]

        changed = None if mask is None and not call.is_causal else modified
        # a mode that observes operations is not to be traced with it
        hidden = nullcontext() if torch.compiler.is_compiling() else _disable_current_modes()
        with warnings.catch_warnings(), hidden:
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            output: Any = flex_attention(query, key, value, changed, scale=call.scale, enable_gqa=call.enable_gqa)
        return output


_BY_ROW = ("linear", "matmul", "__matmul__", "bmm", "conv1d", "conv2d", "scaled_dot_product_attention")


class BatchInvariant(TorchFunctionMode):
    """Computes products and attention for one row of the batch at a time, which is their first dimension."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute row by row, and everything else as it is."""
        kwargs = kwargs or {}
        rows = args[0] if args else kwargs.get("input", kwargs.get("query"))
        name = getattr(func, "__name__", "")
        if name not in _BY_ROW or not isinstance(rows, torch.Tensor) or rows.ndim < 2 or len(rows) < 2:
            return func(*args, **kwargs)
        weighted = name in ("linear", "conv1d", "conv2d")  # only the first operand has a batch

        def part(where: int | str, value: Any, row: int) -> Any:
            batched = where in (0, "input", "query") or (
                not weighted and isinstance(value, torch.Tensor) and value.ndim >= rows.ndim and len(value) == len(rows)
            )
            return value[row : row + 1] if batched else value

        parts = []
        for row in range(len(rows)):
            cut = [part(where, value, row) for where, value in enumerate(args)]
            parts.append(func(*cut, **{key: part(key, value, row) for key, value in kwargs.items()}))
        return torch.cat(parts)


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
    "flex": FlexAttention,
    **{f"sdpa_{backend}": partial(sdpa_pinned, backend) for backend in SDPA_BACKENDS},
    "batch_invariant": BatchInvariant,
    "half_reductions": _half_reductions,
    "matmul_high": partial(_matmul, "high"),
    "matmul_medium": partial(_matmul, "medium"),
    "deterministic": _deterministic,
}
"""Name in ``Fix.compute`` → a context in which calls compute so."""


def computed_as(setting: str) -> AbstractContextManager[Any]:
    """Return the context of a setting."""
    check_known("setting of compute", setting, SETTINGS)
    return SETTINGS[setting]()
