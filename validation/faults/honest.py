"""Attention that is different and not wrong: other orders, blocks, fusions, layouts and backends.

Each takes operands and gives the output in their dtype, as a competent kernel might: sums in float32 (or
more), a step stored in the operands' dtype at most where plain attention or FlashAttention stores one (logits, weights,
partial results never). What a variation does to the last bits is not a fault, and a rule that flags it raises a false
alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from validation.faults.families import DTYPES, Operands
from validation.faults.kernels import FLASH, FUSED, PLAIN, Kernel, attend, without_mkldnn

HALVES = (torch.float16, torch.bfloat16)
_LOG2_E = math.log2(math.e)
_MATH, _CPU_FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION


@dataclass(frozen=True)
class Variation:
    """One honest way to compute attention."""

    id: str
    what: str
    apply: Callable[[Operands], Tensor]
    dtypes: tuple[torch.dtype, ...] = DTYPES


def _kernel(kernel: Kernel, **choices: Any) -> Callable[[Operands], Tensor]:
    return partial(attend, kernel=replace(kernel, **choices))


def _wide(o: Operands, dtype: torch.dtype = torch.float32) -> Operands:
    return replace(o, q=o.q.to(dtype), k=o.k.to(dtype), v=o.v.to(dtype))


def _logits(o: Operands, fill: float = -math.inf) -> Tensor:
    """Scaled and masked logits in the dtype of the operands."""
    return (o.q @ o.k.mT * o.scale).masked_fill(~o.mask, fill)


def _additive(o: Operands) -> Tensor:
    """The mask as a number that is added."""
    return torch.zeros_like(o.mask, dtype=o.dtype).masked_fill(~o.mask, -math.inf)


def _columns(o: Operands, at: Any) -> Operands:
    """Some of the keys, in the order given."""
    return replace(o, k=o.k[:, :, at], v=o.v[:, :, at], mask=o.mask[:, at])


def _rows(o: Operands, at: slice) -> Operands:
    return replace(o, q=o.q[:, :, at], mask=o.mask[at])


def _exp2(x: Tensor) -> Tensor:
    return torch.exp2(x * _LOG2_E)


def _reordered(o: Operands, kernel: Kernel, *, shuffle: bool) -> Tensor:
    """Keys taken in another order: reversed, or shuffled by the seed."""
    count = o.k.shape[2]
    order = torch.randperm(count, generator=o.generator(1)) if shuffle else torch.arange(count - 1, -1, -1)
    return attend(_columns(o, order), kernel)


def _einsum(o: Operands) -> Tensor:
    logits = torch.einsum("bhld,bhsd->bhls", o.q * o.scale, o.k)
    return torch.einsum("bhls,bhsd->bhld", logits.masked_fill(~o.mask, -math.inf).softmax(-1), o.v)


def _bmm(o: Operands) -> Tensor:
    """``baddbmm`` as older transformers have it."""
    q, k, v = (t.flatten(0, 1) for t in (o.q, o.k, o.v))
    logits = torch.baddbmm(_additive(o).expand(len(q), -1, -1), q, k.mT, alpha=o.scale)
    return torch.bmm(logits.softmax(-1), v).view(o.q.shape)


def _sdpa(o: Operands, backend: SDPBackend | None = None, *, mask: Tensor | None = None) -> Tensor:
    """Torch's attention, its backend pinned where one is named."""
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return F.scaled_dot_product_attention(o.q, o.k, o.v, attn_mask=o.mask if mask is None else mask, scale=o.scale)


def _transposed(o: Operands) -> Operands:
    """(B, L, H, D) in memory, as a projection leaves it."""
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (o.q, o.k, o.v))
    return replace(o, q=q, k=k, v=v)


def _math_reduced(o: Operands) -> Tensor:
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        return _sdpa(o, _MATH)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


def _split(o: Operands, count: int) -> Tensor:
    """Keys split over workers; each normalises its own part, float32 merge by log-sum-exp (flash decoding)."""
    parts = [_columns(_wide(o), at) for at in torch.arange(o.k.shape[2]).chunk(count)]
    weights = [_logits(part).logsumexp(-1) for part in parts]
    # what a row sees nothing of is 0
    partial_results = [_logits(part).softmax(-1).nan_to_num(0.0) @ part.v for part in parts]
    share = torch.stack(weights, -1).softmax(-1)  # (1, H, L, count)
    return (torch.stack(partial_results, -1) * share[..., None, :]).sum(-1).to(o.dtype)


def _pairwise(o: Operands) -> Tensor:
    """Sums of six keys each, added up as a binary tree in float32."""
    wide = _wide(o)
    weights = _logits(wide).softmax(-1)
    parts = [weights[..., at] @ wide.v[:, :, at] for at in torch.arange(o.k.shape[2]).split(6)]
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0].to(o.dtype)


def _double(o: Operands) -> Tensor:
    wide = _wide(o, torch.float64)
    return (_logits(wide).softmax(-1) @ wide.v).to(o.dtype)


def _log_softmax(o: Operands) -> Tensor:
    wide = _wide(o)
    return (_logits(wide).log_softmax(-1).exp() @ wide.v).to(o.dtype)


def _row_by_row(o: Operands) -> Tensor:
    """Rows eight at a time, each on the keys up to the last that it sees."""
    parts = [_rows(o, slice(at, at + 8)) for at in range(0, o.q.shape[2], 8)]
    seen = [int(part.mask.any(0).nonzero()[-1]) + 1 for part in parts]
    return torch.cat([attend(_columns(one, slice(end)), FUSED) for one, end in zip(parts, seen, strict=True)], 2)


def _padded(o: Operands) -> Tensor:
    """Keys padded to a multiple of 128 under the mask."""
    more = -o.k.shape[2] % 128
    k, v = (F.pad(t, (0, 0, 0, more)) for t in (o.k, o.v))
    return _sdpa(replace(o, k=k, v=v, mask=F.pad(o.mask, (0, more), value=False)), _CPU_FLASH)


def _eager_row_chunks(o: Operands) -> Tensor:
    """Keys stored transposed."""
    k = o.k.mT.contiguous()
    parts = []
    for at in range(0, o.q.shape[2], 8):
        logits = o.q[:, :, at : at + 8] @ k * o.scale
        parts.append(logits.masked_fill(~o.mask[at : at + 8], -math.inf).softmax(-1) @ o.v)
    return torch.cat(parts, 2)


def _head_by_head(o: Operands) -> Tensor:
    heads = zip(*(t.split(1, dim=1) for t in (o.q, o.k, o.v)), strict=True)
    return torch.cat([_sdpa(replace(o, q=q, k=k, v=v), _CPU_FLASH) for q, k, v in heads], 1)


def _two_pass(o: Operands) -> Tensor:
    """Maximum and sum in a first pass over the keys, weights stored in the dtype in a second one."""
    wide = _wide(o)
    logits = _logits(wide)
    shifted = (logits - logits.amax(-1, keepdim=True)).exp()
    weights = (shifted / shifted.sum(-1, keepdim=True)).to(o.dtype).float()
    blocks = torch.arange(o.k.shape[2]).split(24)
    return sum((weights[..., at] @ wide.v[:, :, at] for at in blocks), torch.zeros_like(wide.q)).to(o.dtype)


@cache
def compiler(function: Callable[..., Tensor], *, dynamic: bool | None = True) -> Callable[..., Tensor]:
    """Compiled for any length at once; a single row or another dtype is another graph."""
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=dynamic)
    return compiled


def plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Eager attention, operator by operator."""
    return (q @ k.mT * scale).masked_fill(~mask, -math.inf).softmax(-1) @ v


def _by_torch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _compiled(o: Operands, function: Callable[..., Tensor] = plainly) -> Tensor:
    with torch.inference_mode():
        return compiler(function)(o.q, o.k, o.v, o.mask, o.scale)


def _high_and_low(o: Operands) -> Tensor:
    weights, v = _logits(_wide(o)).softmax(-1), o.v.float()
    high = weights.to(o.dtype).float()
    return (high @ v + (weights - high).to(o.dtype).float() @ v).to(o.dtype)


def _without_mkldnn(o: Operands) -> Tensor:
    with without_mkldnn():
        return _logits(o).softmax(-1) @ o.v


def _heads_as_batch(o: Operands) -> Tensor:
    return _sdpa(replace(o, q=o.q.transpose(0, 1), k=o.k.transpose(0, 1), v=o.v.transpose(0, 1))).transpose(0, 1)


def _compensated(o: Operands) -> Tensor:
    wide = _wide(o)
    weights = _logits(wide).softmax(-1)
    total = lost = torch.zeros_like(wide.q)
    for at in torch.arange(o.k.shape[2]).split(16):
        term = weights[..., at] @ wide.v[:, :, at] - lost
        lost, total = (total + term - total) - term, total + term
    return total.to(o.dtype)


def _float64_logits(o: Operands) -> Tensor:
    return (_logits(_wide(o, torch.float64)).float().softmax(-1) @ o.v.float()).to(o.dtype)


def _heads_alone(o: Operands) -> Tensor:
    heads = [replace(o, q=o.q[0, at], k=o.k[0, at], v=o.v[0, at]) for at in range(o.q.shape[1])]
    return torch.stack([_logits(one).softmax(-1) @ one.v for one in heads])[None]


def _rows_in_parts(o: Operands) -> Tensor:
    ends = range(0, o.q.shape[2], 5)
    return torch.cat([_sdpa(_rows(o, slice(begin, begin + 5))) for begin in ends], 2)


_SCORED_ONCE: tuple[Variation, ...] = (
    Variation("flash_20_exp2_reversed", "online softmax with exp2, 20 keys a block, last block first",
              _kernel(FLASH, block=20, exp=_exp2, reverse=True)),
    Variation("flash_lazy_28", "online softmax, 28 keys a block, the maximum up to 1.4 behind",
              _kernel(FLASH, block=28, lag=1.4)),
    Variation("fused_both", "float32 inside, scale on both", _kernel(FUSED, scale_at="both")),
    Variation("plain_late_exp2", "as plain, exp2, divided after the product",
              _kernel(PLAIN, exp=_exp2, normalise="after")),
    Variation("high_and_low", "weights in two parts, each stored and multiplied", lambda o: _high_and_low(o), HALVES),
    Variation("eager_turned", "eager in the dtype, the product turned: (vᵀ·weightsᵀ)ᵀ",
              lambda o: (o.v.mT @ _logits(o).softmax(-1).mT).mT),
    Variation("eager_no_mkldnn", "eager in the dtype without oneDNN", lambda o: _without_mkldnn(o)),
    Variation("sdpa_wide_mask", "torch's attention, the mask of every head written out",
              lambda o: _sdpa(o, mask=o.mask.expand(1, o.q.shape[1], -1, -1).contiguous())),
    Variation("sdpa_heads_as_batch", "torch's attention, heads as the batch", lambda o: _heads_as_batch(o)),
    Variation("flash_12_wide_exp2", "online softmax with exp2, 12 keys a block, float32 weights",
              _kernel(FLASH, block=12, weights="wide", exp=_exp2), HALVES),
    Variation("flash_lazy_44_reversed", "online softmax, 44 keys a block, last first, the maximum up to 2 behind",
              _kernel(FLASH, block=44, lag=2.0, reverse=True)),
    Variation("fused_query_exp2_early", "float32 inside, exp2, scale on the query, divided before the product",
              _kernel(FUSED, exp=_exp2, scale_at="query", normalise="before")),
    Variation("plain_both_late", "as plain, scale on both, divided after the product",
              _kernel(PLAIN, scale_at="both", normalise="after")),
    Variation("fused_stored_logits", "float32 inside but for logits stored after the scale",
              _kernel(FUSED, scaled="same"), HALVES),
    Variation("split_4_strided", "every fourth key to one of four workers, float32 merge",
              lambda o: _split(_columns(o, torch.cat([torch.arange(i, o.k.shape[2], 4) for i in range(4)])), 4)),
    Variation("compensated", "sums of 16 keys each, added with Kahan's compensation", lambda o: _compensated(o)),
    Variation("float64_logits", "float64 logits, float32 softmax and product", lambda o: _float64_logits(o)),
    Variation("eager_heads_alone", "eager in the dtype, one head at a time, by products of two matrices",
              lambda o: _heads_alone(o)),
    Variation("sdpa_rows_in_parts", "torch's attention on five rows at a time", lambda o: _rows_in_parts(o)),
    Variation("sdpa_keys_within_channels", "torch's attention, keys and values stored transposed",
              lambda o: _sdpa(replace(o, k=o.k.mT.contiguous().mT, v=o.v.mT.contiguous().mT))),
)  # fmt: skip
"""Held out until earlier judges were scored on them; tuned on since."""

HONEST: tuple[Variation, ...] = (
    Variation("eager", "torch's operators in the dtype", lambda o: _logits(o).softmax(-1) @ o.v),
    Variation("einsum", "einsum, scale on the query, stored", _einsum),
    Variation("baddbmm", "scale inside the product, additive mask", _bmm),
    Variation("float_softmax", "softmax asked for in float32, cast back",
              lambda o: F.softmax(_logits(o), dim=-1, dtype=torch.float32).to(o.dtype) @ o.v, HALVES),
    Variation("finite_mask", "mask by the lowest number",
              lambda o: _logits(o, torch.finfo(o.dtype).min).softmax(-1) @ o.v),
    Variation("plain_scaled_query", "as plain, scale on the stored query", _kernel(PLAIN, scale_at="query")),
    Variation("plain_scaled_both", "as plain, root of the scale on both", _kernel(PLAIN, scale_at="both")),
    Variation("plain_float_logits", "as plain, logits in float32",
              _kernel(PLAIN, logits="wide", scaled="wide"), HALVES),
    Variation("plain_one_store", "as plain, logits stored once, after the scale",
              _kernel(PLAIN, logits="wide"), HALVES),
    Variation("plain_late_division", "as plain, divided after the product", _kernel(PLAIN, normalise="after")),
    Variation("plain_exp2", "as plain with exp2", _kernel(PLAIN, exp=_exp2)),
    Variation("plain_shuffled", "as plain, keys shuffled", lambda o: _reordered(o, PLAIN, shuffle=True)),
    Variation("plain_reversed", "as plain, keys reversed", lambda o: _reordered(o, PLAIN, shuffle=False)),
    Variation("fused", "float32 inside, rounded once", _kernel(FUSED)),
    Variation("fused_early_division", "float32 inside, divided before the product", _kernel(FUSED, normalise="before")),
    Variation("fused_scaled_query", "float32 inside, scale on the query", _kernel(FUSED, scale_at="query")),
    Variation("fused_exp2", "float32 inside, exp2", _kernel(FUSED, exp=_exp2)),
    Variation("fused_shuffled", "float32 inside, keys shuffled", lambda o: _reordered(o, FUSED, shuffle=True)),
    Variation("fused_stored_weights", "float32 inside but for stored weights", _kernel(FUSED, weights="same"), HALVES),
    Variation("fused_chunked_dot", "q·k summed eight dimensions at a time", _kernel(FUSED, dot_chunk=8)),
    Variation("log_softmax", "exp of log-softmax, float32", _log_softmax),
    Variation("row_blocks", "rows eight at a time, keys cut to what they see", _row_by_row),
    Variation("pairwise", "sum over keys as a tree", _pairwise),
    Variation("float64_inside", "float64 inside, rounded once", _double),
    Variation("flash_16", "online softmax, 16 keys a block, stored weights", _kernel(FLASH, block=16)),
    Variation("flash_32", "online softmax, 32 keys a block, stored weights", _kernel(FLASH)),
    Variation("flash_reversed", "online softmax, last block first", _kernel(FLASH, reverse=True)),
    Variation("flash_exp2", "online softmax with exp2, scale on the query in float32",
              _kernel(FLASH, exp=_exp2, scale_at="query")),
    Variation("flash_wide_16", "online softmax, float32 weights, 16 keys a block",
              _kernel(FLASH, block=16, weights="wide"), HALVES),
    Variation("split_2", "keys split in two, float32 merge", lambda o: _split(o, 2)),
    Variation("split_5", "keys split in five, float32 merge", lambda o: _split(o, 5)),
    Variation("sdpa_math", "torch's math backend", lambda o: _sdpa(o, _MATH)),
    Variation("sdpa_math_reduced", "torch's math backend, reductions in half allowed", _math_reduced, HALVES),
    Variation("sdpa_flash", "torch's CPU flash kernel", lambda o: _sdpa(o, _CPU_FLASH)),
    Variation("sdpa_flash_transposed", "torch's CPU flash kernel, heads inside rows",
              lambda o: _sdpa(_transposed(o), _CPU_FLASH)),
    Variation("sdpa_flash_float_mask", "torch's CPU flash kernel, additive mask",
              lambda o: _sdpa(o, _CPU_FLASH, mask=_additive(o))),
    Variation("upcast", "torch's attention in float32, cast back", lambda o: _sdpa(_wide(o)).to(o.dtype)),
    Variation("padded_keys", "torch's CPU flash kernel, padded keys", _padded),
    Variation("eager_row_chunks", "eager in the dtype, eight rows at a time", _eager_row_chunks),
    Variation("head_by_head", "torch's CPU flash kernel, one head at a time", _head_by_head),
    Variation("two_pass", "two passes, stored weights, sums of 24 keys", _two_pass),
    Variation("flash_24_both", "24 keys a block, scale on both", _kernel(FLASH, block=24, scale_at="both")),
    Variation("plain_scaled_query_late", "as plain, scale on the stored query, divided after the product",
              _kernel(PLAIN, scale_at="query", normalise="after")),
    Variation("fused_chunked_both", "float32 inside, q·k in chunks of 16, scale on both",
              _kernel(FUSED, dot_chunk=16, scale_at="both")),
    Variation("plain_one_store_exp2", "as plain, logits stored once, exp2", _kernel(PLAIN, logits="wide", exp=_exp2)),
    Variation("flash_lazy", "online softmax, the maximum moved only where it is exceeded by 2.8",
              _kernel(FLASH, lag=2.8)),
    Variation("sdpa_default", "torch's attention, the kernel its own choice", _sdpa),
    *_SCORED_ONCE,
    Variation("compiled", "eager attention under torch.compile", _compiled),
    Variation("compiled_sdpa", "torch's attention under torch.compile", partial(_compiled, function=_by_torch)),
)  # fmt: skip
"""What a rule should let pass."""
TORCHS_OWN = ("sdpa_", "compiled", "eager", "head_by_head", "padded_keys", "upcast")
"""How the names begin of those that are torch's kernels."""
