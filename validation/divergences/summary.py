"""The divergence experiment in words: one figure per finding."""

from __future__ import annotations

from collections.abc import Iterable

from precision_eval.stats import Interval
from validation.catalog import Figure
from validation.divergences.analysis import Agreement, Comparison, Condition, Result
from validation.divergences.plan import FIXES

MIN_STREAMS = 200
ALPHA = 0.05


def figures_of(result: Result) -> list[Figure]:
    """Every figure of a result."""
    fixes = [c for c in result.conditions if c.fix in FIXES]
    fewest = min((len(c.first) for c in fixes), default=0)
    held_out = Figure(
        name="held-out streams per fix, fewest",
        target=f"≥ {MIN_STREAMS} at full size",
        found=f"{fewest} ({result.size} size)",
        met=fewest >= MIN_STREAMS if result.size == "full" else None,
        rivals={},
    )
    return [
        held_out,
        *(_median_figure(condition) for condition in result.conditions),
        *_agreement_figures(result.agreement),
        *_gap_figures(fixes),
        *_comparison_figures(result.comparisons),
    ]


def _median_figure(condition: Condition) -> Figure:
    found = f"{_observed(condition)}; {int(condition.observed.sum())} of {len(condition.first)} streams diverged"
    if condition.predicted_median is not None and condition.predicted_interval is not None:
        low, high = condition.predicted_interval
        found += f"; predicted {condition.predicted_median:,.0f} ({low:,.0f} to {high:,.0f})"
    return Figure(
        name=f"median step of first divergence, {condition.fix}, {condition.group}",
        target="",
        found=found,
        met=None,
        rivals={},
    )


def _observed(condition: Condition) -> str:
    median = condition.median
    if median.median is None:
        return f"not reached within {condition.steps:,} steps"
    upper = f"{median.high:,.0f}" if median.high is not None else f"beyond {condition.steps:,}"
    return f"{median.median:,.0f} ({median.low:,.0f} to {upper})"


def _agreement_figures(agreement: Agreement | None) -> Iterable[Figure]:
    if agreement is None:
        return
    n = len(agreement.points)
    where = f"{n} medians (fix × group), calibration windows against held-out streams"
    yield Figure(
        name=f"Spearman's correlation of predicted and observed medians, {where}",
        target="",
        found=f"{_interval(agreement.spearman)}; permutation p = {agreement.permutation_p:.2g}",
        met=None,
        rivals={},
    )
    yield Figure(
        name="calibration slope, log observed median on log predicted (1 is right)",
        target="",
        found=_interval(agreement.slope),
        met=None,
        rivals={},
    )
    rival = agreement.greedy_error_factor
    yield Figure(
        name="mean absolute error of the predicted median, as a factor (1 is right)",
        target="",
        found=f"{_interval(agreement.error_factor)}×",
        met=None,
        rivals={} if rival is None else {"flips of the most likely token as hazard": f"{rival:.2f}×"},
    )


def _interval(value: Interval) -> str:
    return f"{value.estimate:.2f} ({value.low:.2f} to {value.high:.2f})"


def _gap_figures(fixes: list[Condition]) -> Iterable[Figure]:
    gaps = {f"{c.fix}, {c.group}": c.largest_gap for c in fixes if c.largest_gap is not None}
    if gaps:
        worst = max(gaps, key=lambda name: gaps[name] or 0.0)
        yield Figure(
            name="largest distance between predicted and observed survival, over all fixes and steps",
            target="",
            found=f"{gaps[worst]:.3f} ({worst})",
            met=None,
            rivals={},
        )


def _comparison_figures(comparisons: tuple[Comparison, ...]) -> Iterable[Figure]:
    if not comparisons:
        return
    alike = [c for c in comparisons if c.p > ALPHA]
    names = "; ".join(f"{c.first} and {c.second} ({c.group}, p = {c.p:.2g})" for c in alike)
    yield Figure(
        name=f"pairs of fixes that the log-rank test tells apart, family-wise error {ALPHA:.0%} (Holm)",
        target="",
        found=f"{len(comparisons) - len(alike)} of {len(comparisons)}" + (f"; not: {names}" if names else ""),
        met=None,
        rivals={},
    )
