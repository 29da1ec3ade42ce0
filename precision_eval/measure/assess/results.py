"""What an assessment holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from precision_eval.measure.assess.pooled import NonFinite
from precision_eval.measure.drift import Split

Verdict = Literal["as expected of the format", "worse, by one more rounding", "worse", "non-finite"]


@dataclass(frozen=True, kw_only=True)
class Bias:
    """Signed bias: mean error along the reference in eps, and mean signed error in ULPs, outward positive."""

    gain_eps: float
    ulp: float


@dataclass(frozen=True, kw_only=True)
class WorstPlace:
    """Where it is worst, over the yardsticks' error there."""

    index: tuple[int, ...]
    rms_ratio: float


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The judgement of a numeric error.

    Attributes
    ----------
    verdict : {"as expected of the format", "worse, by one more rounding", "worse", "non-finite"}
        *By one more rounding*: noise that no yardstick shares, without structure, that leaves the whole error within
        1.6 × the roughest yardstick's: an honest order that stores one step more, such as a bias added after the
        product was rounded.
    reasons : tuple of str
        Which statistic crossed which limit and what that points to, the clearest first; empty where the verdict is
        *as expected of the format*.
    held_to : str
        What the honest range comes from: so many yardsticks, those that agree bit for bit counted once, or a single one
        with stored margins, which are wider.
    dtype : str
    calls, elements : int
        Pooled, and judged in all of them: elements that are not finite are set aside.
    rms_ratio : float
        RMS error over the roughest yardstick's; over that of one rounding where that is larger.
    bias : Bias
    ulp_quantiles : dict of str to float
        Of the absolute error, in ULPs of the dtype at the reference, at 0.5, 0.99, 0.999 and 1.
    worst_row, worst_head, worst_channel : WorstPlace
    non_finite : NonFinite
    split : Split or None
        Input cast, compute, output rounding and cross-term; None where no float64 result on cast inputs was given.
    undetectable : str
        What this assessment could not have seen, in a sentence.
    statistics, limits : dict of str to float
        Each statistic, and the largest value of it that is as expected of the format here.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    held_to: str
    dtype: str
    calls: int
    elements: int
    rms_ratio: float
    bias: Bias
    ulp_quantiles: dict[str, float]
    worst_row: WorstPlace
    worst_head: WorstPlace
    worst_channel: WorstPlace
    non_finite: NonFinite
    split: Split | None
    undetectable: str
    statistics: dict[str, float]
    limits: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record."""
        return {**asdict(self), "reasons": list(self.reasons)}
