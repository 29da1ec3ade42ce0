"""Metrics of token sequences: what a model said, before any audio is made of it.

Conventions: a sequence is a one-dimensional array of integers, one token per step; of several codebooks each is
measured by itself. Entropies and divergences are in bits. Tokens that a codebook could hold but a sequence never uses
change nothing. Distances of frequencies shrink with length: read them as a ratio to the distance of two references of
the same length.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.errors import AudioParameterError, UndefinedMetricError

NGRAM_TOKENS = 4


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


def _entropy_bits(probability: np.ndarray) -> float:
    present = probability[probability > 0.0]
    return float(-np.sum(present * np.log2(present)))


def token_js_divergence(reference: np.ndarray, estimate: np.ndarray) -> float:
    """Jensen-Shannon divergence of the token frequencies of two sequences.

    Parameters
    ----------
    reference, estimate : np.ndarray of int, shape (n_tokens,) each
        Lengths may differ.

    Returns
    -------
    float
        Bits, 0 (equal frequencies) to 1 (no token in common); symmetric.

    Raises
    ------
    AudioParameterError
        Not one-dimensional, not integers, or empty.

    References
    ----------
    .. [1] J. Lin, "Divergence measures based on the Shannon entropy", IEEE Trans. Information Theory 37(1), 1991.
    """
    first, second = _checked(reference, "reference"), _checked(estimate, "estimate")
    _, index = np.unique(np.concatenate([first, second]), return_inverse=True)
    n_kinds = int(index.max()) + 1
    p = np.bincount(index[: len(first)], minlength=n_kinds) / len(first)
    q = np.bincount(index[len(first) :], minlength=n_kinds) / len(second)
    divergence = _entropy_bits((p + q) / 2.0) - (_entropy_bits(p) + _entropy_bits(q)) / 2.0
    return min(max(divergence, 0.0), 1.0)


def token_entropy_bits(tokens: np.ndarray) -> float:
    """Entropy of the token frequencies of one sequence, in bits; 0 for one token alone. Errors as above."""
    counts = np.unique(_checked(tokens, "tokens"), return_counts=True)[1]
    return _entropy_bits(counts / len(tokens)) + 0.0


def longest_token_run(tokens: np.ndarray) -> float:
    """Length of the longest run of one and the same token; errors as above."""
    changes = np.flatnonzero(np.diff(_checked(tokens, "tokens")) != 0)
    return float(np.max(np.diff(np.concatenate([[-1], changes, [len(tokens) - 1]]))))


def ngram_repetition(tokens: np.ndarray, *, n_tokens: int = NGRAM_TOKENS) -> float:
    """Fraction of n-grams that have occurred before: 1 − distinct / all.

    Parameters
    ----------
    tokens : np.ndarray of int, shape (n,)
    n_tokens : int
        Tokens in an n-gram.

    Raises
    ------
    AudioParameterError
        Unusable sequence, or `n_tokens` under 1.
    UndefinedMetricError
        The sequence holds no n-gram.

    References
    ----------
    .. [1] S. Welleck et al., "Neural text generation with unlikelihood training", ICLR 2020 (seq-rep-n).
    """
    sequence = _checked(tokens, "tokens")
    if n_tokens < 1:
        raise AudioParameterError(f"n_tokens is {n_tokens}; expected at least 1")
    if len(sequence) < n_tokens:
        raise UndefinedMetricError(f"{len(sequence)} tokens hold no run of {n_tokens}; the repetition has no value")
    grams = np.lib.stride_tricks.sliding_window_view(sequence, n_tokens)
    return 1.0 - len(np.unique(grams, axis=0)) / len(grams)


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
        As :func:`token_js_divergence`.
    """
    first, second = _checked(reference, "reference"), _checked(estimate, "estimate")
    n_common = min(len(first), len(second))
    unlike = np.flatnonzero(first[:n_common] != second[:n_common])
    if len(unlike):
        return float(unlike[0])
    return float(n_common) if len(first) != len(second) else float("nan")
