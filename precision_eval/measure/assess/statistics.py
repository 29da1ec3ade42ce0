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
CLUSTERS = 0.99865  # of Student's t: the quantile, in standard errors, by which a mean over rows has to leave zero
FACTOR = 2.0**-23  # what a row's factor, rounded to float32 twice, scales the row by at most
EVEN_ROW, EVEN_ELEMENT = 6.0, 16.0  # × the RMS of the rest
TOGETHER = 1 << 17  # elements of yardsticks that are taken at once
_TINY = 1e-300


@dataclass(frozen=True)
class Statistic:
    """One statistic, as data; `margin` is in units of log(value + offset), `chance` what mere noise and flipped
    roundings stay below, however little the yardsticks differ.
    """

    name: str
    kind: Literal["noise", "place", "structure"]
    offset: float
    margin: float
    says: str
    chance: float = 0.0


STATISTICS: tuple[Statistic, ...] = (
    Statistic("rms", "noise", 1e-06, 0.35, "RMS error {value:.3g} × the roughest yardstick's"),
    Statistic("typical_row", "noise", 1e-06, 0.25, "error of the typical row {value:.3g} × the yardsticks'"),
    Statistic("max", "noise", 1e-06, 0.65, "largest error {value:.3g} × the roughest yardstick's RMS error"),
    Statistic(
        "head",
        "place",
        1e-06,
        0.4,
        "error of the worst head {value:.3g} × the yardsticks' there: heads exchanged, or one head's cache or scale",
    ),
    Statistic(
        "rest",
        "noise",
        0.2,
        0.25,
        "error that no yardstick shares: {value:.3g} × what honest computations differ by",
        1.0,
    ),
    Statistic("rest_of_row", "noise", 0.2, 0.2, "the same in the typical row: {value:.3g}", 1.0),
    Statistic(
        "rest_of_head",
        "place",
        0.2,
        0.7,
        "the same in the worst head: {value:.3g}: heads exchanged, or one head's cache or scale",
        1.0,
    ),
    Statistic(
        "worst_row",
        "place",
        0.5,
        1.3,
        "the same in the worst row: {value:.3g}: a stale slot, a key too many or too few, or a mask, in that row",
    ),
    Statistic(
        "worst_element",
        "place",
        2.0,
        1.3,
        "the same in the worst element: {value:.3g}: a place wrongly written or a flipped bit",
    ),
    Statistic(
        "gain",
        "structure",
        0.5,
        0.95,
        "the error follows the reference at {value:.3g} standard errors: a gain, a wrong scale, or truncation",
        4.0,
    ),
    Statistic("gain_of_head", "structure", 0.5, 1.3, "so it does in one head at {value:.3g} standard errors", 4.5),
    Statistic(
        "contrast",
        "structure",
        0.5,
        0.5,
        "the error follows the reference's departure from its mean row at {value:.3g} standard errors: logits"
        " scaled or approximated wrongly",
        4.0,
    ),
    Statistic(
        "row_gain",
        "structure",
        0.05,
        1.0,
        "rows are scaled each by a factor of its own: error along the row {value:.3g} × that of a random "
        "direction: a sum, reciprocal or rescale factor kept too coarsely",
        2.0,
    ),
    Statistic("row_gain_eps", "noise", 0.02, 0.8, "rows are scaled by {value:.3g} eps each"),
    Statistic("offset", "place", 0.5, 0.4, "a constant is added, at {value:.3g} standard errors", 4.0),
    Statistic(
        "channel_offset",
        "place",
        0.2,
        0.5,
        "channels are shifted by constants, {value:.3g} × what chance gives: the same key or value wrong in all rows",
        1.6,
    ),
    Statistic(
        "outward",
        "structure",
        0.05,
        0.8,
        "results lie {value:.3g} ULP to one side of zero: truncation, or rounding in one direction",
    ),
    Statistic(
        "outward_rest",
        "structure",
        0.05,
        0.8,
        "beside what yardsticks share, results lie {value:.3g} ULP to one side of zero: truncation, or "
        "rounding in one direction",
    ),
    Statistic(
        "flushed",
        "structure",
        0.5,
        0.5,
        "{value:.0f} more results are zero than subnormal where the reference is subnormal: subnormals flushed",
    ),
    Statistic(
        "coarse",
        "structure",
        0.05,
        0.2,
        "{value:.2f} of the results that need the dtype's last two bits leave them zero: another format "
        "posing as this one",
        0.3,
    ),
)
"""What is looked at. A margin is what honest variations in the tuning part of the trials needed at most, pooled or
alone, and about a quarter more, at least 0.2 (`python -m validation faults --set part=seen`).
"""


class Range:
    """What honest computations of some calls span in every statistic; any number of candidates can be held to it."""

    def __init__(self, pooled: Pooled) -> None:
        self.pooled = pooled
        self.rounding = pooled.ulp.square() / 12.0
        reference = pooled.reference
        floor = (reference.square().mean(-1, keepdim=True) + reference.square().mean((0, 2), keepdim=True)) * FLOOR
        self.outputs = torch.stack([self._stored(y) for y in pooled.yardsticks])
        square = (self.outputs - reference).square()
        self.row_square = torch.maximum(square.mean(-1).mean(0), self.rounding.mean(-1))
        self.roughest = max(float(square.mean((1, 2, 3, 4)).max()), float(self.rounding.mean()), _TINY) ** 0.5
        self.weight = (_pattern(square.mean(0)) + self.rounding + floor).clamp_min(_TINY).rsqrt()
        self.errors = torch.stack(pooled.yardsticks) - reference
        self.weighted = (self.errors * self.weight).flatten(1)
        self.own = ((self.outputs - reference) * self.weight).flatten(1)
        self.gram = self.weighted @ self.weighted.mT
        self.squares = self.own.square().sum(1)
        rests = torch.cat([self._rests(self.outputs[at], apart=at) for at in self._parts()])
        honest = rests.square().mean(0)
        self.scale = (
            (_pattern(honest) + ROUNDING * torch.maximum(_pattern(self.rounding), self.rounding) + floor)
            .clamp_min(_TINY)
            .rsqrt()
        )
        own = [self._taken(self.outputs[at], rests[at]) for at in self._parts()]
        self.highest = {name: max(float(part[name].max()) for part in own) for name in own[0]}
        self.width = ALONE if len(rests) == 1 else 1.0

    def _parts(self) -> tuple[Tensor, ...]:
        """Yardsticks that fit into a processor's cache together."""
        return torch.arange(len(self.outputs)).split(max(1, TOGETHER // self.pooled.reference.numel()))

    def statistics(self, candidate: Tensor) -> dict[str, float]:
        """Take every statistic of a candidate in the layout of the pool."""
        return {name: float(x) for name, x in self._taken(candidate[None], self._rests(candidate[None])).items()}

    def is_even(self, candidate: Tensor) -> bool:
        """Whether no row and no element holds more of the rest than a rounding puts there: of itself, or on average."""
        square, own = self._rests(candidate[None])[0].square(), 16.0 * self.rounding
        mean = square.mean()
        by_row = square.mean(-1) <= EVEN_ROW**2 * mean + own.mean(-1)
        return bool(by_row.all() and (square <= EVEN_ELEMENT**2 * mean + 12.0 * own).all())

    def limit(self, statistic: Statistic) -> float:
        """Largest value that is as expected of the format here."""
        widened = (self.highest[statistic.name] + statistic.offset) * math.exp(self.width * statistic.margin)
        return max(widened - statistic.offset, statistic.chance) * (1.0 + 1e-9)

    def _stored(self, x: Tensor) -> Tensor:
        return x.to(self.pooled.dtype).to(torch.float64)

    def _rests(self, outputs: Tensor, apart: Tensor | None = None) -> Tensor:
        """Subtract the mixture of yardsticks that comes nearest, or the nearest one; of the yardsticks `apart`, the
        mixture of all others.
        """
        reference, weight, count = self.pooled.reference, self.weight, len(self.outputs)
        if apart is not None and count == 1:
            return outputs - self._stored(reference)
        weighted = ((outputs - reference) * weight).flatten(1)
        distances = self.squares - 2.0 * weighted @ self.own.mT
        gram = self.gram + torch.diag(RIDGE * self.gram.diagonal() + 1e-12 * weighted.shape[1])
        gram, shares = gram.repeat(len(outputs), 1, 1), weighted @ self.weighted.mT
        if apart is not None:
            at = torch.arange(len(apart))
            distances[at, apart] = math.inf
            gram[at, apart], gram[at, :, apart], shares[at, apart] = 0.0, 0.0, 0.0
            gram[at, apart, apart] = 1.0
        rests = outputs - self.outputs[distances.argmin(1)]
        if weighted.shape[1] < 4 * (count - (apart is not None)):
            return rests
        coefficients = torch.linalg.solve(gram, shares[..., None])[..., 0]
        fitted = outputs - self._stored(reference + torch.tensordot(coefficients, self.errors, 1))
        nearer = [(x * weight).square().sum((1, 2, 3, 4)) for x in (rests, fitted)]
        return torch.where((nearer[0] <= nearer[1])[:, None, None, None, None], rests, fitted)

    def _taken(self, outputs: Tensor, rests: Tensor) -> dict[str, Tensor]:
        """Every statistic of each of some outputs, (n, groups, heads, rows, channels)."""
        pooled, errors = self.pooled, outputs - self.pooled.reference
        rows = errors.square().mean(-1)
        z = rests * self.scale
        square = z.square()
        by_row = square.mean(-1)
        flip = (pooled.ulp * self.scale).square()  # one rounding that fell to the other side
        reference = pooled.reference * self.scale
        axes = tuple(axis for axis in (0, 2) if reference.shape[axis] > 1)
        mean = pooled.reference.mean(axes, keepdim=True) if axes else torch.zeros(())
        gain, gain_of_head, along = _gain(z, reference)
        size = reference.square().sum(-1).clamp_min(_TINY)
        along = (along.square() - (FACTOR * size).square()).clamp_min(0.0).sqrt()
        return {
            "rms": rows.mean((1, 2, 3)).sqrt() / self.roughest,
            "typical_row": _typical(rows / self.row_square),
            "max": errors.abs().amax((1, 2, 3, 4)) / self.roughest,
            "head": (rows.mean((1, 3)) / self.row_square.mean((0, 2))).amax(1).sqrt(),
            "rest": by_row.mean((1, 2, 3)).sqrt(),
            "rest_of_row": _typical(by_row),
            "rest_of_head": by_row.mean((1, 3)).amax(1).sqrt(),
            "worst_row": (by_row / (1.0 + flip.amax(-1) / flip.shape[-1])).amax((1, 2, 3)).sqrt(),
            "worst_element": (square / (1.0 + flip)).amax((1, 2, 3, 4)).sqrt(),
            "channel_offset": _channel_offset(z, by_row),
            "outward": self._outward(errors),
            "outward_rest": self._outward(rests),
            **self._on_grid(outputs),
            "gain": gain,
            "gain_of_head": gain_of_head,
            "contrast": _gain(z, (pooled.reference - mean) * self.scale)[0],
            "offset": _gain(z, self.scale)[0],
            "row_gain": (
                (along.square() / size).sum((1, 2, 3)) / by_row.sum((1, 2, 3)).clamp_min(LEAST * size.numel())
            ).sqrt(),
            "row_gain_eps": (along / size / pooled.format.eps).square().mean((1, 2, 3)).sqrt(),
        }

    def _outward(self, errors: Tensor) -> Tensor:
        """Mean signed error in ULPs, less what chance gives it over rows."""
        rows = (errors * (self.pooled.reference.sign() / self.pooled.ulp)).clamp(-1.0, 1.0).mean(-1).flatten(1)
        if rows.shape[1] == 1:
            return torch.zeros(len(rows))
        beyond = student.ppf(CLUSTERS, rows.shape[1] - 1) / rows.shape[1] ** 0.5
        return (rows.mean(1).abs() - beyond * rows.std(1)).clamp_min(0.0)

    def _on_grid(self, outputs: Tensor) -> dict[str, Tensor]:
        """Results on a coarser grid than the dtype's, and subnormals set to zero."""
        pooled, axes = self.pooled, (1, 2, 3, 4)
        steps, should = outputs / (4.0 * pooled.ulp), pooled.rounded / (4.0 * pooled.ulp)
        off = should != should.round()
        coarse = ((steps == steps.round()) & off).sum(axes) / (off.sum() + 8.0)
        size, smallest = pooled.reference.abs(), pooled.format.smallest_subnormal
        subnormal = (size >= 2.0 * smallest) & (size < pooled.format.smallest_normal)
        zero = outputs == 0
        flushed = (subnormal & zero).sum(axes) - (subnormal & ~zero).sum(axes)
        return {"coarse": coarse, "flushed": flushed.clamp_min(0)}


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


def _gain(z: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Regress on a reference: in standard errors over all and in the worst head; the products by row."""
    products, sizes = (z * reference).sum(-1), reference.square().sum(-1)[None]  # (n, groups, heads, rows)

    def in_errors(axes: tuple[int, ...]) -> Tensor:
        total = products.sum(axes, keepdim=True)
        gain = total / sizes.sum(axes, keepdim=True).clamp_min(_TINY)
        spread = (products - gain * sizes).square().sum(axes, keepdim=True) + LEAST * sizes.sum(axes, keepdim=True)
        return (total.abs() / spread.clamp_min(_TINY).sqrt()).amax((1, 2, 3))

    return in_errors((1, 2, 3)), in_errors((1, 3)), products
