"""How a codec's tables are fitted: residual k-means, then least squares over all of them together."""

from __future__ import annotations

import numpy as np

from precision_eval.cases.voice.codec import CODEBOOK_SIZE, FRAMES_PER_BLOCK, N_CODEBOOKS, Codec
from precision_eval.core.errors import ParameterError


def nearest(vectors: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Index of the nearest entry (squared distance, ties to the lowest index)."""
    half_norms = 0.5 * np.square(table).sum(axis=1)
    index = np.empty(vectors.shape[0], dtype=np.int64)
    for start in range(0, vectors.shape[0], FRAMES_PER_BLOCK):
        block = slice(start, start + FRAMES_PER_BLOCK)
        index[block] = np.argmin(half_norms - vectors[block] @ table.T, axis=1)
    return index


def kmeans(vectors: np.ndarray, size: int, *, rng: np.random.Generator, iterations: int) -> np.ndarray:
    """Lloyd's algorithm from random frames; an entry that no frame chooses restarts on a frame far from its own."""
    table = vectors[rng.choice(vectors.shape[0], size, replace=False)].copy()
    for _ in range(iterations):
        index = nearest(vectors, table)
        sums, counts = sums_by_index(vectors, index, size)
        used = counts > 0
        table[used] = sums[used] / counts[used, None]
        if not used.all():
            error = np.square(vectors - table[index]).sum(axis=1, dtype=np.float64)
            if error.sum() > 0:
                table[~used] = vectors[rng.choice(error.size, int((~used).sum()), p=error / error.sum())]
    return table


def sums_by_index(vectors: np.ndarray, index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the vectors of each index."""
    counts = np.bincount(index, minlength=size)
    order = np.argsort(index, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    sums = np.zeros((size, vectors.shape[1]))
    used = counts > 0
    sums[used] = np.add.reduceat(vectors[order].astype(np.float64), starts[used], axis=0)
    return sums, counts


def least_squares(vectors: np.ndarray, tokens: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Solve for all tables at once, tokens given; a ridge of one frame holds entries near the present ones."""
    n_codebooks, size, n_bands = tables.shape
    normal = np.zeros((n_codebooks, size, n_codebooks, size))
    right = np.empty((n_codebooks, size, n_bands))
    for level in range(n_codebooks):
        right[level], _ = sums_by_index(vectors, tokens[:, level].astype(np.int64), size)
        for other in range(n_codebooks):
            pair = tokens[:, level].astype(np.int64) * size + tokens[:, other]
            normal[level, :, other, :] = np.bincount(pair, minlength=size * size).reshape(size, size)
    flat = normal.reshape(n_codebooks * size, -1)
    flat[np.diag_indices_from(flat)] += 1.0
    right += tables
    solved = np.linalg.solve(flat, right.reshape(-1, n_bands))
    return solved.reshape(tables.shape).astype(np.float32)


def fit_tables(
    mels: np.ndarray,
    seed: int,
    *,
    n_codebooks: int = N_CODEBOOKS,
    codebook_size: int = CODEBOOK_SIZE,
    iterations: int = 20,
    refinements: int = 10,
) -> Codec:
    """Fit tables: residual k-means, then all tables together."""
    if mels.ndim != 2 or mels.shape[0] < codebook_size:
        raise ParameterError(f"mels have shape {mels.shape}; expected at least {codebook_size} frames")
    rng = np.random.default_rng(seed)
    mean = mels.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = mels.astype(np.float32) - mean
    residual, tables = centred.copy(), []
    for _ in range(n_codebooks):
        table = kmeans(residual, codebook_size, rng=rng, iterations=iterations)
        residual -= table[nearest(residual, table)]
        tables.append(table)
    codec = Codec(np.stack(tables), mean, {"seed": str(seed)})
    for _ in range(refinements):
        codec = Codec(least_squares(centred, codec.encode(mels), codec.tables), mean, codec.metadata)
    return codec
