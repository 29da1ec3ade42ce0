"""Paired ratios of block medians: estimate, interval, verdict, and what could have been seen.

Conventions: round i gives one block median per candidate, in seconds, measured close together in time; only ratios
within a round are formed, so what slows the whole machine cancels. The estimate is the exponential of the 20 %-trimmed
mean of the log-ratios; below 1 the candidate is faster. The margin is symmetric in the logarithm: a candidate is
*equivalent* within [1/(1+margin), 1+margin], so exchanging candidate and baseline mirrors the verdict.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.errors import ParameterError

from .doubts import series_doubts
from .intervals import bootstrap_interval, checked_values, normal_quantile

Verdict = Literal["better", "equivalent", "worse", "undecided"]
VERDICTS: tuple[str, ...] = get_args(Verdict)


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
    verdict : {"better", "equivalent", "worse", "undecided"}
        Against `margin`.
    margin : float
        Relative half-width of what counts as equivalent.
    minimum_detectable_effect : float
        Relative change that this measurement would call better or worse in 80 % of repetitions.
    median_s, baseline_median_s : float
        Median of the block medians, seconds per call.
    blocks, calls_per_block : int
        Paired rounds, and calls of the candidate in each of its blocks.
    block_median_s, baseline_block_median_s : tuple of float
        Raw block medians in order, seconds per call; nothing dropped.
    doubts : tuple of str
        What speaks against the figure.
    threads : int
        Intra-op threads of the process that measured.
    clock : str
        Clock the samples rest on: ``"wall"``, ``"cpu"``, ``"cuda-warm"`` or ``"cuda-cold"``.
    """

    baseline: str
    ratio: float
    ratio_low: float
    ratio_high: float
    confidence: float
    verdict: Verdict
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, tuples as lists."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def paired_log_ratios(candidate_s: ArrayLike, baseline_s: ArrayLike) -> NDArray[np.float64]:
    """Natural logarithm of candidate over baseline, round by round.

    Parameters
    ----------
    candidate_s, baseline_s : array_like of float, shape (n_rounds,)
        Block medians in seconds, > 0, of the same rounds.

    Returns
    -------
    np.ndarray, shape (n_rounds,)

    Raises
    ------
    ParameterError
        Shapes differ, or a time is not positive and finite.
    """
    candidate = checked_values("candidate_s", candidate_s)
    baseline = checked_values("baseline_s", baseline_s)
    if candidate.shape != baseline.shape:
        raise ParameterError(
            f"candidate_s has {candidate.size} rounds and baseline_s {baseline.size}; pairs need the same rounds"
        )
    if candidate.min() <= 0.0 or baseline.min() <= 0.0:
        raise ParameterError(
            "a block median is not above 0 s; the clock is too coarse for the call: make blocks longer"
        )
    return np.asarray(np.log(candidate) - np.log(baseline))


def verdict(ratio_low: float, ratio_high: float, *, margin: float) -> Verdict:
    """Decide by where the interval of a ratio lies relative to the region of equivalence.

    Parameters
    ----------
    ratio_low, ratio_high : float
        Interval of candidate over baseline, 0 < low ≤ high.
    margin : float
        Relative half-width of the region ``[1/(1+margin), 1+margin]``, ≥ 0.

    Returns
    -------
    {"better", "equivalent", "worse", "undecided"}
        *equivalent* wholly inside, *better* wholly below, *worse* wholly above, *undecided* otherwise.

    References
    ----------
    .. [1] J. Kruschke, "Rejecting or accepting parameter values in Bayesian estimation", AMPPS 1, 2018 (the rule);
       D. Schuirmann, "A comparison of the two one-sided tests procedure…", 1987 (equivalence by interval inclusion).
    """
    if not 0.0 < ratio_low <= ratio_high or margin < 0.0:
        raise ParameterError(
            f"interval [{ratio_low}, {ratio_high}] with margin {margin}; expected 0 < low ≤ high, margin ≥ 0"
        )
    upper = 1.0 + margin
    lower = 1.0 / upper
    if ratio_low >= lower and ratio_high <= upper:
        return "equivalent"
    if ratio_high < lower:
        return "better"
    if ratio_low > upper:
        return "worse"
    return "undecided"


def minimum_detectable_effect(
    log_low: float, log_high: float, *, margin: float, confidence: float = 0.95, power: float = 0.8
) -> float:
    """Smallest true relative change that would be called better or worse with the stated power.

    A change δ (in the logarithm) is called when its interval clears the margin: ``|δ̂| > log(1+margin) + z·se``. That
    happens with probability `power` at ``|δ| = log(1+margin) + (z + z_power)·se``, where z·se is the interval's
    half-width.

    Parameters
    ----------
    log_low, log_high : float
        Interval of the log-ratio.
    margin : float
        Of :func:`verdict`.
    confidence : float
        Of the interval.
    power : float
        Probability of the call, in (0.5, 1).

    Returns
    -------
    float
        Relative change: 0.004 means +0.4 %.
    """
    half_width = (log_high - log_low) / 2.0
    se = half_width / normal_quantile(confidence)
    return math.expm1(math.log1p(margin) + half_width + NormalDist().inv_cdf(power) * se)


def paired_ratio(
    candidate_s: ArrayLike,
    baseline_s: ArrayLike,
    *,
    baseline: str,
    margin: float,
    seed: int,
    confidence: float = 0.95,
    calls_per_block: int = 1,
    threads: int = 1,
    clock: str = "wall",
    doubts: tuple[str, ...] = (),
    resamples: int = 2000,
) -> PairedRatio:
    """Summarise the block medians of one candidate against its baseline's.

    Parameters
    ----------
    candidate_s, baseline_s : array_like of float, shape (n_rounds,)
        Block medians of the same rounds, seconds per call.
    baseline : str
        Name of the baseline.
    margin : float
        Relative half-width of equivalence; 0.002 = ±0.2 %.
    seed : int
        Of the bootstrap.
    confidence : float
        Of the interval.
    calls_per_block, threads, clock
        How the samples were taken; stored beside them.
    doubts : tuple of str
        Doubts of the measurement itself, put before those that the series raise.
    resamples : int
        Bootstrap samples.

    Returns
    -------
    PairedRatio
    """
    log_ratios = paired_log_ratios(candidate_s, baseline_s)
    candidate, base = np.asarray(candidate_s, dtype=np.float64), np.asarray(baseline_s, dtype=np.float64)
    interval = bootstrap_interval(log_ratios, seed=seed, confidence=confidence, resamples=resamples)
    low, high = math.exp(interval.low), math.exp(interval.high)
    found = doubts + series_doubts("the ratio", log_ratios, margin=margin)
    return PairedRatio(
        baseline=baseline,
        ratio=math.exp(interval.estimate),
        ratio_low=low,
        ratio_high=high,
        confidence=confidence,
        verdict=verdict(low, high, margin=margin),
        margin=margin,
        minimum_detectable_effect=minimum_detectable_effect(
            interval.low, interval.high, margin=margin, confidence=confidence
        ),
        median_s=float(np.median(candidate)),
        baseline_median_s=float(np.median(base)),
        blocks=log_ratios.size,
        calls_per_block=calls_per_block,
        block_median_s=tuple(candidate.tolist()),
        baseline_block_median_s=tuple(base.tolist()),
        doubts=found,
        threads=threads,
        clock=clock,
    )
