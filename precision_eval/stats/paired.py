"""Paired ratios of block times: estimate, interval, verdict, and what could have been seen.

Conventions: round i gives one block time per candidate, in seconds per call, measured close together in time; only
ratios within a round are formed, so what slows the whole machine cancels. Because the order within a round is drawn at
random, the log-ratios of two equal candidates are independent and symmetric about 0 *whatever the machine does*; the
estimate is the exponential of their location (:func:`~precision_eval.stats.robust.student_location`); below 1 the
candidate is faster. The margin is symmetric in the logarithm: a candidate is *equivalent* within [1/(1+margin),
1+margin], so exchanging candidate and baseline mirrors the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.stats.doubts import series_doubts
from precision_eval.stats.intervals import CONFIDENCE, Interval, check_values
from precision_eval.stats.robust import Location, one_step_interval, student_location
from precision_eval.stats.sequential import EQUIVALENCE_ALPHA, Verdict, decide, student_quantile

# Rate at which equal candidates may be called faster or slower.
ERROR_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Latency of one candidate relative to its baseline, with everything needed to judge and to recompute it.

    Attributes
    ----------
    baseline : str
        Name of the candidate in the denominator.
    ratio, ratio_low, ratio_high : float
        Candidate over baseline with its interval; below 1 = faster.
    confidence : float
        Of the interval.
    verdict : {"faster", "equivalent", "slower", "undecided"}
        Against `margin`.
    verdict_low, verdict_high : float
        Interval that a direction is called by: wider than the other, see the module's text.
    error_rate : float
        Rate of false alarms that the verdict keeps, over all looks and all candidates of the comparison.
    margin : float
        Relative half-width of what counts as equivalent.
    minimum_detectable_effect : float
        Relative change that this measurement would call faster or slower in 80 % of repetitions.
    median_s, baseline_median_s : float
        Median of the block times, seconds per call.
    blocks, calls_per_block : int
        Paired rounds, and calls of the candidate in each of its blocks.
    block_median_s, baseline_block_median_s : tuple of float
        Raw block times in order, seconds per call; nothing dropped.
    doubts : tuple of str
        What speaks against the figure.
    threads : int
        Intra-op threads of the process that measured.
    clock : str
        Clock the figure rests on: ``"wall"``, ``"cpu"``, ``"cuda-warm"``, ``"cuda-cold"``, ...
    elapsed_s : float
        Time spent in rounds, all candidates together.
    preempted_fraction : float
        Share of the two candidates' blocks in which the system took the processor away; 0 where the clock cannot tell.
    process_ratios : tuple of float
        Ratio of each process; empty where one process measured.
    placement_ratios : tuple of float
        Ratio in each placement of the tensors, which are the independent units of the interval; empty where they stayed
        in one place.
    settling_s : float or None
        Seconds of rounds, at this noise, after which `minimum_detectable_effect` is twice the margin: a change of that
        size is then called in 80 % of repetitions, and equal candidates are settled as equivalent in about 90 %. None
        where the margin is 0 or the rounds were not timed.
    page_faults_per_call : float or None
        Of the candidate, minor ones, as a median over its blocks; None where nothing counts them. Thousands say that
        the allocator takes each call's memory from the system anew.
    memory : str
        State of the allocator (:mod:`precision_eval.measure.allocator`); ``"as found"`` where the suite did not set
        it.
    """

    baseline: str
    ratio: float
    ratio_low: float
    ratio_high: float
    confidence: float
    verdict: Verdict
    verdict_low: float
    verdict_high: float
    error_rate: float
    margin: float
    minimum_detectable_effect: float
    median_s: float
    baseline_median_s: float
    blocks: int
    calls_per_block: int
    block_median_s: tuple[float, ...]
    baseline_block_median_s: tuple[float, ...]
    doubts: tuple[str, ...]
    threads: int
    clock: str
    elapsed_s: float = 0.0
    preempted_fraction: float = 0.0
    process_ratios: tuple[float, ...] = ()
    placement_ratios: tuple[float, ...] = ()
    settling_s: float | None = None
    page_faults_per_call: float | None = None
    memory: str = "as found"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, tuples as lists; raw times to six digits, a hundredth of any clock's noise."""
        data = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        for name in ("block_median_s", "baseline_block_median_s"):
            data[name] = [float(f"{value:.6g}") for value in data[name]]
        return data

    def __str__(self) -> str:
        """One line: verdict, ratio, interval, what could have been seen, and where undecided what would settle it."""
        needs = self.verdict == "undecided" and self.settling_s is not None
        return (
            f"{self.verdict}: {self.ratio:.4f} × {self.baseline} [{self.ratio_low:.4f}, {self.ratio_high:.4f}], "
            f"{self.blocks} blocks on the {self.clock} clock, would see {100 * self.minimum_detectable_effect:.2f} %"
            + (f"; ± {100 * self.margin:g} % needs about {self.settling_s:.2g} s" if needs else "")
        )


def paired_log_ratios(candidate_s: ArrayLike, baseline_s: ArrayLike) -> NDArray[np.float64]:
    """Natural logarithm of candidate over baseline, round by round."""
    candidate = check_values("candidate_s", candidate_s)
    baseline = check_values("baseline_s", baseline_s)
    if candidate.shape != baseline.shape:
        raise ParameterError(
            f"candidate_s has {candidate.size} rounds and baseline_s {baseline.size}; pairs need the same rounds"
        )
    if candidate.min() <= 0.0 or baseline.min() <= 0.0:
        raise ParameterError(
            "a block median is not above 0 s; the clock is too coarse for the call: make blocks longer"
        )
    return np.asarray(np.log(candidate) - np.log(baseline))


def locations_by_group(log_ratios: ArrayLike, groups: Sequence[int]) -> list[Location]:
    """Locate the log-ratios of each group of rounds that follow each other."""
    values = check_values("log_ratios", log_ratios)
    return [student_location(part) for part in np.split(values, np.flatnonzero(np.diff(groups)) + 1)]


def over_groups(groups: Sequence[Location]) -> tuple[Location, Interval]:
    """Locate what differs from group to group: the groups are the independent units, alike in weight.

    The standard error is that of the mean of their estimates, and no less than what they scatter within.
    """
    estimates = np.array([group.estimate for group in groups])
    within = math.sqrt(sum(group.standard_error**2 for group in groups)) / len(groups)
    middle, spread = float(estimates.mean()), float(estimates.std(ddof=1))
    location = Location(middle, max(spread / math.sqrt(len(groups)), within), spread, len(groups))
    half = student_quantile(1.0 - CONFIDENCE, len(groups) - 1) * location.standard_error
    return location, Interval(middle, middle - half, middle + half)


def _locate(
    log_ratios: NDArray[np.float64], groups: Sequence[int], *, seed: int, resamples: int
) -> tuple[list[Location], Location, Interval]:
    """Locate log-ratios group by group and over all, by bootstrap where there is one group only."""
    by_group = locations_by_group(log_ratios, groups or [0] * log_ratios.size)
    if len(by_group) > 1:
        return by_group, *over_groups(by_group)
    location = by_group[0]
    return by_group, location, one_step_interval(log_ratios, seed=seed, resamples=resamples, location=location)


def minimum_detectable_effect(standard_error: float, *, margin: float, direction_t: float, power: float = 0.8) -> float:
    """Smallest true relative change that would be called faster or slower with the stated power."""
    return math.expm1(math.log1p(margin) + (direction_t + NormalDist().inv_cdf(power)) * standard_error)


def settling_time(elapsed_s: float, effect: float, *, margin: float) -> float | None:
    """Seconds after which an effect that is detectable after `elapsed_s` falls to twice the margin, as 1/√time."""
    if margin == 0.0 or elapsed_s <= 0.0 or not math.isfinite(effect):
        return None
    return elapsed_s * (math.log1p(effect) / math.log1p(margin) - 1.0) ** 2


def judgement(
    estimate: float,
    standard_error: float,
    degrees: int,
    *,
    margin: float,
    direction_error: float,
    equivalence_error: float,
    elapsed_s: float,
) -> dict[str, Any]:
    """Fields of a :class:`PairedRatio` that judge a log-ratio."""
    direction_t = student_quantile(direction_error, degrees)
    effect = minimum_detectable_effect(standard_error, margin=margin, direction_t=direction_t)
    return {
        "ratio": math.exp(estimate),
        "verdict": decide(
            estimate,
            standard_error,
            margin=margin,
            direction_t=direction_t,
            equivalence_t=student_quantile(equivalence_error, degrees),
        ),
        "verdict_low": math.exp(estimate - direction_t * standard_error),
        "verdict_high": math.exp(estimate + direction_t * standard_error),
        "minimum_detectable_effect": effect,
        "elapsed_s": elapsed_s,
        "settling_s": settling_time(elapsed_s, effect, margin=margin),
    }


def paired_ratio(
    candidate_s: ArrayLike,
    baseline_s: ArrayLike,
    *,
    baseline: str,
    margin: float,
    seed: int,
    direction_error: float = ERROR_RATE,
    equivalence_error: float = EQUIVALENCE_ALPHA,
    calls_per_block: int = 1,
    threads: int = 1,
    clock: str = "wall",
    elapsed_s: float = 0.0,
    preempted_fraction: float = 0.0,
    doubts: tuple[str, ...] = (),
    resamples: int = 2000,
    groups: Sequence[int] = (),
) -> PairedRatio:
    """Summarise the block times of one candidate against its baseline's; `groups` number the rounds' placements."""
    log_ratios = paired_log_ratios(candidate_s, baseline_s)
    candidate, base = np.asarray(candidate_s, dtype=np.float64), np.asarray(baseline_s, dtype=np.float64)
    by_placement, location, interval = _locate(log_ratios, groups, seed=seed, resamples=resamples)
    sizes, middles = zip(*((group.size, group.estimate) for group in by_placement), strict=True)
    return PairedRatio(
        **judgement(
            location.estimate,
            location.standard_error,
            location.size - 1,
            margin=margin,
            direction_error=direction_error,
            equivalence_error=equivalence_error,
            elapsed_s=elapsed_s,
        ),
        baseline=baseline,
        ratio_low=math.exp(interval.low),
        ratio_high=math.exp(interval.high),
        confidence=CONFIDENCE,
        error_rate=ERROR_RATE,
        margin=margin,
        median_s=float(np.median(candidate)),
        baseline_median_s=float(np.median(base)),
        blocks=log_ratios.size,
        calls_per_block=calls_per_block,
        block_median_s=tuple(candidate.tolist()),
        baseline_block_median_s=tuple(base.tolist()),
        doubts=doubts + series_doubts(log_ratios - np.repeat(middles, sizes), margin=margin),
        threads=threads,
        clock=clock,
        preempted_fraction=preempted_fraction,
        placement_ratios=tuple(map(math.exp, middles)) if len(middles) > 1 else (),
    )
