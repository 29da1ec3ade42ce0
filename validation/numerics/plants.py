"""What a fault does to operands, to functions inside the kernel, or to the output.

Conventions: three kinds of function, by what they take. On operands: ``Operands → Operands``, of which the kernel then
computes correctly. Inside: ``Tensor → Tensor`` in float32, a field of :class:`~.attention_impls.Kernel`. On the output:
``(Tensor, Operands) → Tensor``, in the operands' dtype. Places (a key, a head, a row) are drawn from the operands'
seed. Numbers that a fault writes are rounded to the operands' dtype, as they would be stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from validation.numerics.attention_impls import Function, kept_bits, stored
from validation.numerics.families import Operands, sample

OnOperands = Callable[[Operands], Operands]
OnOutput = Callable[[Tensor, Operands], Tensor]

_STALE = 500  # seeds away: what an earlier call left behind
_LOG2_E = math.log2(math.e)


def pick(operands: Operands, count: int, *, salt: int) -> int:
    """Draw one of `count` places."""
    return int(torch.randint(count, (1,), generator=operands.generator(salt)))


def visible_key(operands: Operands) -> int:
    """A key that every row sees."""
    rows, keys = operands.mask.shape
    return pick(operands, keys - rows + 1, salt=11)


def another_call(operands: Operands) -> Operands:
    """What an earlier call was given: the same shapes, another seed."""
    rows, keys = operands.mask.shape
    return sample(operands.family, seed=operands.seed + _STALE, dtype=operands.dtype, rows=rows, keys=keys)


# ---- on operands


def drop_key(operands: Operands) -> Operands:
    """Leave one key out of every row."""
    mask = operands.mask.clone()
    mask[:, visible_key(operands)] = False
    return replace(operands, mask=mask)


def double_key(operands: Operands) -> Operands:
    """Let one key attend twice."""
    at = visible_key(operands)
    k, v, mask = (torch.cat([t, t[..., at : at + 1, :]], -2) for t in (operands.k, operands.v, operands.mask.mT))
    return replace(operands, k=k, v=v, mask=mask.mT)


def shift_mask(operands: Operands, *, by: int) -> Operands:
    """Let each row see `by` keys more of the future, or fewer of the past."""
    rows, keys = operands.mask.shape
    return replace(operands, mask=torch.ones_like(operands.mask).tril(diagonal=keys - rows + by))


def leak_one(operands: Operands) -> Operands:
    """Let one row see the one key that follows it."""
    rows, keys = operands.mask.shape
    row, mask = pick(operands, rows - 1, salt=12), operands.mask.clone()
    mask[row, keys - rows + row + 1] = True
    return replace(operands, mask=mask)


def skip_tail(operands: Operands, *, keys: int) -> Operands:
    """Leave the newest `keys` keys out: the last, partly filled block of a loop."""
    mask = operands.mask.clone()
    mask[:, -keys:] = False
    return replace(operands, mask=mask)


def stale_slot(operands: Operands, *, parts: str = "kv") -> Operands:
    """Find what an earlier call left in one cache slot: its key (``"k"``), value (``"v"``) or both."""
    at, other = visible_key(operands), another_call(operands)
    k, v = operands.k.clone(), operands.v.clone()
    if "k" in parts:
        k[:, :, at] = other.k[:, :, at]
    if "v" in parts:
        v[:, :, at] = other.v[:, :, at]
    return replace(operands, k=k, v=v)


def stale_head(operands: Operands) -> Operands:
    """Find another call's keys and values in one head."""
    head, other = pick(operands, operands.k.shape[1], salt=13), another_call(operands)
    k, v = operands.k.clone(), operands.v.clone()
    k[:, head], v[:, head] = other.k[:, head], other.v[:, head]
    return replace(operands, k=k, v=v)


def swap_key_and_value(operands: Operands) -> Operands:
    """Exchange key and value of one slot."""
    at, k, v = visible_key(operands), operands.k.clone(), operands.v.clone()
    k[:, :, at], v[:, :, at] = operands.v[:, :, at], operands.k[:, :, at]
    return replace(operands, k=k, v=v)


def late_values(operands: Operands) -> Operands:
    """Read each key's value one slot late."""
    return replace(operands, v=operands.v.roll(1, dims=2))


def wrong_value_head(operands: Operands) -> Operands:
    """Read the values of the neighbouring head in one head."""
    head, v = pick(operands, operands.v.shape[1], salt=14), operands.v.clone()
    v[:, head] = operands.v[:, head - 1]
    return replace(operands, v=v)


def padded_key(operands: Operands) -> Operands:
    """Let a zero key with a zero value attend: padding that no mask covers; it also acts as an attention sink."""
    k, v = (torch.cat([t, torch.zeros_like(t[:, :, :1])], 2) for t in (operands.k, operands.v))
    return replace(operands, k=k, v=v, mask=torch.cat([operands.mask, torch.ones_like(operands.mask[:, :1])], 1))


def scale_times(operands: Operands, *, factor: float) -> Operands:
    """Scale the logits by `factor` too much."""
    return replace(operands, scale=operands.scale * factor)


def no_scale(operands: Operands) -> Operands:
    """Leave 1/√d out."""
    return replace(operands, scale=1.0)


def no_scale_in_a_head(operands: Operands) -> Operands:
    """Leave 1/√d out in the last head."""
    q = operands.q.clone()
    q[:, -1] /= operands.scale
    return replace(operands, q=q)


def store_as(operands: Operands, *, how: str, parts: str) -> Operands:
    """Store query, key or value (`parts` of ``"qkv"``) as :func:`~.attention_impls.stored` does."""

    def through(name: str, x: Tensor) -> Tensor:
        return stored(x.float(), how, operands.dtype).to(operands.dtype) if name in parts else x

    return replace(operands, q=through("q", operands.q), k=through("k", operands.k), v=through("v", operands.v))


def _rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the halves of the channels; `angle` is (rows, D/2)."""
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


def _frequencies(width: int) -> Tensor:
    return 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def rope_off_by_one(operands: Operands) -> Operands:
    """Rotate queries by one position too many."""
    return replace(operands, q=_rotated(operands.q, _frequencies(operands.q.shape[-1])[None, :]))


def rope_in_bfloat16(operands: Operands) -> Operands:
    """Rotate keys, from position 200 on, by angles that were computed in bfloat16."""
    position = 200.0 + torch.arange(operands.k.shape[2], dtype=torch.float64)[:, None]
    exact = position * _frequencies(operands.k.shape[-1])
    coarse = (position.bfloat16() * _frequencies(operands.k.shape[-1]).bfloat16()).double()
    return replace(operands, k=_rotated(operands.k, coarse - exact))


def nan_in_value(operands: Operands) -> Operands:
    """Put a NaN into one channel of one value: the call's own input, not a fault."""
    v = operands.v.clone()
    v[0, 0, visible_key(operands), pick(operands, v.shape[-1], salt=15)] = math.nan
    return replace(operands, v=v)


# ---- inside the kernel


def gain(factor: float) -> Function:
    """Multiply."""
    return lambda x: x * factor


def offset(of_rms: float) -> Function:
    """Add a part of the tensor's own RMS."""
    return lambda x: x + of_rms * x.square().mean().sqrt()


def clip_at(limit: float) -> Function:
    """Clip at ±limit; minus infinity, which is the mask's, comes later."""
    return lambda x: x.clamp(-limit, limit)


def softcap_at(limit: float) -> Function:
    """limit·tanh(x/limit): a cap that belongs to another model."""
    return lambda x: limit * (x / limit).tanh()


def skip_small(threshold: float) -> Function:
    """Return exp with results under `threshold` of the row's largest set to zero."""

    def small_to_zero(x: Tensor) -> Tensor:
        result = x.exp()
        return torch.where(result < threshold, 0.0, result)

    return small_to_zero


def exp_polynomial(*coefficients: float) -> Function:
    """2**whole · p(fraction), with p's coefficients from the constant up."""

    def approximate(x: Tensor) -> Tensor:
        power = (x * _LOG2_E).clamp(-126.0, 126.0)
        whole = power.floor()
        result = torch.zeros_like(x)
        for coefficient in reversed(coefficients):
            result = result * (power - whole) + coefficient
        return torch.where(x == -math.inf, 0.0, torch.ldexp(result, whole.int()))

    return approximate


def exp_schraudolph(x: Tensor) -> Tensor:
    """Exp by writing into the exponent's bits: a straight line between powers of two, up to 6 % too large."""
    bits = ((x * _LOG2_E).clamp(-126.0, 126.0) + 127.0) * 2.0**23
    return torch.where(x == -math.inf, 0.0, bits.to(torch.int32).view(torch.float32))


def exp_with_log2_e(constant: float) -> Function:
    """exp2(x·constant), the constant log₂e rounded too coarsely."""
    return lambda x: torch.exp2(x * constant)


def reciprocal_of(bits: int) -> Function:
    """Reciprocal to `bits` significant bits, without the Newton step that should follow."""
    return lambda x: kept_bits(x.reciprocal(), bits)


def guarded_reciprocal(epsilon: float) -> Function:
    """1/(x + epsilon): a guard against zero that is not negligible."""
    return lambda x: (x + epsilon).reciprocal()


# ---- on the output


def zeros(output: Tensor, operands: Operands) -> Tensor:
    """Nothing written."""
    return torch.zeros_like(output)


def nan_to_zero(output: Tensor, operands: Operands) -> Tensor:
    """NaN replaced by zero."""
    return output.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)


def last_row_left_out(output: Tensor, operands: Operands) -> Tensor:
    """The last row never written: zeros."""
    result = output.clone()
    result[:, :, -1] = 0.0
    return result


def last_row_repeated(output: Tensor, operands: Operands) -> Tensor:
    """The row before the last written in its place too."""
    result = output.clone()
    result[:, :, -1] = output[:, :, -2]
    return result


def tile_left_out(output: Tensor, operands: Operands) -> Tensor:
    """One tile of 8 × 8 in one head never written: zeros."""
    result, at = output.clone(), 8 * pick(operands, output.shape[2] // 8, salt=16)
    result[:, pick(operands, output.shape[1], salt=17), at : at + 8, :8] = 0.0
    return result


def tile_transposed(output: Tensor, operands: Operands) -> Tensor:
    """One tile of 8 × 8 in one head written transposed."""
    result, at = output.clone(), 8 * pick(operands, output.shape[2] // 8, salt=16)
    head = pick(operands, output.shape[1], salt=17)
    result[:, head, at : at + 8, :8] = output[:, head, at : at + 8, :8].mT
    return result


def heads_swapped(output: Tensor, operands: Operands) -> Tensor:
    """Two neighbouring heads exchanged."""
    result = output.clone()
    result[:, 0], result[:, 1] = output[:, 1], output[:, 0]
    return result


def channels_swapped(output: Tensor, operands: Operands) -> Tensor:
    """Two neighbouring channels of one head exchanged."""
    result, head = output.clone(), pick(operands, output.shape[1], salt=17)
    result[:, head, :, 0], result[:, head, :, 1] = output[:, head, :, 1], output[:, head, :, 0]
    return result


def channel_gain(output: Tensor, operands: Operands, *, factor: float) -> Tensor:
    """One channel of one head multiplied."""
    result, head = output.clone(), pick(operands, output.shape[1], salt=17)
    result[:, head, :, pick(operands, output.shape[3], salt=18)] *= factor
    return result


def flipped_bit(output: Tensor, operands: Operands) -> Tensor:
    """The top bit of one element's fraction flipped."""
    result = output.clone().flatten()
    top = {torch.float16: 9, torch.bfloat16: 6, torch.float32: 22}[output.dtype]
    raw = result.view(torch.int32 if output.dtype is torch.float32 else torch.int16)
    raw[pick(operands, result.numel(), salt=19)] ^= 1 << top
    return result.view(output.shape)


def head_through_bfloat16(output: Tensor, operands: Operands) -> Tensor:
    """One head stored in bfloat16 on its way."""
    result, head = output.clone(), pick(operands, output.shape[1], salt=17)
    result[:, head] = output[:, head].bfloat16().to(output.dtype)
    return result
