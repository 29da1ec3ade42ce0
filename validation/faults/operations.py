"""Operations besides attention: linear layers, norms, softmax, an activation, and attention with a learned sink.

Each is written in plain torch; its honest variations and its faults are functions of the same operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.faults.families import DTYPES
from validation.faults.kernels import kept_bits, without_mkldnn

Function = Callable[..., Tensor]
EPS = 1e-5


@dataclass(frozen=True)
class OperationOperands:
    """Operands of one call."""

    tensors: tuple[Tensor, ...]
    family: str
    seed: int


@dataclass(frozen=True)
class Change:
    """An honest variation or a fault of an operation."""

    id: str
    operation: str
    function: Function
    plain: Function
    planted: bool
    dtypes: tuple[torch.dtype, ...] = DTYPES

    def apply(self, operands: OperationOperands) -> Tensor:
        """Compute it."""
        return self.function(*operands.tensors)

    def host(self, operands: OperationOperands) -> str:
        """What is correct without the fault."""
        return self.operation

    def correct(self, operands: OperationOperands) -> Tensor:
        """Compute the operation in float32, rounded once."""
        return wide(self.plain)(*operands.tensors)

    def inputs(self, operands: OperationOperands) -> OperationOperands:
        """What the trial is on: the operands themselves."""
        return operands


@dataclass(frozen=True)
class Operation:
    """An operation, the shapes of its operands, and what is tried on it."""

    function: Function
    shapes: tuple[tuple[int, ...], ...]
    honest: dict[str, Function]
    faults: dict[str, Function]
    prepare: Callable[..., Sequence[Tensor]] = lambda *x: x

    def sample(self, name: str, *, seed: int, dtype: torch.dtype) -> OperationOperands:
        """Draw operands: normal, every other seed with a few large channels; matrices of weights scaled to size one."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes]
        drawn[0][..., :2] *= (1.0, 20.0)[seed % 2]
        scaled = [drawn[0], *(x / x.shape[-1] ** 0.5 if x.ndim > 1 else x for x in drawn[1:])]
        return OperationOperands(tuple(x.to(dtype) for x in self.prepare(*scaled)), name, seed)

    def changes(self, name: str, kind: str) -> tuple[Change, ...]:
        """Its honest variations or its faults."""
        planted = kind == "fault"
        listed = self.faults if planted else self.honest
        return tuple(Change(key, name, one, self.function, planted) for key, one in listed.items())


def wide(function: Function) -> Function:
    """In float32, rounded once."""
    return lambda *x: function(*(t.float() for t in x)).to(x[0].dtype)


def coarse(function: Function, dtype: torch.dtype = torch.bfloat16, at: int = 0) -> Function:
    """With one operand in another dtype on the way."""
    return lambda *x: function(*(t.to(dtype).to(t.dtype) if i == at else t for i, t in enumerate(x)))


def _chunked(x: Tensor, w: Tensor, *, stored: bool) -> Tensor:
    """Thirty-two terms at a time; sums in float32, or stored in the dtype."""
    total = torch.zeros((), dtype=torch.float32)
    for a, b in zip(x.float().split(32, -1), w.float().split(32, -1), strict=True):
        total = total + a @ b.mT
        total = total.to(x.dtype).float() if stored else total
    return total.to(x.dtype)


def _linear(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.mT


def _biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def _rms_norm(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w


def _llama(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    """RMSNorm as Hugging Face's transformers have it: cast before the weight."""
    wide = x.float()
    return w * (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b, EPS)


def _by_moments(x: Tensor, w: Tensor, b: Tensor, *, correction: int = 0) -> Tensor:
    """Layer norm from the means of x and of its square, in the dtype of x."""
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()) * x.shape[-1] / (x.shape[-1] - correction)
    return (x - mean) * (variance + EPS).rsqrt() * w + b


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _by_exp2(x: Tensor, log2_e: float = math.log2(math.e), eps: float = 0.0) -> Tensor:
    wide = x.float()
    weights = torch.exp2((wide - wide.amax(-1, keepdim=True)) * log2_e)
    return (weights / (weights.sum(-1, keepdim=True) + eps)).to(x.dtype)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _with_sink(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """Attention with one more logit per head that takes weight and gives nothing, as in gpt-oss."""
    logits = q @ k.mT * q.shape[-1] ** -0.5
    extended = torch.cat([logits, sink[:, None, None].expand(*logits.shape[:-1], 1).to(logits.dtype)], -1)
    return extended.softmax(-1)[..., :-1] @ v


def _sink_in_sum(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor,
    *,
    of_sink: Function = lambda s: s,
    stored: torch.dtype = torch.float32,
) -> Tensor:
    """The same, the sink added to the sum of float32 weights at the end."""
    logits = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    highest = logits.amax(-1, keepdim=True)
    weights = (logits - highest).exp()
    above = (of_sink(sink.float())[:, None, None] - highest).to(stored).float()
    total = weights.sum(-1, keepdim=True) + above.exp()
    return (weights @ v.float() / total).to(q.dtype)


def _convolved(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x, w)


def _without_mkldnn(x: Tensor, w: Tensor) -> Tensor:
    with without_mkldnn():
        return F.conv1d(x, w)


def _gated(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def one_bit_less(x: Tensor) -> Tensor:
    bits = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23}[x.dtype]
    return kept_bits(x.float(), bits).to(x.dtype)


def _attention_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """A learned bias on each logit, as in T5; no scale but that of the weights."""
    return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v


def _rope(x: Tensor, angle: Tensor) -> Tensor:
    """Rotary embedding: the halves of the channels rotated."""
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _rope_as_turned(x: Tensor, angle: Tensor) -> Tensor:
    """As transformers has it: x·cos + turned(x)·sin."""
    cos, sin = (torch.cat([t, t], -1) for t in (angle.cos(), angle.sin()))
    return x * cos + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin


def _group_norm(x: Tensor, w: Tensor, b: Tensor, groups: int = 6, eps: float = EPS) -> Tensor:
    return F.group_norm(x, groups, w, b, eps)


def _groups_by_hand(x: Tensor, w: Tensor, b: Tensor, *, correction: int = 0) -> Tensor:
    parts = x.unflatten(1, (6, -1))
    mean, variance = parts.mean((2, 3), keepdim=True), parts.var((2, 3), keepdim=True, correction=correction)
    return ((parts - mean) * (variance + EPS).rsqrt()).flatten(1, 2) * w[:, None] + b[:, None]


OPERATIONS: dict[str, Operation] = {
    "linear": Operation(
        _linear,
        ((4, 48, 256), (96, 256)),
        {
            "by_torch": F.linear,
            "wide": wide(_linear),
            "in_chunks": lambda x, w: _chunked(x, w, stored=False),
            "turned": lambda x, w: (w @ x.mT).mT,
            "shuffled": lambda x, w: _linear(x.roll(77, -1), w.roll(77, -1)),
        },
        {
            "chunks_stored": lambda x, w: _chunked(x, w, stored=True),
            "input_in_fp8": coarse(_linear, torch.float8_e4m3fn),
            "term_dropped": lambda x, w: _linear(x[..., 1:], w[..., 1:]),
            "gain": lambda x, w: (wide(_linear)(x, w).float() * 1.002).to(x.dtype),
            "output_truncated": lambda x, w: _truncated(x.double() @ w.double().mT, x.dtype),
        },
    ),
    "linear_bias": Operation(
        _biased,
        ((4, 48, 256), (96, 256), (96,)),
        {
            "wide": wide(_biased),
            "addmm": lambda x, w, b: torch.addmm(b, x.flatten(0, 1), w.mT).unflatten(0, x.shape[:2]),
            "unfused": lambda x, w, b: F.linear(x, w) + b,
        },
        {
            "no_bias": lambda x, w, b: F.linear(x, w),
            "bias_in_fp8": coarse(_biased, torch.float8_e4m3fn, 2),
            "bias_shifted": lambda x, w, b: F.linear(x, w, b.roll(1)),
        },
    ),
    "rms_norm": Operation(
        _rms_norm,
        ((4, 48, 192), (192,)),
        {"wide": wide(_rms_norm), "by_torch": lambda x, w: F.rms_norm(x, (x.shape[-1],), w, EPS), "llama": _llama},
        {
            "eps_1e-3": lambda x, w: wide(lambda a, b: _rms_norm(a, b, 1e-3))(x, w),
            "one_less": lambda x, w: wide(_rms_norm)(x, w * (191 / 192) ** 0.5),
            "no_weight": lambda x, w: wide(_rms_norm)(x, torch.ones_like(w)),
            "weight_in_fp8": coarse(_llama, torch.float8_e4m3fn, 1),
        },
    ),
    "layer_norm": Operation(
        _layer_norm,
        ((4, 48, 192), (192,), (192,)),
        {"wide": wide(_layer_norm), "by_moments": wide(_by_moments)},
        {
            "unbiased": lambda x, w, b: wide(lambda *t: _by_moments(*t, correction=1))(x, w, b),
            "moments_stored": _by_moments,
            "bias_twice": lambda x, w, b: _layer_norm(x, w, 2 * b),
        },
    ),
    "softmax": Operation(
        _softmax,
        ((4, 48, 192),),
        {"wide": wide(_softmax), "exp2": _by_exp2, "by_log": wide(lambda x: x.log_softmax(-1).exp())},
        {
            "log2e_4_decimals": lambda x: _by_exp2(x, 1.4427),
            "log2e_bfloat16": lambda x: _by_exp2(x, 1.4453125),
            "sum_epsilon": lambda x: _by_exp2(x, eps=1e-2),
            "stored_steps": lambda x: (
                (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
            ),
        },
    ),
    "gelu": Operation(
        _gelu,
        ((4, 48, 192),),
        {"wide": wide(_gelu), "by_erf": wide(lambda x: 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0))))},
        {"tanh": lambda x: F.gelu(x, approximate="tanh"), "sigmoid": wide(lambda x: x * torch.sigmoid(1.702 * x))},
    ),
    "sink_attention": Operation(
        _with_sink,
        ((1, 4, 48, 64), (1, 4, 160, 64), (1, 4, 160, 64), (4,)),
        {"wide": wide(_with_sink), "in_sum": _sink_in_sum},
        {
            "sink_in_fp8": coarse(_sink_in_sum, torch.float8_e4m3fn, 3),
            "sink_scaled": lambda *x: _sink_in_sum(*x, of_sink=lambda s: s / 8.0),
            "sink_left_out": lambda *x: _sink_in_sum(*x, of_sink=lambda s: s - 100.0),
            "sink_not_in_log2": lambda *x: _sink_in_sum(*x, of_sink=lambda s: s * math.log(2.0)),
            "sink_in_bfloat16": coarse(_sink_in_sum, torch.bfloat16, 3),
            "sink_less_maximum_in_bfloat16": lambda *x: _sink_in_sum(*x, stored=torch.bfloat16),
            "sink_of_next_head": lambda q, k, v, s: _sink_in_sum(q, k, v, s.roll(1)),
        },
    ),
    "conv1d": Operation(
        _convolved,
        ((4, 48, 64), (96, 48, 5)),
        {
            "wide": wide(_convolved),
            "by_product": lambda x, w: torch.einsum("bcld,ocd->bol", x.unfold(-1, 5, 1), w),
            "without_mkldnn": _without_mkldnn,
        },
        {
            "tap_dropped": lambda x, w: _convolved(x[..., 1:], w[..., 1:]),
            "taps_reversed": lambda x, w: _convolved(x, w.flip(-1)),
            "weight_in_fp8": coarse(_convolved, torch.float8_e4m3fn, 1),
            "gain_0.1%": lambda x, w: (wide(_convolved)(x, w).float() * 1.001).to(x.dtype),
        },
    ),
    "log_softmax": Operation(
        lambda x: x.log_softmax(-1),
        ((4, 48, 192),),
        {
            "wide": wide(lambda x: x.log_softmax(-1)),
            "by_logsumexp": wide(lambda x: x - x.logsumexp(-1, keepdim=True)),
        },
        {
            "of_softmax": lambda x: x.softmax(-1).log(),
            "epsilon": wide(lambda x: x - (x.exp().sum(-1, keepdim=True) + 1.0).log()),
            "sum_stored": lambda x: x - x.exp().sum(-1, keepdim=True).log(),
        },
    ),
    "gated": Operation(
        _gated,
        ((4, 48, 192), (4, 48, 192)),
        {"wide": wide(_gated), "by_exp": wide(lambda x, y: x / (1.0 + (-x).exp()) * y)},
        {
            "hard": wide(lambda x, y: F.hardswish(x) * y),
            "gate_in_fp8": coarse(_gated, torch.float8_e4m3fn, 1),
            "turned_round": wide(lambda x, y: _gated(y, x)),
            "sigmoid_8_bits": wide(lambda x, y: x * torch.sigmoid(x).bfloat16().float() * y),
        },
    ),
    "attention_bias": Operation(
        _attention_with_bias,
        ((1, 4, 48, 64), (1, 4, 160, 64), (1, 4, 160, 64), (1, 4, 48, 160)),
        {
            "wide": wide(_attention_with_bias),
            "by_torch": lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, attn_mask=bias),
            "by_baddbmm": lambda q, k, v, bias: (
                torch.baddbmm(bias[0], q[0], k[0].mT, alpha=q.shape[-1] ** -0.5).softmax(-1) @ v[0]
            )[None],
        },
        {
            "bias_in_fp8": coarse(_attention_with_bias, torch.float8_e4m3fn, 3),
            "bias_scaled_0.5%": wide(lambda q, k, v, bias: _attention_with_bias(q, k, v, bias * 1.005)),
            "bias_scaled_2e-6": wide(lambda q, k, v, bias: _attention_with_bias(q, k, v, bias * (1 + 2e-6))),
            "bias_of_next_row": lambda q, k, v, bias: _attention_with_bias(q, k, v, bias.roll(1, 2)),
            "bias_not_on_last_key": lambda q, k, v, bias: _attention_with_bias(
                q, k, v, torch.cat([bias[..., :-1], 0 * bias[..., -1:]], -1)
            ),
            "bias_one_bit_less": lambda q, k, v, bias: _attention_with_bias(q, k, v, one_bit_less(bias)),
        },
    ),
    "rope": Operation(
        _rope,
        ((1, 8, 48, 64), (1, 8, 48, 32)),
        {"wide": wide(_rope), "turned": _rope_as_turned, "wide_turned": wide(_rope_as_turned)},
        {
            "angle_in_fp8": coarse(_rope, torch.float8_e4m3fn, 1),
            "late_0.2%": wide(lambda x, angle: _rope(x, angle * 1.002)),
            "angle_one_bit_less": lambda x, angle: wide(_rope)(x, one_bit_less(angle)),
            "turned_back": lambda x, angle: _rope(x, -angle),
            "sine_by_series": wide(
                lambda x, angle: (
                    x * torch.cat([angle.cos()] * 2, -1)
                    + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1)
                    * torch.cat([angle - angle**3 / 6 + angle**5 / 120] * 2, -1)
                )
            ),
        },
    ),
    "group_norm": Operation(
        _group_norm,
        ((4, 48, 96), (48,), (48,)),
        {"wide": wide(_group_norm), "by_hand": wide(_groups_by_hand)},
        {
            "unbiased": wide(lambda x, w, b: _groups_by_hand(x, w, b, correction=1)),
            "eps_1e-3": wide(lambda x, w, b: _group_norm(x, w, b, eps=1e-3)),
            "eps_4e-5": wide(lambda x, w, b: _group_norm(x, w, b, eps=4e-5)),
            "bias_of_next_channel": lambda x, w, b: _group_norm(x, w, b.roll(1)),
            "weight_one_bit_less": lambda x, w, b: wide(_group_norm)(x, one_bit_less(w), b),
            "output_truncated": lambda x, w, b: _truncated(_group_norm(x.double(), w.double(), b.double()), x.dtype),
        },
    ),
}


def _truncated(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded toward zero."""
    near = exact.to(dtype)
    return torch.where(near.double().abs() > exact.abs(), torch.nextafter(near, torch.zeros_like(near)), near)
