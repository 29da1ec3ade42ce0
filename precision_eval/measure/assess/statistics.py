"""The statistics that an error is judged by.

Conventions: each statistic is one number, larger is worse, taken of the candidate and, where that means something, of
the yardstick too. None changes when the tensors are scaled by a power of two (inside the range of normal numbers),
when their sign is flipped, or when rows are permuted. *Expected size* is that of :mod:`.sizes`. A gain is the
regression of the error on the reference, its uncertainty taken over rows as clusters, because the elements of a row
share operands; ``GAIN_MARGIN`` is added in quadrature, so that a tiny gain is not a fault however well it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from precision_eval.measure.assess.sizes import TINY, Errors

GAIN_MARGIN = 0.02  # of eps
TAIL = 1000  # one element in so many lies beyond ``tail``
Z_CAP = 3.0  # errors beyond it do not weigh more in ``rounding_share``
_SMALL = 1e-30  # against division by zero in float32


@dataclass(frozen=True)
class Statistic:
    """One statistic, as data."""

    name: str
    kind: Literal["level", "shape", "fixed"]
    offset: float
    says: str


STATISTICS: tuple[Statistic, ...] = (
    Statistic("rms_ratio", "level", 1e-6, "RMS error {value:.3g} × the yardstick's (limit {limit:.3g})"),
    Statistic("mean_ratio", "level", 1e-6, "mean absolute error {value:.3g} × the yardstick's (limit {limit:.3g})"),
    Statistic(
        "typical_row_ratio",
        "level",
        1e-6,
        "RMS error of the typical row {value:.3g} × the yardstick's (limit {limit:.3g})",
    ),
    Statistic("max_ratio", "level", 1e-6, "largest error {value:.3g} × the yardstick's (limit {limit:.3g})"),
    Statistic(
        "worst_row_ratio",
        "level",
        1e-6,
        "RMS error of the worst row {value:.3g} × the yardstick's there (limit "
        "{limit:.3g}): a stale slot, a key too many or too few, or a mask, in that row",
    ),
    Statistic(
        "worst_head_ratio",
        "level",
        1e-6,
        "RMS error of the worst head {value:.3g} × the yardstick's there (limit "
        "{limit:.3g}): heads exchanged, or one head's cache or scale",
    ),
    Statistic(
        "largest",
        "shape",
        1e-6,
        "an element errs by {value:.3g} × its expected size (limit {limit:.3g}): a place wrongly "
        "written or a flipped bit",
    ),
    Statistic(
        "tail", "shape", 1e-6, "one element in 1,000 errs by {value:.3g} × its expected size (limit {limit:.3g})"
    ),
    Statistic(
        "worst_row",
        "shape",
        1e-6,
        "a row errs by {value:.3g} × what the other rows and the yardstick predict (limit "
        "{limit:.3g}): a stale slot, a key or a mask, in that row",
    ),
    Statistic(
        "gain",
        "shape",
        0.5,
        "the error follows the reference at {value:.3g} standard errors (limit {limit:.3g}): a gain, a "
        "wrong scale, or truncation",
    ),
    Statistic(
        "gain_by_head", "shape", 0.5, "so it does in one head at {value:.3g} standard errors (limit {limit:.3g})"
    ),
    Statistic(
        "contrast",
        "shape",
        0.5,
        "the error follows the reference's departure from its mean row at {value:.3g} standard errors "
        "(limit {limit:.3g}): logits scaled or approximated wrongly",
    ),
    Statistic(
        "contrast_by_head", "shape", 0.5, "so it does in one head at {value:.3g} standard errors (limit {limit:.3g})"
    ),
    Statistic(
        "row_gain",
        "shape",
        1e-6,
        "rows are scaled each by a factor of its own: error along the row {value:.3g} × that of a "
        "random direction (limit {limit:.3g}): a sum, reciprocal or rescale factor kept too coarsely",
    ),
    Statistic("row_gain_eps", "shape", 0.02, "rows are scaled by {value:.3g} eps each (limit {limit:.3g})"),
    Statistic("offset", "shape", 0.5, "a constant is added, at {value:.3g} standard errors (limit {limit:.3g})"),
    Statistic(
        "channel_offset",
        "shape",
        0.2,
        "channels are shifted by constants, {value:.3g} × what chance gives (limit "
        "{limit:.3g}): the same key or value wrong in all rows",
    ),
    Statistic("toward_zero", "shape", 0.02, "results lie {value:.3g} ULP toward zero (limit {limit:.3g}): truncation"),
    Statistic("away_from_zero", "shape", 0.02, "results lie {value:.3g} ULP away from zero (limit {limit:.3g})"),
    Statistic(
        "toward_zero_rest",
        "shape",
        0.02,
        "beside what the yardstick shares, results lie {value:.3g} ULP toward zero (limit {limit:.3g})",
    ),
    Statistic(
        "away_from_zero_rest",
        "shape",
        0.02,
        "beside what the yardstick shares, results lie {value:.3g} ULP away from zero (limit {limit:.3g})",
    ),
    Statistic(
        "missed_within_one",
        "shape",
        1e-6,
        "{value:.3g} × as many results are wrongly rounded as lie beyond one ULP (limit "
        "{limit:.3g}): stochastic or directed rounding",
    ),
    Statistic(
        "rounding_share",
        "shape",
        0.3,
        "the part of the error that goes with the ULP is {value:.3g} × one rounding (limit "
        "{limit:.3g}): stochastic or repeated rounding, or an accumulator kept in the dtype",
    ),
    Statistic(
        "flushed",
        "fixed",
        0.5,
        "{value:.0f} more results are zero than subnormal where the reference is subnormal (limit "
        "{limit:.0f}): subnormals flushed",
    ),
    Statistic(
        "coarse",
        "fixed",
        0.05,
        "{value:.2f} of the results that need the dtype's last two bits leave them zero (limit "
        "{limit:.2f}): another format posing as this one",
    ),
)
"""What is looked at, in the order in which reasons are given."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The statistics of one assessment."""

    found: dict[str, float]
    own: dict[str, float]
    alpha: float
    headroom: float
    kurtosis: float
    row_spread: float
    rows: int
    gain: float
    gain_standard_error: float


def measured(errors: Errors) -> Measured:
    """Take every statistic."""
    square = errors.z.square()
    mean = square.mean((1, 2, 3, 4)).clamp_min(_SMALL)
    by_row = square.mean(-1)
    pairs = {**_shape(square, by_row), **_offsets(errors, mean), **_shares(errors, square)}
    pairs["gain"], pairs["gain_by_head"], row, gain, deviation = _gain(errors, errors.z_reference, by_row)
    pairs["row_gain"], pairs["row_gain_eps"] = row
    pairs["contrast"], pairs["contrast_by_head"], *_ = _gain(errors, _departure(errors), by_row)
    pairs.update(_in_ulps(errors))
    found = {**_levels(errors), **{name: float(pair[0]) for name, pair in pairs.items()}, **_grids(errors)}
    rounding, plain = errors.rounding_row_square.mean(), errors.row_square[1].mean()
    return Measured(
        found=found,
        own={name: float(pair[1]) for name, pair in pairs.items()},
        alpha=float(errors.alpha[0]),
        headroom=float((torch.maximum(plain, rounding) / rounding).sqrt()),
        kurtosis=float(square[1].square().mean() / mean[1].square()),
        row_spread=float(by_row[1].var(correction=0) / mean[1].square()),
        rows=by_row[0].numel(),
        gain=gain,
        gain_standard_error=deviation,
    )


def _levels(errors: Errors) -> dict[str, float]:
    """Ratios to the yardstick."""
    rows, plain, rounding = errors.row_square[0], errors.yardstick_row_square, errors.rounding_row_square
    whole = torch.maximum(errors.row_square[1].mean(), rounding.mean())
    size, ulp = errors.error.abs(), errors.pooled.ulp
    return {
        "rms_ratio": float((rows.mean() / whole).sqrt()),
        "mean_ratio": float(size[0].sum() / torch.maximum(size[1].sum(), ulp.sum() / 4.0)),
        "typical_row_ratio": float(((rows + 0.01 * rounding) / (plain + 0.01 * rounding)).log().mean().mul(0.5).exp()),
        "max_ratio": float(size[0].max() / torch.maximum(size[1].max(), ulp.max() / 2.0)),
        "worst_row_ratio": float((rows / (plain + 0.1 * whole)).max().sqrt()),
        "worst_head_ratio": float((rows.mean((0, 2)) / plain.mean((0, 2))).max().sqrt()),
    }


def _shape(square: Tensor, by_row: Tensor) -> dict[str, Tensor]:
    top = square.flatten(1).topk(max(1, square[0].numel() // TAIL), dim=1).values
    return {"largest": top[:, 0].sqrt(), "tail": top[:, -1].sqrt(), "worst_row": by_row.flatten(1).amax(1).sqrt()}


def _departure(errors: Errors) -> Tensor:
    """The reference less its mean row, per head, in units of the expected size; the reference where there is
    one row.
    """
    reference = errors.pooled.reference
    if reference.shape[2] == 1:
        return errors.z_reference
    return ((reference - reference.mean(2, keepdim=True)) * errors.scale).float()


def _gain(
    errors: Errors, reference: Tensor, by_row: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], float, float]:
    """Regress on a reference: gain and gain by head in standard errors, row gains, the gain, its standard error."""
    product, power = (errors.z * reference).sum(-1), reference.square().sum(-1)  # (2, groups, heads, rows)
    of_head, power_of_head = product.sum((1, 3)), power.sum((1, 3)).clamp_min(_SMALL)
    whole = power_of_head.sum(1)
    gain, head_gain = of_head.sum(1) / whole, of_head / power_of_head
    spread = (product - gain[:, None, None, None] * power).square().sum((1, 2, 3)).sqrt() / whole
    head_spread = (product - head_gain[:, None, :, None] * power).square().sum((1, 3)).sqrt() / power_of_head
    eps = errors.pooled.format.eps
    margin = (GAIN_MARGIN * eps) ** 2
    along = (product.square() / power.clamp_min(_SMALL)).sum((1, 2, 3)) / by_row.sum((1, 2, 3)).clamp_min(_SMALL)
    size = errors.pooled.reference.square().mean(-1).sqrt().clamp_min(TINY)
    unit = (errors.pooled.format.smallest_normal / size).clamp_min(1.0).float() * eps  # more where rows are subnormal
    rows = (product / power.clamp_min(_SMALL) / unit).square().mean((1, 2, 3)).sqrt()
    in_errors = gain.abs() / (spread.square() + margin).sqrt()
    by_head = (head_gain.abs() / (head_spread.square() + margin).sqrt()).amax(1)
    if by_row[0].numel() == 1:  # one cluster has no spread, so nothing can be said
        in_errors, by_head, spread = 0.0 * in_errors, 0.0 * by_head, 0.0 * spread
    return in_errors, by_head, (along.sqrt(), rows), float(gain[0]), float(spread[0])


def _offsets(errors: Errors, mean: Tensor) -> dict[str, Tensor]:
    """Constants: over everything, and per channel of a head."""
    _, groups, _, rows, _ = errors.z.shape
    by_channel = errors.z.sum((1, 3)) / (groups * rows) ** 0.5  # (2, heads, channels)
    return {
        "offset": errors.z.sum((1, 2, 3, 4)).abs() / (errors.z[0].numel() * mean).sqrt(),
        "channel_offset": by_channel.square().mean((1, 2)) / mean,
    }


def _shares(errors: Errors, square: Tensor) -> dict[str, Tensor]:
    """Weighted least squares of the squared error on the two parts of its size: the coefficient of rounding."""
    axes = (1, 2, 3, 4)
    p, q, capped = errors.rounding_share, errors.arithmetic_share, square.clamp_max(Z_CAP**2)
    pp, pq, qq = (p * p).sum(axes), (p * q).sum(axes), (q * q).sum(axes)
    fit = qq * (capped * p).sum(axes) - pq * (capped * q).sum(axes)
    fit = fit / torch.maximum(pp * qq - pq * pq, 1e-6 * pp * qq).clamp_min(_SMALL)
    return {"rounding_share": fit.clamp(0.0, 100.0)}


def _in_ulps(errors: Errors) -> dict[str, Tensor]:
    """Signs and counts in ULPs of the result."""
    pooled, error = errors.pooled, errors.error
    axes = (1, 2, 3, 4)
    plain = error[1]
    shared = ((error[0] * plain).sum() / plain.square().sum().clamp_min(TINY)).clamp(0.0, 1.2)
    sign = pooled.reference.sign() / pooled.ulp
    in_ulps = error * sign
    outward = in_ulps.clamp(-1.0, 1.0).mean(axes)
    rest = torch.stack([(in_ulps[0] - shared * in_ulps[1]).clamp(-1.0, 1.0).mean(), outward[1]])
    misses = (error - (pooled.rounded - pooled.reference)).abs() > 0.4 * pooled.ulp
    missed = misses.float().mean(axes)
    beyond = (in_ulps.abs() > 1.0).float().mean(axes)
    return {
        "toward_zero": -outward,
        "away_from_zero": outward,
        "toward_zero_rest": -rest,
        "away_from_zero_rest": rest,
        "missed_within_one": (missed + 0.002) / (beyond + 0.002),
    }


def _grids(errors: Errors) -> dict[str, float]:
    """Results on a coarser grid than the dtype's, and subnormals set to zero."""
    pooled = errors.pooled
    steps, should = pooled.candidate / (4.0 * pooled.ulp), pooled.rounded / (4.0 * pooled.ulp)
    off = should != should.round()
    coarse = ((steps == steps.round()) & off).sum() / (off.sum() + 8.0)
    written = pooled.candidate != 0
    size, smallest = pooled.reference.abs(), pooled.format.smallest_subnormal
    subnormal = (size >= 2.0 * smallest) & (size < pooled.format.smallest_normal)
    flushed = (subnormal & ~written).sum() - (subnormal & written).sum()
    return {"coarse": float(coarse), "flushed": max(float(flushed), 0.0)}
