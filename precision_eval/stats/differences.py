"""Paired differences judged as one family: which differ, which are no worse than a margin, and what would have shown.

A difference is candidate minus reference on the same unit (a passage of script and a noise seed); above 0 is worse.
*Differs* is a two-sided t-test at the level that Holm's procedure gives it, which keeps the rate of any false alarm in
the family however its tests depend on each other. *No worse* is one-sided per test: a candidate is no worse when every
one of its tests says so, which needs no correction (an intersection-union test; Berger 1982).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from numpy.typing import ArrayLike

from precision_eval.core.errors import ParameterError
from precision_eval.stats.families import POWER, holm_levels, upper_quantile, upper_tail
from precision_eval.stats.intervals import check_values

# Rate at which anything is said to differ in a family in which nothing does.
FAMILY_ERROR = 0.01

# One-sided rate at which a difference as large as the margin is called no worse.
NO_WORSE_ERROR = 0.05

# Fewer units decide nothing.
LEAST_UNITS = 8

DifferenceVerdict = Literal["worse", "better", "no worse", "undecided"]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class PairedDifferences:
    """What a test is made of.

    `differences` are one per unit; `chance` those of the reference under other noise, of which only the spread is used;
    `margin` is the largest mean difference that counts as none.
    """

    differences: ArrayLike
    chance: ArrayLike
    margin: float


@dataclass(frozen=True, kw_only=True)
class DifferenceDecision:
    """One test's answer, in the unit of its differences; `low` to `high` is the two-sided 95 % interval."""

    # *worse* and *better* say that it differs; *no worse* that `bound` lies within the margin.
    verdict: DifferenceVerdict
    estimate: float
    low: float
    high: float
    bound: float  # the mean difference lies below this with 95 % confidence, one-sided
    p: float
    level: float  # that Holm's procedure gave this test
    no_worse: bool  # also where the verdict is *worse*, by less than the margin
    margin: float
    detectable: float  # difference that as many units would have shown in 80 % of repetitions
    units: int
    changed: int  # units that differ at all
    needed: int  # units after which an equal candidate would be called no worse in 80 % of repetitions


@dataclass(frozen=True)
class _Mean:
    estimate: float
    standard_error: float
    units: int
    changed: int


def judge_differences(
    samples: Mapping[Key, PairedDifferences], *, error: float = FAMILY_ERROR
) -> dict[Key, DifferenceDecision]:
    """Judge all tests as one family; each needs :data:`LEAST_UNITS` units."""
    means = {key: _mean(key, sample) for key, sample in samples.items()}
    tails = [upper_tail(abs(mean.estimate), mean.standard_error, mean.units - 1) for mean in means.values()]
    p_values = [min(1.0, 2.0 * tail) for tail in tails]
    tested = zip(means.items(), p_values, holm_levels(p_values, error), strict=True)
    return {key: _decision(mean, samples[key].margin, p, *level) for (key, mean), p, level in tested}


def _mean(key: object, sample: PairedDifferences) -> _Mean:
    """Mean and standard error of the differences.

    Units whose candidate happened not to leave the reference differ by exactly 0. Some of them would have on another
    draw, so the share of those that change is taken at Clopper and Pearson's upper 95 % bound, with the spread of
    chance.
    """
    from scipy.special import betaincinv

    values = check_values(f"differences of {key}", sample.differences, min_size=LEAST_UNITS)
    chance = check_values(f"differences by chance of {key}", sample.chance, min_size=LEAST_UNITS)
    if not sample.margin > 0.0:
        raise ParameterError(f"the margin of {key} is {sample.margin}; expected a difference above 0")
    changed = int((values != 0.0).sum())
    most = 1.0 if changed == values.size else float(betaincinv(changed + 1, values.size - changed, 0.95))
    unseen = (most - changed / values.size) * float((chance**2).mean())
    variance = float(values.var(ddof=1)) + unseen
    return _Mean(float(values.mean()), math.sqrt(variance / values.size), values.size, changed)


def _decision(mean: _Mean, margin: float, p: float, differs: bool, level: float) -> DifferenceDecision:
    degrees = mean.units - 1
    one_sided = upper_quantile(NO_WORSE_ERROR, degrees)
    reach = upper_quantile(0.025, degrees) * mean.standard_error
    power = upper_quantile(1.0 - POWER, degrees)
    bound = mean.estimate + one_sided * mean.standard_error
    no_worse = bound <= margin
    verdict: DifferenceVerdict = "no worse" if no_worse else "undecided"
    if differs:
        verdict = "worse" if mean.estimate > 0.0 else "better"
    return DifferenceDecision(
        verdict=verdict,
        estimate=mean.estimate,
        low=mean.estimate - reach,
        high=mean.estimate + reach,
        bound=bound,
        p=p,
        level=level,
        no_worse=no_worse,
        margin=margin,
        detectable=(upper_quantile(level / 2.0, degrees) + power) * mean.standard_error,
        units=mean.units,
        changed=mean.changed,
        needed=math.ceil(mean.units * ((one_sided + power) * mean.standard_error / margin) ** 2),
    )
