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
from torch import Tensor

from precision_eval.measure.assess.pooled import Pooled

RIDGE = 1e-3  # of a yardstick's own square: yardsticks that nearly agree share their coefficient
LEAST = 0.25  # of the honest rest's square: a smaller one does not make a structure more significant
ROUNDING = 0.1  # of a rounding's square belongs to every honest rest
FLOOR = 2.0**-44  # of the mean square reference: float32 sums, where the reference happens to be nearly zero
ALONE = 2.0  # margins are as much wider where one yardstick is all there is
CLUSTERS = 3.0  # standard errors by which a mean over rows has to leave zero
EVEN_ROW, EVEN_ELEMENT = 6.0, 16.0  # × the RMS of the rest
_TINY = 1e-300


@dataclass(frozen=True)
class Statistic:
    """One statistic, as data; `margin` is in units of log(value + offset), `chance` what mere noise stays below."""

    name: str
    kind: Literal["noise", "place", "structure"]
    offset: float
    margin: float
    says: str
    chance: float = 0.0


STATISTICS: tuple[Statistic, ...] = (
    Statistic(
        "rms",
        "noise",
        1e-06,
        0.3,
        "RMS error {value:.3g} × the roughest yardstick's",
    ),
    Statistic(
        "typical_row",
        "noise",
        1e-06,
        0.3,
        "error of the typical row {value:.3g} × the yardsticks'",
    ),
    Statistic(
        "max",
        "noise",
        1e-06,
        0.5,
        "largest error {value:.3g} × the roughest yardstick's RMS error",
    ),
    Statistic(
        "head",
        "place",
        1e-06,
        0.5,
        "error of the worst head {value:.3g} × the yardsticks' there: heads exchanged, or one head's cache or scale",
    ),
    Statistic(
        "rest",
        "noise",
        0.2,
        0.55,
        "error that no yardstick shares: {value:.3g} × what honest computations differ by",
    ),
    Statistic(
        "rest_of_row",
        "noise",
        0.2,
        0.55,
        "the same in the typical row: {value:.3g}",
    ),
    Statistic(
        "rest_of_head",
        "place",
        0.2,
        0.65,
        "the same in the worst head: {value:.3g}: heads exchanged, or one head's cache or scale",
    ),
    Statistic(
        "worst_row",
        "place",
        0.5,
        1.4,
        "the same in the worst row: {value:.3g}: a stale slot, a key too many or too few, or a mask, in that row",
    ),
    Statistic(
        "worst_element",
        "place",
        2.0,
        1.4,
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
    Statistic(
        "gain_of_head",
        "structure",
        0.5,
        1.0,
        "so it does in one head at {value:.3g} standard errors",
        4.5,
    ),
    Statistic(
        "contrast",
        "structure",
        0.5,
        1.0,
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
    Statistic(
        "row_gain_eps",
        "noise",
        0.02,
        0.8,
        "rows are scaled by {value:.3g} eps each",
    ),
    Statistic(
        "offset",
        "place",
        0.5,
        0.95,
        "a constant is added, at {value:.3g} standard errors",
        4.0,
    ),
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
        0.3,
        "{value:.2f} of the results that need the dtype's last two bits leave them zero: another format "
        "posing as this one",
        0.2,
    ),
)
"""What is looked at. The margins were set on the tuning part of the trials (`python -m validation faults`)."""


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
        rests = [self._rest(y, without=i) for i, y in enumerate(self.outputs)]
        honest = torch.stack(rests).square().mean(0)
        self.scale = (_pattern(honest) + ROUNDING * _pattern(self.rounding) + floor).clamp_min(_TINY).rsqrt()
        own = [self._taken(y, rest) for y, rest in zip(self.outputs, rests, strict=True)]
        self.highest = {name: max(one[name] for one in own) for name in own[0]}
        self.width = ALONE if len(rests) == 1 else 1.0

    def statistics(self, candidate: Tensor) -> dict[str, float]:
        """Take every statistic of a candidate in the layout of the pool."""
        return self._taken(candidate, self._rest(candidate))

    def is_even(self, candidate: Tensor) -> bool:
        """Whether no row and no element holds more of the rest than a rounding puts there: of itself, or on average."""
        square, own = self._rest(candidate).square(), 16.0 * self.rounding
        mean = square.mean()
        by_row = square.mean(-1) <= EVEN_ROW**2 * mean + own.mean(-1)
        return bool(by_row.all() and (square <= EVEN_ELEMENT**2 * mean + 12.0 * own).all())

    def limit(self, statistic: Statistic) -> float:
        """Largest value that is as expected of the format here."""
        widened = (self.highest[statistic.name] + statistic.offset) * math.exp(self.width * statistic.margin)
        return (widened - statistic.offset) * (1.0 + 1e-9)

    def _stored(self, x: Tensor) -> Tensor:
        return x.to(self.pooled.dtype).to(torch.float64)

    def _rest(self, output: Tensor, without: int | None = None) -> Tensor:
        """Subtract the mixture of the yardsticks, but for one, that comes nearest, or the nearest yardstick."""
        among = [j for j in range(len(self.outputs)) if j != without]
        reference, weight = self.pooled.reference, self.weight
        if not among:
            return output - self._stored(reference)
        weighted = ((output - reference) * weight).flatten()
        distances = self.squares[among] - 2.0 * (self.own @ weighted)[among]
        rest = output - self.outputs[among[int(distances.argmin())]]
        if len(weighted) < 4 * len(among) or not rest.any():
            return rest
        gram = self.gram[among][:, among]
        ridge = torch.diag(RIDGE * gram.diagonal() + 1e-12 * len(weighted))
        coefficients = torch.zeros(len(self.outputs), dtype=torch.float64)
        coefficients[among] = torch.linalg.solve(gram + ridge, (self.weighted @ weighted)[among])
        fitted = output - self._stored(reference + torch.tensordot(coefficients, self.errors, 1))
        return min(rest, fitted, key=lambda one: float((one * weight).square().sum()))

    def _taken(self, output: Tensor, rest: Tensor) -> dict[str, float]:
        pooled, error = self.pooled, output - self.pooled.reference
        rows = error.square().mean(-1)
        z = rest * self.scale
        square = z.square()
        by_row = square.mean(-1)
        found = {
            "rms": float(rows.mean().sqrt()) / self.roughest,
            "typical_row": _typical(rows / self.row_square),
            "max": float(error.abs().max()) / self.roughest,
            "head": float((rows.mean((0, 2)) / self.row_square.mean((0, 2))).max().sqrt()),
            "rest": float(square.mean().sqrt()),
            "rest_of_row": _typical(by_row),
            "rest_of_head": float(square.mean((0, 2, 3)).max().sqrt()),
            "worst_row": float(by_row.max().sqrt()),
            "worst_element": float(square.max().sqrt()),
            "channel_offset": _channel_offset(z, square),
            "outward": self._outward(error),
            "outward_rest": self._outward(rest),
            **self._on_grid(output),
        }
        reference = pooled.reference * self.scale
        axes = tuple(axis for axis in (0, 2) if reference.shape[axis] > 1)
        mean = pooled.reference.mean(axes, keepdim=True) if axes else torch.zeros(())
        found["gain"], found["gain_of_head"], along = _gain(z, reference)
        found["contrast"] = _gain(z, (pooled.reference - mean) * self.scale)[0]
        found["offset"] = _gain(z, self.scale)[0]
        size = reference.square().sum(-1).clamp_min(_TINY)
        found["row_gain"] = math.sqrt(
            float((along.square() / size).sum() / (by_row.sum().clamp_min(LEAST * by_row.numel())))
        )
        found["row_gain_eps"] = float((along / size / pooled.format.eps).square().mean().sqrt())
        return found

    def _outward(self, error: Tensor) -> float:
        """Mean signed error in ULPs, less what chance gives it over rows."""
        rows = (error * self.pooled.reference.sign() / self.pooled.ulp).clamp(-1.0, 1.0).mean(-1).flatten()
        if len(rows) == 1:
            return 0.0
        return max(float(rows.mean().abs() - CLUSTERS * rows.std() / len(rows) ** 0.5), 0.0)

    def _on_grid(self, output: Tensor) -> dict[str, float]:
        """Results on a coarser grid than the dtype's, and subnormals set to zero."""
        pooled = self.pooled
        steps, should = output / (4.0 * pooled.ulp), pooled.rounded / (4.0 * pooled.ulp)
        off = should != should.round()
        coarse = ((steps == steps.round()) & off).sum() / (off.sum() + 8.0)
        size, smallest = pooled.reference.abs(), pooled.format.smallest_subnormal
        subnormal = (size >= 2.0 * smallest) & (size < pooled.format.smallest_normal)
        flushed = (subnormal & (output == 0)).sum() - (subnormal & (output != 0)).sum()
        return {"coarse": float(coarse), "flushed": max(float(flushed), 0.0)}


def _pattern(square: Tensor) -> Tensor:
    """Mean square by row times the relative one by head and channel, drawn to 1 where there are few rows."""
    mean, samples = square.mean((0, 2, 3))[:, None], square.shape[0] * square.shape[2]
    channels = (square.sum((0, 2)) + 4.0 * mean) / (samples + 4.0) / mean.clamp_min(_TINY)
    return square.mean(-1, keepdim=True) * channels[None, :, None, :]


def _typical(square: Tensor) -> float:
    """Root of the geometric mean."""
    return float((square + 0.01).log().mean().mul(0.5).exp())


def _channel_offset(z: Tensor, square: Tensor) -> float:
    groups, _, rows, _ = z.shape
    by_channel = z.sum((0, 2)).square() / (groups * rows)
    return float(by_channel.mean() / square.mean().clamp_min(LEAST))


def _gain(z: Tensor, reference: Tensor) -> tuple[float, float, Tensor]:
    """Regress on a reference: in standard errors over all and in the worst head; the products by row."""
    products, sizes = (z * reference).sum(-1), reference.square().sum(-1)  # (groups, heads, rows)

    def in_errors(axes: tuple[int, ...]) -> Tensor:
        total = products.sum(axes, keepdim=True)
        gain = total / sizes.sum(axes, keepdim=True).clamp_min(_TINY)
        spread = (products - gain * sizes).square().sum(axes, keepdim=True) + LEAST * sizes.sum(axes, keepdim=True)
        return (total.abs() / spread.clamp_min(_TINY).sqrt()).max()

    return float(in_errors((0, 1, 2))), float(in_errors((0, 2))), products
