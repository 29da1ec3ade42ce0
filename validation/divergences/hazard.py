"""Chance that a rounding error changes a sampled token, from the two logits alone.

Conventions: sampling takes ``argmax(logits / T + g)`` with Gumbel noise g that both precisions share, so their tokens
differ exactly where the error exceeds the margin that the noise leaves between the first score and another. That
chance, over the noise, is the *hazard* of a step. It needs no draw: the largest entries of ``l + g`` and ``l' + g`` are
both i if and only if ``g_j − g_i`` stays below ``−max(l_j − l_i, l'_j − l'_i)`` for all j, which has probability
``1 / Σ_j max(p_j/p_i, q_j/q_i)`` [1]_ [2]_.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precision_eval.core.errors import ParameterError

_LARGEST = 600.0  # of |d|; exp of it is finite, and beyond it the token is lost for certain


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
    log_p, log_q = _log_softmax(first / temperature), _log_softmax(second / temperature)
    # only differences of d count: taken from the logits themselves, they keep what log p has rounded away
    shift = (log_q - log_p - (second - first) / temperature).mean(axis=-1, keepdims=True)
    d = np.clip((second - first) / temperature + shift, -_LARGEST, _LARGEST)
    order = np.argsort(d, axis=-1)
    d, p, q = (np.take_along_axis(x, order, axis=-1) for x in (d, np.exp(log_p), np.exp(log_q)))
    # sums over the entries whose d is larger: everything behind, in this order
    gain, mass = _sum_behind(np.where(d > 1.0, q - p, p * np.expm1(np.minimum(d, 1.0)))), _sum_behind(p)
    excess = np.maximum(np.exp(-d) * gain + np.expm1(-d) * mass, 0.0)  # N_i
    return np.asarray((p * (excess / (1.0 + excess))).sum(axis=-1))


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _sum_behind(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the entries after each one, along the last axis."""
    total = np.cumsum(x[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([total[..., 1:], np.zeros_like(total[..., :1])], axis=-1)
