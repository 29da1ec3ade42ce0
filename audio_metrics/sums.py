"""Sums in float64 that BLAS does quickly on one thread.

Conventions: whatever is summed is summed in float64. OpenBLAS starts threads for a dot product of more than 10,000
numbers, which costs more processor time than it saves and makes bits depend on their number; pieces here are shorter.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_PIECE = 8192


def inner_product(first: np.ndarray, second: np.ndarray) -> float:
    """Sum of the products of two vectors."""
    total = 0.0
    for start in range(0, len(first), _PIECE):
        total += float(np.dot(first[start : start + _PIECE], second[start : start + _PIECE]))
    return total


def row_products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Sum of the products of each row of one array with the same row of another."""
    if first.shape[-1] > _PIECE:
        head, tail = (values[..., :_PIECE] for values in (first, second)), (first[..., _PIECE:], second[..., _PIECE:])
        return np.asarray(row_products(*head) + row_products(*tail))
    return np.asarray(np.matmul(first[..., None, :], second[..., :, None])[..., 0, 0])  # one dot product a row


def row_sums(values: np.ndarray) -> np.ndarray:
    """Sum of each row, float64."""
    return row_products(values, _ones(values.shape[-1]))


@lru_cache(maxsize=8)
def _ones(n: int) -> np.ndarray:
    return np.ones(n)
