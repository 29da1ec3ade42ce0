"""The anchor: a fixed numpy computation that no torch version and no commit of a case changes.

A paired ratio to ``full_float32`` cannot see what slows every fix alike; a time in seconds sees it, and every other
change of the machine too. The ratio to the anchor, timed in the same process in interleaved blocks, cancels the
machine's speed of the moment and keeps the rest. It is as fixed as numpy and its BLAS: keep those pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_ROWS, _WIDTH, _LAYERS, _SLOTS = 16, 512, 4, 2048


def anchor_call() -> Callable[[], Array]:
    """Draw the anchor's arrays and return the computation."""
    rng = np.random.default_rng(0)
    x, cache, weights = (
        rng.standard_normal(shape, dtype=np.float32)
        for shape in ((_ROWS, _WIDTH), (_SLOTS, _WIDTH), (_LAYERS, _WIDTH, _WIDTH))
    )
    return partial(_anchored, x, cache, weights)


def _anchored(x: Array, cache: Array, weights: Array) -> Array:
    """Products with weights, a look into a cache, an elementwise function: x (rows, width) → (rows, width)."""
    for weight in weights:  # (width, width)
        x = np.tanh(x @ weight / np.float32(_WIDTH**0.5))
    scores = x @ cache.T / np.float32(_WIDTH**0.5)  # (rows, slots)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended: Array = (scores / scores.sum(axis=1, keepdims=True)) @ cache
    return attended
