"""What an assessment holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from precision_eval.measure.assess.pooled import NonFinite
from precision_eval.measure.drift import Split

Verdict = Literal["as expected of the format", "worse", "non-finite"]


@dataclass(frozen=True, kw_only=True)
class Bias:
    """Signed bias, size beside significance."""

    gain_eps: float
    gain_z: float
    ulp: float


@dataclass(frozen=True, kw_only=True)
class Tails:
    """Large errors."""

    max_ratio: float
    q999_ratio: float
    beyond_4_rms: float
    yardstick_beyond_4_rms: float


@dataclass(frozen=True, kw_only=True)
class WorstPlace:
    """Where it is worst."""

    index: tuple[int, ...]
    rms_ratio: float


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What lies below the noise here: less than this passes as expected of the format."""

    rms_ratio: float
    gain_eps: float
    row_rms_ratio: float
    element_sizes: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The judgement of a numeric error.

    Attributes
    ----------
    verdict : {"as expected of the format", "worse", "non-finite"}
    reasons : tuple of str
        Which statistic crossed which limit and what that points to, the clearest first; empty where the verdict is
        *as expected of the format*.
    dtype : str
    calls, elements : int
        Pooled, and judged in all of them: elements that are not finite are set aside.
    rms_ratio : float
        RMS error over the yardstick's; over that of one rounding where the yardstick is better than that.
    bias : Bias
    ulp_quantiles : dict of str to float
        Of the absolute error, in ULPs of the dtype at the reference, at 0.5, 0.99, 0.999 and 1.
    tails : Tails
    worst_row, worst_head, worst_channel : WorstPlace
    non_finite : NonFinite
    split : Split or None
        Input cast, compute, output rounding and cross-term; None where no float64 result on cast inputs was given.
    floor : Floor
    statistics, limits, scores : dict of str to float
        Each statistic, the largest value of it that is as expected of the format here, and how far it is from the
        centre of the honest range in units of that range's tail; a score above ``score_limit`` is a reason.
    score_limit : float
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    dtype: str
    calls: int
    elements: int
    rms_ratio: float
    bias: Bias
    ulp_quantiles: dict[str, float]
    tails: Tails
    worst_row: WorstPlace
    worst_head: WorstPlace
    worst_channel: WorstPlace
    non_finite: NonFinite
    split: Split | None
    floor: Floor
    statistics: dict[str, float]
    limits: dict[str, float]
    scores: dict[str, float]
    score_limit: float

    @property
    def undetectable(self) -> str:
        """What this assessment could not have seen, in a sentence."""
        floor = self.floor
        return (
            f"with {floor.rows} rows, noise of up to {floor.rms_ratio:.3g} × the yardstick's RMS error, a gain of up "
            f"to {floor.gain_eps:.2g} eps, one row of up to {floor.row_rms_ratio:.3g} × and one element of up to "
            f"{floor.element_sizes:.3g} × its expected size pass as expected of {self.dtype}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record."""
        return {**asdict(self), "reasons": list(self.reasons), "undetectable": self.undetectable}
