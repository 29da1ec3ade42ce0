"""Metrics of token sequences: what a model said, before any audio is made of it.

Conventions: a sequence is a one-dimensional array of integers, one token per step; of several codebooks each is
measured by itself.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.errors import AudioParameterError


def _checked(tokens: np.ndarray, name: str) -> np.ndarray:
    if not isinstance(tokens, np.ndarray):
        raise AudioParameterError(f"{name} is a {type(tokens).__name__}; expected a numpy array of integers")
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise AudioParameterError(
            f"{name} has shape {tokens.shape} and dtype {tokens.dtype}; expected integers of shape (n_tokens,); "
            "measure each codebook by itself"
        )
    if len(tokens) == 0:
        raise AudioParameterError(f"{name} is empty; expected at least one token")
    return tokens


def longest_token_run(tokens: np.ndarray) -> float:
    """Length of the longest run of one and the same token in a sequence of integers, shape (n_tokens,)."""
    changes = np.flatnonzero(np.diff(_checked(tokens, "tokens")) != 0)
    return float(np.max(np.diff(np.concatenate([[-1], changes, [len(tokens) - 1]]))))


def first_token_divergence(reference: np.ndarray, estimate: np.ndarray) -> float:
    """Index of the first token that differs.

    Parameters
    ----------
    reference, estimate : np.ndarray of int, shape (n_tokens,) each
        Where one ends while the other goes on, that counts as a difference.

    Returns
    -------
    float
        0 for the first token; NaN where both are equal throughout.

    Raises
    ------
    AudioParameterError
        Not one-dimensional, not integers, or empty.
    """
    first, second = _checked(reference, "reference"), _checked(estimate, "estimate")
    n_common = min(len(first), len(second))
    unlike = np.flatnonzero(first[:n_common] != second[:n_common])
    if len(unlike):
        return float(unlike[0])
    return float(n_common) if len(first) != len(second) else float("nan")
