"""The third set of plants: code that engineers write by hand, and architectures that the other sets do not hold.

It was written, and committed, before the doctor was tried on any of it, by somebody who had read neither the doctor's
rules nor the plants of the other sets, only the list of what had been missed there. Each
idiom is a class that does it carefully, and is clean in three dtypes, and a subclass that does it carelessly. An idiom
that is silent is further from the careful class in float64 than the careful class itself, or its output has another
dtype; both were checked by running them, without the doctor. Two truths were corrected after the first
score: the rounded rates of ``HalfTimestep`` come before its angles, and StableAudio takes its dtype from its first
parameter.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.core.formats import short
from validation.doctor.architectures import _GROUPED, _PATCHES, _SEQ2SEQ, _TEXT, _ids, _normal, _tokens, maker
from validation.doctor.blind import cached, plants_of
from validation.doctor.plants import BRAIN, HALF, SINGLE, Edit, Plant, given, line_of, stored
from validation.doctor.small import Built, Make

WIDTH, LENGTH, HEADS = 32, 12, 4


class Idiom(nn.Module):
    """A linear layer, what an engineer wrote, and a linear layer."""

    bank: torch.Tensor
    betas: torch.Tensor
    codes: torch.Tensor
    gain: torch.Tensor
    kept: torch.Tensor
    rate: torch.Tensor
    scale: torch.Tensor
    step: torch.Tensor
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.build()

    def build(self) -> None:
        """Add what this one needs; it is brought to the model's dtype with the rest."""

    def settle(self) -> None:
        """Bring a part to a dtype of its own once the model has its dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outward(self.between(self.inward(x)))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of four heads."""
    q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


# ---- caches


class TupleCache(Idiom):
    """Keys and values of earlier positions as a tuple."""

    def build(self) -> None:
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def past(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.key(x[:, :4]), self.value(x[:, :4])

    def between(self, x: torch.Tensor) -> torch.Tensor:
        past_key, past_value = self.past(x)
        keys = torch.cat([past_key, self.key(x)], dim=1)  # @tuple_keys
        values = torch.cat([past_value, self.value(x)], dim=1)
        return attend(x, keys, values)


class HalfTupleCache(TupleCache):
    """Offloaded in half."""

    def past(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.key(x[:, :4]).half(), self.value(x[:, :4]).half()


class WideTupleCache(TupleCache):
    """Kept in float32."""

    def past(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.key(x[:, :4]).float(), self.value(x[:, :4]).float()


class DictCache(Idiom):
    """Keys and values written step by step into preallocated tensors of a dictionary."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(x.shape)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        cache, outputs = {"keys": self.room(x), "values": self.room(x)}, []
        for step in range(4):
            cache["keys"][:, step] = x[:, step]  # @dict_write
            cache["values"][:, step] = x[:, step]
            keys, values = (cache[name][:, : step + 1].to(x.dtype) for name in ("keys", "values"))
            outputs.append(attend(x[:, step : step + 1], keys, values))
        return torch.cat(outputs, dim=1)


class HalfDictCache(DictCache):
    """Allocated in half."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape, dtype=torch.float16)


@dataclass
class Memory:
    """Keys, values and how many positions are filled."""

    keys: torch.Tensor
    values: torch.Tensor
    filled: int = 0


class DataclassCache(Idiom):
    """Keys and values written by index into a dataclass."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape, dtype=x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        memory = Memory(self.room(x), self.room(x))
        at = torch.arange(memory.filled, memory.filled + x.shape[1])
        memory.keys.index_copy_(1, at, x)  # @index_copy
        memory.values.index_copy_(1, at, x)
        return attend(x, memory.keys, memory.values)


class WideDataclassCache(DataclassCache):
    """Allocated in torch's default dtype."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape)


@dataclass
class Carry:
    """The state of a recurrence."""

    state: torch.Tensor


class DataclassState(Idiom):
    """A leaky state carried in a dataclass."""

    of_state: torch.dtype | None = None

    def between(self, x: torch.Tensor) -> torch.Tensor:
        carry, states = Carry(torch.zeros(x.shape[0], WIDTH, dtype=self.of_state or x.dtype)), []
        for step in range(x.shape[1]):
            carry.state = (0.9 * carry.state.to(x.dtype) + x[:, step]).to(carry.state.dtype)  # @carry
            states.append(carry.state.to(x.dtype))
        return torch.stack(states, dim=1)


class BrainDataclassState(DataclassState):
    """The state is kept in bfloat16."""

    of_state = torch.bfloat16


class Copied(Idiom):
    """The last output kept in a buffer for the next call, and read back."""

    def build(self) -> None:
        self.register_buffer("kept", torch.zeros(2, LENGTH, WIDTH))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x)  # @copied
        return x + self.kept.to(x.dtype).flip(1)


class HalfCopied(Copied):
    """The buffer is registered in half."""

    def settle(self) -> None:
        self.kept = self.kept.half()


# ---- positions, rotations, timesteps


class ComplexRotary(Idiom):
    """Rotary positions by complex numbers that are made in the call."""

    def turns(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(LENGTH).float(), 10000 ** (-torch.arange(WIDTH // 2) / (WIDTH // 2)))
        return torch.polar(torch.ones_like(angles), angles)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * self.turns(x)).flatten(-2).type_as(x)  # @lost_imaginary
        return attend(turned, turned, x)


class LostImaginary(ComplexRotary):
    """The table is a complex buffer, and ``model.half()`` leaves only its real part."""

    def build(self) -> None:
        self.register_buffer("table", super().turns(torch.zeros(())))

    def turns(self, x: torch.Tensor) -> torch.Tensor:
        return self.table


class Timestep(Idiom):
    """A sinusoidal embedding of a timestep, its angles in float32."""

    def build(self) -> None:
        self.register_buffer("step", torch.tensor([987, 901]), persistent=False)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        angles = self.step.float()[:, None] * rates
        return x + torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype)[:, None]


class HalfTimestep(Timestep):
    """The angles are in the model's dtype."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(WIDTH // 2) / (WIDTH // 2)).to(x.dtype)  # @rates
        angles = self.step.to(x.dtype)[:, None] * rates
        return x + torch.cat([angles.cos(), angles.sin()], dim=-1)[:, None]


class LatePositions(Idiom):
    """Positions of a long stream: float32 until their sine."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(3001, 3001 + x.shape[1], dtype=torch.float32)
        return x + (positions / 3.7).sin()[:, None].to(x.dtype)


class HalfLatePositions(LatePositions):
    """Positions are made in the model's dtype."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(3001, 3001 + x.shape[1], dtype=x.dtype)  # @positions
        return x + (positions / 3.7).sin()[:, None]


class Oscillator(Idiom):
    """A sine whose phase is summed over samples."""

    def phase(self, rate: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(rate.float(), dim=1)

    def build(self) -> None:
        self.register_buffer("rate", (64 + torch.arange(WIDTH)) / 1024)  # every format holds them exactly

    def between(self, x: torch.Tensor) -> torch.Tensor:
        phase = self.phase(self.rate.expand(1, 80 * LENGTH, -1))
        return x + (2 * torch.pi * phase).sin().to(x.dtype)[:, ::80]


class HalfOscillator(Oscillator):
    """The phase is summed in the model's dtype."""

    def phase(self, rate: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(rate, dim=1)  # @phase


class Durations(Idiom):
    """Frames are repeated by durations whose ends are summed."""

    def ends(self, lasting: torch.Tensor) -> torch.Tensor:
        return lasting.float().cumsum(dim=1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        lasting = (x[..., 0].float() * 8 + 90).round().to(x.dtype)
        ends = self.ends(lasting)
        frames = torch.arange(0, 1100, 50)[None, :, None] < ends[:, None]
        return frames.to(x.dtype) @ x


class HalfDurations(Durations):
    """The sum is in the model's dtype, which cannot count so far."""

    def ends(self, lasting: torch.Tensor) -> torch.Tensor:
        return lasting.cumsum(dim=1)  # @ends


class Schedule(Idiom):
    """Noise is mixed in by a schedule of a thousand steps."""

    def alphas(self, x: torch.Tensor) -> torch.Tensor:
        return (1 - torch.linspace(1e-4, 0.02, 1000)).cumprod(0)[500].to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.alphas(x)
        return kept.sqrt() * x + (1 - kept).sqrt() * x.roll(1, -1)


class HalfSchedule(Schedule):
    """The schedule is a buffer, and half with the model."""

    def build(self) -> None:
        self.register_buffer("betas", torch.linspace(1e-4, 0.02, 1000))

    def alphas(self, x: torch.Tensor) -> torch.Tensor:
        return (1 - self.betas).cumprod(0)[500]  # @alphas


class Euler(Idiom):
    """Two steps of a sampler whose noise levels stay in float32."""

    def build(self) -> None:
        self.sigmas = [14.6, 3.1, 0.4]

    def between(self, x: torch.Tensor) -> torch.Tensor:
        levels = torch.tensor(self.sigmas)
        for step in range(2):
            x = x + (levels[step + 1] - levels[step]) * 0.01 * self.inward(x)
        return x


class SlicedEuler(Euler):
    """A noise level is a slice of one element and promotes, where an element would not."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        levels = torch.tensor(self.sigmas)
        for step in range(2):
            gap = levels[step + 1 : step + 2] - levels[step : step + 1]
            x = x + gap * 0.01 * self.inward(x)  # @euler
        return x


# ---- attention by hand


class EinsumAttention(Idiom):
    """Attention by einsum with an additive mask in the scores' dtype."""

    def build(self) -> None:
        self.loud = nn.Parameter(torch.tensor(1.0))

    def mask(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.full(scores.shape[1:], torch.finfo(scores.dtype).min, dtype=scores.dtype).triu(1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bqd,bkd->bqk", x, x) / np.sqrt(WIDTH)
        scores = scores + self.mask(scores)  # @einsum_mask
        return torch.einsum("bqk,bkd->bqd", scores.softmax(-1), x)


class WideMask32(EinsumAttention):
    """The mask has torch's default dtype."""

    def mask(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.full(scores.shape[1:], -1e4).triu(1)


class PaddedRows(EinsumAttention):
    """A row of padding is masked whole, finitely."""

    def mask(self, scores: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(scores.shape[1:], dtype=scores.dtype)
        rows[-1] = torch.finfo(scores.dtype).min / 2
        return rows


class InfiniteRows(PaddedRows):
    """The least float32 becomes minus infinity in half, and a row of it no number."""

    def mask(self, scores: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(scores.shape[1:])
        rows[-1] = torch.finfo(torch.float32).min
        return rows.to(scores.dtype)  # @least


class LoudAttention(Idiom):
    """Queries are scaled before the product, which large queries need in half."""

    def build(self) -> None:
        self.register_buffer("gain", torch.tensor(90.0))

    def scores(self, q: torch.Tensor) -> torch.Tensor:
        return ((q / WIDTH) @ (q / 16).transpose(1, 2)).float()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scores(x * self.gain) / 10).softmax(-1).to(x.dtype) @ x


class OverflowingAttention(LoudAttention):
    """Scaled after the product."""

    def scores(self, q: torch.Tensor) -> torch.Tensor:
        product = q @ q.transpose(1, 2)  # @loud_product
        return (product / (16 * WIDTH)).float()


class LinearAttention(Idiom):
    """Linear attention, its sums over positions in float32."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        features = (3 * x).exp().float()
        state = torch.einsum("bnd,bne->bde", features, x.float())
        return (features @ state / (features @ features.sum(1)[..., None])).to(x.dtype)


class HalfLinearAttention(LinearAttention):
    """In the model's dtype, where the sum of features and values overflows."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        features = (3 * x).exp() * 40
        state = torch.einsum("bnd,bne->bde", features * features, x)  # @state
        return (features / features.amax()) @ (state / state.abs().amax())


class MaskedFill(Idiom):
    """Masked with the least number of the dtype."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        scores, later = x @ x.transpose(1, 2), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, torch.finfo(x.dtype).min).softmax(-1) @ x


class FarMaskedFill(MaskedFill):
    """Masked with a number that half does not hold."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        scores, later = x @ x.transpose(1, 2), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -1e9).softmax(-1) @ x  # @far


class TorchAttention(Idiom):
    """torch's own attention module with an additive mask."""

    def build(self) -> None:
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((LENGTH, LENGTH), -1e4).triu(1).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, attn_mask=self.mask(x), need_weights=False)[0]  # @torch_mask


class WideTorchMask(TorchAttention):
    """The mask is float64, as numpy makes it."""

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.triu(np.full((LENGTH, LENGTH), -1e4), 1))


# ---- weights


class MergedLora(Idiom):
    """A low-rank update merged into a weight."""

    def build(self) -> None:
        self.down, self.up = nn.Parameter(torch.randn(4, WIDTH) / 8), nn.Parameter(torch.randn(WIDTH, 4) / 8)
        self.base = nn.Linear(WIDTH, WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.base.weight + self.up @ self.down  # @merged_weight
        return F.linear(x, weight, self.base.bias)


class WideMergedLora(MergedLora):
    """The update is float32."""

    def settle(self) -> None:
        self.down.data, self.up.data = self.down.data.float(), self.up.data.float()


class Tied(Idiom):
    """The head is the embedding."""

    def build(self) -> None:
        self.tokens = nn.Embedding(24, WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        logits = F.linear(x, self.tokens.weight)
        return logits.softmax(-1) @ self.tokens.weight


class WideTied(Tied):
    """The hidden state is widened for the logits, and the tied weight is not."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        logits = F.linear(x.float(), self.tokens.weight)  # @tied
        return logits.to(x.dtype).softmax(-1) @ self.tokens.weight


class Quantised(Idiom):
    """A weight in int8 with a scale for each row."""

    def build(self) -> None:
        self.register_buffer("codes", torch.randint(-127, 128, (WIDTH, WIDTH), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(WIDTH, 1) / 400 + 1e-3)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.codes * self.scale
        return F.linear(x, weight)  # @dequantised


class WideQuantised(Quantised):
    """The scales are float32, and so is what they give."""

    def settle(self) -> None:
        self.scale = self.scale.float()


class ScaledAfter(Quantised):
    """Scaled after the product; the last of the model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inward(x) @ self.codes.to(x.dtype).T
        return y * self.scale.T  # @scaled_after


class WideScaledAfter(ScaledAfter):
    """The scales are float32, and so is the output."""

    def settle(self) -> None:
        self.scale = self.scale.float()


class IntegerProduct(Quantised):
    """Activations and weight in int8, their product in float32."""

    def product(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float() @ self.codes.T.float()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        codes = (x * 300).round().clamp(-127, 127).to(torch.int8)
        return (self.product(codes) * 1e-5).to(x.dtype)


class HalfIntegerProduct(IntegerProduct):
    """The product is in half, and overflows."""

    def product(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.half() @ self.codes.T.half()  # @integer_product


class Functional(Idiom):
    """A module called with other weights."""

    def build(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: weight * 0.9 for name, weight in self.inner.named_parameters()}

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(self.inner, self.weights(), (x,))  # @functional


class WideFunctional(Functional):
    """An average of weights, kept in float32."""

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.float() * 0.9 for name, weight in self.inner.named_parameters()}


class Ensemble(Idiom):
    """Three weights at once by vmap."""

    def build(self) -> None:
        self.weights = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / 6)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda weight: x @ weight)(self.weights).mean(0)  # @vmap


class WideEnsemble(Ensemble):
    """The stacked weights are float32."""

    def settle(self) -> None:
        self.weights.data = self.weights.data.float()


class Codebook(Idiom):
    """Codes looked up and added."""

    def build(self) -> None:
        self.codes = nn.Parameter(torch.randn(16, WIDTH))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        picked = F.embedding(torch.arange(LENGTH).expand(x.shape[0], -1), self.codes)
        return x + picked  # @picked


class HalfCodebook(Codebook):
    """The table is half to save memory."""

    def settle(self) -> None:
        self.codes.data = self.codes.data.half()


class Nearest(Idiom):
    """The nearest code, by differences."""

    def build(self) -> None:
        self.codes = nn.Parameter(torch.randn(16, WIDTH) * 2)

    def distance(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, :, None] - self.codes).float().square().sum(-1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        weights = (-self.distance(4 * x)).softmax(-1).to(x.dtype)
        return weights @ self.codes


# ---- sums, norms and logarithms


class Energy(Idiom):
    """Divided by the root of its energy, summed in float32."""

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().pow(2).sum(-1, keepdim=True).sqrt()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        loud = x * 300
        return (loud / self.energy(loud)).to(x.dtype)


class HalfEnergy(Energy):
    """The sum is in half, and infinite."""

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return x.pow(2).sum(-1, keepdim=True).sqrt()  # @energy


class LogMel(Idiom):
    """A logarithm with a floor, in float32."""

    def log(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().clamp(min=1e-10).log10().to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.log(x.relu()) / 10


class HalfLogMel(LogMel):
    """A floor that half rounds to nothing."""

    def log(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=1e-10).log10()  # @floor


class LogSum(Idiom):
    """The logarithm of a sum of exponentials, by torch."""

    def total(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, dim=-1, keepdim=True)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.total(30 * x) / 30


class HandLogSum(LogSum):
    """By hand, where an exponential overflows."""

    def total(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp().sum(-1, keepdim=True).log()  # @exponential


class Cosine(Idiom):
    """How far neighbours that are alike differ, by their difference."""

    def apart(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(a.float(), dim=-1), F.normalize(b.float(), dim=-1)
        return ((a - b).square().sum(-1, keepdim=True) / 2).to(torch.float32)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        near = x + x.roll(1, -1) / 16
        return (x * (100 * self.apart(x, near)).to(x.dtype)).to(x.dtype)


class CancellingCosine(Cosine):
    """As one less their product, in the model's dtype."""

    def apart(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        return 1 - (a * b).sum(-1, keepdim=True)  # @one_less


class Gumbel(Idiom):
    """Gumbel noise made of given uniform draws, in float32."""

    def build(self) -> None:
        draws = torch.rand(LENGTH, WIDTH, generator=torch.Generator().manual_seed(3)) * 0.8 + 0.1
        draws[::3, ::5] = 0.99999
        self.draws = nn.ParameterList()
        self.uniform = draws

    def noise(self, x: torch.Tensor) -> torch.Tensor:
        return -(-self.uniform.log()).log()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.noise(x).to(x.dtype)).softmax(-1)


class RoundedGumbel(Gumbel):
    """The draws are rounded first, some to one, whose noise is infinite."""

    def noise(self, x: torch.Tensor) -> torch.Tensor:
        return -(-self.uniform.to(x.dtype).log()).log()  # @gumbel


class HotLogits(Idiom):
    """Logits divided by a low temperature after their greatest is taken off."""

    def sharpened(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits - logits.amax(-1, keepdim=True)).clamp(min=-5) / 1e-3

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.sharpened(x * 150).softmax(-1)


class OverflowingLogits(HotLogits):
    """Divided as they are; what overflows has no softmax."""

    def sharpened(self, logits: torch.Tensor) -> torch.Tensor:
        return logits / 1e-3  # @temperature


class Guided(Idiom):
    """Guided by a gradient of a loss that is scaled in float32."""

    def loss(self, y: torch.Tensor) -> torch.Tensor:
        return y.float().square().sum() * 1024

    def between(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            given_x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(self.outward(given_x)), given_x)
        return x - (slope.float() / 1024).to(x.dtype) * 0.1


class OverflowingLoss(Guided):
    """Scaled in half beyond its range, so that the gradient is infinite."""

    def loss(self, y: torch.Tensor) -> torch.Tensor:
        return (y.square() * 65536).sum()  # @loss_scale


class Squash(torch.autograd.Function):
    """A fused activation with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0].tanh()


class HalfSquash(Squash):
    """The same, in half to save memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.half()  # @squash
        ctx.save_for_backward(y)
        return (y * torch.tanh(F.softplus(y))).to(x.dtype)


class Squashed(Idiom):
    """Through a function with a gradient of its own."""

    function: type[torch.autograd.Function] = Squash

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.function.apply(x)


class HalfSquashed(Squashed):
    """Whose forward is in half."""

    function = HalfSquash


class Reparameterised(Idiom):
    """A draw from a normal distribution, as a variational model makes it."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = x.chunk(2, dim=-1)
        draw = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return torch.cat([draw, mean], dim=-1)


class WideDraw(Reparameterised):
    """The draw has torch's default dtype."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = x.chunk(2, dim=-1)
        draw = mean + (log_variance / 2).exp() * torch.randn(mean.shape)  # @draw
        return torch.cat([draw, mean], dim=-1)


class ActiveDropout(Idiom):
    """Dropout that stays on, for an estimate of uncertainty."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([F.dropout(x, 0.1, training=True) for _ in range(4)]).mean(0)


# ---- sound


class Spectrum(Idiom):
    """A filter in the frequency domain, in float32."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        bins = torch.fft.rfft(x.float(), dim=1)
        bins = bins * torch.linspace(1, 0, bins.shape[1])[:, None]
        return torch.fft.irfft(bins, n=x.shape[1], dim=1).to(x.dtype)


class HalfSpectrum(Spectrum):
    """In bfloat16, which has no such transform."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        bins = torch.fft.rfft(x, dim=1)  # @transform
        bins = bins * torch.linspace(1, 0, bins.shape[1])[:, None]
        return torch.fft.irfft(bins, n=x.shape[1], dim=1)


class RoundedSpectrum(Spectrum):
    """The samples are rounded to half on the way, in a float32 model."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        samples = x.half()  # @rounded_samples
        bins = torch.fft.rfft(samples.float(), dim=1)
        bins = bins * torch.linspace(1, 0, bins.shape[1])[:, None]
        return torch.fft.irfft(bins, n=x.shape[1], dim=1)


class OverlapAdd(Idiom):
    """Frames added where they overlap."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(x.shape[0], LENGTH + 4, WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        out, window = self.room(x), torch.hann_window(6, dtype=x.dtype)[:, None]
        for start in range(0, LENGTH - 2, 3):
            out[:, start : start + 6] += F.pad(x, (0, 0, 0, 6))[:, start : start + 6] * window  # @overlap
        return out[:, :LENGTH].to(x.dtype)


class HalfOverlapAdd(OverlapAdd):
    """Into half."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape[0], LENGTH + 4, WIDTH, dtype=torch.float16)


class Streamed(Idiom):
    """A convolution whose left context is carried."""

    def build(self) -> None:
        self.context = torch.zeros(1, WIDTH, 2)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3)

    def carried(self, x: torch.Tensor) -> torch.Tensor:
        return self.context.to(x.dtype).expand(x.shape[0], -1, -1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.carried(x), x.transpose(1, 2)], dim=-1)  # @streamed
        return self.conv(joined).transpose(1, 2)


class WideStreamed(Streamed):
    """The context is a plain attribute that ``model.half()`` does not reach."""

    def carried(self, x: torch.Tensor) -> torch.Tensor:
        return self.context.expand(x.shape[0], -1, -1)


class MelBank(Idiom):
    """A power spectrum through a bank of filters."""

    def build(self) -> None:
        self.register_buffer("bank", torch.rand(WIDTH // 2 + 1, WIDTH))

    def filters(self, power: torch.Tensor) -> torch.Tensor:
        return self.bank.to(power.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        power = torch.fft.rfft(x.float()).abs()
        return (power @ self.filters(power)).to(x.dtype)  # @bank


class HalfMelBank(MelBank):
    """The bank became half with the model, the power did not."""

    def filters(self, power: torch.Tensor) -> torch.Tensor:
        return self.bank


class Polar(Idiom):
    """Magnitude and phase to a waveform."""

    def phase(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x.float(), dim=-1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        bins = torch.polar(x.exp().float(), self.phase(x))  # @polar
        return torch.fft.irfft(bins, n=WIDTH).to(x.dtype)


class WidePhase(Polar):
    """The phase is float64, as numpy makes it."""

    def phase(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.cumsum(x.double().numpy(), axis=-1))


class Smoothed(Idiom):
    """Smoothed with the step before."""

    def weight(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(0, 1, WIDTH).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.lerp(x, x.roll(1, 1), self.weight(x))  # @lerp


class WideSmoothed(Smoothed):
    """The weight has torch's default dtype."""

    def weight(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(0, 1, WIDTH)


class Resampled(Idiom):
    """Read between positions, on a grid."""

    def grid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(-1, 1, LENGTH).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        grid = torch.stack([self.grid(x), torch.zeros_like(self.grid(x))], dim=-1).expand(x.shape[0], 1, -1, -1)
        read = F.grid_sample(x.transpose(1, 2)[:, :, None], grid, align_corners=True)  # @grid
        return read[:, :, 0].transpose(1, 2)


class WideResampled(Resampled):
    """The grid has torch's default dtype."""

    def grid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(-1, 1, LENGTH)


class Interpolated(Idiom):
    """A curve by numpy in the middle."""

    def curve(self, x: torch.Tensor) -> torch.Tensor:
        known = x[:, ::4].float().mean((0, 2)).numpy()
        curve = np.interp(np.arange(LENGTH), np.arange(0, LENGTH, 4), known)
        return torch.from_numpy(curve).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.curve(x)[:, None]  # @curve


class WideInterpolated(Interpolated):
    """numpy's float64 is left as it is."""

    def curve(self, x: torch.Tensor) -> torch.Tensor:
        known = x[:, ::4].float().mean((0, 2)).numpy()
        return torch.from_numpy(np.interp(np.arange(LENGTH), np.arange(0, LENGTH, 4), known))


class Bucketed(Idiom):
    """Values to bins."""

    def bounds(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(-2, 2, 7).to(x.dtype)

    def build(self) -> None:
        self.bins = nn.Embedding(8, WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bins(torch.bucketize((x[..., 0] * 4).round() / 4 + 0.1, self.bounds(x)))


class Chosen(Idiom):
    """Values or a floor."""

    def floor(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(-0.25)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > -0.25, x, self.floor(x))  # @chosen


class WideChosen(Chosen):
    """The floor has a dimension, and so it promotes."""

    def floor(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((WIDTH,), -0.25)


class Features(Idiom):
    """Statistics beside the values."""

    def statistics(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.float().mean(-1), x.float().std(-1)], dim=-1).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[..., 2:], self.statistics(x)], dim=-1)  # @statistics


class WideFeatures(Features):
    """Left in float32."""

    def statistics(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.float().mean(-1), x.float().std(-1)], dim=-1)


class Scattered(Idiom):
    """Tokens to experts and back, by adding into place."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        index = torch.arange(flat.shape[0] - 1, -1, -1)[:, None].expand_as(flat)
        return self.room(flat).scatter_add_(0, index, flat).view_as(x)  # @scattered


class WideScattered(Scattered):
    """Into torch's default dtype."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape)


class Patched(Idiom):
    """Rows replaced by index."""

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :2] * 2

    def between(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, torch.tensor([3, 5])] = self.rows(x)  # @put
        return y


class WidePatched(Patched):
    """By float32."""

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :2].float() * 2


class Scratched(Idiom):
    """A product into a scratch tensor."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.shape[0], LENGTH, LENGTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        scratch = self.room(x)
        torch.matmul(x, x.transpose(1, 2), out=scratch)  # @scratch
        return (scratch / WIDTH).softmax(-1) @ x


class WideScratched(Scratched):
    """Of torch's default dtype."""

    def room(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape[0], LENGTH, LENGTH)


class Summed(Idiom):
    """A sum into a scratch tensor."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        scratch = torch.empty_like(x)
        torch.add(x, x.roll(1, 1), out=scratch)
        return scratch


class IntoHalf(Summed):
    """Of half, in a float32 model."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        scratch = torch.empty(x.shape, dtype=torch.float16)
        torch.add(x, x.roll(1, 1), out=scratch)  # @into_half
        return scratch.to(x.dtype)


class Normed(Idiom):
    """A layer norm in float32, by function."""

    def build(self) -> None:
        self.gain, self.bias = nn.Parameter(torch.rand(WIDTH) + 0.5), nn.Parameter(torch.rand(WIDTH))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.float(), (WIDTH,), self.gain.float(), self.bias.float()).to(x.dtype)


class HalfNormed(Normed):
    """The gain was not widened."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.float(), (WIDTH,), self.gain, self.bias).to(x.dtype)  # @normed


class Mean(Idiom):
    """Centred on a mean of many samples, in float32."""

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().mean(dim=1, keepdim=True)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        centred = x.float() + 30
        return (centred - self.mean(centred)).to(x.dtype)


class HalfMean(Mean):
    """The offset is added in half, where little of the values is left."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        offset = (x + 300).to(x.dtype)  # @offset
        return offset - offset.mean(dim=1, keepdim=True)


def idiom(model: type[Idiom]) -> Make:
    """Make a function that builds an idiom with its input."""

    def make(dtype: torch.dtype) -> Built:
        torch.manual_seed(0)
        built = model().to(dtype).eval().requires_grad_(False)
        built.settle()
        return built, ({"x": _normal(dtype, 2, LENGTH, WIDTH)},)

    make.__name__ = model.__name__
    return make


#: Careless class, dtype, marker of the line, path of the module, and whether it runs on.
Row = tuple[type[Idiom], torch.dtype, str, str, bool]
_IDIOMS: tuple[Row, ...] = (
    (HalfTupleCache, SINGLE, "tuple_keys", "", True),
    (WideTupleCache, BRAIN, "tuple_keys", "", False),
    (HalfDictCache, SINGLE, "dict_write", "", True),
    (WideDataclassCache, HALF, "index_copy", "", False),
    (BrainDataclassState, SINGLE, "carry", "", True),
    (HalfCopied, SINGLE, "copied", "", True),
    (LostImaginary, HALF, "lost_imaginary", "", True),
    (HalfTimestep, HALF, "rates", "", True),
    (HalfLatePositions, BRAIN, "positions", "", True),
    (HalfOscillator, HALF, "phase", "", True),
    (HalfDurations, BRAIN, "ends", "", True),
    (HalfSchedule, BRAIN, "alphas", "", True),
    (SlicedEuler, HALF, "euler", "", False),
    (WideMask32, BRAIN, "einsum_mask", "", False),
    (InfiniteRows, HALF, "least", "", True),
    (OverflowingAttention, HALF, "loud_product", "", True),
    (HalfLinearAttention, HALF, "state", "", True),
    (FarMaskedFill, HALF, "far", "", False),
    (WideTorchMask, SINGLE, "torch_mask", "attention", False),
    (WideMergedLora, BRAIN, "merged_weight", "", False),
    (WideTied, HALF, "tied", "", False),
    (WideQuantised, BRAIN, "dequantised", "", False),
    (WideScaledAfter, HALF, "scaled_after", "", True),
    (HalfIntegerProduct, SINGLE, "integer_product", "", True),
    (WideFunctional, HALF, "functional", "inner", False),
    (WideEnsemble, BRAIN, "vmap", "", False),
    (HalfCodebook, SINGLE, "picked", "", True),
    (HalfEnergy, HALF, "energy", "", True),
    (HalfLogMel, HALF, "floor", "", True),
    (HandLogSum, HALF, "exponential", "", True),
    (CancellingCosine, BRAIN, "one_less", "", True),
    (RoundedGumbel, HALF, "gumbel", "", True),
    (OverflowingLogits, HALF, "temperature", "", True),
    (OverflowingLoss, HALF, "loss_scale", "", True),
    (HalfSquashed, SINGLE, "squash", "", True),
    (WideDraw, HALF, "draw", "", False),
    (HalfSpectrum, BRAIN, "transform", "", False),
    (RoundedSpectrum, SINGLE, "rounded_samples", "", True),
    (HalfOverlapAdd, SINGLE, "overlap", "", True),
    (WideStreamed, HALF, "streamed", "", False),
    (HalfMelBank, HALF, "bank", "", False),
    (WidePhase, SINGLE, "polar", "", False),
    (WideSmoothed, BRAIN, "lerp", "", False),
    (WideResampled, HALF, "grid", "", False),
    (WideInterpolated, SINGLE, "curve", "", False),
    (WideChosen, BRAIN, "chosen", "", False),
    (WideFeatures, HALF, "statistics", "", False),
    (WideScattered, BRAIN, "scattered", "", False),
    (WidePatched, HALF, "put", "", False),
    (WideScratched, HALF, "scratch", "", False),
    (IntoHalf, SINGLE, "into_half", "", True),
    (HalfNormed, BRAIN, "normed", "", False),
    (HalfMean, BRAIN, "offset", "", True),
)  # fmt: skip


def _alone(dtype: torch.dtype) -> dict[str, Any]:
    return {"input_ids": _ids(1, 8)}


def _pair(dtype: torch.dtype) -> dict[str, Any]:
    return {"input_ids": _ids(1, 8), "decoder_input_ids": _ids(1, 4), "use_cache": False}


def _picture(dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": _normal(dtype, 1, 3, 32, 32)}


stablelm = maker("transformers", "StableLmForCausalLM", _tokens, "StableLmConfig", **_GROUPED)
cohere = maker("transformers", "CohereForCausalLM", _tokens, "CohereConfig", **_GROUPED)
granite = maker("transformers", "GraniteForCausalLM", _tokens, "GraniteConfig", **_GROUPED)
starcoder2 = maker("transformers", "Starcoder2ForCausalLM", _tokens, "Starcoder2Config", **_GROUPED)
gptj = maker(
    "transformers", "GPTJForCausalLM", _tokens, "GPTJConfig", vocab_size=96, n_positions=64, n_embd=32, n_layer=2,
    n_head=4, rotary_dim=4,
)  # fmt: skip
xglm = maker(
    "transformers", "XGLMForCausalLM", _tokens, "XGLMConfig", vocab_size=96, d_model=32, ffn_dim=64, num_layers=2,
    attention_heads=4, max_position_embeddings=64,
)  # fmt: skip
mpt = maker(
    "transformers", "MptForCausalLM", _tokens, "MptConfig", vocab_size=96, d_model=32, n_heads=4, n_layers=2,
    max_seq_len=64,
)  # fmt: skip
roberta = maker("transformers", "RobertaForMaskedLM", _alone, "RobertaConfig", **_TEXT)
albert = maker("transformers", "AlbertForMaskedLM", _alone, "AlbertConfig", **_TEXT, embedding_size=16)
deberta = maker(
    "transformers", "DebertaV2Model", _alone, "DebertaV2Config", **_TEXT, relative_attention=True,
    pos_att_type=["p2c", "c2p"],
)  # fmt: skip
mpnet = maker("transformers", "MPNetModel", _alone, "MPNetConfig", **_TEXT)
pegasus = maker(
    "transformers", "PegasusForConditionalGeneration", _pair, "PegasusConfig", **_SEQ2SEQ, max_position_embeddings=32
)
m2m = maker(
    "transformers", "M2M100ForConditionalGeneration", _pair, "M2M100Config", **_SEQ2SEQ, max_position_embeddings=32
)
segformer = maker(
    "transformers", "SegformerForImageClassification", _picture, "SegformerConfig", hidden_sizes=[8, 16],
    depths=[1, 1], num_encoder_blocks=2, sr_ratios=[2, 1], strides=[4, 2], patch_sizes=[7, 3],
    num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
)  # fmt: skip
resnet = maker(
    "transformers", "ResNetForImageClassification", _picture, "ResNetConfig", embedding_size=8,
    hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
)  # fmt: skip
beit = maker(
    "transformers", "BeitModel", lambda dtype: {"pixel_values": _normal(dtype, 1, 3, 16, 16)}, "BeitConfig",
    **_PATCHES, use_relative_position_bias=True,
)  # fmt: skip
conformer = maker(
    "transformers", "Wav2Vec2ConformerModel", lambda dtype: {"input_values": _normal(dtype, 1, 400)},
    "Wav2Vec2ConformerConfig", vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, conv_dim=(16, 16), conv_kernel=(8, 4), conv_stride=(4, 2), num_feat_extract_layers=2,
    num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, feat_extract_norm="group",
    position_embeddings_type="rotary", conv_depthwise_kernel_size=7,
)  # fmt: skip
w2vbert = maker(
    "transformers", "Wav2Vec2BertModel", lambda dtype: {"input_features": _normal(dtype, 1, 12, 16)},
    "Wav2Vec2BertConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    feature_projection_input_dim=16, conv_depthwise_kernel_size=7, left_max_position_embeddings=8,
    right_max_position_embeddings=4,
)  # fmt: skip
bark = maker(
    "transformers", "BarkSemanticModel", lambda dtype: {"input_ids": _ids(1, 8)}, "BarkSemanticConfig",
    block_size=32, input_vocab_size=96, output_vocab_size=96, num_layers=2, num_heads=4, hidden_size=32,
)  # fmt: skip
musicgen = maker(
    "transformers", "MusicgenForCausalLM",
    lambda dtype: {"input_ids": _ids(4, 8) % 16, "encoder_hidden_states": _normal(dtype, 1, 5, 32),
        "use_cache": False},
    "MusicgenDecoderConfig", vocab_size=16, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
    num_codebooks=4, max_position_embeddings=32,
)  # fmt: skip
hifigan = maker(
    "transformers", "SpeechT5HifiGan", lambda dtype: {"spectrogram": _normal(dtype, 10, 16)},
    "SpeechT5HifiGanConfig", model_in_dim=16, upsample_initial_channel=16, upsample_rates=[4, 2],
    upsample_kernel_sizes=[8, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
)  # fmt: skip
unet1d = maker(
    "diffusers", "UNet1DModel",
    lambda dtype: {"sample": _normal(dtype, 1, 14, 16), "timestep": torch.tensor([500])}, in_channels=14,
    out_channels=14, block_out_channels=(16, 32), down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
    up_block_types=("UpResnetBlock1D",), mid_block_type="MidResTemporalBlock1D", out_block_type="OutConv1DBlock",
    norm_num_groups=8, layers_per_block=1, use_timestep_embedding=True, act_fn="swish",
    time_embedding_type="positional", flip_sin_to_cos=False, freq_shift=1, downsample_each_block=False,
)  # fmt: skip
prior = maker(
    "diffusers", "PriorTransformer",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 16), "timestep": torch.tensor([500]),
        "proj_embedding": _normal(dtype, 1, 16), "encoder_hidden_states": _normal(dtype, 1, 5, 16)},
    num_attention_heads=2, attention_head_dim=8, num_layers=2, embedding_dim=16, num_embeddings=5,
    additional_embeddings=4,
)  # fmt: skip
sana = maker(
    "diffusers", "SanaTransformer2DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 4, 8, 8), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
        "timestep": torch.tensor([500])},
    in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=2,
    num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=24,
    sample_size=8, patch_size=1,
)  # fmt: skip
ltx = maker(
    "diffusers", "LTXVideoTransformer3DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 16, 4), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
        "timestep": torch.tensor([500]), "encoder_attention_mask": torch.ones(1, 5, dtype=torch.bool),
        "num_frames": 2, "height": 2, "width": 4},
    in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16,
    num_layers=2, caption_channels=24,
)  # fmt: skip
stable_audio = maker(
    "diffusers", "StableAudioDiTModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 4, 16), "timestep": torch.tensor([0.5], dtype=dtype),
        "encoder_hidden_states": _normal(dtype, 1, 5, 24), "global_hidden_states": _normal(dtype, 1, 1, 24),
        "rotary_embedding": None},
    sample_size=16, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
    num_key_value_attention_heads=2, out_channels=4, cross_attention_dim=24, time_proj_dim=16,
    global_states_input_dim=24, cross_attention_input_dim=24,
)  # fmt: skip
aura = maker(
    "diffusers", "AuraFlowTransformer2DModel",
    lambda dtype: {"hidden_states": _normal(dtype, 1, 4, 8, 8), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
        "timestep": torch.tensor([0.5], dtype=dtype)},
    sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
    num_attention_heads=4, joint_attention_dim=24, caption_projection_dim=32, out_channels=4, pos_embed_max_size=64,
)  # fmt: skip

#: Library classes, unedited.
LIBRARY: tuple[Make, ...] = (
    stablelm,
    cohere,
    granite,
    starcoder2,
    gptj,
    xglm,
    mpt,
    roberta,
    albert,
    deberta,
    mpnet,
    pegasus,
    m2m,
    segformer,
    resnet,
    beit,
    conformer,
    w2vbert,
    bark,
    musicgen,
    hifigan,
    unet1d,
    prior,
    sana,
    ltx,
    stable_audio,
    aura,
)

_T, _D = "transformers.models", "diffusers.models"

#: Model, its dtype, what is edited in words, the edit, the class that holds the line, the line, the module.
_STORED: tuple[tuple[Make, torch.dtype, str, Edit, str, str, str], ...] = (
    (
        granite, SINGLE, "embedding float16", stored("model.embed_tokens.weight", HALF),
        f"{_T}.granite.modeling_granite.GraniteRMSNorm", r"return self\.weight \*", "model.layers.0.input_layernorm",
    ),
    (
        roberta, BRAIN, "positions float32", stored("roberta.embeddings.position_embeddings.weight", SINGLE),
        f"{_T}.roberta.modeling_roberta.RobertaEmbeddings", r"= embeddings \+ position", "roberta.embeddings",
    ),
    (
        albert, SINGLE, "token types float16", stored("albert.embeddings.token_type_embeddings.weight", HALF),
        f"{_T}.albert.modeling_albert.AlbertEmbeddings", r"= inputs_embeds \+ token_type", "albert.embeddings",
    ),
    (
        pegasus, BRAIN, "bias of the logits float32", stored("final_logits_bias", SINGLE),
        f"{_T}.pegasus.modeling_pegasus.PegasusForConditionalGeneration", r"lm_logits = self\.lm_head", "",
    ),
    (
        m2m, HALF, "positions float32", stored("model.encoder.embed_positions.weights", SINGLE),
        f"{_T}.m2m_100.modeling_m2m_100.M2M100Encoder", r"= inputs_embeds \+ embed_pos", "model.encoder",
    ),
    (
        beit, SINGLE, "first position bias float16",
        stored("layers.0.relative_position_bias.relative_position_bias_table", HALF),
        "transformers.integrations.sdpa_attention.sdpa_attention_forward", r"= torch\.nn\.functional\.scaled_dot",
        "layers.0.attention",
    ),
    (
        musicgen, HALF, "encoder states float32", given("encoder_hidden_states", SINGLE),
        f"{_T}.musicgen.modeling_musicgen.MusicgenAttention", r"self\.k_proj\(",
        "model.decoder.layers.0.encoder_attn.k_proj",
    ),
    (
        hifigan, HALF, "spectrogram float32", given("spectrogram", SINGLE),
        f"{_T}.speecht5.modeling_speecht5.SpeechT5HifiGan", r"spectrogram - self\.mean", "",
    ),
    (
        deberta, HALF, "relative positions float32", stored("encoder.rel_embeddings.weight", SINGLE),
        f"{_T}.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention", r"self\.pos_key_proj\(rel",
        "encoder.layer.0.attention.self.pos_key_proj",
    ),
    (
        ltx, SINGLE, "second shift table float16", stored("transformer_blocks.1.scale_shift_table", HALF),
        f"{_D}.transformers.transformer_ltx.LTXVideoTransformerBlock", r"ada_values = self\.scale_shift",
        "transformer_blocks.1",
    ),
    (
        aura, SINGLE, "positions float16", stored("pos_embed.pos_embed", HALF),
        f"{_D}.transformers.auraflow_transformer_2d.AuraFlowPatchEmbed", r"return latent \+", "pos_embed",
    ),
    (
        sana, HALF, "caption float32", given("encoder_hidden_states", SINGLE),
        f"{_D}.embeddings.PixArtAlphaTextProjection", r"self\.linear_1\(caption", "caption_projection.linear_1",
    ),
    (
        stable_audio, SINGLE, "rates of the time float16", stored("time_proj.weight", HALF),
        f"{_D}.transformers.stable_audio_transformer.StableAudioDiTModel", r"self\.timestep_proj\(self\.time_proj",
        "timestep_proj.0",
    ),
    (
        stablelm, SINGLE, "half cache", cached(HALF, 2, 2), "transformers.cache_utils.DynamicLayer",
        r"self\.keys = torch\.cat\(", "model.layers.0.self_attn",
    ),
)  # fmt: skip


def plants_of_idioms(here: ModuleType, rows: Iterable[Row]) -> Iterator[Plant]:
    """Yield a module's careless classes as plants."""
    for model, dtype, marker, module, _ in rows:
        name = f"{model.__name__} in {short(dtype)}: {inspect.cleandoc(model.__doc__ or '')}"
        yield Plant(
            name, partial(idiom(model), dtype), Path(here.__file__ or "").name, line_of(here, f"# @{marker}$"), module
        )


def careful_of(here: ModuleType, rows: Iterable[Row]) -> Iterator[tuple[str, Make]]:
    """Yield a module's careful classes by name."""
    careless = {Idiom, *(row[0] for row in rows)}
    local = [value for value in vars(here).values() if isinstance(value, type) and value.__module__ == here.__name__]
    for model in [value for value in local if issubclass(value, Idiom) and value not in careless]:
        yield model.__name__, idiom(model)


def third_plants() -> Iterator[Plant]:
    """Yield the idioms, then the plants in the libraries' own lines."""
    yield from plants_of_idioms(sys.modules[__name__], _IDIOMS)
    yield from plants_of(_STORED)


def third_clean() -> Iterator[tuple[str, Make]]:
    """Yield what is clean, by name: each careful idiom, and the architectures."""
    yield from careful_of(sys.modules[__name__], _IDIOMS)
    for make in LIBRARY:
        yield make.__name__, make
