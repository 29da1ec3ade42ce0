"""The fourth set of plants: recurrences, solvers, geometry, routing, and torch's own layers beside tensors of a user.

It was written, and committed, before the doctor was tried on any of it, by somebody who had read the third set, its
truths and the list of misses, and not the doctor's rules. As there, each idiom is a class
that does it carefully and is clean in three dtypes, and a subclass that does it carelessly; that the careless one is
further from its float64 copy, or has another dtype at its end, or raises, was checked by running both without the
doctor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from validation.doctor.architectures import _SEQ2SEQ, _TEXT, _ids, _normal, _tokens, maker
from validation.doctor.blind import plants_of
from validation.doctor.plants import BRAIN, HALF, SINGLE, Edit, Plant, stored
from validation.doctor.small import Built, Make
from validation.doctor.third import HEADS, LENGTH, WIDTH, Idiom, Row, _alone, attend, careful_of, plants_of_idioms

# ---- sums, differences, products


class MovingMean(Idiom):
    """A moving mean by the difference of a running sum, in float32."""

    def running(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().cumsum(dim=1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        total = self.running((x + 1).repeat_interleave(60, dim=1))
        means = (total[:, 6:] - total[:, :-6]) / 6
        return x + means[:, ::60].to(x.dtype)


class HalfMovingMean(MovingMean):
    """The running sum is in the model's dtype."""

    def running(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(dim=1)  # @running


class Variance(Idiom):
    """Scaled by a deviation that two passes in float32 give."""

    def variance(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().var(dim=-1, keepdim=True, unbiased=False)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() / self.variance(x + 8).sqrt()).to(x.dtype)


class VarianceOfSquares(Variance):
    """The mean of squares less the square of the mean, in half."""

    def variance(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()  # @squares


class Neighbours(Idiom):
    """How far a near copy is, by differences."""

    def squares(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.float() - y.float()).square()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        distance = self.squares(x, x + 0.06 * x.sign()).sum(-1, keepdim=True).clamp(min=0).sqrt()
        return x * (4 * distance).to(x.dtype)


class ExpandedNeighbours(Neighbours):
    """By the expanded square, which cancels."""

    def squares(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * x + y * y - 2 * x * y  # @expanded


class Rendering(Idiom):
    """Opacities of a thin medium, by expm1 in float32."""

    def opacity(self, depth: torch.Tensor) -> torch.Tensor:
        return -torch.expm1(-depth.float())

    def between(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.opacity((x.square() + 0.1) * 2e-3)
        return x + (8 * weights / weights.sum(dim=1, keepdim=True)).to(x.dtype)


class ThinRendering(Rendering):
    """One less an exponential, in half."""

    def opacity(self, depth: torch.Tensor) -> torch.Tensor:
        return 1 - torch.exp(-depth)  # @opacity


class GeometricMean(Idiom):
    """A geometric mean through logarithms, in float32."""

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().log().mean(dim=-1, keepdim=True).exp()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + self.mean(x.abs() / 4 + 0.05)).to(x.dtype)


class ProductMean(GeometricMean):
    """Through a product, which half does not hold."""

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return x.prod(dim=-1, keepdim=True) ** (1 / WIDTH)  # @product


class Parallel(Idiom):
    """Resistances in parallel, in float32."""

    def total(self, parts: torch.Tensor) -> torch.Tensor:
        return 1 / (1 / parts.float()).sum(dim=-1, keepdim=True)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 1e6 * self.total((x.abs() + 0.5) * 1e-5)).to(x.dtype)


class HalfParallel(Parallel):
    """Their reciprocals are beyond half."""

    def total(self, parts: torch.Tensor) -> torch.Tensor:
        rates = 1 / parts  # @rates
        return 1 / rates.sum(dim=-1, keepdim=True)


class Tail(Idiom):
    """The logarithm of a normal tail, by torch and in float32."""

    def tail(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.log_ndtr(x.float())

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.tail(x / 4 - 4).to(x.dtype) / 8


class ErrorTail(Tail):
    """By an error function near minus one."""

    def tail(self, x: torch.Tensor) -> torch.Tensor:
        mass = 0.5 * (1 + torch.erf(x / math.sqrt(2)))  # @mass
        return mass.log()


class LogSoftmax(Idiom):
    """Log-probabilities of sharp logits, in float32."""

    def log_probabilities(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().log_softmax(dim=-1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.log_probabilities(16 * x).to(x.dtype) / 16


class LogOfSoftmax(LogSoftmax):
    """The logarithm of probabilities, some of them nothing in half."""

    def log_probabilities(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = x.softmax(dim=-1)  # @probabilities
        return probabilities.log()


class QuietPhase(Idiom):
    """Directions of small pairs, by hypot in float32."""

    def direction(self, pairs: torch.Tensor) -> torch.Tensor:
        pairs = pairs.float()
        return pairs / torch.hypot(pairs[..., :1], pairs[..., 1:])

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.direction(x.unflatten(-1, (-1, 2)) * 1e-4).flatten(-2).to(x.dtype)


class HalfQuietPhase(QuietPhase):
    """By squares that are nothing in half."""

    def direction(self, pairs: torch.Tensor) -> torch.Tensor:
        squares = pairs.square()  # @quiet_squares
        return pairs / squares.sum(dim=-1, keepdim=True).sqrt()


class Standardised(Idiom):
    """A product with a small weight that is standardised in float32."""

    def build(self) -> None:
        self.small = nn.Parameter(torch.randn(WIDTH, WIDTH) * 1e-4)

    def spread(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.float().square().mean(dim=1, keepdim=True)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.small / self.spread(self.small).sqrt().to(x.dtype)
        return x @ weight.T / WIDTH


class HalfStandardised(Standardised):
    """Standardised in half, where its squares are nothing."""

    def spread(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.square().mean(dim=1, keepdim=True)  # @weight_squares


class InstanceNorm(Idiom):
    """Channels normalised over time in float32; some are silent."""

    def build(self) -> None:
        self.register_buffer("scale", (torch.arange(WIDTH) % 4 > 0).float())

    def rates(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(x.float().var(dim=1, keepdim=True) + 1e-8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        return ((x - x.mean(dim=1, keepdim=True)).float() * self.rates(x)).to(x.dtype)


class HalfInstanceNorm(InstanceNorm):
    """In half, where the guard against nothing is nothing."""

    def rates(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(x.var(dim=1, keepdim=True) + 1e-8)  # @guard


# ---- recurrences, solvers, samplers


class Clock(Idiom):
    """The times of a hundred small steps are summed in float32."""

    def start(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        time, times = self.start(x), []
        for _ in range(8 * LENGTH):
            time = time + 0.01  # @tick
            times.append(time)
        return x + (2 * torch.pi * torch.stack(times[::8])).sin().to(x.dtype)


class HalfClock(Clock):
    """They are summed in the model's dtype."""

    def start(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, dtype=x.dtype)


class FastWeights(Idiom):
    """A gain that learns in the call, by small steps in float32."""

    def gains(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        gain, power = self.gains(x), x.float().square().mean(dim=(0, 1)).to(x.dtype)
        for _ in range(60):
            gain = gain - 0.004 * (gain * power).to(gain.dtype)  # @step
        return x * gain.to(x.dtype)


class HalfFastWeights(FastWeights):
    """The gain is in the model's dtype, which the steps do not move."""

    def gains(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(WIDTH, dtype=x.dtype)


class Resonator(Idiom):
    """A slow resonance, its coefficient and its states in float32."""

    def coefficient(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(2 * math.cos(0.06))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        coefficient = self.coefficient(x).float()
        before, last, states = torch.zeros(2, WIDTH), torch.zeros(2, WIDTH), []
        for step in range(x.shape[1]):
            before, last = last, coefficient * last - before + x[:, step].float()
            states.append(last)
        return torch.stack(states, dim=1).to(x.dtype)


class HalfResonator(Resonator):
    """The coefficient is rounded to the model's dtype, and is two."""

    def coefficient(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(2 * math.cos(0.06), dtype=x.dtype)  # @coefficient


class Forward(Idiom):
    """Likelihoods of a chain of states, scaled at each step."""

    def emission(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(dim=-1) / 8

    def between(self, x: torch.Tensor) -> torch.Tensor:
        transition, state, states = self.inward.weight.softmax(dim=0), x.new_ones(2, WIDTH), []
        for step in range(x.shape[1]):
            state = state @ transition.T * self.emission(x[:, step])
            state = state / state.sum(dim=-1, keepdim=True)
            states.append(state)
        return torch.stack(states, dim=1) * 8


class VanishingForward(Forward):
    """Not scaled until the end, where half holds nothing."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        transition, state, states = self.inward.weight.softmax(dim=0), x.new_ones(2, WIDTH), []
        for step in range(x.shape[1]):
            state = state @ transition.T * self.emission(x[:, step])  # @forward_step
            states.append(state)
        filtered = torch.stack(states, dim=1)
        return filtered / filtered.sum(dim=-1, keepdim=True) * 8


class Transport(Idiom):
    """Optimal transport by scaling rows and columns, in float32."""

    def kernel(self, cost: torch.Tensor) -> torch.Tensor:
        return torch.exp(-cost / 0.1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        plan = self.kernel(2.2 + torch.cdist(x.float(), x.float().flip(0)) / 16)
        for _ in range(3):
            plan = plan / plan.sum(dim=-1, keepdim=True)
            plan = plan / plan.sum(dim=-2, keepdim=True)
        return plan.to(x.dtype) @ x


class HalfTransport(Transport):
    """The kernel is nothing in half."""

    def kernel(self, cost: torch.Tensor) -> torch.Tensor:
        return torch.exp(-cost.to(self.inward.weight.dtype) / 0.1)  # @kernel


class Karras(Idiom):
    """A denoiser's scalings at a large noise level, in float32."""

    def scaling(self, x: torch.Tensor) -> torch.Tensor:
        level = torch.full((2, 1, 1), 300.0)
        return 1 / (level.square() + 0.25).sqrt()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * 300 * self.scaling(x).to(x.dtype)


class HalfKarras(Karras):
    """In half, where the square of the level is infinite."""

    def scaling(self, x: torch.Tensor) -> torch.Tensor:
        level = torch.full((2, 1, 1), 300.0, dtype=x.dtype)
        return 1 / (level.square() + 0.25).sqrt()  # @level


class Flow(Idiom):
    """A velocity near the end of a flow, its time in float32."""

    def left(self, x: torch.Tensor) -> torch.Tensor:
        return 1 - torch.full((2, 1, 1), 0.99)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + (0.01 * x.flip(1) / self.left(x)).to(x.dtype)


class HalfFlow(Flow):
    """The time is rounded to the model's dtype."""

    def left(self, x: torch.Tensor) -> torch.Tensor:
        time = torch.full((2, 1, 1), 0.99, dtype=x.dtype)  # @time
        return 1 - time


class OnlineSoftmax(Idiom):
    """Attention by blocks, its running sum in the scores' dtype."""

    of_sums: torch.dtype | None = None

    def between(self, x: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(2, LENGTH, 1, dtype=self.of_sums or x.dtype)
        mixed = torch.zeros_like(x)
        for block in x.split(4, dim=1):
            weights = (x @ block.transpose(1, 2) / WIDTH).exp()
            sums = (sums.to(x.dtype) + weights.sum(dim=-1, keepdim=True)).to(sums.dtype)  # @online_sum
            mixed = mixed + weights @ block
        return mixed / sums.to(x.dtype)


class BrainOnlineSoftmax(OnlineSoftmax):
    """The running sum is in bfloat16."""

    of_sums = torch.bfloat16


# ---- indices, positions


class Rope(Idiom):
    """Rotation rates of a large base at late positions, in float32."""

    def periods(self, x: torch.Tensor) -> torch.Tensor:
        return 500000 ** (torch.arange(0, WIDTH, 2) / WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(90000, 90000 + LENGTH)[:, None] / self.periods(x).float()
        return x + torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype)


class HalfRope(Rope):
    """The periods are in half, which does not hold the longest."""

    def periods(self, x: torch.Tensor) -> torch.Tensor:
        return 500000 ** (torch.arange(0, WIDTH, 2, dtype=x.dtype) / WIDTH)  # @periods


class Timestamps(Idiom):
    """Seconds of late frames, in float32."""

    def frames(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(600, 600 + LENGTH).float()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        seconds = self.frames(x) * 320 / 16000  # @seconds
        return x + seconds.sin()[:, None].to(x.dtype)


class HalfTimestamps(Timestamps):
    """In half, which does not hold the samples."""

    def frames(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(600, 600 + LENGTH, dtype=x.dtype)


class Collated(Idiom):
    """Codes are looked up by integers."""

    def build(self) -> None:
        self.register_buffer("codes", torch.randint(300, 4000, (LENGTH,)))
        self.embedding = nn.Embedding(4096, WIDTH)

    def ids(self, x: torch.Tensor) -> torch.Tensor:
        return self.codes

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.embedding(self.ids(x))


class RoundedIds(Collated):
    """The codes travel with the features in the model's dtype, which does not hold them."""

    def ids(self, x: torch.Tensor) -> torch.Tensor:
        collated = self.codes.to(x.dtype)  # @collated
        return collated.long()


# ---- kept or computed in another format


class Paged(Idiom):
    """Keys are written to pages of a pool and gathered again."""

    of_pool: torch.dtype | None = None

    def between(self, x: torch.Tensor) -> torch.Tensor:
        pool = torch.zeros(4, 8, WIDTH, dtype=self.of_pool or x.dtype)
        pages, offsets = torch.arange(24).div(8, rounding_mode="floor"), torch.arange(24) % 8
        pool[pages, offsets] = x.flatten(0, 1).to(pool.dtype)  # @paged
        keys = pool[pages, offsets].to(x.dtype).view_as(x)
        return attend(x, keys, x)


class HalfPaged(Paged):
    """The pool is in half."""

    of_pool = torch.float16


class Kept8(Idiom):
    """Values stored with a scale for each row in 8-bit floats, as is meant, beside a product of what was not stored."""

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return attend(x, x, self.values(x))


class Float8Values(Kept8):
    """Values pass through 8-bit floats without a scale."""

    def values(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.to(torch.float8_e4m3fn)  # @float8
        return kept.to(x.dtype)


class Numpied(Idiom):
    """A step by numpy in its own dtype."""

    def by_numpy(self, x: torch.Tensor) -> Any:
        return x.float().numpy()

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x.roll(1, 1) + torch.from_numpy(self.by_numpy(x)[:, ::-1].copy()).to(x.dtype)  # @from_numpy


class HalfNumpied(Numpied):
    """Kept by numpy in half, in a float32 model."""

    def by_numpy(self, x: torch.Tensor) -> Any:
        return x.float().numpy().astype("float16")


class Island(Idiom):
    """A product between two layers, in the model's dtype."""

    def build(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.inner.weight

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.product(x))  # @left_region


class AutocastLeft(Island):
    """Autocast was left on around it, and what leaves is bfloat16."""

    def product(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ self.inner.weight


class AutocastInside(Island):
    """Autocast was left on around it; what leaves is cast back."""

    def product(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ self.inner.weight).to(x.dtype)  # @autocast_product


class Handed(Idiom):
    """A part of the model, called with its own dtype."""

    def build(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        handed = x.to(self.inner.weight.dtype)  # @handed
        return self.inner(handed).to(x.dtype)


class BrainHanded(Handed):
    """The part was loaded in bfloat16, in a float32 model."""

    def settle(self) -> None:
        self.inner.bfloat16()


@torch.library.custom_op("plants::gate", mutates_args=())
def gate(x: torch.Tensor) -> torch.Tensor:
    """A fused gate."""
    return x * x.sigmoid()


@torch.library.custom_op("plants::half_gate", mutates_args=())
def half_gate(x: torch.Tensor) -> torch.Tensor:
    """A fused gate that works in half."""
    narrow = x.half()  # @half_gate
    return (narrow * narrow.sigmoid()).to(x.dtype)


class Gated(Idiom):
    """A gate by an operator of the user's own."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return gate(x)


class HalfGated(Gated):
    """The operator works in half."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return half_gate(x)


class Reversible(Idiom):
    """Normalised over time, and what was taken off put back on the output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.float().mean(dim=1, keepdim=True)
        inner = super().forward((x.float() - mean).to(x.dtype))
        return self.restored(inner, mean)

    def restored(self, inner: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return inner + mean.to(inner.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


class WideReversible(Reversible):
    """What was taken off is float32, and so is the output."""

    def restored(self, inner: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return inner + mean  # @restored


# ---- torch's own layers and functions beside what has another dtype


class Recurrent(Idiom):
    """A cell of torch's that starts from nothing."""

    def build(self) -> None:
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(2, WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        state, states = self.first(x), []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)  # @cell
            states.append(state)
        return torch.stack(states, dim=1)


class WideRecurrent(Recurrent):
    """The first state has torch's default dtype."""

    def first(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2, WIDTH)


class Lstm(Idiom):
    """torch's own recurrence from a given state."""

    def build(self) -> None:
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(1, 2, WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, (self.first(x), self.first(x)))[0]  # @lstm


class WideLstm(Lstm):
    """The state has torch's default dtype."""

    def first(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, 2, WIDTH)


class WeightNormed(Idiom):
    """A layer whose weight has a length of its own."""

    def build(self) -> None:
        self.inner = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # @weight_normed


class WideWeightNormed(WeightNormed):
    """Direction and length were left in float32."""

    def settle(self) -> None:
        self.inner.parametrizations.weight.float()


class Activated(Idiom):
    """An activation with a slope that is learnt."""

    def build(self) -> None:
        self.slope = nn.PReLU(WIDTH)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return F.prelu(x.transpose(1, 2), self.slope.weight).transpose(1, 2)  # @slope


class WideActivated(Activated):
    """The slope was left in float32."""

    def settle(self) -> None:
        self.slope.float()


class Bags(Idiom):
    """Bags of codes, weighted."""

    def build(self) -> None:
        self.table = nn.Parameter(torch.randn(16, WIDTH))

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(0, 1, 3 * LENGTH, dtype=x.dtype).view(LENGTH, 3)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(3 * LENGTH).view(LENGTH, 3) % 16
        return x + F.embedding_bag(ids, self.table, per_sample_weights=self.weights(x), mode="sum")  # @bags


class WideBags(Bags):
    """The weights have torch's default dtype."""

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(0, 1, 3 * LENGTH).view(LENGTH, 3)


class Biased(Idiom):
    """Scores with a bias of distance, by one fused call."""

    def bias(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(LENGTH)
        return (-0.1 * (steps[None] - steps[:, None]).abs()).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias(x).expand(2, -1, -1)
        scores = torch.baddbmm(bias, x, x.transpose(1, 2), alpha=1 / WIDTH)  # @baddbmm
        return scores.softmax(dim=-1) @ x


class WideBiased(Biased):
    """The bias was left in torch's default dtype."""

    def bias(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(LENGTH)
        return -0.1 * (steps[None] - steps[:, None]).abs()


class Prefixed(Idiom):
    """A learnt token before the others."""

    def build(self) -> None:
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.token.expand(2, -1, -1), x], dim=1)  # @prefixed


class WidePrefixed(Prefixed):
    """The token was left in float32, and all that is joined to it."""

    def settle(self) -> None:
        self.token.data = self.token.data.float()


class Stretched(Idiom):
    """Learnt positions stretched to the length, in float32."""

    def build(self) -> None:
        self.learnt = nn.Parameter(torch.randn(1, WIDTH, 8))

    def positions(self, x: torch.Tensor) -> torch.Tensor:
        stretched = F.interpolate(self.learnt.float(), LENGTH, mode="linear")
        return stretched.transpose(1, 2).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions(x)  # @stretched


class WideStretched(Stretched):
    """They were not cast back."""

    def positions(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(self.learnt.float(), LENGTH, mode="linear").transpose(1, 2)


class OneHot(Idiom):
    """Codes looked up by a product."""

    def build(self) -> None:
        self.table = nn.Parameter(torch.randn(8, WIDTH))

    def hot(self, x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(torch.arange(LENGTH) % 8, 8).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.hot(x) @ self.table  # @one_hot


class WideOneHot(OneHot):
    """The ones are float32."""

    def hot(self, x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(torch.arange(LENGTH) % 8, 8).float()


class Counted(Idiom):
    """Positions divided by how many there are."""

    def shares(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(LENGTH).to(x.dtype) / LENGTH

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.shares(x)[:, None]  # @shares


class WideCounted(Counted):
    """Integers divided, which gives torch's default dtype."""

    def shares(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(LENGTH) / LENGTH


class Mixed(Idiom):
    """A learnt mean of layers."""

    def build(self) -> None:
        self.shares = nn.Parameter(torch.randn(3))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        layers = torch.stack([x, self.inward(x), x.tanh()])
        return (layers * self.shares.softmax(dim=0)[:, None, None, None]).sum(dim=0)  # @mixed


class WideMixed(Mixed):
    """The shares were left in float32."""

    def settle(self) -> None:
        self.shares.data = self.shares.data.float()


class Thresholded(Idiom):
    """Values cut at a quantile, which torch gives in float32."""

    def limit(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().abs().flatten(1).quantile(0.9, dim=1)[:, None, None].to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        limit = self.limit(x)
        return x.clamp(-limit, limit)  # @thresholded


class WideThresholded(Thresholded):
    """The quantile was left in float32."""

    def limit(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().abs().flatten(1).quantile(0.9, dim=1)[:, None, None]


class Experts(Idiom):
    """Tokens to the experts that a router in float32 chooses, and added back."""

    def build(self) -> None:
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :2].float().softmax(dim=-1).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weights, mixed = self.weights(tokens), torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            chosen = torch.arange(index, len(tokens), 2)
            mixed.index_add_(0, chosen, expert(tokens[chosen]) * weights[chosen, index, None])  # @experts
        return mixed.view_as(x)


class WideExperts(Experts):
    """The router's weights were left in float32."""

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :2].float().softmax(dim=-1)


class Filtered(Idiom):
    """A low-pass filter that is made in the call."""

    def window(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.hann_window(5) / 2).to(x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self.window(x).expand(WIDTH, 1, -1)
        return F.conv1d(x.transpose(1, 2), kernel, padding=2, groups=WIDTH).transpose(1, 2)  # @filtered


class WideFiltered(Filtered):
    """The window has torch's default dtype."""

    def window(self, x: torch.Tensor) -> torch.Tensor:
        return torch.hann_window(5) / 2


class Bilinear(Idiom):
    """A product of two views."""

    def build(self) -> None:
        self.pair = nn.Bilinear(WIDTH, 2, WIDTH)

    def speaker(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(2, LENGTH, 2, dtype=x.dtype)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.pair(x, self.speaker(x))  # @bilinear


class WideBilinear(Bilinear):
    """The second view has torch's default dtype."""

    def speaker(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(2, LENGTH, 2)


class Checkpointed(Idiom):
    """A part that is run again for its gradient."""

    def build(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def window(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(0, 1, LENGTH)[:, None].to(x.dtype)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        windowed = x * self.window(x)  # @checkpointed
        return self.inner(windowed)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=False)


class WideCheckpointed(Checkpointed):
    """Its window has torch's default dtype."""

    def window(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(0, 1, LENGTH)[:, None]


class Headed(Idiom):
    """A gate for each head, by einsum."""

    def build(self) -> None:
        self.gates = nn.Parameter(torch.rand(HEADS, 8, 8))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (HEADS, 8))
        return torch.einsum("blhd,hde->blhe", heads, self.gates).flatten(-2)  # @headed


class HalfHeaded(Headed):
    """The gates were stored in half, in a bfloat16 model."""

    def settle(self) -> None:
        self.gates.data = self.gates.data.half()


#: Careless class, dtype, marker of the line, path of the module, and whether it runs on.
ROWS: tuple[Row, ...] = (
    (HalfMovingMean, HALF, "running", "", True),
    (VarianceOfSquares, HALF, "squares", "", True),
    (ExpandedNeighbours, HALF, "expanded", "", True),
    (ThinRendering, HALF, "opacity", "", True),
    (ProductMean, HALF, "product", "", True),
    (HalfParallel, HALF, "rates", "", True),
    (ErrorTail, HALF, "mass", "", True),
    (LogOfSoftmax, HALF, "probabilities", "", True),
    (HalfQuietPhase, HALF, "quiet_squares", "", True),
    (HalfStandardised, HALF, "weight_squares", "", True),
    (HalfInstanceNorm, HALF, "guard", "", True),
    (HalfClock, BRAIN, "tick", "", True),
    (HalfFastWeights, BRAIN, "step", "", True),
    (HalfResonator, BRAIN, "coefficient", "", True),
    (VanishingForward, HALF, "forward_step", "", True),
    (HalfTransport, HALF, "kernel", "", True),
    (HalfKarras, HALF, "level", "", True),
    (HalfFlow, BRAIN, "time", "", True),
    (BrainOnlineSoftmax, SINGLE, "online_sum", "", True),
    (HalfRope, HALF, "periods", "", True),
    (HalfTimestamps, HALF, "seconds", "", True),
    (RoundedIds, BRAIN, "collated", "", True),
    (HalfPaged, SINGLE, "paged", "", True),
    (Float8Values, BRAIN, "float8", "", True),
    (HalfNumpied, SINGLE, "from_numpy", "", True),
    (AutocastInside, SINGLE, "autocast_product", "", True),
    (BrainHanded, SINGLE, "handed", "", True),
    (HalfGated, SINGLE, "half_gate", "", True),
    (WideReversible, HALF, "restored", "", True),
    (AutocastLeft, SINGLE, "left_region", "inner", False),
    (WideRecurrent, BRAIN, "cell", "cell", False),
    (WideLstm, HALF, "lstm", "layer", False),
    (WideWeightNormed, BRAIN, "weight_normed", "inner", False),
    (WideActivated, HALF, "slope", "", False),
    (WideBags, HALF, "bags", "", False),
    (WideBiased, BRAIN, "baddbmm", "", False),
    (WidePrefixed, HALF, "prefixed", "", False),
    (WideStretched, BRAIN, "stretched", "", False),
    (WideOneHot, HALF, "one_hot", "", False),
    (WideCounted, BRAIN, "shares", "", False),
    (WideMixed, HALF, "mixed", "", False),
    (WideThresholded, BRAIN, "thresholded", "", False),
    (WideExperts, HALF, "experts", "", False),
    (WideFiltered, BRAIN, "filtered", "", False),
    (WideBilinear, HALF, "bilinear", "pair", False),
    (WideCheckpointed, BRAIN, "checkpointed", "", False),
    (HalfHeaded, BRAIN, "headed", "", False),
)


def fourth_plants() -> Iterator[Plant]:
    """Yield the idioms, then the plants in the libraries' own lines."""
    yield from plants_of_idioms(sys.modules[__name__], ROWS)
    yield from plants_of(_STORED)


def fourth_clean() -> Iterator[tuple[str, Make]]:
    """Yield what is clean, by name: each careful idiom, and the architectures."""
    yield from careful_of(sys.modules[__name__], ROWS)
    for make in LIBRARY:
        yield make.__name__, make


rwkv = maker(
    "transformers", "RwkvForCausalLM", _tokens, "RwkvConfig", vocab_size=96, hidden_size=32, num_hidden_layers=2,
    attention_hidden_size=32, intermediate_size=64, context_length=32,
)  # fmt: skip
xlnet = maker(
    "transformers", "XLNetModel", _alone, "XLNetConfig", vocab_size=96, d_model=32, n_layer=2, n_head=4, d_inner=64
)
esm = maker("transformers", "EsmModel", _alone, "EsmConfig", **_TEXT, mask_token_id=4)
nystromformer = maker(
    "transformers",
    "NystromformerModel",
    _alone,
    "NystromformerConfig",
    **_TEXT,
    num_landmarks=4,
    segment_means_seq_len=8,
)
biogpt = maker("transformers", "BioGptForCausalLM", _tokens, "BioGptConfig", **_TEXT)
codegen = maker(
    "transformers", "CodeGenForCausalLM", _tokens, "CodeGenConfig", vocab_size=96, n_positions=64, n_ctx=64, n_embd=32,
    n_layer=2, n_head=4, rotary_dim=4,
)  # fmt: skip
marian = maker(
    "transformers", "MarianModel",
    lambda dtype: {"input_ids": _ids(1, 8), "decoder_input_ids": _ids(1, 4), "use_cache": False},
    "MarianConfig", **_SEQ2SEQ, max_position_embeddings=32,
)  # fmt: skip
pvt = maker(
    "transformers", "PvtV2Model", lambda dtype: {"pixel_values": _normal(dtype, 1, 3, 32, 32)}, "PvtV2Config",
    image_size=32, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
    patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
)  # fmt: skip
tiny_vae = maker(
    "diffusers", "AutoencoderTiny", lambda dtype: {"sample": _normal(dtype, 1, 3, 16, 16)},
    encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
    num_decoder_blocks=(1, 1),
)  # fmt: skip
allegro = maker(
    "diffusers", "AllegroTransformer3DModel",
    lambda dtype: {
        "hidden_states": _normal(dtype, 1, 4, 2, 4, 4), "encoder_hidden_states": _normal(dtype, 1, 5, 24),
        "timestep": torch.tensor([500]), "encoder_attention_mask": torch.ones(1, 5),
    },
    num_attention_heads=2, attention_head_dim=24, in_channels=4, out_channels=4, num_layers=1,
    cross_attention_dim=48, sample_width=4, sample_height=4, sample_frames=2, caption_channels=24,
)  # fmt: skip

#: Library classes, unedited.
LIBRARY: tuple[Make, ...] = (rwkv, xlnet, esm, biogpt, codegen, marian, pvt, allegro)
_T, _D = "transformers.models", "diffusers.models"


def unedited(built: Built) -> Built:
    """Leave a library's class as it is; in half it has a fault of its own."""
    return built


#: Model, its dtype, what is edited in words, the edit, the class that holds the line, the line, the module.
_STORED: tuple[tuple[Make, torch.dtype, str, Edit, str, str, str], ...] = (
    (
        rwkv, SINGLE, "first decay float16", stored("rwkv.blocks.0.attention.time_decay", HALF),
        f"{_T}.rwkv.modeling_rwkv.rwkv_linear_attention_cpu", r"max_for_state = torch\.maximum",
        "rwkv.blocks.0.attention",
    ),
    (
        biogpt, SINGLE, "positions bfloat16", stored("biogpt.embed_positions.weight", BRAIN),
        f"{_T}.biogpt.modeling_biogpt.BioGptModel", r"= inputs_embeds \+ positions", "biogpt",
    ),
    (
        marian, SINGLE, "positions of the decoder float16", stored("decoder.embed_positions.weight", HALF),
        f"{_T}.marian.modeling_marian.MarianDecoder", r"= inputs_embeds \+ position_ids", "decoder",
    ),
    (
        allegro, SINGLE, "shift table float16", stored("transformer_blocks.0.scale_shift_table", HALF),
        f"{_D}.transformers.transformer_allegro.AllegroTransformerBlock", r"self\.scale_shift_table\[None\] \+ temb",
        "transformer_blocks.0",
    ),
    (
        xlnet, BRAIN, "bias of the first scores float32", stored("layer.0.rel_attn.r_w_bias", SINGLE),
        f"{_T}.xlnet.modeling_xlnet.XLNetRelativeAttention", r"ac = torch\.einsum", "layer.0.rel_attn",
    ),
    (
        esm, HALF, "second value float32", stored("encoder.layer.1.attention.self.value.weight", SINGLE),
        f"{_T}.esm.modeling_esm.EsmSelfAttention", r"= self\.value\(", "encoder.layer.1.attention.self.value",
    ),
    (
        codegen, BRAIN, "bias of the head float32", stored("lm_head.bias", SINGLE),
        f"{_T}.codegen.modeling_codegen.CodeGenForCausalLM", r"= self\.lm_head\(", "lm_head",
    ),
    (
        nystromformer, HALF, "unedited", unedited,
        f"{_T}.nystromformer.modeling_nystromformer.NystromformerSelfAttention", r"7 \* identity - key_value",
        "encoder.layer.0.attention.self",
    ),
    (
        tiny_vae, BRAIN, "unedited", unedited,
        f"{_D}.autoencoders.vae.DecoderTiny", r"^ +x = self\.layers\(x\)$", "decoder.layers.0",
    ),
)  # fmt: skip
