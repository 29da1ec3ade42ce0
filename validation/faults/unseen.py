"""The fifth held-out part: honest variations, faults and operations on `.families.UNSEEN`.

Written by someone who knew the judge, before any of its rules was changed for the fourth part, and committed before any
was scored on it. Strengths were set without looking.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.faults.catalog import F16, F32, HALVES, Fault, at, put
from validation.faults.families import Operands
from validation.faults.honest import Variation
from validation.faults.kernels import FLASH, FUSED, PLAIN, Function, attend, kept_bits
from validation.faults.operations import Operation, coarse, wide
from validation.faults.shapes import LOG2_E

FP8 = torch.float8_e4m3fn
_WHOLE = (PLAIN, FUSED)

# ---- honest attention


def _logits(o: Operands, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Scaled and masked logits in a dtype."""
    return (o.q.to(dtype) @ o.k.to(dtype).mT * (o.scale * scale)).masked_fill(~o.mask, -math.inf)


def _base_two(o: Operands) -> Tensor:
    """As Triton's tutorial has it: logits times scale · log₂e, exp2, 32 keys a block, stored weights."""
    logits, v = _logits(o, scale=LOG2_E), o.v.float()
    top, total = torch.full((*logits.shape[:3], 1), -math.inf), torch.zeros(*logits.shape[:3], 1)
    result = torch.zeros_like(o.q, dtype=torch.float32)
    for keys in torch.arange(o.k.shape[2]).split(32):
        newest = torch.maximum(top, logits[..., keys].amax(-1, keepdim=True))
        shift = newest.nan_to_num(neginf=0.0)
        weights, fade = (logits[..., keys] - shift).exp2(), (top - shift).exp2()
        total = total * fade + weights.sum(-1, keepdim=True)
        result = result * fade + weights.to(o.dtype).float() @ v[:, :, keys]
        top = newest
    return (result / total).to(o.dtype)


def _part(o: Operands, keys: slice) -> tuple[Tensor, Tensor]:
    """Attention on some of the keys in float32, and the logarithm of its sum; nothing where a row sees none."""
    logits = _logits(replace(o, k=o.k[:, :, keys], mask=o.mask[:, keys]))
    weights, total = logits.softmax(-1).nan_to_num(0.0), logits.logsumexp(-1, keepdim=True)
    return weights @ o.v[:, :, keys].float(), total.nan_to_num(neginf=-1e30)


def _ring(o: Operands) -> Tensor:
    """Four parts of the keys in turn, from the second on, each mixed in by the sigmoid of how its sum compares."""
    quarter = -(-o.k.shape[2] // 4)
    result, total = _part(o, slice(quarter, 2 * quarter))
    for first in (2, 3, 0):
        more, its = _part(o, slice(first * quarter, (first + 1) * quarter))
        result = result - torch.sigmoid(its - total) * (result - more)
        total = torch.logaddexp(total, its)
    return result.to(o.dtype)


def _cascade(o: Operands, stored: torch.dtype = torch.float32) -> Tensor:
    """A quarter of the keys and the rest apart, merged by their sums' logarithms, base two."""
    cut = o.k.shape[2] // 4
    (a, s), (b, t) = _part(o, slice(cut)), _part(o, slice(cut, None))
    top = torch.maximum(s, t) * LOG2_E
    x, y = ((one * LOG2_E - top).exp2().to(stored).float() for one in (s, t))
    return ((a * x + b * y) / (x + y)).to(o.dtype)


def _centred(o: Operands) -> Tensor:
    """Each head's mean key taken from its keys, which moves all of a row's logits alike."""
    k = o.k.float()
    logits = (o.q.float() @ (k - k.mean(2, keepdim=True)).mT * o.scale).masked_fill(~o.mask, -math.inf)
    return (logits.softmax(-1) @ o.v.float()).to(o.dtype)


def _sum_of_stored(o: Operands) -> Tensor:
    """The sum by a column of ones beside the values, so of weights as they are stored."""
    logits = _logits(o)
    weights = (logits - logits.amax(-1, keepdim=True)).exp().to(o.dtype).float()
    result = weights @ F.pad(o.v.float(), (0, 1), value=1.0)
    return (result[..., :-1] / result[..., -1:]).to(o.dtype)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _shuffled(o: Operands) -> Tensor:
    order = torch.randperm(o.k.shape[2], generator=o.generator(83))
    return _sdpa(o.q, o.k[:, :, order], o.v[:, :, order], o.mask[:, order], o.scale)


def _packed(o: Operands) -> Tensor:
    k, v = torch.stack([o.k, o.v], 3).unbind(3)
    return _sdpa(o.q, k, v, o.mask, o.scale)


HONEST: tuple[Variation, ...] = (
    Variation("base_two_32", "online softmax, base two from the product on, 32 keys a block", _base_two),
    Variation("one_key_at_a_time", "online softmax key by key, float32 weights, as llama.cpp on a CPU",
              partial(attend, kernel=replace(FLASH, block=1, weights="wide"))),
    Variation("ring_4", "four parts in turn, mixed in by a sigmoid", _ring),
    Variation("cascade_base_two", "a shared quarter and the rest, merged in base two", _cascade),
    Variation("keys_centred", "keys less their mean, float32", _centred),
    Variation("sum_of_stored", "stored weights, the sum by a column of ones", _sum_of_stored),
    Variation("scaled_key", "eager in the dtype, scale on the stored key",
              lambda o: (o.q @ (o.k * o.scale).mT).masked_fill(~o.mask, -math.inf).softmax(-1) @ o.v),
    Variation("float64_softmax", "eager in the dtype, softmax in float64",
              lambda o: _logits(o, o.dtype).double().softmax(-1).to(o.dtype) @ o.v),
    Variation("turned_round", "eager in the dtype, keys by queries, softmax down the columns",
              lambda o: (o.v.mT @ (o.k @ o.q.mT * o.scale).masked_fill(~o.mask.mT, -math.inf).softmax(-2)).mT),
    Variation("sdpa_shuffled", "torch's attention, keys shuffled", _shuffled),
    Variation("sdpa_rows_reversed", "torch's attention, rows from the last to the first",
              lambda o: _sdpa(o.q.flip(2), o.k, o.v, o.mask.flip(0), o.scale).flip(2)),
    Variation("sdpa_packed", "torch's attention, keys and values interleaved in memory", _packed),
)  # fmt: skip

# ---- faults of attention


def _own(name: str, change: Function) -> Callable[[Operands], Operands]:
    """An operand changed in float32, and stored again."""

    def plant(o: Operands) -> Operands:
        changes: dict[str, Any] = {name: change(getattr(o, name).float()).to(o.dtype)}
        return replace(o, **changes)

    return plant


def _step(x: Tensor) -> Tensor:
    return x.abs().amax((-1, -2), keepdim=True) / 127.0


def _leaky(o: Operands) -> Tensor:
    """The mask as −12 added."""
    logits = o.q.float() @ o.k.float().mT * o.scale - 12.0 * ~o.mask
    return (logits.softmax(-1) @ o.v.float()).to(o.dtype)


def _upper_half(change: Function) -> Function:
    return lambda x: torch.cat([x[..., : x.shape[-1] // 2], change(x[..., x.shape[-1] // 2 :])], -1)


FAULTS: tuple[Fault, ...] = (
    Fault("newest_value_stale", "the newest key with the value before it",
          before=_own("v", lambda v: put(v, at[:, :, -1], v[:, :, -2]))),
    Fault("values_zero_point", "half an int8 step added to all values", before=_own("v", lambda v: v + 0.5 * _step(v))),
    Fault("value_step_2^-9", "one head's values 2⁻⁹ too large",
          before=_own("v", lambda v: put(v, at[:, 0], v[:, 0] * (1.0 + 2.0**-9)))),
    Fault("keys_exchanged", "two neighbours' keys exchanged, not their values",
          before=_own("k", lambda k: put(k, at[:, :, 6:8], k[:, :, 6:8].flip(2)))),
    Fault("later_keys_0.2%", "logits of the later half of the keys 0.2 % too large", hosts=_WHOLE,
          inside={"on_logits": _upper_half(lambda x: x * 1.002)}),
    Fault("later_keys_2e-6", "the same, 2e-6", (F32,), _WHOLE, {"on_logits": _upper_half(lambda x: x * (1.0 + 2e-6))}),
    Fault("logits_ten_bits", "scaled logits to ten bits", (F16, F32), _WHOLE,
          {"on_logits": lambda x: kept_bits(x, 10)}),
    Fault("logits_20_bits", "scaled logits to 20 bits", (F32,), _WHOLE, {"on_logits": lambda x: kept_bits(x, 20)}),
    Fault("gain_2^-12", "output 2⁻¹² too large", HALVES, inside={"on_result": lambda x: x * (1.0 + 2.0**-12)}),
    Fault("gain_4e-7", "output 4e-7 too large", (F32,), inside={"on_result": lambda x: x * (1.0 + 4e-7)}),
    Fault("rounded_at_13_bits_first", "output rounded twice", (F16,), inside={"on_result": lambda x: kept_bits(x, 13)}),
    Fault("cascade_in_half", "two parts' shares stored in the dtype", HALVES, (FUSED,),
          after=lambda y, o: _cascade(o, o.dtype)),
    Fault("mask_of_minus_12", "masked keys get in by e⁻¹²", hosts=(FUSED,), after=lambda y, o: _leaky(o)),
    Fault("upper_channels_in_bfloat16", "the upper half of the value channels in bfloat16", (F16, F32),
          before=_own("v", _upper_half(lambda x: x.bfloat16().float()))),
    Fault("rows_nudged", "every eighth row one step up",
          after=lambda y, o: put(y, at[:, :, ::8], torch.nextafter(y, torch.full_like(y, math.inf))[:, :, ::8])),
    Fault("head_0.5%_of_next", "half a per cent of the next head in one head",
          inside={"on_result": lambda x: put(x, at[:, 0], x[:, 0] + 5e-3 * x[:, 1])}),
)  # fmt: skip

# ---- operations


def _mish(x: Tensor, threshold: float = 20.0, tanh: Function = torch.tanh) -> Tensor:
    return x * tanh(F.softplus(x, threshold=threshold))


def _by_ratio(x: Tensor) -> Tensor:
    e = x.clamp_max(20.0).exp()
    return x * (e * (e + 2.0)) / (e * (e + 2.0) + 2.0)


def _picked(x: Tensor) -> Tensor:
    """One class for each row."""
    rows = torch.arange(x.shape[1])
    return x[:, rows, rows * 3 % x.shape[2]]


def _cross_entropy(x: Tensor) -> Tensor:
    return -_picked(x.log_softmax(-1))


def _loss_of_torch(x: Tensor, smoothing: float = 0.0) -> Tensor:
    classes = (torch.arange(x.shape[1]) * 3 % x.shape[2]).repeat(len(x))
    return F.cross_entropy(x.flatten(0, 1), classes, reduction="none", label_smoothing=smoothing).view(x.shape[:2])


def _unit(x: Tensor, norm: Function = lambda x: x.norm(dim=-1, keepdim=True)) -> Tensor:
    return x / norm(x)


def _upsampled(x: Tensor, near: float = 0.75) -> Tensor:
    """Twice as many samples, straight lines between, as torch's linear interpolation."""
    before, behind = torch.cat([x[..., :1], x[..., :-1]], -1), torch.cat([x[..., 1:], x[..., -1:]], -1)
    return torch.stack([(1.0 - near) * before + near * x, near * x + (1.0 - near) * behind], -1).flatten(-2)


def _by_difference(x: Tensor) -> Tensor:
    before, behind = torch.cat([x[..., :1], x[..., :-1]], -1), torch.cat([x[..., 1:], x[..., -1:]], -1)
    return torch.stack([x + 0.25 * (before - x), x + 0.25 * (behind - x)], -1).flatten(-2)


def _smoothed(x: Tensor, decay: float = 0.9, change: Function = lambda y: y) -> Tensor:
    """An exponential moving average along the last axis, step by step."""
    state, found = torch.zeros_like(x[..., 0]), []
    for step in x.unbind(-1):
        state = change(decay * state + (1.0 - decay) * step)
        found.append(state)
    return torch.stack(found, -1)


def _smoothed_at_once(x: Tensor, decay: float = 0.9) -> Tensor:
    late = torch.arange(x.shape[-1]) - torch.arange(x.shape[-1])[:, None]
    return x @ ((1.0 - decay) * decay ** late.clamp_min(0) * (late >= 0))


def _smoothed_in_blocks(x: Tensor, lost: float = 0.0) -> Tensor:
    state, found = torch.zeros_like(x[..., :1]), []
    for part in x.split(16, -1):
        found.append(_smoothed_at_once(part) + state * 0.9 ** torch.arange(1, part.shape[-1] + 1))
        state = found[-1][..., -1:] * (1.0 - lost)
    return torch.cat(found, -1)


OPERATIONS: dict[str, Operation] = {
    "mish": Operation(
        _mish, ((4, 32, 96),),
        {"wide": wide(_mish), "by_torch": F.mish, "by_ratio": wide(_by_ratio)},
        {"threshold_3": wide(partial(_mish, threshold=3.0)), "input_in_fp8": coarse(_mish, FP8),
         "tanh_nine_bits": wide(partial(_mish, tanh=lambda x: kept_bits(x.tanh(), 9))),
         "gain_0.1%": wide(lambda x: _mish(x) * 1.001)},
    ),
    "cross_entropy": Operation(
        _cross_entropy, ((6, 40, 120),),
        {"wide": wide(_cross_entropy), "by_torch": _loss_of_torch,
         "by_logsumexp": wide(lambda x: x.logsumexp(-1) - _picked(x))},
        {"smoothing_1e-3": wide(partial(_loss_of_torch, smoothing=1e-3)),
         "last_class_not_in_sum": wide(lambda x: x[..., :-1].logsumexp(-1) - _picked(x)),
         "logits_in_fp8": coarse(_cross_entropy, FP8),
         "ln2_4_decimals": wide(lambda x: (x.exp().sum(-1).log2() * 0.6931) - _picked(x))},
    ),
    "unit_norm": Operation(
        _unit, ((4, 40, 144),),
        {"wide": wide(_unit), "by_torch": partial(F.normalize, dim=-1),
         "by_rsqrt": wide(lambda x: x * x.square().sum(-1, keepdim=True).rsqrt()),
         "by_largest": wide(lambda x: _unit(x / x.abs().amax(-1, keepdim=True)))},
        {"epsilon_1e-2": wide(lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-2)),
         "without_last_channel": wide(partial(_unit, norm=lambda x: x[..., :-1].norm(dim=-1, keepdim=True))),
         "norm_nine_bits": wide(partial(_unit, norm=lambda x: kept_bits(x.norm(dim=-1, keepdim=True), 9))),
         "input_in_fp8": coarse(_unit, FP8)},
    ),
    "upsample": Operation(
        _upsampled, ((4, 24, 50),),
        {"wide": wide(_upsampled), "by_difference": wide(_by_difference),
         "by_torch": wide(lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"))},
        {"corners": wide(lambda x: F.interpolate(x, scale_factor=2.0, mode="linear", align_corners=True)),
         "near_0.7505": wide(partial(_upsampled, near=0.7505)), "input_in_fp8": coarse(_upsampled, FP8),
         "last_sample_zero": wide(lambda x: put(_upsampled(x), at[..., -1], 0.0))},
    ),
    "moving_average": Operation(
        _smoothed, ((2, 24, 48),),
        {"wide": wide(_smoothed), "at_once": wide(_smoothed_at_once), "in_blocks": wide(_smoothed_in_blocks)},
        {"decay_0.899": wide(partial(_smoothed, decay=0.899)), "input_in_fp8": coarse(_smoothed, FP8),
         "border_0.5%_lost": wide(partial(_smoothed_in_blocks, lost=5e-3)),
         "state_nine_bits": wide(partial(_smoothed, change=lambda y: kept_bits(y, 9)))},
    ),
}  # fmt: skip
"""Operations of which all is held out."""
