"""From trials to figures: observed survival, its prediction, and how well the two agree.

One :class:`Condition` per group and fix. Its observed half comes from held-out streams alone, its predicted half from
calibration windows alone. Intervals are 95 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from precision_eval.stats.intervals import Interval
from precision_eval.stats.survival import Survival, kaplan_meier
from validation.divergence.plan import FIXES
from validation.divergence.prediction import Prediction, resampled_medians
from validation.frame import Data, Figure

RESAMPLES = 1000
_SEED = 5
MIN_STREAMS = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MedianSurvival:
    """Time at which half are lost, with its 95 % interval, in the unit of the curve."""

    median: float | None
    low: float | None
    high: float | None


def median_survival(curve: Survival) -> MedianSurvival:
    """Median of a survival curve, with the interval of Brookmeyer and Crowley."""

    def first(bound: Sequence[float], *, strictly: bool = False) -> float | None:
        # a hair's breadth of rounding must not decide whether a product of fractions equals one half
        limit = 0.5 - 1e-12 if strictly else 0.5 + 1e-12
        return next((t for t, value in zip(curve.time, bound, strict=True) if value <= limit), None)

    return MedianSurvival(first(curve.fraction), first(curve.low), first(curve.high, strictly=True))


@dataclass(frozen=True)
class Condition:
    """One fix or reference in one group; `first` is each stream's first differing step, −1 where there is none."""

    group: str
    fix: str
    first: NDArray[np.int64]
    steps: int
    prediction: Prediction | None

    @property
    def observed(self) -> NDArray[np.bool_]:
        return self.first >= 0

    @property
    def time(self) -> Floats:
        """Steps after which each stream left, or was last seen on the path."""
        return np.where(self.observed, self.first + 1.0, float(self.steps))

    @cached_property
    def curve(self) -> Survival:
        return kaplan_meier(self.time, self.observed)

    @cached_property
    def median(self) -> MedianSurvival:
        return median_survival(self.curve)

    @cached_property
    def predicted(self) -> Interval | None:
        """Predicted median in steps, from teacher-forced logits alone; its interval is over calibration windows."""
        median = None if self.prediction is None else self.prediction.median()
        if self.prediction is None or median is None:
            return None
        medians = resampled_medians(self.prediction, median, seed=_SEED, resamples=RESAMPLES)
        low, high = np.quantile(medians, (0.025, 0.975))
        return Interval(float(median), float(low), float(high))


def conditions_of(lines: Sequence[Data]) -> tuple[str, list[Condition]]:
    """Return the size of the trials that count, full before quick, and its conditions."""
    size = "full" if any(line["size"] == "full" for line in lines) else "quick"
    chunks: dict[tuple[str, str], list[Data]] = defaultdict(list)
    hazards: dict[tuple[str, str], Data] = {}
    for line in lines:
        key = (line["group"], line["fix"])
        if line["size"] == size and line["kind"] == "hazards":
            hazards[key] = line
        elif line["size"] == size:
            chunks[key].append(line)
    return size, [
        Condition(
            *key,
            # by seed, so that entry i is the same stream under every fix
            first=np.concatenate([part["first"] for part in sorted(parts, key=lambda part: part["seed"])]),
            steps=min(part["steps"] for part in parts),
            prediction=Prediction(np.asarray(hazards[key]["hazard"])) if key in hazards else None,
        )
        for key, parts in chunks.items()
    ]


def agreement(conditions: Sequence[Condition]) -> tuple[float, float] | None:
    """Spearman's correlation of predicted and observed medians, and the mean absolute error of their logarithms.

    The error is a factor, 1 is right. None for fewer than three fixes that have both medians.
    """
    used = [c for c in conditions if c.fix in FIXES and c.predicted and c.median.median]
    if len(used) < 3:
        return None
    predicted = np.array([c.predicted.estimate for c in used if c.predicted])
    observed = np.array([c.median.median for c in used], float)
    error = float(np.exp(np.abs(np.log(predicted / observed)).mean()))
    return float(spearmanr(predicted, observed).statistic), error


def figures(lines: Sequence[Data]) -> list[Figure]:
    """Every figure of the trials; none where no condition is complete enough."""
    size, conditions = conditions_of(lines)
    fixes = [c for c in conditions if c.fix in FIXES]
    if not fixes:
        return []
    fewest = min(len(c.first) for c in fixes)
    met = fewest >= MIN_STREAMS if size == "full" else None
    rows = [
        Figure("held-out streams per fix, fewest", f"{fewest} ({size} size)", f"≥ {MIN_STREAMS} at full size", met),
        *map(_median_figure, conditions),
    ]
    if agreed := agreement(conditions):
        correlation, error = agreed
        where = "fix × group, calibration windows against held-out streams"
        rows += [
            Figure(f"Spearman's correlation of predicted and observed medians, {where}", f"{correlation:.2f}"),
            Figure("mean absolute error of the predicted median, as a factor (1 is right)", f"{error:.2f}×"),
        ]
    return rows


def _median_figure(condition: Condition) -> Figure:
    median, predicted, text = condition.median, condition.predicted, f"not reached within {condition.steps:,} steps"
    if median.median is not None:
        upper = f"{median.high:,.0f}" if median.high is not None else f"beyond {condition.steps:,}"
        text = f"{median.median:,.0f} ({median.low:,.0f} to {upper})"
    text += f"; {int(condition.observed.sum())} of {len(condition.first)} streams diverged"
    if predicted is not None:
        text += f"; predicted {predicted.estimate:,.0f} ({predicted.low:,.0f} to {predicted.high:,.0f})"
    return Figure(f"median step of first divergence, {condition.fix}, {condition.group}", text)
