"""Log-mel frames to the codec's tokens, which only training and packaging need, and how far tokens are off."""

from __future__ import annotations

import numpy as np

from precision_eval.cases.voice.codec import Codec
from precision_eval.core.errors import ParameterError

BEAM = 8
FRAMES_PER_BLOCK = 2048


def encode(codec: Codec, mel: np.ndarray, *, beam: int = BEAM) -> np.ndarray:
    """Tokens of log-mel frames, each frame by itself."""
    mel = np.asarray(mel)
    if mel.ndim != 2 or mel.shape[1] != codec.mean.size or not np.isfinite(mel).all():
        raise ParameterError(f"mel has shape {mel.shape}; expected finite values of shape (frames, {codec.mean.size})")
    if beam < 1:
        raise ParameterError(f"beam is {beam}; expected at least 1")
    centred = mel.astype(np.float32) - codec.mean
    tokens = np.empty((mel.shape[0], codec.tables.shape[0]), dtype=np.uint8)
    products = inner_products(codec.tables)
    for start in range(0, mel.shape[0], FRAMES_PER_BLOCK):
        block = slice(start, start + FRAMES_PER_BLOCK)
        tokens[block] = beam_search(centred[block], codec.tables, products, beam=beam)
    return tokens


def inner_products(tables: np.ndarray) -> np.ndarray:
    """Inner products of all entries with each other."""
    n_codebooks, size, n_bands = tables.shape
    flat = tables.reshape(-1, n_bands)
    return (flat @ flat.T).reshape(n_codebooks, size, n_codebooks, size)


def beam_search(vectors: np.ndarray, tables: np.ndarray, products: np.ndarray, *, beam: int) -> np.ndarray:
    """Find the best sums of entries, one table after the other, keeping the ``beam`` best partial sums."""
    n, (n_codebooks, size, _) = vectors.shape[0], tables.shape
    rows = np.arange(n)[:, None]
    cost = np.zeros((n, 1), dtype=np.float32)
    paths = np.empty((n, 1, 0), dtype=np.int64)
    for level in range(n_codebooks):
        own = np.diag(products[level, :, level, :]) - 2 * (vectors @ tables[level].T)  # (n, size)
        extended = cost[:, :, None] + own[:, None, :]  # (n, kept, size)
        for earlier in range(level):
            extended += 2 * products[earlier, :, level, :][paths[:, :, earlier]]
        flat = extended.reshape(n, -1)
        kept = 1 if level == n_codebooks - 1 else min(beam, flat.shape[1])
        best = np.argmin(flat, axis=1)[:, None] if kept == 1 else np.argpartition(flat, kept - 1, axis=1)[:, :kept]
        best.sort(axis=1)  # an order that does not depend on the partition
        cost = flat[rows, best]
        paths = np.concatenate([paths[rows, best // size], (best % size)[:, :, None]], axis=2)
    return paths[:, 0].astype(np.uint8)


def mel_distortion_db(estimate: np.ndarray, reference: np.ndarray) -> float:
    """Root mean square difference of two log-mel sequences."""
    if estimate.shape != reference.shape:
        raise ParameterError(f"mels have shapes {estimate.shape} and {reference.shape}; expected equal shapes")
    squares = np.square(estimate.astype(np.float64) - reference).mean(axis=1)
    return float(np.sqrt(squares).mean() * 20 / np.log(10))
