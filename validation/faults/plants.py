"""What a fault does to operands, to functions inside the kernel, or to the output.

Three kinds of function, by what they take. On operands: ``Operands → Operands``, of which the kernel then computes
correctly. Inside: ``Tensor → Tensor`` in float32, a field of :class:`~.kernels.Kernel`. On the output:
``(Tensor, Operands) → Tensor``, in the operands' dtype. Places (a key, a head, a row) are drawn from the operands'
seed. Numbers that a fault writes are rounded to the operands' dtype, as they would be stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from validation.faults.families import Operands, sample
from validation.faults.kernels import FUSED, Function, attend, kept_bits, stored

OnOperands = Callable[[Operands], Operands]
OnOutput = Callable[[Tensor, Operands], Tensor]

_STALE = 500  # seeds away: what an earlier call left behind
_LOG2_E = math.log2(math.e)
SIGNIFICANT_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}


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


class _Slices:
    """``at[:, 3]`` is the index ``(slice(None), 3)``."""

    def __getitem__(self, index: Any) -> Any:
        return index


at = _Slices()


def put(x: Tensor, index: Any, value: Any) -> Tensor:
    """Return a copy with `value` written at `index`."""
    result = x.clone()
    result[index] = value
    return result


def _with(operands: Operands, tensors: Mapping[str, Tensor]) -> Operands:
    """Exchange query, key or value."""
    parts: dict[str, Any] = {**tensors}
    return replace(operands, **parts)


# ---- on operands


def drop_key(operands: Operands) -> Operands:
    """Leave one key out of every row."""
    return replace(operands, mask=put(operands.mask, at[:, visible_key(operands)], False))


def double_key(operands: Operands) -> Operands:
    """Let one key attend twice."""
    key = visible_key(operands)
    k, v, mask = (torch.cat([t, t[..., key : key + 1, :]], -2) for t in (operands.k, operands.v, operands.mask.mT))
    return replace(operands, k=k, v=v, mask=mask.mT)


def shift_mask(operands: Operands, *, by: int) -> Operands:
    """Let each row see `by` keys more of the future, or fewer of the past."""
    rows, keys = operands.mask.shape
    return replace(operands, mask=torch.ones_like(operands.mask).tril(diagonal=keys - rows + by))


def leak_one(operands: Operands) -> Operands:
    """Let one row see the one key that follows it."""
    rows, keys = operands.mask.shape
    row = pick(operands, rows - 1, salt=12)
    return replace(operands, mask=put(operands.mask, (row, keys - rows + row + 1), True))


def skip_tail(operands: Operands, *, keys: int) -> Operands:
    """Leave the newest `keys` keys out: the last, partly filled block of a loop."""
    return replace(operands, mask=put(operands.mask, at[:, -keys:], False))


def evict(operands: Operands, *, keys: int) -> Operands:
    """Forget the oldest keys."""
    return replace(operands, mask=put(operands.mask, at[:, :keys], False))


def dropout(operands: Operands, *, rate: float) -> Operands:
    """Leave dropout on, without its rescaling; the newest key stays."""
    drawn = torch.rand(operands.mask.shape, generator=operands.generator(31)) >= rate
    newest = operands.mask & ~operands.mask.roll(-1, 1)
    return replace(operands, mask=operands.mask & (drawn | newest))


def _from(operands: Operands, other: Operands, index: Any, parts: str = "kv") -> Operands:
    """Take key, value or both at a place from another call."""
    return _with(operands, {p: put(getattr(operands, p), index, getattr(other, p)[index]) for p in parts})


def stale_slot(operands: Operands, *, parts: str = "kv") -> Operands:
    """Find what an earlier call left in one cache slot: its key (``"k"``), value (``"v"``) or both."""
    return _from(operands, another_call(operands), at[:, :, visible_key(operands)], parts)


def stale_head(operands: Operands) -> Operands:
    """Find another call's keys and values in one head."""
    return _from(operands, another_call(operands), at[:, pick(operands, operands.k.shape[1], salt=13)])


def swap_key_and_value(operands: Operands) -> Operands:
    """Exchange key and value of one slot."""
    index = at[:, :, visible_key(operands)]
    k, v = put(operands.k, index, operands.v[index]), put(operands.v, index, operands.k[index])
    return replace(operands, k=k, v=v)


def late_values(operands: Operands) -> Operands:
    """Read each key's value one slot late."""
    return replace(operands, v=operands.v.roll(1, dims=2))


def wrong_value_head(operands: Operands) -> Operands:
    """Read the values of the neighbouring head in one head."""
    head = pick(operands, operands.v.shape[1], salt=14)
    return replace(operands, v=put(operands.v, at[:, head], operands.v[:, head - 1]))


def wrong_page(operands: Operands) -> Operands:
    """Read one slot's key and value from the slot before it."""
    slot = max(1, visible_key(operands))
    k, v = (put(x, at[:, :, slot], x[:, :, slot - 1]) for x in (operands.k, operands.v))
    return replace(operands, k=k, v=v)


def merged_keys(operands: Operands) -> Operands:
    """Replace two neighbouring keys and values by their means."""
    slot = max(1, visible_key(operands))
    index = at[:, :, slot - 1 : slot + 1]
    k, v = (put(x, index, x[index].float().mean(2, keepdim=True).to(x.dtype)) for x in (operands.k, operands.v))
    return replace(operands, k=k, v=v)


def swap_value_pages(operands: Operands) -> Operands:
    """Exchange two pages of eight values under their keys."""
    v = operands.v
    return replace(operands, v=torch.cat([v[:, :, 8:16], v[:, :, :8], v[:, :, 16:]], 2))


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
    return replace(operands, q=put(operands.q, at[:, -1], operands.q[:, -1] / operands.scale))


def store_as(operands: Operands, *, how: str, parts: str) -> Operands:
    """Store query, key or value (`parts` of ``"qkv"``) as :func:`~.kernels.stored` does."""
    through = {p: stored(getattr(operands, p).float(), how, operands.dtype).to(operands.dtype) for p in parts}
    return _with(operands, through)


def fewer_bits(operands: Operands, *, bits: int, parts: str) -> Operands:
    """Drop the last `bits` significant bits of the operands named."""
    kept = SIGNIFICANT_BITS[operands.dtype] - bits
    return _with(operands, {p: kept_bits(getattr(operands, p).float(), kept).to(operands.dtype) for p in parts})


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
    frequencies = _frequencies(operands.k.shape[-1])
    coarse = (position.bfloat16() * frequencies.bfloat16()).double()
    return replace(operands, k=_rotated(operands.k, coarse - position * frequencies))


def nan_in_value(operands: Operands) -> Operands:
    """Put a NaN into one channel of one value: the call's own input, not a fault."""
    index = (0, 0, visible_key(operands), pick(operands, operands.v.shape[-1], salt=15))
    return replace(operands, v=put(operands.v, index, math.nan))


# ---- inside the kernel


def gain(factor: float) -> Function:
    """Multiply."""
    return lambda x: x * factor


def gain_at(index: Any, factor: float) -> Function:
    """Multiply a part: a head or a row."""
    return lambda x: put(x, index, x[index] * factor)


def offset(of_rms: float) -> Function:
    """Add a part of the tensor's own RMS."""
    return lambda x: x + of_rms * x.square().mean().sqrt()


def channel_offset(of_rms: float) -> Function:
    """Add a part of the RMS to the first channel of every head."""
    return lambda x: put(x, at[..., 0], x[..., 0] + of_rms * float(x.square().mean().sqrt()))


def noise(relative: float) -> Function:
    """Multiply each element by 1 + a normal draw."""
    return lambda x: x * (1.0 + relative * torch.randn(x.shape, generator=torch.Generator().manual_seed(32)))


def leak(part: float, *, dim: int) -> Function:
    """Add a part of the row (dim 2) or channel (dim 3) before."""
    return lambda x: x + part * x.roll(1, dim)


def clip_at(limit: float) -> Function:
    """Clip at ±limit; minus infinity, which is the mask's, comes later."""
    return lambda x: x.clamp(-limit, limit)


def clip_at_rms(of_rms: float) -> Function:
    """Clip at a multiple of the RMS."""
    return lambda x: x.clamp(-of_rms * float(x.square().mean().sqrt()), of_rms * float(x.square().mean().sqrt()))


def small_to_zero(of_rms: float) -> Function:
    """Set what is small against the RMS to zero."""
    return lambda x: torch.where(x.abs() < of_rms * x.square().mean().sqrt(), 0.0, x)


def softcap_at(limit: float) -> Function:
    """limit·tanh(x/limit): a cap that belongs to another model."""
    return lambda x: limit * (x / limit).tanh()


def position_bias(slope: float) -> Function:
    """Add slope × position to the logits: a bias that belongs to another model."""
    return lambda x: x + slope * torch.arange(x.shape[-1], dtype=torch.float32)


def skip_small(threshold: float) -> Function:
    """Return exp with results under `threshold` of the row's largest set to zero."""
    return lambda x: torch.where(x.exp() < threshold, 0.0, x.exp())


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


def exp_by_powers(x: Tensor) -> Tensor:
    """(1 + x/1024)¹⁰²⁴, which is below exp by x²/2048."""
    return (1.0 + x / 1024.0).clamp_min(0.0) ** 1024.0


def exp_floored(x: Tensor) -> Tensor:
    """Weights never below e⁻¹⁰, but for masked ones."""
    return torch.where(x == -math.inf, 0.0, x.clamp_min(-10.0).exp())


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
    return put(output, at[:, :, -1], 0.0)


def last_row_repeated(output: Tensor, operands: Operands) -> Tensor:
    """The row before the last written in its place too."""
    return put(output, at[:, :, -1], output[:, :, -2])


def _tile(output: Tensor, operands: Operands) -> Any:
    """The place of one tile of 8 × 8 in one head."""
    row = 8 * pick(operands, output.shape[2] // 8, salt=16)
    return at[:, pick(operands, output.shape[1], salt=17), row : row + 8, :8]


def tile_left_out(output: Tensor, operands: Operands) -> Tensor:
    """One tile never written: zeros."""
    return put(output, _tile(output, operands), 0.0)


def tile_transposed(output: Tensor, operands: Operands) -> Tensor:
    """One tile written transposed."""
    index = _tile(output, operands)
    return put(output, index, output[index].mT)


def heads_swapped(output: Tensor, operands: Operands) -> Tensor:
    """Two neighbouring heads exchanged."""
    return torch.cat([output[:, 1:2], output[:, :1], output[:, 2:]], 1)


def channels_swapped(output: Tensor, operands: Operands) -> Tensor:
    """Two neighbouring channels of one head exchanged."""
    head = pick(operands, output.shape[1], salt=17)
    return put(output, at[:, head, :, :2], output[:, head, :, :2].flip(-1))


def channel_gain(output: Tensor, operands: Operands, *, factor: float) -> Tensor:
    """One channel of one head multiplied."""
    index = at[:, pick(operands, output.shape[1], salt=17), :, pick(operands, output.shape[3], salt=18)]
    return put(output, index, output[index] * factor)


def flipped_bit(output: Tensor, operands: Operands) -> Tensor:
    """The top bit of one element's fraction flipped."""
    result = output.clone().flatten()
    raw = result.view(torch.int32 if output.dtype is torch.float32 else torch.int16)
    raw[pick(operands, result.numel(), salt=19)] ^= 1 << (SIGNIFICANT_BITS[output.dtype] - 2)
    return result.view(output.shape)


def head_through_bfloat16(output: Tensor, operands: Operands) -> Tensor:
    """One head stored in bfloat16 on its way."""
    head = pick(operands, output.shape[1], salt=17)
    return put(output, at[:, head], output[:, head].bfloat16().to(output.dtype))


def one_less_bit(output: Tensor, operands: Operands) -> Tensor:
    """One significant bit less."""
    return kept_bits(output.float(), SIGNIFICANT_BITS[output.dtype] - 1).to(output.dtype)


def stale_row(output: Tensor, operands: Operands) -> Tensor:
    """One row as an earlier call left it."""
    index = at[:, :, pick(operands, output.shape[2], salt=33)]
    return put(output, index, attend(another_call(operands), FUSED)[index])


def one_element(output: Tensor, operands: Operands, *, value: float) -> Tensor:
    """One element set to a value."""
    return put(output.flatten(), pick(operands, output.numel(), salt=34), value).view(output.shape)
