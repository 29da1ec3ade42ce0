"""The sixth held-out part: honest variations, faults and operations on `.families.UNSEEN`.

Written by someone who knew the judge and what the fifth part had shown, and committed before a rule was changed for
that and before any was scored on it. Most orders are those of a kernel that is used, which is named. Strengths were set
without looking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.faults.catalog import F16, F32, HALVES, Fault, at, put
from validation.faults.families import Operands
from validation.faults.honest import Variation
from validation.faults.kernels import FUSED, PLAIN, Function, attend, kept_bits
from validation.faults.operations import EPS, Operation, coarse, wide
from validation.faults.shapes import LOG2_E

FP8 = torch.float8_e4m3fn
_WHOLE = (PLAIN, FUSED)

# ---- honest attention


def _seen(logits: Tensor, o: Operands) -> Tensor:
    return logits.masked_fill(~o.mask, -math.inf)


def _base_two(o: Operands) -> Tensor:
    """Float32 logits for exp2."""
    return _seen(o.q.float() @ o.k.float().mT * (o.scale * LOG2_E), o)


def _tiles(
    o: Operands,
    logits: Tensor,
    keys: Sequence[Tensor],
    *,
    lag: float = 0.0,
    step: int = 1 << 30,
    sum_of_stored: bool = False,
) -> tuple[Tensor, Tensor]:
    """Online softmax in base two on tiles of keys, weights stored, `step` keys at a time into the accumulator.

    The maximum moves only where it is exceeded by `lag`. Returns the result and the logarithm of its sum, base two.
    """
    v, top = o.v.float(), torch.full((*logits.shape[:3], 1), -math.inf)
    total, result = torch.zeros_like(top), torch.zeros(*logits.shape[:3], o.v.shape[-1])
    for tile in keys:
        highest = logits[..., tile].amax(-1, keepdim=True)
        newest = torch.where(highest > top + lag, highest, top)
        shift = newest.nan_to_num(neginf=0.0)
        weights, fade = (logits[..., tile] - shift).exp2(), (top - shift).exp2()
        stored = weights.to(o.dtype).float()
        total = total * fade + (stored if sum_of_stored else weights).sum(-1, keepdim=True)
        result, top = result * fade, newest
        for part in torch.arange(len(tile)).split(step):
            result = result + stored[..., part] @ v[:, :, tile[part]]
    return result / total.clamp_min(1e-37), top + total.log2()


def _tiled(o: Operands, block: int, *, last_first: bool = False, stored_query: bool = False, **how: Any) -> Tensor:
    keys = torch.arange(o.k.shape[2]).split(block)
    scaled = (o.q.float() * (o.scale * LOG2_E)).to(o.dtype).float()
    logits = _seen(scaled @ o.k.float().mT, o) if stored_query else _base_two(o)
    return _tiles(o, logits, keys[::-1] if last_first else keys, **how)[0].to(o.dtype)


def _seven_splits(
    o: Operands, stored: torch.dtype = torch.float32, exp: Function = torch.exp2, first: float = 1.0
) -> Tensor:
    """Keys split over seven workers, each in tiles of 16; results merged by the logarithms of their sums."""
    splits = [_tiles(o, _base_two(o), part.split(16)) for part in torch.arange(o.k.shape[2]).chunk(7)]
    results, sums = (torch.stack(one) for one in zip(*splits, strict=True))
    shares = exp(sums - sums.amax(0))
    shares[0] *= first
    return ((results.to(stored).float() * shares).sum(0) / shares.sum(0)).to(o.dtype)


def _paged(o: Operands) -> Tensor:
    """Weights times the reciprocal of their sum, stored, 16 keys at a time into the accumulator."""
    logits, v = _seen(o.q.float() @ o.k.float().mT * o.scale, o), o.v.float()
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    stored = (weights * weights.sum(-1, keepdim=True).reciprocal()).to(o.dtype).float()
    pages = torch.arange(o.k.shape[2]).split(16)
    return sum((stored[..., page] @ v[:, :, page] for page in pages), torch.zeros(())).to(o.dtype)


def _loops(o: Operands) -> Tensor:
    """One channel after the other, then one key after the other, in float32; weights times a reciprocal."""
    q, k, v = (x.float() for x in (o.q, o.k, o.v))
    logits = torch.zeros(*q.shape[:3], k.shape[2])
    for channel in range(q.shape[-1]):
        logits = logits + q[..., channel, None] * k[..., None, :, channel]
    weights = _seen(logits * o.scale, o)
    weights = (weights - weights.amax(-1, keepdim=True)).exp()
    weights = weights * weights.sum(-1, keepdim=True).reciprocal()
    result = torch.zeros(*q.shape[:3], v.shape[-1])
    for key in range(k.shape[2]):
        result = result + weights[..., key, None] * v[:, :, None, key]
    return result.to(o.dtype)


def _lanes(o: Operands) -> Tensor:
    """Sixteen lanes of every sixteenth key, then added as a tree."""
    logits, v = _base_two(o), o.v.float()
    weights = (logits - logits.amax(-1, keepdim=True)).exp2()
    sums = [weights[..., lane::16] @ F.pad(v, (0, 1), value=1.0)[:, :, lane::16] for lane in range(16)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [a + b for a, b in zip(sums[:half], sums[half:], strict=True)]
    return (sums[0][..., :-1] / sums[0][..., -1:]).to(o.dtype)


def _swapped(o: Operands) -> Tensor:
    """Keys by queries and values by weights, float32 but for weights that are stored before they are divided."""
    logits = (o.k.float() @ o.q.float().mT * o.scale).masked_fill(~o.mask.mT, -math.inf)
    weights = (logits - logits.amax(-2, keepdim=True)).exp()
    result = o.v.float().mT @ weights.to(o.dtype).float()
    return (result / weights.sum(-2, keepdim=True)).mT.to(o.dtype)


def _two_products(o: Operands) -> Tensor:
    """Channels with and without a position apart, both products stored; softmax in float32."""
    cut = o.q.shape[-1] * 2 // 3
    logits = o.q[..., :cut] @ o.k[..., :cut].mT + o.q[..., cut:] @ o.k[..., cut:].mT
    return _seen(logits * o.scale, o).softmax(-1, dtype=torch.float32).to(o.dtype) @ o.v


def _by_layer(o: Operands, layer: float = 12.0) -> Tensor:
    """Logits stored divided by the layer's number, and multiplied by it in softmax."""
    logits = (o.q.float() @ o.k.float().mT * (o.scale / layer)).to(o.dtype).float() * layer
    return _seen(logits, o).softmax(-1).to(o.dtype) @ o.v


def _rows_first(o: Operands) -> Tensor:
    """Heads within rows, products by einsum in the dtype, softmax in float32."""
    q, k, v = (x.transpose(1, 2).contiguous() for x in (o.q, o.k, o.v))
    logits = _seen(torch.einsum("blhd,bshd->bhls", q, k).float() * o.scale, o)
    return torch.einsum("bhls,bshd->blhd", logits.softmax(-1).to(o.dtype), v).transpose(1, 2).contiguous()


def _sdpa(q: Tensor, o: Operands, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, o.k, o.v, attn_mask=mask, scale=o.scale)


def _rows_padded(o: Operands) -> Tensor:
    rows, more = o.q.shape[2], -o.q.shape[2] % 64
    return _sdpa(F.pad(o.q, (0, 0, 0, more)), o, F.pad(o.mask, (0, 0, 0, more), value=True))[:, :, :rows]


def _row_by_row(o: Operands) -> Tensor:
    rows = zip(o.q.split(1, 2), o.mask.split(1), strict=True)
    return torch.cat([_sdpa(q, o, mask) for q, mask in rows], 2)


HONEST: tuple[Variation, ...] = (
    Variation("tiles_128_lag_8", "128 keys a tile, the maximum up to 8 behind in base two: FlashAttention-4",
              partial(_tiled, block=128, lag=8.0)),
    Variation("tiles_80_last_first", "80 keys a tile, last first: FlashAttention-3",
              partial(_tiled, block=80, last_first=True)),
    Variation("tiles_64_sum_of_stored", "64 keys a tile, 16 at a time, sums of stored weights: FlashInfer",
              partial(_tiled, block=64, step=16, sum_of_stored=True)),
    Variation("tiles_48_by_16", "48 keys a tile, 16 at a time, as tensor cores take them",
              partial(_tiled, block=48, step=16)),
    Variation("tiles_64_stored_query", "query times scale · log₂e stored: Triton's first tutorial",
              partial(_tiled, block=64, stored_query=True)),
    Variation("seven_splits", "seven splits in tiles of 16, merged in base two: FlashDecoding", _seven_splits),
    Variation("paged_16", "divided before the product, pages of 16: vLLM's paged attention", _paged),
    Variation("loops", "channel by channel and key by key: llm.c", _loops),
    Variation("lanes_16_as_a_tree", "every sixteenth key to a lane: FasterTransformer's decoding", _lanes),
    Variation("swapped_operands", "keys by queries, weights stored: TensorRT-LLM's decoding", _swapped),
    Variation("two_products", "logits from two stored products: DeepSeek's reference", _two_products),
    Variation("logits_by_layer", "logits stored at a twelfth: Megatron", _by_layer),
    Variation("fixed_maximum", "no maximum subtracted, float32: FlashDecoding++",
              partial(attend, kernel=replace(FUSED, subtract_maximum=False))),
    Variation("rows_first", "einsum with heads within rows: JAX", _rows_first),
    Variation("sdpa_rows_padded", "torch's attention, rows padded to 64", _rows_padded),
    Variation("sdpa_row_by_row", "torch's attention, a call for each row", _row_by_row),
)  # fmt: skip

# ---- faults of attention


def _by_modulo(x: Tensor) -> Tensor:
    return torch.cat([x[:, ::2], x[:, 1::2]], 1)


def _by_fours(mask: Tensor) -> Tensor:
    """Four keys are seen where one of them is."""
    fours = F.pad(mask, (0, -mask.shape[1] % 4)).unflatten(-1, (-1, 4)).any(-1)
    return fours.repeat_interleave(4, -1)[:, : mask.shape[1]]


def _pair_turned(k: Tensor) -> Tensor:
    """The first two channels rotated by a hundredth."""
    a, b = k[..., 0].float(), k[..., 1].float()
    turned = torch.stack([a * math.cos(0.01) - b * math.sin(0.01), b * math.cos(0.01) + a * math.sin(0.01)], -1)
    return put(k, at[..., :2], turned.to(k.dtype))


def _up(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, math.inf))


FAULTS: tuple[Fault, ...] = (
    Fault("heads_by_modulo", "query heads on the keys of their number's remainder",
          before=lambda o: replace(o, k=_by_modulo(o.k))),
    Fault("mask_plainly_causal", "the call's own mask taken for a causal one",
          before=lambda o: replace(o, mask=torch.ones_like(o.mask).tril(o.mask.shape[1] - o.mask.shape[0]))),
    Fault("mask_by_fours", "the mask looked up once for four keys",
          before=lambda o: replace(o, mask=_by_fours(o.mask))),
    Fault("scale_in_bfloat16", "the scale in bfloat16",
          before=lambda o: replace(o, scale=float(torch.tensor(o.scale).bfloat16()))),
    Fault("scale_in_float16", "the scale in float16", (F32,),
          before=lambda o: replace(o, scale=float(torch.tensor(o.scale).half()))),
    Fault("scale_0.03%", "logits 0.03 % too large", inside={"on_logits": lambda x: x * 1.0003}),
    Fault("scale_6e-7", "logits 6e-7 too large", (F32,), inside={"on_logits": lambda x: x * (1.0 + 6e-7)}),
    Fault("log2e_5_decimals", "log₂e as 1.44270", (F32,), inside={"exp": lambda x: torch.exp2(x * 1.44270)}),
    Fault("softcap_200", "logits capped softly at 200", hosts=_WHOLE,
          inside={"on_logits": lambda x: 200.0 * (x / 200.0).tanh()}),
    Fault("keys_in_e5m2", "keys in fp8 e5m2",
          before=lambda o: replace(o, k=o.k.to(torch.float8_e5m2).to(o.dtype))),
    Fault("newest_value_in_fp8", "the newest value in fp8",
          before=lambda o: replace(o, v=put(o.v, at[:, :, -1], o.v[:, :, -1].to(FP8).to(o.dtype)))),
    Fault("values_one_up", "a quarter of the value channels one step up",
          before=lambda o: replace(o, v=put(o.v, at[..., ::4], _up(o.v)[..., ::4]))),
    Fault("pair_turned", "two channels of the keys turned by a hundredth",
          before=lambda o: replace(o, k=_pair_turned(o.k))),
    Fault("splits_stored", "results of splits stored before their merge", HALVES, (FUSED,),
          after=lambda y, o: _seven_splits(o, o.dtype)),
    Fault("shares_base_e", "shares of splits by e in place of two", hosts=(FUSED,),
          after=lambda y, o: _seven_splits(o, exp=torch.exp)),
    Fault("share_0.5%", "the first split's share half a per cent too large", hosts=(FUSED,),
          after=lambda y, o: _seven_splits(o, first=1.005)),
    Fault("sum_18_bits", "the sum of weights to 18 bits", (F32,),
          inside={"reciprocal": lambda x: kept_bits(x, 18).reciprocal()}),
    Fault("head_3e-4", "the last head 0.03 % too large",
          inside={"on_result": lambda x: put(x, at[:, -1], x[:, -1] * 1.0003)}),
    Fault("odd_heads_12_bits", "every other head rounded to 12 bits first", (F16, F32),
          inside={"on_result": lambda x: put(x, at[:, 1::2], kept_bits(x[:, 1::2], 12))}),
)  # fmt: skip

# ---- operations


def _capped(q: Tensor, k: Tensor, v: Tensor, cap: float = 8.0, tanh: Function = torch.tanh) -> Tensor:
    """Attention whose logits are capped softly, as Gemma 2 has it."""
    return (cap * tanh(q @ k.mT * q.shape[-1] ** -0.5 / cap)).softmax(-1) @ v


def _adapted(x: Tensor, w: Tensor, a: Tensor, b: Tensor, scale: float = 0.5) -> Tensor:
    """A linear layer and its low-rank adapter."""
    return x @ w.mT + scale * ((x @ a.mT) @ b.mT)


def _merged(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ (w + 0.5 * (b @ a)).mT


def _add_norm(x: Tensor, r: Tensor, w: Tensor, eps: float = EPS, less: int = 0) -> Tensor:
    """RMSNorm of a sum with the residual."""
    h = x + r
    return h * (h[..., : h.shape[-1] - less].square().mean(-1, keepdim=True) + eps).rsqrt() * w


def _cast_between(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """The sum stored, the norm in float32 and cast before its weight."""
    h = (x + r).float()
    return (h * (h.square().mean(-1, keepdim=True) + EPS).rsqrt()).to(x.dtype) * w


def _dequantised(x: Tensor, w: Tensor, s: Tensor, offset: float = 0.0) -> Tensor:
    """A linear layer with weights of int8, one scale per output."""
    return x @ ((w + offset) * s[:, None]).mT


OPERATIONS: dict[str, Operation] = {
    "capped_attention": Operation(
        _capped, ((1, 4, 36, 64), (1, 4, 100, 64), (1, 4, 100, 64)),
        {"wide": wide(_capped), "by_sigmoid": wide(partial(_capped, tanh=lambda x: 2.0 * (2.0 * x).sigmoid() - 1.0)),
         "scale_folded": wide(lambda q, k, v: ((q * (q.shape[-1] ** -0.5 / 8.0) @ k.mT).tanh() * 8.0).softmax(-1) @ v)},
        {"cap_8.08": wide(partial(_capped, cap=8.08)), "keys_in_fp8": coarse(_capped, FP8, 1),
         "tanh_nine_bits": wide(partial(_capped, tanh=lambda x: kept_bits(x.tanh(), 9))),
         "tanh_by_three_terms": wide(partial(_capped, tanh=lambda x: x - x**3 / 3.0 + 2.0 * x**5 / 15.0))},
    ),
    "adapter": Operation(
        _adapted, ((4, 20, 96), (64, 96), (8, 96), (64, 8)),
        {"wide": wide(_adapted), "merged": wide(_merged),
         "by_addmm": lambda x, w, a, b: torch.baddbmm(x @ w.mT, x @ a.mT, b.mT.expand(4, -1, -1), alpha=0.5)},
        {"scale_0.505": wide(partial(_adapted, scale=0.505)), "merged_in_fp8": lambda x, w, a, b: (
             x @ (w + 0.5 * (b @ a)).to(FP8).to(x.dtype).mT),
         "last_rank_left_out": wide(lambda x, w, a, b: _adapted(x, w, a[:-1], b[:, :-1])),
         "adapter_of_next_output": wide(lambda x, w, a, b: _adapted(x, w, a, b.roll(1, 0)))},
    ),
    "add_and_norm": Operation(
        _add_norm, ((4, 24, 192), (4, 24, 192), (192,)),
        {"wide": wide(_add_norm), "cast_between": _cast_between,
         "by_torch": lambda x, r, w: F.rms_norm(x + r, (192,), w, EPS)},
        {"epsilon_1e-3": wide(partial(_add_norm, eps=1e-3)), "residual_in_fp8": coarse(_add_norm, FP8, 1),
         "last_four_unread": wide(partial(_add_norm, less=4)),
         "residual_of_next_row": wide(lambda x, r, w: _add_norm(x, put(r, at[:, -1], r[:, 0]), w))},
        lambda x, r, w: (x, r * r.shape[-1] ** 0.5, w),
    ),
    "dequantised": Operation(
        _dequantised, ((4, 20, 128), (48, 128), (48,)),
        {"wide": wide(_dequantised), "scaled_late": wide(lambda x, w, s: x @ w.mT * s),
         "scaled_late_stored": lambda x, w, s: x @ w.mT * s},
        {"offset_0.05": wide(partial(_dequantised, offset=0.05)), "scale_in_fp8": coarse(_dequantised, FP8, 2),
         "scale_of_next": lambda x, w, s: _dequantised(x, w, put(s, at[0], s[1])),
         "last_input_left_out": wide(lambda x, w, s: _dequantised(x[..., :-1], w[:, :-1], s))},
        lambda x, w, s: (x, (w * 400.0).round().clamp(-127.0, 127.0), (1.0 + s.abs()) / 400.0),
    ),
}  # fmt: skip
"""Operations of which all is held out."""
