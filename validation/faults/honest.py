"""Attention that is different and not wrong: other orders, blocks, fusions, layouts and backends.

Each takes operands and gives the output in their dtype, as a competent kernel might: sums in float32 (or
more), a step stored in the operands' dtype at most where plain attention or FlashAttention stores one (logits, weights,
partial results never). What a variation does to the last bits is not a fault, and a rule that flags it raises a false
alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from validation.faults.families import DTYPES, Operands
from validation.faults.kernels import FLASH, FUSED, PLAIN, Kernel, attend

HALVES = (torch.float16, torch.bfloat16)
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Variation:
    """One honest way to compute attention."""

    id: str
    what: str
    apply: Callable[[Operands], Tensor]
    dtypes: tuple[torch.dtype, ...] = DTYPES


def _logits(q: Tensor, operands: Operands, keys: Tensor, fill: float = -math.inf) -> Tensor:
    """Scaled and masked logits in the dtype of `q`."""
    return (q @ keys.mT * operands.scale).masked_fill(~operands.mask, fill)


def _wide(operands: Operands, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value in a wider dtype."""
    return operands.q.to(dtype), operands.k.to(dtype), operands.v.to(dtype)


def _kernel(kernel: Kernel) -> Callable[[Operands], Tensor]:
    return lambda operands: attend(operands, kernel)


def _exp2(x: Tensor) -> Tensor:
    return torch.exp2(x * _LOG2_E)


def _reordered(operands: Operands, kernel: Kernel, *, shuffle: bool) -> Tensor:
    """Keys taken in another order: reversed, or shuffled by the seed."""
    count = operands.k.shape[2]
    order = torch.randperm(count, generator=operands.generator(1)) if shuffle else torch.arange(count - 1, -1, -1)
    moved = replace(operands, k=operands.k[:, :, order], v=operands.v[:, :, order], mask=operands.mask[:, order])
    return attend(moved, kernel)


def _eager(operands: Operands) -> Tensor:
    """Torch's own operators in the operands' dtype."""
    logits = _logits(operands.q, operands, operands.k)
    return logits.softmax(-1) @ operands.v


def _einsum(operands: Operands) -> Tensor:
    """The same written with einsum, the scale on the query."""
    logits = torch.einsum("bhld,bhsd->bhls", operands.q * operands.scale, operands.k)
    return torch.einsum("bhls,bhsd->bhld", logits.masked_fill(~operands.mask, -math.inf).softmax(-1), operands.v)


def _bmm(operands: Operands) -> Tensor:
    """``baddbmm`` with the scale inside the product and an additive mask, as older transformers have it."""
    q, k, v = (t.flatten(0, 1) for t in (operands.q, operands.k, operands.v))
    bias = torch.zeros_like(operands.mask, dtype=q.dtype).masked_fill(~operands.mask, -math.inf)
    logits = torch.baddbmm(bias.expand(len(q), -1, -1), q, k.mT, alpha=operands.scale)
    return torch.bmm(logits.softmax(-1), v).view(operands.q.shape)


def _float_softmax(operands: Operands) -> Tensor:
    """Logits in the dtype, softmax asked for in float32 and cast back, as Llama's code has it."""
    logits = _logits(operands.q, operands, operands.k)
    return F.softmax(logits, dim=-1, dtype=torch.float32).to(operands.dtype) @ operands.v


def _finite_mask(operands: Operands) -> Tensor:
    """The mask as a large negative number instead of minus infinity."""
    logits = _logits(operands.q, operands, operands.k, torch.finfo(operands.dtype).min)
    return logits.softmax(-1) @ operands.v


def _sdpa(operands: Operands, backend: SDPBackend, *, transposed: bool = False, float_mask: bool = False) -> Tensor:
    """Torch's attention, its backend pinned."""
    q, k, v, mask = operands.q, operands.k, operands.v, operands.mask
    if transposed:  # (B, L, H, D) in memory, as a projection leaves it
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    if float_mask:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=operands.scale)


def _math_reduced(operands: Operands) -> Tensor:
    """Torch's math backend with reductions in half allowed."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        return _sdpa(operands, SDPBackend.MATH)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


def _split(operands: Operands, parts: int) -> Tensor:
    """Keys split over `parts` workers; each normalises its own part, float32 merge by log-sum-exp (flash decoding)."""
    q, k, v = _wide(operands)
    partial, weights = [], []
    for columns in torch.arange(k.shape[2]).chunk(parts):
        logits = (q @ k[:, :, columns].mT * operands.scale).masked_fill(~operands.mask[:, columns], -math.inf)
        weights.append(logits.logsumexp(-1))
        partial.append(logits.softmax(-1).nan_to_num(0.0) @ v[:, :, columns])  # a part that a row sees nothing of: 0
    share = torch.stack(weights, -1).softmax(-1)  # (1, H, L, parts)
    return (torch.stack(partial, -1) * share[..., None, :]).sum(-1).to(operands.dtype)


def _pairwise(operands: Operands) -> Tensor:
    """Sums of six keys each, added up as a binary tree in float32."""
    q, k, v = _wide(operands)
    weights = _logits(q, operands, k).softmax(-1)
    parts = [weights[..., at] @ v[:, :, at] for at in torch.arange(k.shape[2]).split(6)]
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0].to(operands.dtype)


def _double(operands: Operands) -> Tensor:
    """Everything in float64, rounded once."""
    q, k, v = _wide(operands, torch.float64)
    return (_logits(q, operands, k).softmax(-1) @ v).to(operands.dtype)


def _log_softmax(operands: Operands) -> Tensor:
    """Weights as exp of log-softmax, in float32."""
    q, k, v = _wide(operands)
    logits = _logits(q, operands, k)
    return (logits.log_softmax(-1).exp() @ v).to(operands.dtype)


def _row_by_row(operands: Operands) -> Tensor:
    """Rows eight at a time, each on the keys that it may see and no others."""
    rows, keys = operands.mask.shape
    parts = []
    for at in range(0, rows, 8):
        seen = keys - rows + min(at + 8, rows)
        q, mask = operands.q[:, :, at : at + 8], operands.mask[at : at + 8, :seen]
        parts.append(
            attend(replace(operands, q=q, k=operands.k[:, :, :seen], v=operands.v[:, :, :seen], mask=mask), FUSED)
        )
    return torch.cat(parts, 2)


def _upcast(operands: Operands) -> Tensor:
    """Torch's attention on operands cast up, its result cast back."""
    q, k, v = _wide(operands)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=operands.mask, scale=operands.scale).to(operands.dtype)


def _padded(operands: Operands) -> Tensor:
    """Torch's CPU flash kernel on keys padded to 128 under the mask."""
    more = 128 - operands.k.shape[2]
    k, v = (F.pad(t, (0, 0, 0, more)) for t in (operands.k, operands.v))
    mask = F.pad(operands.mask, (0, more), value=False)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(operands.q, k, v, attn_mask=mask, scale=operands.scale)


def _eager_row_chunks(operands: Operands) -> Tensor:
    """Eager operators in the dtype, eight rows at a time, keys stored transposed."""
    k = operands.k.mT.contiguous()
    parts = []
    for at in range(0, operands.q.shape[2], 8):
        logits = operands.q[:, :, at : at + 8] @ k * operands.scale
        parts.append(logits.masked_fill(~operands.mask[at : at + 8], -math.inf).softmax(-1) @ operands.v)
    return torch.cat(parts, 2)


def _head_by_head(operands: Operands) -> Tensor:
    """Torch's CPU flash kernel one head at a time."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        heads = [
            F.scaled_dot_product_attention(q, k, v, attn_mask=operands.mask, scale=operands.scale)
            for q, k, v in zip(*(t.split(1, dim=1) for t in (operands.q, operands.k, operands.v)), strict=True)
        ]
    return torch.cat(heads, 1)


def _two_pass(operands: Operands) -> Tensor:
    """Maximum and sum in a first pass over the keys, weights stored in the dtype in a second one."""
    q, k, v = _wide(operands)
    logits = _logits(q, operands, k)
    shifted = (logits - logits.amax(-1, keepdim=True)).exp()
    weights = (shifted / shifted.sum(-1, keepdim=True)).to(operands.dtype)
    return sum(
        (weights[..., at].float() @ v[:, :, at] for at in torch.arange(k.shape[2]).split(24)),
        torch.zeros_like(q),
    ).to(operands.dtype)


_MATH, _CPU_FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION

HONEST: tuple[Variation, ...] = (
    Variation("eager", "torch's operators in the dtype", _eager),
    Variation("einsum", "einsum, scale on the query, stored", _einsum),
    Variation("baddbmm", "scale inside the product, additive mask", _bmm),
    Variation("float_softmax", "softmax asked for in float32, cast back", _float_softmax, HALVES),
    Variation("finite_mask", "mask by the lowest number", _finite_mask),
    Variation("plain_scaled_query", "as plain, scale on the stored query", _kernel(replace(PLAIN, scale_at="query"))),
    Variation("plain_scaled_both", "as plain, root of the scale on both", _kernel(replace(PLAIN, scale_at="both"))),
    Variation("plain_float_logits", "as plain, logits in float32",
              _kernel(replace(PLAIN, logits="wide", scaled="wide")), HALVES),
    Variation("plain_one_store", "as plain, logits stored once, after the scale",
              _kernel(replace(PLAIN, logits="wide")), HALVES),
    Variation("plain_late_division", "as plain, divided after the product", _kernel(replace(PLAIN, normalise="after"))),
    Variation("plain_exp2", "as plain with exp2", _kernel(replace(PLAIN, exp=_exp2))),
    Variation("plain_shuffled", "as plain, keys shuffled", lambda o: _reordered(o, PLAIN, shuffle=True)),
    Variation("plain_reversed", "as plain, keys reversed", lambda o: _reordered(o, PLAIN, shuffle=False)),
    Variation("fused", "float32 inside, rounded once", _kernel(FUSED)),
    Variation("fused_early_division", "float32 inside, divided before the product",
              _kernel(replace(FUSED, normalise="before"))),
    Variation("fused_scaled_query", "float32 inside, scale on the query", _kernel(replace(FUSED, scale_at="query"))),
    Variation("fused_exp2", "float32 inside, exp2", _kernel(replace(FUSED, exp=_exp2))),
    Variation("fused_shuffled", "float32 inside, keys shuffled", lambda o: _reordered(o, FUSED, shuffle=True)),
    Variation("fused_stored_weights", "float32 inside but for stored weights",
              _kernel(replace(FUSED, weights="same")), HALVES),
    Variation("fused_chunked_dot", "q·k summed eight dimensions at a time", _kernel(replace(FUSED, dot_chunk=8))),
    Variation("log_softmax", "exp of log-softmax, float32", _log_softmax),
    Variation("row_blocks", "rows eight at a time, keys cut to what they see", _row_by_row),
    Variation("pairwise", "sum over keys as a tree", _pairwise),
    Variation("float64_inside", "float64 inside, rounded once", _double),
    Variation("flash_16", "online softmax, 16 keys a block, stored weights", _kernel(replace(FLASH, block=16))),
    Variation("flash_32", "online softmax, 32 keys a block, stored weights", _kernel(FLASH)),
    Variation("flash_40", "online softmax, 40 keys a block, the last one shorter", _kernel(replace(FLASH, block=40))),
    Variation("flash_64", "online softmax, 64 keys a block, stored weights", _kernel(replace(FLASH, block=64))),
    Variation("flash_reversed", "online softmax, last block first", _kernel(replace(FLASH, reverse=True))),
    Variation("flash_exp2", "online softmax with exp2, scale on the query in float32",
              _kernel(replace(FLASH, exp=_exp2, scale_at="query"))),
    Variation("flash_wide_16", "online softmax, float32 weights, 16 keys a block",
              _kernel(replace(FLASH, block=16, weights="wide")), HALVES),
    Variation("flash_wide_48", "online softmax, float32 weights, 48 keys a block",
              _kernel(replace(FLASH, block=48, weights="wide")), HALVES),
    Variation("split_2", "keys split in two, float32 merge", lambda o: _split(o, 2)),
    Variation("split_5", "keys split in five, float32 merge", lambda o: _split(o, 5)),
    Variation("sdpa_math", "torch's math backend", lambda o: _sdpa(o, _MATH)),
    Variation("sdpa_math_reduced", "torch's math backend, reductions in half allowed", _math_reduced, HALVES),
    Variation("sdpa_flash", "torch's CPU flash kernel", lambda o: _sdpa(o, _CPU_FLASH)),
    Variation("sdpa_flash_transposed", "torch's CPU flash kernel, heads inside rows",
              lambda o: _sdpa(o, _CPU_FLASH, transposed=True)),
    Variation("sdpa_flash_float_mask", "torch's CPU flash kernel, additive mask",
              lambda o: _sdpa(o, _CPU_FLASH, float_mask=True)),
)  # fmt: skip
"""What a rule should let pass."""

HELD_OUT_HONEST: tuple[Variation, ...] = (
    Variation("upcast", "torch's attention in float32, cast back", _upcast),
    Variation("padded_keys", "torch's CPU flash kernel, padded keys", _padded),
    Variation("eager_row_chunks", "eager in the dtype, eight rows at a time", _eager_row_chunks),
    Variation("head_by_head", "torch's CPU flash kernel, one head at a time", _head_by_head),
    Variation("two_pass", "two passes, stored weights, sums of 24 keys", _two_pass),
    Variation("flash_24_both", "24 keys a block, scale on both", _kernel(replace(FLASH, block=24, scale_at="both"))),
    Variation("flash_8", "8 keys a block, stored weights", _kernel(replace(FLASH, block=8))),
    Variation("plain_scaled_query_late", "as plain, scale on the stored query, divided after the product",
              _kernel(replace(PLAIN, scale_at="query", normalise="after"))),
    Variation("fused_chunked_both", "float32 inside, q·k in chunks of 16, scale on both",
              _kernel(replace(FUSED, dot_chunk=16, scale_at="both"))),
    Variation("plain_one_store_exp2", "as plain, logits stored once, exp2",
              _kernel(replace(PLAIN, logits="wide", exp=_exp2))),
)  # fmt: skip
"""Honest variations that the suite's rule was developed and calibrated without."""
