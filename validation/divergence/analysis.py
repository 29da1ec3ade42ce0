"""From trials to figures: observed survival, its prediction, and how well the two agree.

One :class:`Condition` per group and fix. Its observed half comes from held-out streams alone, its
predicted half from calibration windows alone. Intervals are 95 %; those of the agreement come from a bootstrap over
held-out streams (one resampling for all fixes of a group, which share their streams and noise) and over calibration
windows.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import permutation_test, rankdata

from precision_eval.stats import (
    Interval,
    MedianSurvival,
    Survival,
    holm_adjusted,
    kaplan_meier,
    log_rank,
    median_survival,
)
from validation.divergence.plan import FIXES
from validation.divergence.prediction import Prediction, resampled_medians
from validation.frame import Figure

RESAMPLES = 1000
_SEED = 5
MIN_STREAMS = 200
ALPHA = 0.05


@dataclass(frozen=True)
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


class Agreement(NamedTuple):
    """How well predicted medians agree with observed ones, over the fixes whose median was reached."""

    medians: int
    spearman: Interval
    permutation_p: float
    slope: Interval
    error_factor: Interval
    greedy_error_factor: float | None


class Comparison(NamedTuple):
    """Log-rank test of two fixes of a group; `p` is Holm's."""

    group: str
    first: str
    second: str
    p: float


class Result(NamedTuple):
    """What the trials say."""

    size: str
    conditions: list[Condition]
    comparisons: list[Comparison]
    agreement: Agreement | None


def analyse(trials: Sequence[dict[str, Any]]) -> Result | None:
    """Return what the trials say; None where no condition is complete enough. The full size has precedence."""
    for size in ("full", "quick"):
        conditions = list(_conditions([trial for trial in trials if trial["size"] == size]))
        if conditions:
            return Result(size, conditions, _comparisons(conditions), _agreement(conditions))
    return None


def _conditions(trials: Sequence[dict[str, Any]]) -> Iterator[Condition]:
    chunks: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    hazards: dict[tuple[str, str], dict[str, Any]] = {}
    for trial in trials:
        key = (trial["group"], trial["fix"])
        if trial["kind"] == "hazards":
            hazards[key] = trial
        else:
            chunks[key].append(trial)
    for key, parts in chunks.items():
        hazard = hazards.get(key)
        yield Condition(
            *key,
            # by seed, so that entry i is the same stream under every fix
            first=np.concatenate([part["first"] for part in sorted(parts, key=lambda part: part["seed"])]),
            steps=min(part["steps"] for part in parts),
            prediction=None if hazard is None else Prediction(np.asarray(hazard["hazard"])),
            greedy_flips_per_step=None if hazard is None else hazard["greedy_flips_per_step"],
        )


def _comparisons(conditions: Sequence[Condition]) -> list[Comparison]:
    """All pairs of fixes inside each group over the steps that both were observed, adjusted over all groups."""
    fixes = [c for c in conditions if c.fix in FIXES]
    pairs = [pair for pair in itertools.combinations(fixes, 2) if pair[0].group == pair[1].group]
    p_values = []
    for pair in pairs:
        until = min(c.steps for c in pair)
        (time, seen), (other, other_seen) = ((np.minimum(c.time, until), c.observed & (c.time <= until)) for c in pair)
        p_values.append(log_rank(time, seen, other, other_seen).p)
    adjusted = holm_adjusted(p_values) if pairs else []
    return [Comparison(a.group, a.fix, b.fix, p) for (a, b), p in zip(pairs, adjusted, strict=True)]


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
    greedy = [c.greedy_flips_per_step for c in used]
    return Agreement(
        medians=len(used),
        spearman=spearman,
        permutation_p=permutation_p(predicted, observed),
        slope=slope,
        error_factor=Interval(math.exp(error.estimate), math.exp(error.low), math.exp(error.high), error.confidence),
        greedy_error_factor=math.exp(_log_error(np.log(2.0) / np.array(greedy), observed)) if all(greedy) else None,
    )


def _resampled(used: Sequence[Condition]) -> NDArray[np.float64]:
    """Predicted and observed medians of resampled streams, (resamples, 2, n); inf where a median is not reached."""
    rng = np.random.default_rng(_SEED)
    drawn = np.empty((RESAMPLES, 2, len(used)))
    groups = sorted({c.group for c in used})
    for resample in range(RESAMPLES):
        for group in groups:
            members = [i for i, c in enumerate(used) if c.group == group]
            n_streams = min(len(used[i].first) for i in members)  # they are equal once the experiment is complete
            streams = rng.integers(n_streams, size=n_streams)
            for i in members:
                lasted = np.where(used[i].observed, used[i].time, np.inf)[streams]
                # all are censored at the same step, so the Kaplan–Meier median is an order statistic
                drawn[resample, 1, i] = np.partition(lasted, (len(lasted) - 1) // 2)[(len(lasted) - 1) // 2]
    for i, condition in enumerate(used):
        assert condition.prediction is not None
        # the same windows are drawn for every fix: they share the speech
        drawn[:, 0, i] = resampled_medians(condition.prediction, seed=_SEED, resamples=RESAMPLES)
    return drawn


def _with_interval(statistic: Any, predicted: Any, observed: Any, drawn: NDArray[np.float64]) -> Interval:
    values = [statistic(p[np.isfinite(o)], o[np.isfinite(o)]) for p, o in drawn if np.isfinite(o).sum() >= 3]
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(statistic(predicted, observed)), float(low), float(high), 0.95)


def _rank_correlation(predicted: ArrayLike, observed: ArrayLike) -> float:
    return float(np.corrcoef(rankdata(predicted), rankdata(observed))[0, 1])


def _slope(predicted: NDArray[np.float64], observed: NDArray[np.float64]) -> float:
    return float(np.polyfit(np.log(predicted), np.log(observed), 1)[0])


def _log_error(predicted: NDArray[np.float64], observed: NDArray[np.float64]) -> float:
    return float(np.abs(np.log(predicted / observed)).mean())


def permutation_p(predicted: ArrayLike, observed: ArrayLike) -> float:
    """One-sided p of Spearman's correlation, exact over all orders; the few medians of a design have few."""
    theirs = rankdata(observed)
    test = permutation_test(
        (rankdata(predicted),), lambda ranks, axis: (ranks * theirs).sum(axis), permutation_type="pairings",
        alternative="greater", vectorized=True, n_resamples=np.inf, batch=10_000,
    )  # fmt: skip
    return float(test.pvalue)


# ---- figures


def figures_of(result: Result) -> list[Figure]:
    """Every figure of a result."""
    fixes = [c for c in result.conditions if c.fix in FIXES]
    fewest = min((len(c.first) for c in fixes), default=0)
    met = fewest >= MIN_STREAMS if result.size == "full" else None
    text, target = f"{fewest} ({result.size} size)", f"≥ {MIN_STREAMS} at full size"
    return [
        Figure("held-out streams per fix, fewest", text, target, met),
        *(_median_figure(condition) for condition in result.conditions),
        *(_agreement_figures(result.agreement) if result.agreement else ()),
        *_gap_figures(fixes),
        *(_comparison_figures(result.comparisons) if result.comparisons else ()),
    ]


def _median_figure(condition: Condition) -> Figure:
    median, text = condition.median, f"not reached within {condition.steps:,} steps"
    if median.median is not None:
        upper = f"{median.high:,.0f}" if median.high is not None else f"beyond {condition.steps:,}"
        text = f"{median.median:,.0f} ({median.low:,.0f} to {upper})"
    text += f"; {int(condition.observed.sum())} of {len(condition.first)} streams diverged"
    if condition.predicted_median is not None and condition.predicted_interval is not None:
        low, high = condition.predicted_interval
        text += f"; predicted {condition.predicted_median:,.0f} ({low:,.0f} to {high:,.0f})"
    return Figure(f"median step of first divergence, {condition.fix}, {condition.group}", text)


def _agreement_figures(agreement: Agreement) -> Iterator[Figure]:
    spearman, slope, error = (
        f"{value.estimate:.2f} ({value.low:.2f} to {value.high:.2f})"
        for value in (agreement.spearman, agreement.slope, agreement.error_factor)
    )
    where = f"{agreement.medians} medians (fix × group), calibration windows against held-out streams"
    yield Figure(
        f"Spearman's correlation of predicted and observed medians, {where}",
        f"{spearman}; permutation p = {agreement.permutation_p:.2g}",
    )
    yield Figure("calibration slope, log observed median on log predicted (1 is right)", slope)
    greedy = agreement.greedy_error_factor
    rivals = {} if greedy is None else {"flips of the most likely token as hazard": f"{greedy:.2f}×"}
    yield Figure("mean absolute error of the predicted median, as a factor (1 is right)", f"{error}×", rivals=rivals)


def _gap_figures(fixes: list[Condition]) -> list[Figure]:
    gaps = [(gap, f"{c.fix}, {c.group}") for c in fixes if (gap := c.largest_gap) is not None]
    if not gaps:
        return []
    gap, where = max(gaps, key=lambda pair: pair[0])
    name = "largest distance between predicted and observed survival, over all fixes and steps"
    return [Figure(name, f"{gap:.3f} ({where})")]


def _comparison_figures(comparisons: list[Comparison]) -> Iterator[Figure]:
    alike = [c for c in comparisons if c.p > ALPHA]
    names = "; ".join(f"{c.first} and {c.second} ({c.group}, p = {c.p:.2g})" for c in alike)
    yield Figure(
        f"pairs of fixes that the log-rank test tells apart, family-wise error {ALPHA:.0%} (Holm)",
        f"{len(comparisons) - len(alike)} of {len(comparisons)}" + (f"; not: {names}" if names else ""),
    )
