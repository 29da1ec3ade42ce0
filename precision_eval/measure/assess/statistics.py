"""The statistics that an error is judged by, and the range that honest computations of the same input span in them.

Conventions: each statistic is one number, larger is worse. None changes when the tensors are scaled by a power of two
(inside the range of normal numbers), when their sign is flipped, or when rows or heads are permuted. The *rest* is what
no mixture of the yardsticks explains: their errors are fitted to the candidate's, the fit is rounded to the dtype, and
the difference remains. A yardstick's own rest is taken with the others alone; the largest value among the yardsticks,
widened by the statistic's margin, is the limit. Rests are in units of what the yardsticks' are per row and channel. A
gain is the regression of the rest on the reference, its uncertainty taken over rows as clusters, because the elements
of a row share operands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from scipy.stats import t as student
from torch import Tensor

from precision_eval.measure.assess.pooled import Pooled

RIDGE = 1e-3  # of a yardstick's own square: yardsticks that nearly agree share their coefficient
LEAST = 0.25  # of the honest rest's square: a smaller one does not make a structure more significant
ROUNDING = 0.1  # of a rounding's square belongs to every honest rest
FLOOR = 2.0**-44  # of the mean square reference: float32 sums, where the reference happens to be nearly zero
ALONE = 2.0  # margins are as much wider where one yardstick is all there is
UNSEEN = (0.1, 0.3)  # of a margin, of half formats and of float32, is for orders that nobody has drawn
CLUSTERS = 0.99865  # of Student's t: the quantile, in standard errors, by which a mean over rows has to leave zero
FACTOR = 2.0**-23  # what a row's factor, rounded to float32 twice, scales the row by at most
EVEN_ROW, EVEN_ELEMENT = 6.0, 16.0  # × the RMS of the rest
TOGETHER = 1 << 17  # elements of yardsticks that are taken at once
_TINY = 1e-300


@dataclass(frozen=True)
class Statistic:
    """One statistic, as data. `margin`, of half formats and of float32, is in units of log(value + offset); `chance` is
    what mere noise and flipped roundings stay below, however little the yardsticks differ.
    """

    name: str
    kind: Literal["noise", "place", "structure"]
    offset: float
    margin: tuple[float, float]
    says: str
    chance: float = 0.0


STATISTICS: tuple[Statistic, ...] = (
    Statistic("rms", "noise", 1e-06, (0.1, 0.35), "RMS error {value:.3g} × the roughest yardstick's"),
    Statistic("typical_row", "noise", 1e-06, (0.1, 0.3), "error of the typical row {value:.3g} × the yardsticks'"),
    Statistic("max", "noise", 1e-06, (0.3, 0.65), "largest error {value:.3g} × the roughest yardstick's RMS error"),
    Statistic(
        "head",
        "place",
        1e-06,
        (0.15, 0.4),
        "error of the worst head {value:.3g} × the yardsticks' there: heads exchanged, or one head's cache or scale",
    ),
    Statistic(
        "rest",
        "noise",
        0.2,
        (0.1, 0.3),
        "error that no yardstick shares: {value:.3g} × what honest computations differ by",
        1.0,
    ),
    Statistic("rest_of_row", "noise", 0.2, (0.1, 0.3), "the same in the typical row: {value:.3g}", 1.0),
    Statistic(
        "rest_of_head",
        "place",
        0.2,
        (0.35, 0.7),
        "the same in the worst head: {value:.3g}: heads exchanged, or one head's cache or scale",
        1.0,
    ),
    Statistic(
        "worst_row",
        "place",
        0.5,
        (1.0, 1.3),
        "the same in the worst row: {value:.3g}: a stale slot, a key too many or too few, or a mask, in that row",
    ),
    Statistic(
        "worst_element",
        "place",
        2.0,
        (1.0, 1.3),
        "the same in the worst element: {value:.3g}: a place wrongly written or a flipped bit",
    ),
    Statistic(
        "gain",
        "structure",
        0.5,
        (0.3, 1.6),
        "the error follows the reference at {value:.3g} standard errors: a gain, a wrong scale, or truncation",
        4.0,
    ),
    Statistic(
        "gain_of_head", "structure", 0.5, (0.55, 1.3), "so it does in one head at {value:.3g} standard errors", 4.5
    ),
    Statistic(
        "contrast",
        "structure",
        0.5,
        (0.3, 1.6),
        "the error follows the reference's departure from its mean row at {value:.3g} standard errors: logits"
        " scaled or approximated wrongly",
        4.0,
    ),
    Statistic(
        "row_gain",
        "structure",
        0.05,
        (0.2, 1.7),
        "rows are scaled each by a factor of its own: error along the row {value:.3g} × that of a random "
        "direction: a sum, reciprocal or rescale factor kept too coarsely",
        2.0,
    ),
    Statistic("row_gain_eps", "noise", 0.02, (0.2, 1.3), "rows are scaled by {value:.3g} eps each"),
    Statistic(
        "gain_by_position",
        "structure",
        1.0,
        (0.3, 1.8),
        "the same rows of all calls and heads are scaled alike, at {value:.3g} standard errors: what depends on the "
        "position",
        4.5,
    ),
    Statistic(
        "gain_by_channel",
        "structure",
        1.0,
        (0.3, 1.8),
        "channels are scaled each by a factor of its own, at {value:.3g} standard errors",
        5.0,
    ),
    Statistic(
        "proportional",
        "structure",
        1.0,
        (0.25, 0.25),
        "errors grow with the result inside a binade, at {value:.3g} standard errors: noise on results, or a factor "
        "that varies among them",
        5.0,
    ),
    Statistic("offset", "place", 0.5, (0.3, 0.4), "a constant is added, at {value:.3g} standard errors", 4.0),
    Statistic(
        "channel_offset",
        "place",
        0.2,
        (0.3, 0.5),
        "channels are shifted by constants, {value:.3g} × what chance gives: the same key or value wrong in all rows",
        1.6,
    ),
    Statistic(
        "outward",
        "structure",
        0.05,
        (0.3, 0.8),
        "results lie {value:.3g} ULP to one side of zero: truncation, or rounding in one direction",
    ),
    Statistic(
        "outward_rest",
        "structure",
        0.05,
        (0.3, 0.8),
        "beside what yardsticks share, results lie {value:.3g} ULP to one side of zero: truncation, or "
        "rounding in one direction",
    ),
    Statistic(
        "flushed",
        "structure",
        0.5,
        (0.5, 0.5),
        "{value:.0f} more results are zero than subnormal where the reference is subnormal: subnormals flushed",
    ),
    Statistic(
        "coarse",
        "structure",
        0.05,
        (0.2, 0.25),
        "{value:.2f} of the results that need the dtype's last two bits leave them zero: another format "
        "posing as this one",
        0.3,
    ),
)
"""What is looked at. A margin is what honest variations in the tuning part of the trials needed at most, pooled or
alone, and a quarter more, at least 0.1. In half formats that is next to nothing, because yardsticks store the steps
that others store. In float32 it is much: all there is are errors of functions and of sums, and each order has its own.
:data:`UNSEEN` is added, for of orders that nobody had drawn some alarmed without; it was chosen after looking at the
fourth held-out part.
"""


class Range:
    """What honest computations of some calls span in every statistic; any number of candidates can be held to it."""

    def __init__(self, pooled: Pooled) -> None:
        self.pooled = pooled
        self.rounding = pooled.ulp.square() / 12.0
        self.work = pooled.work
        exact, count = pooled.reference, len(pooled.yardsticks)
        floor = (exact.square().mean(-1, keepdim=True) + exact.square().mean((0, 2), keepdim=True)) * FLOOR
        self.reference = exact.to(self.work)
        yardsticks = torch.stack(pooled.yardsticks)
        self.outputs, self.errors = self._stored(yardsticks), yardsticks.sub_(self.reference)
        self.unit = max(float(self.rounding.mean()), _TINY) ** 0.5
        own = (self.outputs - self.reference).mul_(1.0 / self.unit)
        squares = [own[at].square() for at in self._parts()]
        by_row = torch.cat([square.mean(-1) for square in squares]).double() * self.unit**2
        self.mean_square = sum((square.sum(0) for square in squares), torch.zeros(())).double() * self.unit**2 / count
        self.row_square = torch.maximum(by_row.mean(0), self.rounding.mean(-1))
        self.roughest = max(float(by_row.mean((1, 2, 3)).max()), float(self.rounding.mean()), _TINY) ** 0.5
        weight = (_pattern(self.mean_square) + self.rounding + floor).clamp_min(_TINY).rsqrt()
        self.weight = (weight * self.unit).to(self.work)
        self.weighted = (self.errors * (weight.to(self.work))).flatten(1)
        self.own = own.mul_(self.weight).flatten(1)
        self.near, self.shares, self.gram = (
            (a @ b.mT).double()
            for a, b in ((self.own, self.own), (self.own, self.weighted), (self.weighted, self.weighted))
        )
        self.squares = self.near.diagonal()
        rests = [self._rests(self.outputs[at], apart=at) for at in self._parts()]
        honest = sum(((rest / self.unit).square().sum(0) for rest in rests), torch.zeros(()))
        self.scale = (
            (
                _pattern(honest.double() * self.unit**2 / count)
                + ROUNDING * torch.maximum(_pattern(self.rounding), self.rounding)
                + floor
            )
            .clamp_min(_TINY)
            .rsqrt()
        )
        self._plane = _Plane(self)
        parts = [self._plane.statistics(self.outputs[at], rest) for at, rest in zip(self._parts(), rests, strict=True)]
        self.highest = {name: max(float(part[name].max()) for part in parts) for name in parts[0]}
        self.width = ALONE if count == 1 else 1.0

    def _parts(self) -> tuple[slice, ...]:
        """Yardsticks that fit into a processor's cache together."""
        step = max(1, TOGETHER // self.pooled.reference.numel())
        return tuple(slice(at, at + step) for at in range(0, len(self.pooled.yardsticks), step))

    def statistics(self, candidate: Tensor) -> dict[str, float]:
        """Take every statistic of a candidate in the layout of the pool."""
        output = candidate[None].to(self.work)
        return {name: float(x) for name, x in self._plane.statistics(output, self._rests(output)).items()}

    def is_even(self, candidate: Tensor) -> bool:
        """Whether no row and no element holds more of the rest than a rounding puts there: of itself, or on average."""
        square, own = self._rests(candidate[None].to(self.work))[0].double().square(), 16.0 * self.rounding
        mean = square.mean()
        by_row = square.mean(-1) <= EVEN_ROW**2 * mean + own.mean(-1)
        return bool(by_row.all() and (square <= EVEN_ELEMENT**2 * mean + 12.0 * own).all())

    def limit(self, statistic: Statistic) -> float:
        """Largest value that is as expected of the format here."""
        is_float32 = self.pooled.dtype is torch.float32
        margin = self.width * (statistic.margin[is_float32] + UNSEEN[is_float32])
        widened = (self.highest[statistic.name] + statistic.offset) * math.exp(margin)
        return max(widened - statistic.offset, statistic.chance) * (1.0 + 1e-9)

    def _stored(self, x: Tensor) -> Tensor:
        return x.to(self.pooled.dtype).to(self.work)

    def _rests(self, outputs: Tensor, apart: slice | None = None) -> Tensor:
        """Subtract the mixture of yardsticks that comes nearest, or the nearest one; of the yardsticks `apart`, the
        mixture of all others.
        """
        count, alone, weight = len(self.outputs), apart is not None, self.weight / self.unit
        if alone and count == 1:
            return outputs - self._stored(self.reference)
        if apart is None:
            weighted = ((outputs - self.reference) * weight).flatten(1)
            square, near = weighted.square().sum(1), (self.own @ weighted.mT).mT  # a row by a matrix is slow
            shares = (self.weighted @ weighted.mT).mT
        else:
            square, near, shares = self.squares[apart], self.near[apart], self.shares[apart].clone()
        distances = square.double()[:, None] + self.squares - 2.0 * near.double()
        gram = self.gram + torch.diag(RIDGE * self.gram.diagonal() + 1e-12 * self.own.shape[1])
        gram = gram.repeat(len(outputs), 1, 1)
        if apart is not None:
            at, own = torch.arange(len(outputs)), torch.arange(count)[apart]
            distances[at, own] = math.inf
            gram[at, own], gram[at, :, own], shares[at, own] = 0.0, 0.0, 0.0
            gram[at, own, own] = 1.0
        nearest = distances.argmin(1)
        if self.own.shape[1] < 4 * (count - alone):
            return outputs - self.outputs[nearest]
        coefficients = torch.linalg.solve(gram, shares.double()[..., None])[..., 0].to(self.work)
        fitted = torch.addmm(self.reference.flatten(), coefficients, self.errors.flatten(1)).view_as(outputs)
        rests = outputs - self._stored(fitted)
        left = (rests * weight).flatten(1).square_().sum(1)
        near_enough = distances.amin(1) <= 1.01 * left + 1e-4 * square  # distances are differences of large sums
        for i in near_enough.nonzero()[:, 0].tolist():
            rest = outputs[i] - self.outputs[nearest[i]]
            if float((rest * weight).square_().sum()) <= float(left[i]):
                rests[i] = rest
        return rests


class _Plane:
    """What the statistics of every output on the same calls share; float32, in units in which errors are about one."""

    def __init__(self, span: Range) -> None:
        pooled, scale, reference = span.pooled, span.scale, span.pooled.reference
        self.pooled, self.roughest, self.reference = pooled, span.roughest, span.reference
        self.scale = scale.to(span.work)
        self.row_square = (span.row_square / span.roughest**2).float()
        self.head_square = self.row_square.mean((0, 2))
        flip = (pooled.ulp * scale).square()  # one rounding that fell to the other side
        self.flip, self.flip_of_row = (1.0 + flip).reciprocal().float(), (1.0 + flip.amax(-1) / flip.shape[-1]).float()
        sign = reference.sign()
        self.outward = (sign / pooled.ulp * span.roughest).clamp(-1e30, 1e30).float()
        self.outward_rest = (sign / pooled.ulp / scale).clamp(-1e30, 1e30).float()
        axes = tuple(axis for axis in (0, 2) if reference.shape[axis] > 1)
        mean = reference.mean(axes, keepdim=True) if axes else torch.zeros(())
        basis = torch.stack([reference * scale, (reference - mean) * scale, scale], -1).float()
        self.basis, self.sizes = basis.flatten(0, 2), basis.square().sum(-2).movedim(-1, 0)  # (3, groups, heads, rows)
        self.along_row = basis[..., 0].contiguous()
        self.along_square = self.along_row.square()
        self.mantissa = _beside_its_binade(reference).float()
        self.grows = pooled.dtype is not torch.float32  # whose products each err by a share of themselves
        self.mantissa_square = self.mantissa.square().sum(-1)
        size = self.sizes[0].clamp_min(1e-30)
        self.size, self.factor = size, (FACTOR * size).square()
        self.quarter = (0.25 / pooled.ulp).clamp_max(1e300 if span.work is torch.float64 else 1e37).to(span.work)
        steps = pooled.rounded * self.quarter
        self.fine = steps != steps.round()
        smallest, absolute = pooled.format.smallest_subnormal, reference.abs()
        self.subnormal = (absolute >= 2.0 * smallest) & (absolute < pooled.format.smallest_normal)

    def statistics(self, outputs: Tensor, rests: Tensor) -> dict[str, Tensor]:
        """Every statistic of each of some outputs and their rests, (n, groups, heads, rows, channels)."""
        layout = outputs.shape[:-1]
        e, z = (outputs - self.reference).div_(self.roughest).float(), (rests * self.scale).float()
        rows, square = e.square().mean(-1), z.square()
        by_row = square.mean(-1)
        along = (z.flatten(1, 3).transpose(0, 1) @ self.basis).permute(2, 1, 0).unflatten(-1, layout[1:])
        gain, gain_of_head = _gain(along[0], self.sizes[0])
        scaled = (along[0].square() - self.factor).clamp_min(0.0)
        worst_element = (square * self.flip).amax((1, 2, 3, 4)).sqrt()
        grown = torch.zeros_like(by_row)
        if self.grows:
            square.div_(by_row.clamp_min(LEAST)[..., None]).clamp_max_(16.0).mul_(self.mantissa)
            grown = square.sum(-1)
        lowest, largest = e.flatten(1).aminmax(dim=1)
        return {
            "rms": rows.mean((1, 2, 3)).sqrt(),
            "typical_row": _typical(rows / self.row_square),
            "max": torch.maximum(largest, -lowest),
            "head": (rows.mean((1, 3)) / self.head_square).amax(1).sqrt(),
            "rest": by_row.mean((1, 2, 3)).sqrt(),
            "rest_of_row": _typical(by_row),
            "rest_of_head": by_row.mean((1, 3)).amax(1).sqrt(),
            "worst_row": (by_row / self.flip_of_row).amax((1, 2, 3)).sqrt(),
            "worst_element": worst_element,
            "channel_offset": _channel_offset(z, by_row),
            "outward": _outward(e.mul_(self.outward)),
            "outward_rest": _outward(z * self.outward_rest),
            **self._on_grid(outputs),
            "gain": gain,
            "gain_of_head": gain_of_head,
            "gain_by_position": _alike(along[0].clone(), self.sizes[0], (1, 2)),
            "gain_by_channel": _alike(z.mul_(self.along_row), self.along_square, (1, 3)),
            "proportional": grown.sum((1, 2, 3)).clamp_min(0.0)
            / torch.maximum(grown.square(), LEAST * self.mantissa_square).sum((1, 2, 3)).clamp_min(1e-30).sqrt(),
            "contrast": _gain(along[1], self.sizes[1])[0],
            "offset": _gain(along[2], self.sizes[2])[0],
            "row_gain": (
                (scaled / self.size).sum((1, 2, 3)) / by_row.sum((1, 2, 3)).clamp_min(LEAST * self.size.numel())
            ).sqrt(),
            "row_gain_eps": (scaled / (self.size * self.pooled.format.eps).square()).mean((1, 2, 3)).sqrt(),
        }

    def _on_grid(self, outputs: Tensor) -> dict[str, Tensor]:
        """Results on a coarser grid than the dtype's, and subnormals set to zero."""
        axes = (1, 2, 3, 4)
        flushed = torch.zeros(len(outputs))
        if self.subnormal.any():
            zero = outputs == 0
            flushed = (torch.where(zero, 1.0, -1.0) * self.subnormal).sum(axes).clamp_min(0.0)
        coarse = ((outputs * self.quarter).frac_() == 0) & self.fine
        return {"coarse": coarse.sum(axes) / (self.fine.sum() + 8.0), "flushed": flushed}


def _outward(signed: Tensor) -> Tensor:
    """Mean signed error in ULPs, less what chance gives it over rows."""
    rows = signed.clamp_(-1.0, 1.0).mean(-1).flatten(1)
    if rows.shape[1] == 1:
        return torch.zeros(len(rows))
    beyond = _quantile(rows.shape[1] - 1) / rows.shape[1] ** 0.5
    return (rows.mean(1).abs() - beyond * rows.std(1)).clamp_min(0.0)


@lru_cache
def _quantile(freedom: int) -> float:
    return float(student.ppf(CLUSTERS, freedom))


def _pattern(square: Tensor) -> Tensor:
    """Mean square by row times the relative one by head and channel, drawn to 1 where there are few rows."""
    mean, samples = square.mean((0, 2, 3))[:, None], square.shape[0] * square.shape[2]
    channels = (square.sum((0, 2)) + 4.0 * mean) / (samples + 4.0) / mean.clamp_min(_TINY)
    return square.mean(-1, keepdim=True) * channels[None, :, None, :]


def _typical(square: Tensor) -> Tensor:
    """Root of the geometric mean."""
    return (square + 0.01).log().mean((1, 2, 3)).mul(0.5).exp()


def _channel_offset(z: Tensor, by_row: Tensor) -> Tensor:
    groups, _, rows = by_row.shape[1:]
    by_channel = z.sum((1, 3)).square() / (groups * rows)
    return by_channel.mean((1, 2)) / by_row.mean((1, 2, 3)).clamp_min(LEAST)


def _gain(products: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The regression of rows' products on their sizes, in standard errors: over all, and in the worst head."""

    def in_errors(axes: tuple[int, ...]) -> Tensor:
        total, size = products.sum(axes, keepdim=True), sizes[None].sum(axes, keepdim=True).clamp_min(1e-30)
        spread = (products - total / size * sizes).square().sum(axes, keepdim=True) + LEAST * size
        return (total.abs() / spread.sqrt()).amax((1, 2, 3))

    return in_errors((1, 2, 3)), in_errors((1, 3))


def _beside_its_binade(x: Tensor) -> Tensor:
    """The square of the mantissa less its mean over all elements of the same binade."""
    mantissa, exponent = x.frexp()
    square, binade = mantissa.square().flatten(), (exponent - exponent.min()).long().flatten()
    mean = binade.bincount(square) / binade.bincount().clamp_min(1)
    return (square - mean[binade]).view_as(x)


def _alike(products: Tensor, sizes: Tensor, axes: tuple[int, int]) -> Tensor:
    """How far gains differ among all places but some axes, beyond chance: chi-square in standard errors, by Wilson and
    Hilferty. Products are overwritten.
    """
    common = products.flatten(1).sum(1) / sizes.sum().clamp_min(1e-30)
    products.addcmul_(common.view(-1, *[1] * sizes.ndim), sizes, value=-1.0)
    total = products.sum(axes)
    spread = products.square_().sum(axes) + LEAST * sizes.sum([axis - 1 for axis in axes])
    ratio = (total.square() / spread.clamp_min(1e-30)).flatten(1)
    chance = 2.0 / (9.0 * ratio.shape[1])
    return ((ratio.mean(1) ** (1.0 / 3.0) - 1.0 + chance) / chance**0.5).clamp_min(0.0)
