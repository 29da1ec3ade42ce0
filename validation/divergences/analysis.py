"""From trials to results: observed survival, its prediction, and how well the two agree.

Conventions: one :class:`Condition` per group and fix. Its observed half comes from held-out streams alone, its
predicted half from calibration windows alone. Intervals are 95 %; those of the agreement come from a bootstrap over
held-out streams (one resampling for all fixes of a group, which share their streams and noise) and over calibration
windows.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.json_lines import TrialFile
from precision_eval.stats import (
    Interval,
    MedianSurvival,
    Survival,
    holm_adjusted,
    kaplan_meier,
    log_rank,
    median_survival,
)
from validation.divergences.plan import FIXES, TRIALS
from validation.divergences.prediction import Prediction, resampled_medians

RESAMPLES = 1000
_SEED = 5


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One fix or reference in one group."""

    group: str
    fix: str
    first: NDArray[np.int64]
    steps: int
    prediction: Prediction | None
    greedy_flips_per_step: float | None

    @property
    def observed(self) -> NDArray[np.bool_]:
        """Whether each stream left the path while observed."""
        return self.first >= 0

    @property
    def time(self) -> NDArray[np.float64]:
        """Steps after which each stream left, or was last seen on the path."""
        return np.where(self.observed, self.first + 1.0, float(self.steps))

    @cached_property
    def curve(self) -> Survival:
        """Kaplan–Meier curve over steps."""
        return kaplan_meier(self.time, self.observed)

    @cached_property
    def median(self) -> MedianSurvival:
        """Observed median in steps, with the interval of Brookmeyer and Crowley."""
        return median_survival(self.curve)

    @cached_property
    def predicted_median(self) -> float | None:
        """In steps, from teacher-forced logits alone."""
        return None if self.prediction is None else self.prediction.median()

    @cached_property
    def predicted_interval(self) -> tuple[float, float] | None:
        """Of the predicted median, over calibration windows."""
        if self.prediction is None or self.predicted_median is None:
            return None
        drawn = resampled_medians(self.prediction, seed=_SEED, resamples=RESAMPLES)
        return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))

    @property
    def largest_gap(self) -> float | None:
        """Largest distance of predicted from observed survival, at whole steps while observed."""
        if self.prediction is None:
            return None
        steps = np.arange(1, self.steps + 1)
        seen = np.asarray(self.curve.sampled(steps)["fraction"])
        return float(np.abs(self.prediction.survival(steps) - seen).max())


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How well predicted medians agree with observed ones, over the fixes whose median was reached."""

    points: tuple[tuple[str, float, float], ...]
    spearman: Interval
    permutation_p: float
    slope: Interval
    error_factor: Interval
    greedy_error_factor: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Log-rank test of two fixes of a group; `z` > 0 where the first is lost sooner, `p` is Holm's."""

    group: str
    first: str
    second: str
    z: float
    p: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the trials say."""

    size: str
    conditions: tuple[Condition, ...]
    comparisons: tuple[Comparison, ...]
    agreement: Agreement | None


def analyse(out: Path) -> Result | None:
    """Read the trials; None where no condition is complete enough to show. The full size has precedence."""
    trials = TrialFile(out / TRIALS).read()
    for size in ("full", "quick"):
        conditions = tuple(_conditions([trial for trial in trials if trial["size"] == size]))
        if conditions:
            return Result(
                size=size,
                conditions=conditions,
                comparisons=tuple(_comparisons(conditions)),
                agreement=_agreement(conditions),
            )
    return None


def _conditions(trials: Sequence[dict[str, Any]]) -> Iterable[Condition]:
    chunks: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    hazards: dict[tuple[str, str], dict[str, Any]] = {}
    for trial in trials:
        key = (trial["group"], trial["fix"])
        if trial["kind"] == "hazards":
            hazards[key] = trial
        else:
            chunks[key].append(trial)
    for (group, fix), parts in chunks.items():
        hazard = hazards.get((group, fix))
        yield Condition(
            group=group,
            fix=fix,
            # by seed, so that entry i is the same stream under every fix
            first=np.concatenate([part["first"] for part in sorted(parts, key=lambda part: part["seed"])]),
            steps=min(part["steps"] for part in parts),
            prediction=None if hazard is None else Prediction(np.asarray(hazard["hazard"])),
            greedy_flips_per_step=None if hazard is None else hazard["greedy_flips_per_step"],
        )


def _comparisons(conditions: Sequence[Condition]) -> Iterable[Comparison]:
    """All pairs of fixes inside each group, adjusted together over all groups."""
    pairs = [
        (one, other)
        for one, other in itertools.combinations([c for c in conditions if c.fix in FIXES], 2)
        if one.group == other.group
    ]
    if not pairs:
        return
    found = [_compared(one, other) for one, other in pairs]
    for (one, other), (z, _), p in zip(pairs, found, holm_adjusted([p for _, p in found]), strict=True):
        yield Comparison(group=one.group, first=one.fix, second=other.fix, z=z, p=p)


def _compared(one: Condition, other: Condition) -> tuple[float, float]:
    """Log-rank test over the steps that both were observed."""
    until = min(one.steps, other.steps)
    times = [np.minimum(c.time, until) for c in (one, other)]
    events = [c.observed & (c.time <= until) for c in (one, other)]
    found = log_rank(times[0], events[0], times[1], events[1])
    return found.z, found.p


def _agreement(conditions: Sequence[Condition]) -> Agreement | None:
    """Agreement over fixes with both medians; None for fewer than three."""
    used = [c for c in conditions if c.fix in FIXES and c.predicted_median and c.median.median]
    if len(used) < 3:
        return None
    predicted = np.array([c.predicted_median for c in used], float)
    observed = np.array([c.median.median for c in used], float)
    drawn = _resampled(used)
    spearman, slope, error = (
        _with_interval(statistic, predicted, observed, drawn) for statistic in (_rank_correlation, _slope, _log_error)
    )
    low, high = float(np.exp(error.low)), float(np.exp(error.high))
    factor = Interval(float(np.exp(error.estimate)), low, high, error.confidence)
    greedy = [c.greedy_flips_per_step for c in used]
    return Agreement(
        points=tuple((f"{c.fix}, {c.group}", p, o) for c, p, o in zip(used, predicted, observed, strict=True)),
        spearman=spearman,
        permutation_p=permutation_p(predicted, observed),
        slope=slope,
        error_factor=factor,
        greedy_error_factor=(
            float(np.exp(_log_error(np.log(2.0) / np.array(greedy), observed))) if all(greedy) else None
        ),
    )


def _resampled(used: Sequence[Condition]) -> NDArray[np.float64]:
    """Predicted and observed medians of resampled streams, (resamples, 2, n); inf where a median is not reached."""
    rng = np.random.default_rng(_SEED)
    drawn = np.empty((RESAMPLES, 2, len(used)))
    groups = sorted({c.group for c in used})
    for number in range(RESAMPLES):
        for group in groups:
            members = [i for i, c in enumerate(used) if c.group == group]
            n_streams = min(len(used[i].first) for i in members)  # they are equal once the experiment is complete
            streams = rng.integers(n_streams, size=n_streams)
            for i in members:
                lasted = np.where(used[i].observed, used[i].time, np.inf)[streams]
                # all are censored at the same step, so the Kaplan–Meier median is an order statistic
                drawn[number, 1, i] = np.partition(lasted, (len(lasted) - 1) // 2)[(len(lasted) - 1) // 2]
    for i, condition in enumerate(used):
        assert condition.prediction is not None
        # the same windows are drawn for every fix: they share the speech
        drawn[:, 0, i] = resampled_medians(condition.prediction, seed=_SEED, resamples=RESAMPLES)
    return drawn


def _with_interval(statistic: Any, predicted: Any, observed: Any, drawn: NDArray[np.float64]) -> Interval:
    values = [statistic(p[np.isfinite(o)], o[np.isfinite(o)]) for p, o in drawn if np.isfinite(o).sum() >= 3]
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(statistic(predicted, observed)), float(low), float(high), 0.95)


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 0, ties averaged."""
    array = np.asarray(values)
    return np.asarray((array[:, None] > array).sum(1) + ((array[:, None] == array).sum(1) - 1) / 2.0)


def _rank_correlation(predicted: ArrayLike, observed: ArrayLike) -> float:
    return float(np.corrcoef(_ranks(predicted), _ranks(observed))[0, 1])


def _slope(predicted: NDArray[np.float64], observed: NDArray[np.float64]) -> float:
    return float(np.polyfit(np.log(predicted), np.log(observed), 1)[0])


def _log_error(predicted: NDArray[np.float64], observed: NDArray[np.float64]) -> float:
    return float(np.abs(np.log(predicted / observed)).mean())


def permutation_p(predicted: ArrayLike, observed: ArrayLike) -> float:
    """One-sided p of Spearman's correlation: exact over all orders up to 8 points, 100,000 random orders beyond."""
    mine, theirs = _ranks(predicted), _ranks(observed)
    n = len(mine)
    if n <= 8:
        orders = np.array(list(itertools.permutations(range(n))))
        return float((mine[orders] @ theirs >= mine @ theirs - 1e-9).mean())
    rng = np.random.default_rng(_SEED)
    orders = rng.permuted(np.tile(np.arange(n), (100_000, 1)), axis=1)
    return float((1 + (mine[orders] @ theirs >= mine @ theirs - 1e-9).sum()) / 100_001)
