"""The fourth held-out part, tuned on since: honest variations, faults and operations.

Written without having read the rules of its time, and committed before any was scored.
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

from validation.faults.catalog import F16, F32, HALVES, Fault, another_call, at, pick, put
from validation.faults.families import Operands
from validation.faults.honest import Variation
from validation.faults.kernels import FLASH, FUSED, PLAIN, Function, attend, kept_bits
from validation.faults.operations import EPS, Operation, coarse, one_bit_less, wide
from validation.faults.shapes import LOG2_E, SLOPES

FP8 = torch.float8_e4m3fn

# ---- honest attention


def _logits(o: Operands) -> Tensor:
    """Float32 logits, scaled and masked."""
    return (o.q.float() @ o.k.float().mT * o.scale).masked_fill(~o.mask, -math.inf)


def _log2_sum(o: Operands) -> Tensor:
    """Weights from the logarithm of their sum, base two, as a backward pass takes them up again; stored."""
    logits = _logits(o) * LOG2_E
    total = (logits - logits.amax(-1, keepdim=True)).exp2().sum(-1, keepdim=True).log2()
    weights = (logits - (logits.amax(-1, keepdim=True) + total)).exp2()
    return (weights.to(o.dtype).float() @ o.v.float()).to(o.dtype)


def _online(o: Operands, blocks: list[Tensor], *, normalised: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Online softmax over blocks of keys in any order: maximum, sum and sum of values, float32, weights stored.

    `normalised`: divided by the sum after every block, as the first FlashAttention did.
    """
    logits, v = _logits(o), o.v.float()
    maximum, total = torch.full((*logits.shape[:3], 1), -math.inf), torch.zeros(*logits.shape[:3], 1)
    result = torch.zeros_like(o.q, dtype=torch.float32)
    for keys in blocks:
        newest = torch.maximum(maximum, logits[..., keys].amax(-1, keepdim=True))
        shift = newest.nan_to_num(neginf=0.0)
        weights, fade = (logits[..., keys] - shift).exp(), (maximum - shift).exp()
        more = weights.to(o.dtype).float() @ v[:, :, keys]
        sums = total * fade + weights.sum(-1, keepdim=True)
        result = (result * total * fade + more) / sums.clamp_min(1e-37) if normalised else result * fade + more
        maximum, total = newest, sums
    return maximum, total, result


def _merged(parts: list[tuple[Tensor, Tensor, Tensor]], dtype: torch.dtype) -> Tensor:
    """Merge neighbours as a tree, in float32, and divide last."""
    while len(parts) > 1:
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        rest = parts[len(parts) - len(parts) % 2 :]
        parts = rest.copy()
        for (m, s, x), (n, t, y) in reversed(pairs):
            top = torch.maximum(m, n)
            a, b = ((one - top.nan_to_num(neginf=0.0)).exp() for one in (m, n))
            parts.insert(0, (top, s * a + t * b, x * a + y * b))
    return (parts[0][2] / parts[0][1]).to(dtype)


def _keys(o: Operands) -> Tensor:
    return torch.arange(o.k.shape[2])


def _in_turn(o: Operands) -> Tensor:
    blocks = list(_keys(o).split(16))
    return _merged([_online(o, blocks[1::2] + blocks[::2])], o.dtype)


def _lanes(o: Operands) -> Tensor:
    """Eight sums, of every eighth key each."""
    weights, v = _logits(o).softmax(-1), o.v.float()
    lanes = [weights[..., lane::8] @ v[:, :, lane::8] for lane in range(8)]
    return torch.stack(lanes).sum(0).to(o.dtype)


def _two_pass(o: Operands) -> Tensor:
    """Maximum and sum block by block in one pass, exp2; the second divides before its product, last block first."""
    logits, v, blocks = _logits(o) * LOG2_E, o.v.float(), _keys(o).split(56)
    top = torch.stack([logits[..., b].amax(-1, keepdim=True) for b in blocks]).amax(0)
    total = torch.stack([(logits[..., b] - top).exp2().sum(-1, keepdim=True) for b in blocks]).sum(0)
    result = torch.zeros_like(o.q, dtype=torch.float32)
    for b in reversed(blocks):
        result = result + ((logits[..., b] - top).exp2() / total) @ v[:, :, b]
    return result.to(o.dtype)


def _dot_as_tree(o: Operands) -> Tensor:
    terms = o.q.float()[:, :, :, None] * o.k.float()[:, :, None]
    while terms.shape[-1] % 2 == 0:
        terms = terms[..., ::2] + terms[..., 1::2]
    logits = (terms.sum(-1) * o.scale).masked_fill(~o.mask, -math.inf)
    return (logits.softmax(-1) @ o.v.float()).to(o.dtype)


def _tiles(o: Operands) -> Tensor:
    """Sixteen rows at a time, on 48 keys at a time."""
    parts = [replace(o, q=q, mask=mask) for q, mask in zip(o.q.split(16, 2), o.mask.split(16), strict=True)]
    return torch.cat([attend(one, replace(FLASH, block=48)) for one in parts], 2)


def _divided(o: Operands) -> Tensor:
    """As transformers has it: divided by √d in place of multiplied, a mask of the lowest number added."""
    mask = torch.zeros_like(o.mask, dtype=o.dtype).masked_fill(~o.mask, torch.finfo(o.dtype).min)
    return (o.q @ o.k.mT / math.sqrt(o.q.shape[-1]) + mask).softmax(-1) @ o.v


def _sdpa(o: Operands, change: Function = lambda x: x) -> Tensor:
    """Torch's attention, query, keys and values changed alike."""
    q, k, v = (change(x) for x in (o.q, o.k, o.v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=o.mask, scale=o.scale)


HONEST: tuple[Variation, ...] = (
    Variation("log2_sum", "weights from the sum's logarithm, base two, stored", _log2_sum),
    Variation("flash_100", "online softmax, 100 keys a block", partial(attend, kernel=replace(FLASH, block=100))),
    Variation("two_level", "keys in two halves, each an online softmax of 48 keys a block, merged in float32",
              lambda o: _merged([_online(o, list(half.split(48))) for half in _keys(o).chunk(2)], o.dtype)),
    Variation("split_11_tree", "keys split in eleven, merged as a tree",
              lambda o: _merged([_online(o, [part]) for part in _keys(o).chunk(11)], o.dtype)),
    Variation("dot_24_stored", "q·k 24 dimensions at a time, stored weights",
              partial(attend, kernel=replace(FUSED, dot_chunk=24, weights="same"))),
    Variation("lanes_8", "eight sums of every eighth key", _lanes),
    Variation("two_pass_exp2_reversed", "two passes, exp2, 56 keys a block, last first", _two_pass),
    Variation("values_transposed", "values stored transposed, float32, (vᵀ·weightsᵀ)ᵀ",
              lambda o: (o.v.float().mT.contiguous() @ _logits(o).softmax(-1).mT).mT.to(o.dtype)),
    Variation("eager_divided", "eager in the dtype, divided by √d, mask added", _divided),
    Variation("sdpa_padded_width", "torch's attention, 24 channels of zeros more",
              lambda o: _sdpa(o, lambda x: F.pad(x, (0, 24)))[..., : o.v.shape[-1]]),
    Variation("sdpa_keys_reversed", "torch's attention, keys from the last to the first",
              lambda o: _sdpa(replace(o, k=o.k.flip(2), v=o.v.flip(2), mask=o.mask.flip(1)))),
    Variation("sdpa_batch_of_two", "torch's attention, the call twice in a batch",
              lambda o: _sdpa(o, lambda x: torch.cat([x.flip(1), x]))[1:]),
    Variation("flash_first", "online softmax, 32 keys a block, divided after each",
              lambda o: _online(o, list(_keys(o).split(32)), normalised=True)[2].to(o.dtype)),
    Variation("blocks_in_turn", "online softmax, every other block first", _in_turn),
    Variation("dot_as_tree", "q·k as a tree over its channels, float32", _dot_as_tree),
    Variation("tile_16_by_48", "tiles of 16 rows and 48 keys", _tiles),
    Variation("float64_sums", "float32 weights, sums over keys in float64",
              lambda o: (_logits(o).softmax(-1).double() @ o.v.double()).to(o.dtype)),
)  # fmt: skip

# ---- faults of attention

_BLOCKS = (replace(FLASH, block=16),)
_WHOLE = (PLAIN, FUSED)


def _last(count: int, change: Function) -> Function:
    """Change what belongs to the last `count` keys."""
    return lambda x: torch.cat([x[..., :-count], change(x[..., -count:])], -1)


def _fade(change: Function) -> dict[str, Any]:
    """The exponential of a rescale factor changed, weights as they are."""
    return {"exp": lambda x: change(x) if x.shape[-1] == 1 else x.exp()}


def _table(steps: int) -> Function:
    """Exp by a table of powers of two with straight lines between."""

    def approximate(x: Tensor) -> Tensor:
        place = (x.clamp_min(-80.0) * LOG2_E * steps).floor()
        low, high = (((place + more) / steps).exp2() for more in (0, 1))
        share = x.clamp_min(-80.0) * LOG2_E * steps - place
        return torch.where(x == -math.inf, 0.0, low + share * (high - low))

    return approximate


def _mask(change: Callable[[Tensor], Tensor]) -> Callable[[Operands], Operands]:
    """Another mask; a row that would see nothing keeps its own."""
    return lambda o: replace(o, mask=torch.where(change(o.mask).any(-1, keepdim=True), change(o.mask), o.mask))


def _shifted(mask: Tensor, by: int) -> Tensor:
    """Each row's keys moved by one."""
    moved = mask.roll(by, 1)
    moved[:, 0 if by > 0 else -1] = False
    return moved


def _store_values(largest: float, rounding: Function, *, wrong_head: bool) -> Callable[[Operands], Operands]:
    """Values with one scale per head; with the scale of the head before where that is the fault."""

    def plant(o: Operands) -> Operands:
        step = o.v.float().abs().amax((-1, -2), keepdim=True) / largest
        used = step.roll(1, 1) if wrong_head else step
        return replace(o, v=(rounding((o.v.float() / used).clamp(-largest, largest)) * used).to(o.dtype))

    return plant


def _overlap(o: Operands) -> Operands:
    """Two splits share two keys, which count twice."""
    first = o.k.shape[2] // 2
    k, v, mask = (torch.cat([x, x[..., first : first + 2, :]], -2) for x in (o.k, o.v, o.mask.mT))
    return replace(o, k=k, v=v, mask=mask.mT)


def _part(name: str, index: Any, change: Function) -> Callable[[Operands], Operands]:
    """One part of an operand changed, and stored again."""

    def plant(o: Operands) -> Operands:
        whole: Tensor = getattr(o, name)
        changes: dict[str, Any] = {name: put(whole, index, change(whole[index].float()).to(o.dtype))}
        return replace(o, **changes)

    return plant


def _nudged(y: Tensor, share: float, toward: float, index: Any = at[:]) -> Tensor:
    """Move a share of the elements to their neighbour toward a number."""
    drawn = torch.rand(y.shape, generator=torch.Generator().manual_seed(61)) < share
    moved = torch.where(drawn, torch.nextafter(y, torch.full_like(y, toward)), y)
    return put(y, index, moved[index])


def _rows(change: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Any]:
    """The result, or logits, as a function of the row."""
    return {"on_result": lambda x: change(x, torch.arange(x.shape[2])[:, None])}


FAULTS: tuple[Fault, ...] = (
    Fault("tail_block_dropped", "keys beyond the last whole block of 16 left out",
          before=_mask(lambda m: m & (torch.arange(m.shape[1]) < m.shape[1] // 16 * 16))),
    Fault("oldest_key_hidden", "each row's oldest key left out", before=_mask(lambda m: m & _shifted(m, 1))),
    Fault("one_key_older", "each row sees one key older", before=_mask(lambda m: m | _shifted(m, -1))),
    Fault("one_key_newer", "each row sees one key newer", before=_mask(lambda m: m | _shifted(m, 1))),
    Fault("splits_overlap", "two keys at a border of splits counted twice", before=_overlap),
    Fault("rescale_missing_in_a_head", "one head not rescaled to the new maximum", hosts=_BLOCKS,
          inside=_fade(lambda x: put(x.exp(), at[:, 0], 1.0))),
    Fault("rescale_floored", "rescale factors not below 1/16", hosts=_BLOCKS,
          inside=_fade(lambda x: x.exp().clamp_min(0.0625))),
    Fault("rescale_base_two", "rescale factors by exp2 without log₂e", hosts=_BLOCKS, inside=_fade(torch.exp2)),
    Fault("rescale_nine_bits", "rescale factors to nine bits", hosts=_BLOCKS,
          inside=_fade(lambda x: kept_bits(x.exp(), 9))),
    Fault("tail_scaled_twice", "the last eight keys' logits scaled twice", hosts=_WHOLE,
          inside={"on_logits": _last(8, lambda x: x * 0.125)}),
    Fault("tail_scale_1%", "the last eight keys' logits 1 % too large", hosts=_WHOLE,
          inside={"on_logits": _last(8, lambda x: x * 1.01)}),
    Fault("tail_scale_1e-5", "the last eight keys' logits 1e-5 too large", (F32,), _WHOLE,
          {"on_logits": _last(8, lambda x: x * (1.0 + 1e-5))}),
    Fault("tf32_accumulator", "accumulator of eleven bits", (F16, F32), _BLOCKS, {"accumulator": "tf32"}),
    Fault("tf32_total", "sum of weights of eleven bits", (F16, F32), _BLOCKS, {"total": "tf32"}),
    Fault("tf32_dot", "q·k summed in eleven bits", (F16, F32), (replace(FUSED, dot_chunk=16),), {"dot": "tf32"}),
    Fault("half_accumulator_reversed", "weights·v accumulated in half, last block first", HALVES,
          (replace(FLASH, block=12, reverse=True),), {"accumulator": "same"}),
    Fault("nudged_head", "half of one head's elements one step toward zero",
          after=lambda y, o: _nudged(y, 0.5, 0.0, at[:, 0])),
    Fault("nudged_up", "an eighth of all elements one step up", after=lambda y, o: _nudged(y, 0.125, math.inf)),
    Fault("first_key_in_bfloat16", "the first key in bfloat16", (F16, F32),
          before=_part("k", at[:, :, 0], lambda x: x.bfloat16().float())),
    Fault("first_key_in_fp8", "the first key in fp8", before=_part("k", at[:, :, 0], lambda x: x.to(FP8).float())),
    Fault("first_logit_lost", "the first key's logit read as zero", hosts=_WHOLE,
          inside={"on_logits": lambda x: put(x, at[..., 0], 0.0)}),
    Fault("fp8_scale_of_a_wrong_head", "values in fp8 with the scale of the head before",
          before=_store_values(448.0, lambda x: x.to(FP8).float(), wrong_head=True)),
    Fault("values_in_11_bits", "values as integers of eleven bits, one scale per head",
          before=_store_values(1023.0, torch.round, wrong_head=False)),
    Fault("values_in_11_bits_wrong_scale", "the same with the scale of the head before",
          before=_store_values(1023.0, torch.round, wrong_head=True)),
    Fault("tile_edge_repeated", "every sixteenth row a copy of the row before",
          after=lambda y, o: put(y, at[:, :, 15::16], y[:, :, 14::16][:, :, : y[:, :, 15::16].shape[2]])),
    Fault("tail_channels_swapped", "the last row's two last channels exchanged",
          after=lambda y, o: put(y, at[:, :, -1, -2:], y[:, :, -1, -2:].flip(-1))),
    Fault("accumulator_not_cleared", "2⁻¹² in each element of the accumulator", HALVES,
          inside={"on_result": lambda x: x + 2.0**-12}),
    Fault("accumulator_not_cleared_2^-23", "2⁻²³ in each element of the accumulator", (F32,),
          inside={"on_result": lambda x: x + 2.0**-23}),
    Fault("exp_table_16", "exp by a table of sixteen steps", inside={"exp": _table(16)}),
    Fault("exp_table_1024", "exp by a table of 1,024 steps", (F32,), inside={"exp": _table(1024)}),
    Fault("key_head_of_neighbour", "the last head reads its neighbour's keys",
          before=lambda o: replace(o, k=put(o.k, at[:, -1], o.k[:, -2]))),
    Fault("values_late_in_a_block", "eight values one slot late within their block",
          before=lambda o: replace(o, v=put(o.v, at[:, :, :8], o.v[:, :, :8].roll(1, 2)))),
    Fault("last_channel_unread", "the last channel of the last eight keys not read",
          before=_part("k", at[:, :, -8:, -1], torch.zeros_like)),
    Fault("odd_values_lose_bits", "every other value in eight bits", (F16, F32),
          before=_part("v", at[:, :, 1::2], lambda x: kept_bits(x, 8))),
    Fault("later_rows_0.1%", "the later half of the rows 0.1 % too large",
          inside=_rows(lambda x, row: x * torch.where(row >= x.shape[2] // 2, 1.001, 1.0))),
    Fault("later_rows_4e-7", "the later half of the rows 4e-7 too large", (F32,),
          inside=_rows(lambda x, row: x * torch.where(row >= x.shape[2] // 2, 1.0 + 4e-7, 1.0))),
    Fault("older_keys_fade", "weights up to 0.4 % too small, the older the more", hosts=_WHOLE,
          inside={"on_logits": lambda x: x - torch.linspace(4e-3, 0.0, x.shape[-1])}),
    Fault("odd_rows_hotter", "logits of every other row 0.3 % too large", hosts=_WHOLE,
          inside={"on_logits": lambda x: x * torch.where(torch.arange(x.shape[2])[:, None] % 2 == 0, 1.003, 1.0)}),
    Fault("tile_of_an_earlier_call", "four rows of one head from an earlier call",
          after=lambda y, o: put(y, at[:, (h := pick(o, y.shape[1], salt=71)), -4:],
                                 attend(another_call(o), FUSED)[:, h, -4:])),
)  # fmt: skip

# ---- operations


def _alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, bias: Function = lambda d: -d, of: float = 1.0) -> Tensor:
    """Causal attention with a penalty on the distance."""
    rows, keys = q.shape[2], k.shape[2]
    distance = torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)
    more = (bias(distance.to(q.dtype)) * (of * slopes)[:, None, None]).masked_fill(distance < 0, -math.inf)
    return (q @ k.mT * q.shape[-1] ** -0.5 + more).softmax(-1) @ v


def _alibi_by_torch(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    rows, keys = q.shape[2], k.shape[2]
    distance = torch.arange(keys - rows, keys)[:, None] - torch.arange(keys)
    mask = (-distance.to(q.dtype) * slopes[:, None, None]).masked_fill(distance < 0, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None])


def _experts(x: Tensor, gate: Tensor, w: Tensor, change: Function = lambda p: p) -> Tensor:
    """Every expert on every token, weighted by the softmax of a gate."""
    share = change((x @ gate.mT).softmax(-1))
    return (share[..., None, :] @ torch.einsum("bld,eod->bleo", x, w)).squeeze(-2)


def _one_by_one(x: Tensor, gate: Tensor, w: Tensor) -> Tensor:
    """Gate in float32 and stored, experts added one by one in float32."""
    share = (x @ gate.mT).float().softmax(-1).to(x.dtype)
    return sum((share[..., e, None].float() * (x @ one.mT).float() for e, one in enumerate(w)), torch.zeros(())).to(
        x.dtype
    )


def _depthwise(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x, w, groups=x.shape[1])


def _by_taps(x: Tensor, w: Tensor, *, stored: torch.dtype = torch.float32, taps: int = 7) -> Tensor:
    total = torch.zeros(())
    for tap in range(taps):
        total = (total + x[..., tap : x.shape[-1] - 6 + tap].float() * w[:, 0, tap, None].float()).to(stored).float()
    return total.to(x.dtype)


def _gru(
    x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor, tanh: Function = torch.tanh,
    sigmoid: Function = torch.sigmoid,
) -> Tensor:  # fmt: skip
    (r, z, n), (s, y, m) = (F.linear(*one).chunk(3, -1) for one in ((x, w, b), (h, u, c)))
    new, keep = tanh(n + sigmoid(r + s) * m), sigmoid(z + y)
    return new + keep * (h - new)


def _gru_outside(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The reset gate on the hidden state alone, its bias outside."""
    last = torch.cat([torch.zeros_like(c[:96]), c[96:]])
    return _gru(x, h, w, u, b + last, c - last)


def _scan(x: Tensor, block: int = 32, change: Callable[[Tensor, torch.dtype], Tensor] = lambda t, d: t) -> Tensor:
    """A cumulative sum by blocks: each by itself, then what came before it is added."""
    parts = [part.cumsum(-1) for part in x.float().split(block, -1)]
    before, scanned = torch.zeros_like(parts[0][..., -1:]), []
    for part in parts:
        scanned.append(part + before)
        before = change(before + part[..., -1:], x.dtype)
    return torch.cat(scanned, -1).to(x.dtype)


def _log_mel(
    x: Tensor, w: Tensor, log: Function = torch.log10, floor: float = 1e-5, power: Function = torch.square
) -> Tensor:
    return log((power(x) @ w.mT).clamp_min(floor))


def _snake(x: Tensor, a: Tensor, sin: Function = torch.sin, eps: float = 0.0) -> Tensor:
    a = a[:, None]
    return x + sin(a * x).square() / (a + eps)


def _ada_norm(x: Tensor, s: Tensor, t: Tensor, eps: float = EPS, correction: int = 0) -> Tensor:
    """Layer norm with a scale and a shift for each example."""
    if eps == EPS and not correction:
        return F.layer_norm(x, x.shape[-1:], eps=eps) * (1.0 + s) + t
    variance = x.var(-1, correction=correction, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) * (variance + eps).rsqrt() * (1.0 + s) + t


def _few(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Group norm with one channel a group, far from zero."""
    return F.group_norm(x, x.shape[1], w, b, EPS)


def _few_by_hand(x: Tensor, w: Tensor, b: Tensor, *, moments: bool = False, correction: int = 0) -> Tensor:
    """Around the first element, or plainly from the mean of squares."""
    base = torch.zeros_like(x[..., :1]) if moments else x[..., :1]
    mean = (x - base).mean(-1, keepdim=True)
    variance = (x - base).square().mean(-1, keepdim=True) - mean.square()
    variance = variance * x.shape[-1] / (x.shape[-1] - correction)
    return (x - base - mean) * (variance + EPS).rsqrt() * w[:, None] + b[:, None]


def _eight_bits(x: Tensor) -> Tensor:
    return kept_bits(x.sigmoid(), 8)


OPERATIONS: dict[str, Operation] = {
    "alibi": Operation(
        _alibi, ((1, 4, 40, 64), (1, 4, 120, 64), (1, 4, 120, 64), (4,)),
        {"wide": wide(_alibi), "by_torch": _alibi_by_torch,
         "wide_by_position": wide(partial(_alibi, bias=lambda d: d[:, :1] - d))},
        {"slope_of_next_head": lambda q, k, v, s: _alibi(q, k, v, s.roll(1)),
         "slope_0.5%": wide(partial(_alibi, of=1.005)), "slope_1e-5": wide(partial(_alibi, of=1.0 + 1e-5)),
         "distance_up_to_48": wide(partial(_alibi, bias=lambda d: -d.clamp(max=48.0))),
         "distance_six_bits": wide(partial(_alibi, bias=lambda d: -kept_bits(d, 6)))},
        lambda q, k, v, s: (q, k, v, torch.tensor(SLOPES, dtype=s.dtype)),
    ),
    "experts": Operation(
        _experts, ((2, 24, 96), (8, 96), (8, 32, 96)),
        {"wide": wide(_experts), "one_by_one": _one_by_one,
         "as_one_product": lambda x, g, w: (
             ((x @ g.mT).softmax(-1)[..., None] * x[..., None, :]).flatten(-2) @ w.transpose(0, 1).flatten(1).mT)},
        {"gate_in_fp8": coarse(_experts, FP8, 1), "shares_0.2%": wide(partial(_experts, change=lambda p: p * 1.002)),
         "least_dropped": wide(partial(_experts, change=lambda p: torch.where(p == p.amin(-1, True), 0.0, p))),
         "experts_of_last_token": wide(partial(_experts, change=lambda p: put(p, at[:, -1], p[:, -1].roll(1, -1)))),
         "shares_eight_bits": wide(partial(_experts, change=lambda p: kept_bits(p, 8)))},
    ),
    "depthwise": Operation(
        _depthwise, ((4, 48, 70), (48, 1, 7)),
        {"wide": wide(_depthwise), "by_taps": _by_taps,
         "unfolded": lambda x, w: torch.einsum("bclk,ck->bcl", x.unfold(-1, 7, 1), w[:, 0])},
        {"taps_stored": lambda x, w: _by_taps(x, w, stored=x.dtype), "tap_left_out": partial(_by_taps, taps=6),
         "weight_one_bit_less": lambda x, w: wide(_depthwise)(x, one_bit_less(w)),
         "channel_of_next": lambda x, w: _depthwise(x, put(w, at[-1], w[0])),
         "odd_channels_0.2%": wide(lambda x, w: _depthwise(x, w) * (1.0 + 2e-3 * (torch.arange(48) % 2))[:, None])},
    ),
    "gru_cell": Operation(
        _gru, ((64, 48), (64, 48), (144, 48), (144, 48), (144,), (144,)),
        {"wide": wide(_gru), "by_torch": torch.gru_cell,
         "weighted_mean": lambda x, h, w, u, b, c: (lambda z, n: (1.0 - z) * n + z * h)(
             torch.sigmoid((F.linear(x, w, b) + F.linear(h, u, c))[:, 48:96]),
             torch.tanh(F.linear(x, w, b)[:, 96:]
                        + torch.sigmoid((F.linear(x, w, b) + F.linear(h, u, c))[:, :48]) * F.linear(h, u, c)[:, 96:])),
         "tanh_by_sigmoid": wide(partial(_gru, tanh=lambda x: 2.0 * torch.sigmoid(2.0 * x) - 1.0))},
        {"bias_outside_reset": wide(_gru_outside), "hidden_in_fp8": coarse(_gru, FP8, 1),
         "sigmoid_eight_bits": wide(partial(_gru, sigmoid=_eight_bits)),
         "tanh_0.2%": wide(partial(_gru, tanh=lambda x: x.tanh() * 1.002)),
         "hard_sigmoid": wide(partial(_gru, sigmoid=lambda x: (x / 4.0 + 0.5).clamp(0.0, 1.0)))},
        lambda x, h, *rest: (x, h.tanh(), *rest),
    ),
    "cumulative_sum": Operation(
        lambda x: x.cumsum(-1), ((2, 24, 300),),
        {"wide": wide(lambda x: x.cumsum(-1)), "by_blocks": _scan,
         "by_product": wide(lambda x: x @ torch.ones(300, 300).triu())},
        {"border_in_bfloat16": partial(_scan, change=lambda t, d: t.bfloat16().float()),
         "border_stored": partial(_scan, change=lambda t, d: t.to(d).float()),
         "first_of_block_lost": lambda x: _scan(put(x, at[..., 64], 0.0)),
         "gain_0.2%": wide(lambda x: x.cumsum(-1) * 1.002), "exclusive": lambda x: x.cumsum(-1) - x},
    ),
    "log_mel": Operation(
        _log_mel, ((4, 20, 65), (24, 65)),
        {"wide": wide(_log_mel), "by_log2": wide(partial(_log_mel, log=lambda x: x.log2() * math.log10(2.0))),
         "multiplied": partial(_log_mel, power=lambda x: x * x),
         "in_parts": wide(lambda x, w: (x[..., :33].square() @ w[:, :33].mT + x[..., 33:].square() @ w[:, 33:].mT)
                          .clamp_min(1e-5).log10())},
        {"floor_5": wide(partial(_log_mel, floor=5.0)), "filters_in_fp8": coarse(_log_mel, FP8, 1),
         "log10_e_4_decimals": wide(partial(_log_mel, log=lambda x: x.log() * 0.4343)),
         "bin_left_out": wide(lambda x, w: _log_mel(x[..., 1:], w[:, 1:])),
         "filters_one_bit_less": lambda x, w: wide(_log_mel)(x, one_bit_less(w))},
        lambda x, w: (x, w.abs()),
    ),
    "snake": Operation(
        _snake, ((4, 48, 70), (48,)),
        {"wide": wide(_snake), "bigvgan": lambda x, a: x + (1.0 / (a[:, None] + 1e-9)) * torch.sin(x * a[:, None])**2,
         "by_cosine": wide(lambda x, a: x + (1.0 - torch.cos(2.0 * a[:, None] * x)) / (2.0 * a[:, None]))},
        {"epsilon_1e-2": wide(partial(_snake, eps=1e-2)), "a_in_fp8": coarse(_snake, FP8, 1),
         "a_of_next_channel": lambda x, a: _snake(x, put(a, at[-1], a[0])),
         "sine_eight_bits": wide(partial(_snake, sin=lambda x: kept_bits(x.sin(), 8))),
         "period_4_decimals": wide(partial(_snake, sin=lambda x: (x - (x / 6.2832).round() * 6.2832).sin()))},
        lambda x, a: (x, 1.0 + a.abs()),
    ),
    "adaptive_norm": Operation(
        _ada_norm, ((4, 24, 160), (4, 1, 160), (4, 1, 160)),
        {"wide": wide(_ada_norm), "addcmul": lambda x, s, t: torch.addcmul(t, F.layer_norm(x, x.shape[-1:]), 1.0 + s),
         "scale_apart": lambda x, s, t: (lambda n: n + n * s + t)(F.layer_norm(x, x.shape[-1:]))},
        {"epsilon_1e-3": wide(partial(_ada_norm, eps=1e-3)), "unbiased": wide(partial(_ada_norm, correction=1)),
         "scale_in_fp8": coarse(_ada_norm, FP8, 1),
         "shift_of_next_example": lambda x, s, t: _ada_norm(x, s, t.roll(1, 0)),
         "tail_without_one": wide(lambda x, s, t: _ada_norm(x, put(s, at[..., -4:], s[..., -4:] - 1.0), t))},
    ),
    "channel_norm": Operation(
        _few, ((4, 12, 37), (12,), (12,)),
        {"wide": wide(_few), "around_first": wide(_few_by_hand),
         "float64_moments": lambda x, w, b: _few_by_hand(*(t.double() for t in (x, w, b)), moments=True).to(x.dtype)},
        {"moments_stored": partial(_few_by_hand, moments=True), "unbiased": wide(partial(_few_by_hand, correction=1)),
         "weight_in_fp8": coarse(_few, FP8, 1), "bias_of_next_channel": lambda x, w, b: _few(x, w, b.roll(1)),
         "last_element_unread": wide(lambda x, w, b: (x - x[..., :-1].mean(-1, keepdim=True)) * (
             x[..., :-1].var(-1, correction=0, keepdim=True) + EPS).rsqrt() * w[:, None] + b[:, None])},
        lambda x, w, b: (x + 6.0, w, b),
    ),
}  # fmt: skip
"""Operations of which all is held out."""
