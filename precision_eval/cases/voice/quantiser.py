"""Arithmetic of vector quantisation: nearest entries, k-means, additive beam search and least-squares refinement."""

from __future__ import annotations

import numpy as np

FRAMES_PER_BLOCK = 2048


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
