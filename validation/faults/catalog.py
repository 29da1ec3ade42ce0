"""The planted faults, as data. The list was fixed before any rule judged it.

A fault sits in a *host*, a kernel that is correct without it; where several hosts can have it, the seed picks one. Its
effect is the difference between the host with it and the host without it, so that what an honest kernel does to the
last bits is not counted as the fault's. Some change nothing on some inputs; those trials are counted apart.

A fault acts *inside* the kernel (fields of :class:`~.kernels.Kernel`), *before* it, on the operands `o`, of which the
kernel then computes correctly, or *after* it, on the output `y`. Which key, head or row it hits is drawn from the
operands' seed. Numbers that a fault writes are rounded to the operands' dtype, as they would be stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from validation.faults.families import DTYPES, Operands, in_float64, sample
from validation.faults.kernels import FLASH, FUSED, PLAIN, Function, Kernel, attend, kept_bits, stored

OnOperands = Callable[[Operands], Operands]
OnOutput = Callable[[Tensor, Operands], Tensor]

F16, BF16, F32 = DTYPES
HALVES = (F16, BF16)
SEEDS_PER_HOST = 8
"""Neighbouring seeds share a host, so that calls that are pooled come from one implementation."""
ALL_HOSTS = (PLAIN, FUSED, FLASH)

_STALE = 500  # seeds away: what an earlier call left behind
_LOG2_E = math.log2(math.e)
_SIGNIFICANT_BITS = {F16: 11, BF16: 8, F32: 24}


@dataclass(frozen=True)
class Fault:
    """One fault."""

    id: str
    what: str
    dtypes: tuple[torch.dtype, ...] = DTYPES
    hosts: tuple[Kernel, ...] = ALL_HOSTS
    inside: Mapping[str, Any] = field(default_factory=dict)
    before: OnOperands = lambda o: o
    after: OnOutput = lambda y, o: y
    inputs: OnOperands = lambda o: o
    """What the trial is on: the operands themselves for most faults."""

    def host(self, operands: Operands) -> Kernel:
        """The kernel that the seed of the operands picks."""
        return self.hosts[operands.seed // SEEDS_PER_HOST % len(self.hosts)]

    def correct(self, operands: Operands) -> Tensor:
        """Compute attention as the host does; (1, H, L, D) in the operands' dtype."""
        return attend(operands, self.host(operands))

    def apply(self, operands: Operands) -> Tensor:
        """Compute attention with the fault in it, on operands from :attr:`inputs`; (1, H, L, D) in their dtype."""
        return self.after(attend(self.before(operands), replace(self.host(operands), **self.inside)), operands)


# ---- where a fault hits


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


def pick(operands: Operands, count: int, *, salt: int) -> int:
    """Draw one of `count` positions."""
    return int(torch.randint(count, (1,), generator=operands.generator(salt)))


def visible_key(operands: Operands) -> int:
    """A key that every row sees."""
    rows, keys = operands.mask.shape
    return pick(operands, keys - rows + 1, salt=11)


def _slot(operands: Operands) -> Any:
    return at[:, :, visible_key(operands)]


def _head(operands: Operands, *, salt: int = 17) -> int:
    return pick(operands, operands.k.shape[1], salt=salt)


def _tile(operands: Operands) -> Any:
    """The index of one tile of 8 × 8 in one head of the output."""
    row = 8 * pick(operands, -(-operands.q.shape[2] // 8), salt=16)
    return at[:, _head(operands), row : row + 8, :8]


def another_call(operands: Operands) -> Operands:
    """What an earlier call was given: the same shapes, another seed."""
    rows, keys = operands.mask.shape
    return sample(operands.family, seed=operands.seed + _STALE, dtype=operands.dtype, rows=rows, keys=keys)


# ---- on operands


def _with(operands: Operands, parts: str, changed: Callable[[str], Tensor]) -> Operands:
    """Exchange query, key or value, `parts` of ``"qkv"``."""
    tensors: dict[str, Any] = {part: changed(part) for part in parts}
    return replace(operands, **tensors)


def rounded(parts: str, rounding: Callable[[Tensor, torch.dtype], Tensor]) -> OnOperands:
    return lambda o: _with(o, parts, lambda part: rounding(getattr(o, part).float(), o.dtype).to(o.dtype))


def _store(how: str, parts: str) -> OnOperands:
    """Store query, key or value as :func:`~.kernels.stored` does."""
    return rounded(parts, lambda x, dtype: stored(x, how, dtype))


def _lose_bits(bits: int, parts: str) -> OnOperands:
    """Drop the last significant bits."""
    return rounded(parts, lambda x, dtype: kept_bits(x, _SIGNIFICANT_BITS[dtype] - bits))


def _cut(x: Tensor, dtype: torch.dtype, bits: int) -> Tensor:
    """Set the last significant bits to zero."""
    return (x.view(torch.int32) & -(1 << (24 - _SIGNIFICANT_BITS[dtype] + bits))).view(torch.float32)


def _stale(index: Callable[[Operands], Any], parts: str = "kv") -> OnOperands:
    """Find what an earlier call left at a position of the cache."""

    def plant(o: Operands) -> Operands:
        other, hit = another_call(o), index(o)
        return _with(o, parts, lambda part: put(getattr(o, part), hit, getattr(other, part)[hit]))

    return plant


def _masked(index: Callable[[Operands], Any]) -> OnOperands:
    """Hide keys from every row."""
    return lambda o: replace(o, mask=put(o.mask, at[:, index(o)], False))


def _shift_mask(by: int) -> OnOperands:
    """Let each row see `by` keys more of the future, or fewer of the past."""
    return lambda o: replace(o, mask=torch.ones_like(o.mask).tril(diagonal=o.mask.shape[1] - o.mask.shape[0] + by))


def _double_key(o: Operands) -> Operands:
    key = visible_key(o)
    k, v, mask = (torch.cat([t, t[..., key : key + 1, :]], -2) for t in (o.k, o.v, o.mask.mT))
    return replace(o, k=k, v=v, mask=mask.mT)


def _leak_one(o: Operands) -> Operands:
    """Let one row see the one key that follows it."""
    rows, keys = o.mask.shape
    if rows == 1:
        return o
    row = pick(o, rows - 1, salt=12)
    return replace(o, mask=put(o.mask, (row, keys - rows + row + 1), True))


def _dropout(o: Operands) -> Operands:
    """Without its rescaling; the newest key stays."""
    drawn = torch.rand(o.mask.shape, generator=o.generator(31)) >= 2e-3
    newest = o.mask & ~o.mask.roll(-1, 1)
    return replace(o, mask=o.mask & (drawn | newest))


def _wrong_value_head(o: Operands) -> Operands:
    head = _head(o, salt=14)
    return replace(o, v=put(o.v, at[:, head], o.v[:, head - 1]))


def _wrong_page(o: Operands) -> Operands:
    slot = max(1, visible_key(o))
    return replace(o, k=put(o.k, at[:, :, slot], o.k[:, :, slot - 1]), v=put(o.v, at[:, :, slot], o.v[:, :, slot - 1]))


def _merged_keys(o: Operands) -> Operands:
    slot = max(1, visible_key(o))
    index = at[:, :, slot - 1 : slot + 1]
    k, v = (put(x, index, x[index].float().mean(2, keepdim=True).to(x.dtype)) for x in (o.k, o.v))
    return replace(o, k=k, v=v)


def _padded_key(o: Operands) -> Operands:
    """Let a zero key with a zero value attend: padding that no mask covers; it also acts as an attention sink."""
    k, v = (torch.cat([t, torch.zeros_like(t[:, :, :1])], 2) for t in (o.k, o.v))
    return replace(o, k=k, v=v, mask=torch.cat([o.mask, torch.ones_like(o.mask[:, :1])], 1))


def _rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the halves of the channels; `angle` is (rows, D/2)."""
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


def _frequencies(x: Tensor) -> Tensor:
    width = x.shape[-1]
    return 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def _rope_in_bfloat16(o: Operands) -> Operands:
    """Rotate keys, from position 200 on, by angles that were computed in bfloat16."""
    position = 200.0 + torch.arange(o.k.shape[2], dtype=torch.float64)[:, None]
    coarse = (position.bfloat16() * _frequencies(o.k).bfloat16()).double()
    return replace(o, k=_rotated(o.k, coarse - position * _frequencies(o.k)))


def _lost_update(o: Operands) -> Operands:
    """One head reads eight values before they are written."""
    first = visible_key(o)
    return replace(o, v=put(o.v, at[:, _head(o), first : first + 8], 0.0))


def _repeated_keys(o: Operands) -> Operands:
    """Every key twice, values negative: the call's own input, not a fault."""
    return replace(o, k=o.k[:, :, ::2].repeat_interleave(2, 2)[:, :, : o.k.shape[2]], v=-o.v.abs())


def _nan_in_value(o: Operands) -> Operands:
    """Put a NaN into one channel of one value: the call's own input, not a fault."""
    index = (0, 0, visible_key(o), pick(o, o.v.shape[-1], salt=15))
    return replace(o, v=put(o.v, index, math.nan))


# ---- inside the kernel, in float32


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


def _noise(relative: float) -> Function:
    """Multiply each element by 1 + a normal draw."""
    return lambda x: x * (1.0 + relative * torch.randn(x.shape, generator=torch.Generator().manual_seed(32)))


def _skip_small(threshold: float) -> Function:
    """Return exp with results under `threshold` of the row's largest set to zero."""
    return lambda x: torch.where(x.exp() < threshold, 0.0, x.exp())


def _exp_polynomial(*coefficients: float) -> Function:
    """2**whole · p(fraction), with p's coefficients from the constant up."""

    def approximate(x: Tensor) -> Tensor:
        power = (x * _LOG2_E).clamp(-126.0, 126.0)
        whole = power.floor()
        result = torch.zeros_like(x)
        for coefficient in reversed(coefficients):
            result = result * (power - whole) + coefficient
        return torch.where(x == -math.inf, 0.0, torch.ldexp(result, whole.int()))

    return approximate


def _exp_schraudolph(x: Tensor) -> Tensor:
    """Exp by writing into the exponent's bits: up to 6 % too large."""
    bits = ((x * _LOG2_E).clamp(-126.0, 126.0) + 127.0) * 2.0**23
    return torch.where(x == -math.inf, 0.0, bits.to(torch.int32).view(torch.float32))


def _exp2_with(log2_e: float) -> Function:
    return lambda x: torch.exp2(x * log2_e)


def _reciprocal_of(bits: int) -> Function:
    """Reciprocal to `bits` significant bits, without the Newton step that should follow."""
    return lambda x: kept_bits(x.reciprocal(), bits)


# ---- on the output


def _nan_to_zero(y: Tensor, o: Operands) -> Tensor:
    return y.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)


def _transposed_tile(y: Tensor, o: Operands) -> Tensor:
    rows = min(8, y.shape[2])
    index = at[:, _head(o), :rows, :rows]
    return put(y, index, y[index].mT)


def flipped_bit(y: Tensor, o: Operands) -> Tensor:
    """The top bit of one element's fraction flipped."""
    result = y.clone().flatten()
    raw = result.view(torch.int32 if y.dtype is torch.float32 else torch.int16)
    raw[pick(o, result.numel(), salt=19)] ^= 1 << (_SIGNIFICANT_BITS[y.dtype] - 2)
    return result.view(y.shape)


def _stale_row(y: Tensor, o: Operands) -> Tensor:
    index = at[:, :, pick(o, y.shape[2], salt=33)]
    return put(y, index, attend(another_call(o), FUSED)[index])


def _stale_tile(y: Tensor, o: Operands) -> Tensor:
    return put(y, _tile(o), attend(another_call(o), FUSED)[_tile(o)])


def _doubled_update(y: Tensor, o: Operands) -> Tensor:
    """Add what eight keys give to a tile of rows once more."""
    head, first = _head(o), visible_key(o)
    keys = slice(first, first + 8)
    wide = in_float64(o)
    logits = (wide.q @ wide.k.mT * wide.scale).masked_fill(~wide.mask, -math.inf)
    more = logits.softmax(-1)[:, head, :16, keys] @ wide.v[:, head, keys]
    return put(y, at[:, head, :16], (y[:, head, :16].double() + more).to(y.dtype))


def _sum_misses_tail(y: Tensor, o: Operands) -> Tensor:
    wide = in_float64(o)
    tail = (wide.q @ wide.k.mT * wide.scale).masked_fill(~o.mask, -math.inf).softmax(-1)[..., -4:].sum(-1, keepdim=True)
    return (y.double() / (1.0 - tail).clamp_min(1e-3)).to(y.dtype)


def _split_merged(o: Operands, dtype: torch.dtype) -> Tensor:
    """Keys split over four workers, the logarithms of whose sums are stored in a dtype."""
    sums, parts = [], []
    for at_ in torch.arange(o.k.shape[2]).chunk(4):
        logits = (o.q.float() @ o.k[:, :, at_].float().mT * o.scale).masked_fill(~o.mask[:, at_], -math.inf)
        sums.append(logits.logsumexp(-1).to(dtype).float())
        parts.append(logits.softmax(-1).nan_to_num(0.0) @ o.v[:, :, at_].float())
    return (torch.stack(parts, -1) * torch.stack(sums, -1).softmax(-1)[..., None, :]).sum(-1).to(o.dtype)


def _one_element(value: float) -> OnOutput:
    return lambda y, o: put(y.flatten(), pick(o, y.numel(), salt=34), value).view(y.shape)


# ---- the list

_BLOCKS_OF_8 = replace(FLASH, block=8)
_CHUNKED_DOT = replace(FUSED, dot_chunk=8)
_NO_MAXIMUM = {"subtract_maximum": False, "exponentials": "same"}

_SCORED_ONCE: tuple[Fault, ...] = (
    Fault("gain_0.1%_of_odd_rows", "every other row 0.1 % too large",
          inside={"on_result": lambda x: torch.where(torch.arange(x.shape[2])[:, None] % 2 == 1, x * 1.001, x)}),
    Fault("noise_2^-10", "noise of 2⁻¹⁰ on each element", HALVES, inside={"on_result": _noise(2.0**-10)}),
    Fault("noise_2^-22", "noise of 2⁻²² on each element", (F32,), inside={"on_result": _noise(2.0**-22)}),
    Fault("element_doubled", "one element twice as large",
          after=lambda y, o: (lambda at_: put(y.flatten(), at_, 2 * y.flatten()[at_]).view(y.shape))(
              pick(o, y.numel(), salt=41))),
    Fault("key_channel_dropped", "one channel of one head's query not read",
          before=lambda o: replace(o, q=put(o.q, at[:, _head(o), :, 3], 0.0))),
    Fault("value_channel_late", "one head's values one channel late",
          before=lambda o: replace(o, v=put(o.v, at[:, _head(o)], o.v[:, _head(o)].roll(1, -1)))),
    Fault("stale_value_channel", "one channel of one head's values from an earlier call",
          before=_stale(lambda o: at[:, _head(o), :, 5], "v")),
    Fault("middle_block_skipped", "eight keys in the middle never visited",
          before=_masked(lambda o: at[o.k.shape[2] // 3 : o.k.shape[2] // 3 + 8])),
    Fault("scale_0.5%", "logits 0.5 % too small", before=lambda o: replace(o, scale=o.scale * 0.995)),
    Fault("scale_3e-6", "logits 3e-6 too small", (F32,), inside={"on_logits": lambda x: x * (1.0 - 3e-6)}),
    Fault("offset_logit_per_head", "the logits of the first key 0.01 too large",
          hosts=(PLAIN, FUSED), inside={"on_logits": lambda x: put(x, at[..., 0], x[..., 0] + 1e-2)}),
    Fault("exp_nine_bits", "exp to nine bits", (F16, F32), inside={"exp": lambda x: kept_bits(x.exp(), 9)}),
    Fault("sum_short_0.3%", "the sum of weights 0.3 % too small",
          inside={"reciprocal": lambda x: (x * 0.997).reciprocal()}),
    Fault("bfloat16_total", "sum of weights in bfloat16", (F16, F32), (_BLOCKS_OF_8,), {"total": "bfloat16"}),
    Fault("tf32_weights", "softmax matrix in TF32", (F32,), inside={"weights": "tf32"}),
    Fault("bfloat16_values", "values from a bfloat16 cache", (F16, F32), before=_store("bfloat16", "v")),
    Fault("query_loses_a_bit", "query with one bit less", before=_lose_bits(1, "q")),
    Fault("truncated_exp", "exponentials rounded toward zero", HALVES, (FLASH,), {"exponentials": "truncated"}),
    Fault("truncated_fade", "rescale factors rounded toward zero", HALVES, (FLASH,), {"rescale": "truncated"}),
    Fault("sum_misses_tail", "the weights of the last four keys not in the sum", after=_sum_misses_tail),
    Fault("merge_weights_in_half", "keys split in four, their log-sums stored in half at the merge",
          (F16, F32), (FUSED,), after=lambda y, o: _split_merged(o, torch.float16)),
    Fault("scale_of_one_more", "scaled by 1/√(d + 1)",
          before=lambda o: replace(o, scale=(o.q.shape[-1] + 1) ** -0.5)),
    Fault("scale_of_a_head_0.4%", "the logits of one head 0.4 % too large",
          inside={"on_logits": lambda x: put(x, at[:, 0], x[:, 0] * 1.004)}),
    Fault("keys_truncated", "keys with two bits less, toward zero",
          before=rounded("k", lambda x, dtype: _cut(x, dtype, 2))),
    Fault("values_truncated", "values with one bit less, toward zero",
          before=rounded("v", lambda x, dtype: _cut(x, dtype, 1))),
    Fault("query_in_tf32", "query in TF32", (F32,), before=_store("tf32", "q")),
    Fault("weights_lose_a_bit", "weights with one bit less", HALVES, inside={"weights": "one_bit_less"}),
    Fault("weights_upward", "weights rounded up", HALVES, inside={"weights": "upward"}),
    Fault("logits_upward", "scaled logits rounded up", HALVES, (PLAIN,), {"scaled": "upward"}),
    Fault("stochastic_logits", "scaled logits rounded stochastically", HALVES, (PLAIN,), {"scaled": "stochastic"}),
    Fault("truncated_total", "the sum of weights rounded toward zero at each block", HALVES, (_BLOCKS_OF_8,),
          {"total": "truncated"}),
    Fault("stochastic_accumulator", "accumulator rounded stochastically", HALVES, (_BLOCKS_OF_8,),
          {"accumulator": "stochastic"}),
    Fault("exp_table_jump", "weights below e⁻² 0.3 % too large",
          inside={"exp": lambda x: x.exp() * torch.where(x < -2.0, 1.003, 1.0)}),
    Fault("exp_table_jump_2e-6", "weights below e⁻² 2e-6 too large", (F32,),
          inside={"exp": lambda x: x.exp() * torch.where(x < -2.0, 1.0 + 2e-6, 1.0)}),
    Fault("jitter_of_logits", "noise of 0.002 on each logit", hosts=(PLAIN, FUSED),
          inside={"on_logits": lambda x: x + 2e-3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(51))}),
    Fault("gain_by_channel", "channels 0.15 % too large or too small, in turn",
          inside={"on_result": lambda x: x * (1.0 + 1.5e-3 * (-1.0) ** torch.arange(x.shape[3]))}),
    Fault("gain_grows_with_rows", "later rows up to 0.3 % too large",
          inside={"on_result": lambda x: x * (1.0 + 3e-3 * torch.arange(1, x.shape[2] + 1)[:, None] / x.shape[2])}),
    Fault("last_channels_gain_3e-7", "the last quarter of the channels 3e-7 too large", (F32,),
          inside={"on_result": lambda x: x * (1.0 + 3e-7 * (torch.arange(x.shape[3]) >= x.shape[3] * 3 // 4))}),
    Fault("newest_keys_rotated_late", "the last four keys rotated by a tenth of a position",
          before=lambda o: replace(
              o, k=put(o.k, at[:, :, -4:], _rotated(o.k[:, :, -4:], 0.1 * _frequencies(o.k)[None])))),
    Fault("first_key_0.3%", "the first key's weight 0.3 % too small", hosts=(PLAIN, FUSED),
          inside={"on_logits": lambda x: put(x, at[..., 0], x[..., 0] - 3e-3)}),
    Fault("head_leak_0.1%", "0.1 % of the head before", inside={"on_result": lambda x: x + 1e-3 * x.roll(1, 1)}),
)  # fmt: skip
"""Held out until earlier judges were scored on them; tuned on since."""

FAULTS: tuple[Fault, ...] = (
    *_SCORED_ONCE,
    # gain and offset of the output
    Fault("gain_0.05%", "output 0.05 % too large", inside={"on_result": lambda x: x * 1.0005}),
    Fault("gain_1%", "output 1 % too large", inside={"on_result": lambda x: x * 1.01}),
    Fault("gain_2e-7", "output 2.4e-7 too large, two steps", (F32,),
          inside={"on_result": lambda x: x * (1.0 + 2.0**-22)}),
    Fault("offset_0.05%", "0.05 % of the output's RMS added", inside={"on_result": lambda x: x + 5e-4 * _rms(x)}),
    # rounding of the output
    Fault("truncated_output", "output rounded toward zero", inside={"output": "truncated"}),
    Fault("upward_output", "output rounded toward +∞", inside={"output": "upward"}),
    Fault("stochastic_output", "output rounded stochastically", inside={"output": "stochastic"}),
    Fault("bfloat16_output", "output rounded to bfloat16 first", (F16, F32), inside={"output": "via_bfloat16"}),
    Fault("float16_output", "output rounded to float16 first", (F32,), inside={"output": "float16"}),
    Fault("flushed_output", "subnormal outputs set to zero", (F16,), inside={"output": "flushed"}),
    Fault("head_via_bfloat16", "one head stored in bfloat16", (F16, F32),
          after=lambda y, o: put(y, at[:, _head(o)], y[:, _head(o)].bfloat16().to(y.dtype))),
    # softmax stored or computed too coarsely
    Fault("bfloat16_weights", "softmax matrix silently bfloat16", (F16, F32), inside={"weights": "bfloat16"}),
    Fault("float16_weights", "softmax matrix silently float16", (F32,), inside={"weights": "float16"}),
    Fault("fp8_weights", "softmax matrix in fp8 e4m3", inside={"weights": "fp8"}),
    Fault("truncated_weights", "softmax matrix rounded toward zero", HALVES, inside={"weights": "truncated"}),
    Fault("flushed_weights", "subnormal weights set to zero", (F16,), inside={"weights": "flushed"}),
    Fault("skipped_weights_1e-4", "weights under 1e-4 skipped", inside={"exp": _skip_small(1e-4)}),
    Fault("skipped_weights_1e-2", "weights under 1 % skipped", inside={"exp": _skip_small(1e-2)}),
    Fault("bfloat16_logits", "logits silently bfloat16", (F16, F32), inside={"scaled": "bfloat16"}),
    Fault("float16_logits", "logits silently float16", (F32,), inside={"scaled": "float16"}),
    Fault("half_softmax", "exp and sum of softmax stored in half", HALVES, (PLAIN,),
          {"exponentials": "same", "total": "same"}),
    Fault("half_total", "sum of weights accumulated in half", HALVES, (_BLOCKS_OF_8,), {"total": "same"}),
    # accumulation and merging
    Fault("half_accumulator", "weights·v accumulated in half", HALVES, (_BLOCKS_OF_8,), {"accumulator": "same"}),
    Fault("bfloat16_accumulator", "weights·v accumulated in bfloat16", (F16, F32), (_BLOCKS_OF_8,),
          {"accumulator": "bfloat16"}),
    Fault("float16_accumulator", "weights·v accumulated in float16", (F32,), (_BLOCKS_OF_8,),
          {"accumulator": "float16"}),
    Fault("half_dot", "q·k accumulated in half", HALVES, (_CHUNKED_DOT,), {"dot": "same"}),
    Fault("bfloat16_dot", "q·k accumulated in bfloat16", (F16, F32), (_CHUNKED_DOT,), {"dot": "bfloat16"}),
    Fault("half_rescale", "rescale factors stored in half", HALVES, (FLASH,), {"rescale": "same"}),
    Fault("half_merge", "partial results merged in half", HALVES, (FLASH,), {"rescale": "same", "accumulator": "same"}),
    Fault("bfloat16_rescale", "rescale factors stored in bfloat16", (F16, F32), (FLASH,), {"rescale": "bfloat16"}),
    Fault("forgotten_rescale", "earlier blocks not rescaled to the new maximum", hosts=(FLASH,),
          inside={"rescale": "left_out"}),
    # operands read too coarsely
    Fault("tf32", "TF32 products posing as float32", (F32,), inside={"product": "tf32"}),
    Fault("tf32_logits", "TF32 in q·k alone", (F32,), before=_store("tf32", "qk")),
    Fault("tf32_values", "TF32 values", (F32,), before=_store("tf32", "v")),
    Fault("bfloat16_products", "bfloat16 products posing as float32", (F32,), inside={"product": "bfloat16"}),
    Fault("bfloat16_query", "query rounded to bfloat16", (F16, F32), before=_store("bfloat16", "q")),
    Fault("fp8_keys", "keys in fp8 e4m3", before=_store("fp8", "k")),
    Fault("fp8_values", "values in fp8 e4m3", before=_store("fp8", "v")),
    Fault("int8_keys", "keys in int8, one scale per head", before=_store("int8", "k")),
    Fault("int8_values", "values in int8, one scale per head", before=_store("int8", "v")),
    Fault("half_cache", "keys and values from a float16 cache", (F32,), before=_store("float16", "kv")),
    # approximations
    Fault("exp_quadratic", "exp by a quadratic", inside={"exp": _exp_polynomial(1.0, 0.6565, 0.3435)}),
    Fault("exp_cubic", "exp by a cubic, good to 1e-4", (F16, F32),
          inside={"exp": _exp_polynomial(1.0, 0.695146, 0.227564, 0.077119)}),
    Fault("exp_schraudolph", "exp by a straight line per binade", inside={"exp": _exp_schraudolph}),
    Fault("log2e_float16", "exp2 with log₂e in float16", (F16, F32),
          inside={"exp": _exp2_with(1.4423828125)}),
    Fault("reciprocal_8_bits", "reciprocal to 8 bits", inside={"reciprocal": _reciprocal_of(8)}),
    Fault("reciprocal_12_bits", "reciprocal to 12 bits", (F16, F32), inside={"reciprocal": _reciprocal_of(12)}),
    Fault("sum_epsilon_1e-3", "1e-3 added to the sum of weights",
          inside={"reciprocal": lambda x: (x + 1e-3).reciprocal()}),
    Fault("reciprocal_22_bits", "reciprocal to 22 bits", (F32,), inside={"reciprocal": _reciprocal_of(22)}),
    Fault("sum_epsilon_1e-6", "1e-6 added to the sum of weights", (F32,),
          inside={"reciprocal": lambda x: (x + 1e-6).reciprocal()}),
    Fault("no_maximum", "exp in half without the maximum: overflow", (F16,), (FUSED,), _NO_MAXIMUM),
    Fault("overflow_saturated", "the same, infinity set to the largest number", (F16,), (FUSED,),
          {"subtract_maximum": False, "exponentials": "saturated"}),
    Fault("overflow_zeroed", "the same, NaN set to zero", (F16,), (FUSED,), _NO_MAXIMUM, after=_nan_to_zero),
    Fault("nan_hidden", "a NaN of the input set to zero in the output", inputs=_nan_in_value, after=_nan_to_zero),
    # scale
    Fault("scale_1e-6", "logits 1e-6 too large", (F32,), inside={"on_logits": lambda x: x * (1.0 + 1e-6)}),
    Fault("scale_0.1%", "logits 0.1 % too large", before=lambda o: replace(o, scale=o.scale * 1.001)),
    Fault("no_scale", "1/√d left out", before=lambda o: replace(o, scale=1.0)),
    Fault("no_scale_in_a_head", "1/√d left out in one head",
          before=lambda o: replace(o, q=put(o.q, at[:, -1], o.q[:, -1] / o.scale))),
    Fault("clipped_logits", "logits clipped at ±8", inside={"on_logits": lambda x: x.clamp(-8.0, 8.0)}),
    Fault("softcap_50", "logits soft-capped at 50", inside={"on_logits": lambda x: 50.0 * (x / 50.0).tanh()}),
    # indices, masks, caches
    Fault("dropped_key", "one key left out", before=_masked(visible_key)),
    Fault("doubled_key", "one key taken twice", before=_double_key),
    Fault("mask_shows_future", "mask one key too long", before=_shift_mask(1)),
    Fault("mask_hides_newest", "mask one key too short", before=_shift_mask(-1)),
    Fault("mask_leak", "one masked position gets in", before=_leak_one),
    Fault("tail_skipped", "last four keys never visited", before=_masked(lambda o: at[-4:])),
    Fault("stale_slot", "one cache slot from an earlier call", before=_stale(_slot)),
    Fault("stale_value", "the value of one slot from an earlier call", before=_stale(_slot, "v")),
    Fault("stale_head", "one head from an earlier call", before=_stale(lambda o: at[:, _head(o, salt=13)])),
    Fault("swapped_key_value", "key and value of one slot exchanged",
          before=lambda o: replace(o, k=put(o.k, _slot(o), o.v[_slot(o)]), v=put(o.v, _slot(o), o.k[_slot(o)]))),
    Fault("late_values", "values one slot late", before=lambda o: replace(o, v=o.v.roll(1, dims=2))),
    Fault("wrong_value_head", "one head reads its neighbour's values", before=_wrong_value_head),
    Fault("padded_key", "a zero key attends", before=_padded_key),
    Fault("rope_off_by_one", "query one position late",
          before=lambda o: replace(o, q=_rotated(o.q, _frequencies(o.q)[None, :]))),
    Fault("rope_bfloat16", "keys rotated by bfloat16 angles", before=_rope_in_bfloat16),
    # the output's places
    Fault("zeros", "nothing written", after=lambda y, o: torch.zeros_like(y)),
    Fault("last_row_missing", "last row not written", after=lambda y, o: put(y, at[:, :, -1], 0.0)),
    Fault("last_row_repeated", "last row a copy of the one before",
          after=lambda y, o: put(y, at[:, :, -1], y[:, :, -2:][:, :, 0])),
    Fault("tile_missing", "an 8 × 8 tile not written", after=lambda y, o: put(y, _tile(o), 0.0)),
    Fault("tile_transposed", "an 8 × 8 tile transposed", after=_transposed_tile),
    Fault("swapped_heads", "two heads exchanged", after=lambda y, o: torch.cat([y[:, 1:2], y[:, :1], y[:, 2:]], 1)),
    Fault("swapped_channels", "two channels of one head exchanged",
          after=lambda y, o: put(y, at[:, _head(o), :, :2], y[:, _head(o), :, :2].flip(-1))),
    Fault("flipped_bit", "top fraction bit of one element flipped", after=flipped_bit),
    Fault("head_gain_0.1%", "one head 0.1 % too large",
          inside={"on_result": lambda x: put(x, at[:, 1], x[:, 1] * 1.001)}),
    Fault("channel_offset_0.5%", "0.5 % of the RMS on one channel",
          inside={"on_result": lambda x: put(x, at[..., 0], x[..., 0] + 5e-3 * float(_rms(x)))}),
    Fault("noise_2^-11", "noise of 2⁻¹¹ on each element", inside={"on_result": _noise(2.0**-11)}),
    Fault("row_leak_0.2%", "0.2 % of the row before", inside={"on_result": lambda x: x + 2e-3 * x.roll(1, 2)}),
    Fault("channel_leak_0.1%", "0.1 % of the channel before", inside={"on_result": lambda x: x + 1e-3 * x.roll(1, 3)}),
    Fault("saturated_2.5_rms", "output clipped at 2.5 RMS",
          inside={"on_result": lambda x: x.clamp(-2.5 * float(_rms(x)), 2.5 * float(_rms(x)))}),
    Fault("small_to_zero", "output under 0.5 % of the RMS set to zero",
          inside={"on_result": lambda x: torch.where(x.abs() < 5e-3 * _rms(x), 0.0, x)}),
    Fault("one_less_bit", "output with one bit less", HALVES,
          after=lambda y, o: kept_bits(y.float(), _SIGNIFICANT_BITS[y.dtype] - 1).to(y.dtype)),
    Fault("truncated_logits", "logits rounded toward zero", HALVES, (PLAIN,), {"scaled": "truncated"}),
    Fault("stochastic_weights", "weights rounded stochastically", HALVES, inside={"weights": "stochastic"}),
    Fault("truncated_accumulator", "accumulator truncated", HALVES, (_BLOCKS_OF_8,), {"accumulator": "truncated"}),
    Fault("exp_by_powers", "exp as (1 + x/1024)¹⁰²⁴",
          inside={"exp": lambda x: (1.0 + x / 1024.0).clamp_min(0.0) ** 1024.0}),
    Fault("exp_floored", "weights not below e⁻¹⁰",
          inside={"exp": lambda x: torch.where(x == -math.inf, 0.0, x.clamp_min(-10.0).exp())}),
    Fault("position_bias", "a bias of 0.001 per position", hosts=(PLAIN, FUSED),
          inside={"on_logits": lambda x: x + 1e-3 * torch.arange(x.shape[-1], dtype=torch.float32)}),
    Fault("scale_in_fp8", "scale 2.8 % too small", before=lambda o: replace(o, scale=o.scale * 0.9722)),
    Fault("int8_query", "query in int8", before=_store("int8", "q")),
    Fault("keys_lose_a_bit", "keys with one bit less", before=_lose_bits(1, "k")),
    Fault("values_lose_two_bits", "values with two bits less", before=_lose_bits(2, "v")),
    Fault("wrong_page", "one slot read from the one before", before=_wrong_page),
    Fault("merged_keys", "two slots replaced by their mean", before=_merged_keys),
    Fault("value_pages_swapped", "two pages of values exchanged",
          before=lambda o: replace(o, v=torch.cat([o.v[:, :, 8:16], o.v[:, :, :8], o.v[:, :, 16:]], 2))),
    Fault("evicted_4", "oldest four keys forgotten", before=_masked(lambda o: at[:4])),
    Fault("dropout_0.2%", "dropout of 0.2 % left on", before=_dropout),
    Fault("stale_row", "one row from an earlier call", after=_stale_row),
    Fault("one_nan", "one element NaN", after=_one_element(math.nan)),
    Fault("one_zero", "one element zero", after=_one_element(0.0)),
    # seen in the field
    Fault("fp8_rescale_saturated", "weights × 256 in fp8, the maximum up to 16 × behind: all but the sum saturates",
          hosts=(FLASH,), inside={"lag": 4.0 / _LOG2_E, "weights": "fp8_times_256"}),
    Fault("lagging_maximum_saturated", "the same in half: weights beyond 1 clipped to it", HALVES, (FLASH,),
          {"lag": 4.0 / _LOG2_E, "weights": "clipped_at_1"}),
    Fault("stale_tile", "a race: a tile of 8 × 8 from an earlier call", after=_stale_tile),
    Fault("lost_update", "a race: a block of values read before it was written, in one head", before=_lost_update),
    Fault("doubled_update", "a race: a block of keys added twice into a tile of rows", after=_doubled_update),
    Fault("biased_ties", "partial sums stored in half where keys repeat and values have one sign", HALVES,
          (_BLOCKS_OF_8,), {"accumulator": "same"}, inputs=_repeated_keys),
)  # fmt: skip
"""What a rule should catch where it moves the output by more than the format's own error. Of those seen in the field,
the saturation is FlashAttention's issue 2577 and pull request 2717, the bias that of arXiv 2510.04212, section 4: equal
logits make weights of exactly one, and sums of values of one sign round to one side."""
