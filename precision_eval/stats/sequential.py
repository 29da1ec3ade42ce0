"""When to stop measuring: a few planned looks at the data, with the error rate of all looks together kept.

Conventions: a look happens at a planned fraction of the budget. α is two-sided. The errors of the looks are added up
(Bonferroni), so the rate holds however the estimates of the looks depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

from precision_eval.core.errors import ParameterError

Verdict = Literal["faster", "equivalent", "slower", "undecided"]

# Fractions of the budget at which the data are looked at.
LOOKS: tuple[float, ...] = (0.1, 0.15, 0.22, 0.33, 0.5, 0.7, 1.0)

# Two-sided, over all looks: an effect at the edge of the margin is called equivalent in at most half of this.
EQUIVALENCE_ALPHA = 0.05


def spent(fraction: float, alpha: float) -> float:
    """Error that may be spent by a fraction of the budget, after O'Brien and Fleming: almost nothing early."""
    if not 0.0 < fraction <= 1.0 or not 0.0 < alpha < 1.0:
        raise ParameterError(f"fraction is {fraction} and alpha {alpha}; expected 0 < fraction ≤ 1 and 0 < alpha < 1")
    normal = NormalDist()
    return 2.0 * normal.cdf(normal.inv_cdf(alpha / 2.0) / math.sqrt(fraction))


def look_errors(alpha: float, looks: Sequence[float] = LOOKS) -> tuple[float, ...]:
    """Two-sided error that each look may spend; together they make `alpha`."""
    if not looks or looks[-1] != 1.0 or any(after <= before for before, after in pairwise(looks)):
        raise ParameterError(f"looks are {tuple(looks)}; expected rising fractions that end with 1")
    levels = [0.0, *(spent(look, alpha) for look in looks)]
    return tuple(after - before for before, after in pairwise(levels))


def student_quantile(error: float, degrees: float) -> float:
    """Quantile t with P(|T| > t) = `error` under Student's t; infinite where no error is left to spend."""
    from scipy.special import stdtrit

    quantile = float(-stdtrit(max(degrees, 1.0), error / 2.0))
    return math.inf if error < 1.0 and quantile < 0.0 else quantile  # scipy's is -inf where the error underflows


def decide(
    estimate: float, standard_error: float, *, margin: float, direction_t: float, equivalence_t: float
) -> Verdict:
    """Verdict on a log-ratio at one look."""
    reach = math.log1p(margin)
    if estimate - direction_t * standard_error > reach:
        return "slower"
    if estimate + direction_t * standard_error < -reach:
        return "faster"
    if abs(estimate) + equivalence_t * standard_error <= reach:
        return "equivalent"
    return "undecided"
