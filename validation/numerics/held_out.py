"""Faults and honest variations that the suite's rule was developed and calibrated without.

Conventions: as in :mod:`~validation.numerics.faults` and :mod:`~validation.numerics.honest`. A rule
may be shaped, knowingly or not, by the faults at hand while it is written; how it does on these says what it does on
faults that nobody thought of. They were written before it judged them and not changed since.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from validation.numerics.attention_impls import FLASH, FUSED, PLAIN, Function, attend, kept_bits
from validation.numerics.families import DTYPES, Operands
from validation.numerics.faults import Fault
from validation.numerics.honest import Variation
from validation.numerics.plants import another_call, clip_at, pick, scale_times, store_as, visible_key

F16, BF16, F32 = DTYPES
HALVES = (F16, BF16)
_SPARE_BITS = {F16: 11, BF16: 8, F32: 24}

# ---- on operands


def _fewer_bits(operands: Operands, *, bits: int, parts: str) -> Operands:
    """Drop the last `bits` significant bits of the operands named."""
    kept = _SPARE_BITS[operands.dtype] - bits

    def through(name: str, x: Tensor) -> Tensor:
        return kept_bits(x.float(), kept).to(operands.dtype) if name in parts else x

    return replace(operands, q=through("q", operands.q), k=through("k", operands.k), v=through("v", operands.v))


def _wrong_page(operands: Operands) -> Operands:
    """Read one slot's key and value from the slot before it."""
    at = max(1, visible_key(operands))
    k, v = operands.k.clone(), operands.v.clone()
    k[:, :, at], v[:, :, at] = operands.k[:, :, at - 1], operands.v[:, :, at - 1]
    return replace(operands, k=k, v=v)


def _merged_keys(operands: Operands) -> Operands:
    """Replace two neighbouring keys and values by their means."""
    at = max(1, visible_key(operands))
    k, v = operands.k.clone(), operands.v.clone()
    for x in (k, v):
        x[:, :, at - 1 : at + 1] = x[:, :, at - 1 : at + 1].float().mean(2, keepdim=True).to(x.dtype)
    return replace(operands, k=k, v=v)


def _value_pages_swapped(operands: Operands) -> Operands:
    """Exchange two pages of eight values under their keys."""
    v = operands.v.clone()
    v[:, :, :8], v[:, :, 8:16] = operands.v[:, :, 8:16], operands.v[:, :, :8]
    return replace(operands, v=v)


def _evicted(operands: Operands, *, keys: int) -> Operands:
    """Forget the oldest keys."""
    mask = operands.mask.clone()
    mask[:, :keys] = False
    return replace(operands, mask=mask)


def _dropout(operands: Operands, *, rate: float) -> Operands:
    """Leave dropout on, without its rescaling; the newest key stays."""
    drawn = torch.rand(operands.mask.shape, generator=operands.generator(31)) >= rate
    newest = operands.mask & ~operands.mask.roll(-1, 1)
    return replace(operands, mask=operands.mask & (drawn | newest))


# ---- inside


def _position_bias(slope: float) -> Function:
    """Add slope × position to the logits: a bias that belongs to another model."""
    return lambda x: x + slope * torch.arange(x.shape[-1], dtype=torch.float32)


def _row_leak(part: float) -> Function:
    """Add a part of the row before."""
    return lambda x: x + part * x.roll(1, 2)


def _channel_leak(part: float) -> Function:
    """Add a part of the channel before."""
    return lambda x: x + part * x.roll(1, 3)


def _head_gain(factor: float) -> Function:
    """Multiply the second head."""
    return lambda x: x * torch.tensor([1.0, factor, 1.0, 1.0])[:, None, None]


def _last_row_gain(factor: float) -> Function:
    """Multiply the last row."""

    def multiply(x: Tensor) -> Tensor:
        result = x.clone()
        result[:, :, -1] *= factor
        return result

    return multiply


def _channel_offset(of_rms: float) -> Function:
    """Add a part of the RMS to the first channel of every head."""

    def add(x: Tensor) -> Tensor:
        result = x.clone()
        result[..., 0] += of_rms * float(x.square().mean().sqrt())
        return result

    return add


def _noise(relative: float) -> Function:
    """Multiply each element by 1 + a normal draw."""
    return lambda x: x * (1.0 + relative * torch.randn(x.shape, generator=torch.Generator().manual_seed(32)))


def _saturated(of_rms: float) -> Function:
    """Clip at a multiple of the RMS."""
    return lambda x: x.clamp(-of_rms * float(x.square().mean().sqrt()), of_rms * float(x.square().mean().sqrt()))


def _small_to_zero(of_rms: float) -> Function:
    """Set what is small against the RMS to zero."""
    return lambda x: torch.where(x.abs() < of_rms * x.square().mean().sqrt(), 0.0, x)


def _exp_by_powers(x: Tensor) -> Tensor:
    """(1 + x/1024)¹⁰²⁴, which is below exp by x²/2048."""
    return (1.0 + x / 1024.0).clamp_min(0.0) ** 1024.0


def _exp_floored(x: Tensor) -> Tensor:
    """Weights never below e⁻¹⁰, but for masked ones."""
    return torch.where(x == -math.inf, 0.0, x.clamp_min(-10.0).exp())


# ---- on the output


def _one_less_bit(output: Tensor, operands: Operands) -> Tensor:
    return kept_bits(output.float(), _SPARE_BITS[output.dtype] - 1).to(output.dtype)


def _stale_row(output: Tensor, operands: Operands) -> Tensor:
    """One row as an earlier call left it."""
    result, row = output.clone(), pick(operands, output.shape[2], salt=33)
    result[:, :, row] = attend(another_call(operands), FUSED)[:, :, row]
    return result


def _one_element(output: Tensor, operands: Operands, *, value: float) -> Tensor:
    result = output.clone().flatten()
    result[pick(operands, result.numel(), salt=34)] = value
    return result.view(output.shape)


HELD_OUT_FAULTS: tuple[Fault, ...] = (
    Fault("head_gain_0.1%", "one head 0.1 % too large", inside={"on_result": _head_gain(1.001)}),
    Fault("last_row_gain_1%", "last row 1 % too large", inside={"on_result": _last_row_gain(1.01)}),
    Fault("channel_offset_0.5%", "0.5 % of the RMS on one channel", inside={"on_result": _channel_offset(5e-3)}),
    Fault("shrunk_0.1%", "output 0.1 % too small", inside={"on_result": lambda x: x * 0.999}),
    Fault("noise_2^-11", "noise of 2⁻¹¹ on each element", inside={"on_result": _noise(2.0**-11)}),
    Fault("noise_2^-8", "noise of 2⁻⁸ on each element", inside={"on_result": _noise(2.0**-8)}),
    Fault("row_leak_0.2%", "0.2 % of the row before", inside={"on_result": _row_leak(2e-3)}),
    Fault("channel_leak_0.1%", "0.1 % of the channel before", inside={"on_result": _channel_leak(1e-3)}),
    Fault("saturated_2.5_rms", "output clipped at 2.5 RMS", inside={"on_result": _saturated(2.5)}),
    Fault("small_to_zero", "output under 0.5 % of the RMS set to zero", inside={"on_result": _small_to_zero(5e-3)}),
    Fault("one_less_bit", "output with one bit less", HALVES, after=_one_less_bit),
    Fault("truncated_logits", "logits rounded toward zero", HALVES, (PLAIN,), {"scaled": "truncated"}),
    Fault("stochastic_weights", "weights rounded stochastically", HALVES, inside={"weights": "stochastic"}),
    Fault(
        "truncated_accumulator",
        "accumulator truncated",
        HALVES,
        (replace(FLASH, block=8),),
        {"accumulator": "truncated"},
    ),
    Fault("exp_by_powers", "exp as (1 + x/1024)¹⁰²⁴", inside={"exp": _exp_by_powers}),
    Fault("exp_floored", "weights not below e⁻¹⁰", inside={"exp": _exp_floored}),
    Fault(
        "position_bias",
        "a bias of 0.001 per position",
        hosts=(PLAIN, FUSED),
        inside={"on_logits": _position_bias(1e-3)},
    ),
    Fault("clipped_logits_12", "logits clipped at ±12", inside={"on_logits": clip_at(12.0)}),
    Fault("scale_in_fp8", "scale 2.8 % too small", before=partial(scale_times, factor=0.9722)),
    Fault("int8_query", "query in int8", before=partial(store_as, how="int8", parts="q")),
    Fault("keys_lose_a_bit", "keys with one bit less", before=partial(_fewer_bits, bits=1, parts="k")),
    Fault("values_lose_two_bits", "values with two bits less", before=partial(_fewer_bits, bits=2, parts="v")),
    Fault("wrong_page", "one slot read from the one before", before=_wrong_page),
    Fault("merged_keys", "two slots replaced by their mean", before=_merged_keys),
    Fault("value_pages_swapped", "two pages of values exchanged", before=_value_pages_swapped),
    Fault("evicted_4", "oldest four keys forgotten", before=partial(_evicted, keys=4)),
    Fault("dropout_0.2%", "dropout of 0.2 % left on", before=partial(_dropout, rate=2e-3)),
    Fault("stale_row", "one row from an earlier call", after=_stale_row),
    Fault("one_nan", "one element NaN", after=partial(_one_element, value=math.nan)),
    Fault("one_zero", "one element zero", after=partial(_one_element, value=0.0)),
)
"""Thirty faults more."""


# ---- honest


def _upcast(operands: Operands) -> Tensor:
    """Torch's attention on operands cast up, its result cast back."""
    q, k, v = (t.float() for t in (operands.q, operands.k, operands.v))
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
    q, k, v = (t.float() for t in (operands.q, operands.k, operands.v))
    logits = (q @ k.mT * operands.scale).masked_fill(~operands.mask, -math.inf)
    shifted = (logits - logits.amax(-1, keepdim=True)).exp()
    weights = (shifted / shifted.sum(-1, keepdim=True)).to(operands.dtype)
    return sum(
        (weights[..., at].float() @ v[:, :, at] for at in torch.arange(k.shape[2]).split(24)),
        torch.zeros_like(q),
    ).to(operands.dtype)


HELD_OUT_HONEST: tuple[Variation, ...] = (
    Variation("upcast", "torch's attention in float32, cast back", _upcast),
    Variation("padded_keys", "torch's CPU flash kernel, padded keys", _padded),
    Variation("eager_row_chunks", "eager in the dtype, eight rows at a time", _eager_row_chunks),
    Variation("head_by_head", "torch's CPU flash kernel, one head at a time", _head_by_head),
    Variation("two_pass", "two passes, stored weights, sums of 24 keys", _two_pass),
    Variation(
        "flash_24_both",
        "24 keys a block, scale on both",
        lambda o: attend(o, replace(FLASH, block=24, scale_at="both")),
    ),
    Variation("flash_8", "8 keys a block, stored weights", lambda o: attend(o, replace(FLASH, block=8))),
    Variation(
        "plain_scaled_query_late",
        "as plain, scale on the stored query, divided after the product",
        lambda o: attend(o, replace(PLAIN, scale_at="query", normalise="after")),
    ),
    Variation(
        "fused_chunked_both",
        "float32 inside, q·k in chunks of 16, scale on both",
        lambda o: attend(o, replace(FUSED, dot_chunk=16, scale_at="both")),
    ),
    Variation(
        "plain_one_store_exp2",
        "as plain, logits stored once, exp2",
        lambda o: attend(o, replace(PLAIN, logits="wide", exp=lambda x: torch.exp2(x * math.log2(math.e)))),
    ),
)
"""Ten honest variations more."""
