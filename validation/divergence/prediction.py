"""From logits to survival: how long streams should stay on the reference's path, before any has run.

Sampling takes ``argmax(logits / T + g)`` with Gumbel noise g that both precisions share, so their tokens differ
exactly where the error exceeds the margin that the noise leaves between the first score and another. That chance, over
the noise, is the *hazard* of a step. It needs no draw: the largest entries of ``l + g`` and ``l' + g`` are both i if
and only if ``g_j − g_i`` stays below ``−max(l_j − l_i, l'_j − l'_i)`` for all j, which has probability ``1 / Σ_j
max(p_j/p_i, q_j/q_i)``.

A hazard is summed over codebooks as ``−log(1 − h)``, so that ``S(t) = exp(−Σ)``: fresh noise in every step and
codebook makes the chances multiply. S is averaged over the calibration streams. Past their end a stream's course
starts over, the prompt's few steps left out; teacher-forced error is flat over minutes. Nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from precision_eval.core.errors import ParameterError
from validation.divergence.plan import BIN_STEPS

_LARGEST = 600.0  # of |d|; exp of it is finite, and beyond it the token is lost for certain
_LONGEST = 10**15  # steps; beyond it a hazard is taken for none


def mismatch_probability(logits: ArrayLike, others: ArrayLike, *, temperature: float) -> NDArray[np.float64]:
    """Probability, over shared Gumbel noise, that two logit vectors choose different tokens."""
    first, second = np.asarray(logits, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if first.shape != second.shape or not temperature > 0.0:
        raise ParameterError(
            f"logits are {first.shape} and {second.shape} at temperature {temperature}; expected one shape and a "
            "temperature above 0"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ParameterError("a logit is not finite; such a step has no hazard, it has failed")
    log_p, log_q = log_softmax(first / temperature, axis=-1), log_softmax(second / temperature, axis=-1)
    # only differences of d count: taken from the logits themselves, they keep what log p has rounded away
    shift = (log_q - log_p - (second - first) / temperature).mean(axis=-1, keepdims=True)
    d = np.clip((second - first) / temperature + shift, -_LARGEST, _LARGEST)
    order = np.argsort(d, axis=-1)
    d, p, q = (np.take_along_axis(x, order, axis=-1) for x in (d, np.exp(log_p), np.exp(log_q)))
    # sums over the entries whose d is larger: everything behind, in this order
    gain, mass = _sum_behind(np.where(d > 1.0, q - p, p * np.expm1(np.minimum(d, 1.0)))), _sum_behind(p)
    excess = np.maximum(np.exp(-d) * gain + np.expm1(-d) * mass, 0.0)  # N_i
    return np.asarray((p * (excess / (1.0 + excess))).sum(axis=-1))


def _sum_behind(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the entries after each one, along the last axis."""
    total = np.cumsum(x[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([total[..., 1:], np.zeros_like(total[..., :1])], axis=-1)


def step_hazards(mismatch: ArrayLike) -> NDArray[np.float64]:
    """Sum the chances of the codebooks of every step."""
    hazard = -np.log1p(-np.minimum(np.asarray(mismatch, dtype=np.float64), 1.0 - 1e-15))
    n_codebooks = hazard.shape[-1]
    sampled = np.arange(n_codebooks) <= np.arange(len(hazard))[:, None]  # (n_steps, K)
    return np.asarray((hazard * sampled[:, None, :]).sum(axis=-1))


def binned(hazard: ArrayLike) -> NDArray[np.float64]:
    """Sum per-step hazards, (n_steps, B), over bins of 4 steps → (B, n_bins); a last part of a bin is left out."""
    values = np.asarray(hazard, dtype=np.float64)
    n_bins = len(values) // BIN_STEPS
    return np.asarray(values[: n_bins * BIN_STEPS].reshape(n_bins, BIN_STEPS, -1).sum(axis=1).T)


@dataclass(frozen=True)
class Prediction:
    """Survival to be expected from calibration streams."""

    hazard: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.hazard.ndim != 2 or self.hazard.shape[1] < 2 or not (self.hazard >= 0.0).all():
            raise ParameterError(
                f"hazards of shape {self.hazard.shape} were given; expected (streams, bins ≥ 2), none negative"
            )

    def survival(self, steps: ArrayLike) -> NDArray[np.float64]:
        """Fraction of streams that should still be on the path after so many steps, shape of `steps`."""
        return np.asarray(np.exp(-self.cumulative(np.asarray(steps, dtype=np.float64))).mean(axis=0))

    def median(self) -> int | None:
        """Smallest whole number of steps after which at most half should be left; None beyond 10¹⁵."""
        low, high = 0, 1
        while self.survival(high) > 0.5:
            low, high = high, 2 * high
            if high > _LONGEST:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.survival(middle) > 0.5 else (low, middle)
        return high

    def cumulative(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Hazard of each stream up to `steps`, shape (B, *steps.shape); linear inside a bin."""
        total = np.concatenate([np.zeros((len(self.hazard), 1)), np.cumsum(self.hazard, axis=1)], axis=1)
        length, period = BIN_STEPS * (total.shape[1] - 1), BIN_STEPS * (total.shape[1] - 2)
        beyond = steps > length
        turns = np.where(beyond, np.ceil((steps - length) / period), 0.0)
        place = (steps - turns * period) / BIN_STEPS  # inside the course, past its first bin where turns > 0
        bin_index = np.minimum(place.astype(int), total.shape[1] - 2)
        inside = total[:, bin_index] + (place - bin_index) * self.hazard[:, bin_index]
        per_turn = total[:, -1] - total[:, 1]
        return np.asarray(inside + per_turn.reshape(-1, *[1] * steps.ndim) * turns)


def resampled_medians(prediction: Prediction, median: int, *, seed: int, resamples: int) -> NDArray[np.float64]:
    """Predicted medians, about that of all, from calibration streams drawn with replacement."""
    steps = np.unique(np.geomspace(max(1.0, median / 4), 4.0 * median, 400).round())
    streams = np.exp(-prediction.cumulative(steps))  # (B, n)
    n = len(streams)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), size=resamples) / n
    lost_half = weights @ streams <= 0.5
    lost_half[:, -1] = True
    return np.asarray(steps[lost_half.argmax(axis=1)])
