"""Vector quantisation arithmetic: hand values, scipy's k-means and a general least-squares solver."""

import numpy as np
import pytest
from scipy.cluster import vq

from precision_eval.cases.voice.codec import beam_search, inner_products, mel_distortion_db
from tools.voice.quantiser import fit_tables, kmeans, least_squares, nearest


def test_nearest_by_hand_with_a_tie_to_the_lowest() -> None:
    table = np.array([[0.0], [2.0], [2.0]])
    assert nearest(np.array([[-5.0], [0.9], [1.0], [1.1], [7.0]]), table).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("beam", "tokens"), [(1, [0, 0]), (2, [1, 1])])
def test_a_beam_sees_what_greed_misses(beam: int, tokens: list[int]) -> None:
    """10 is nearest to 9 (then 9 + 3), but 6 + 4 is exact."""
    tables = np.array([[[9.0], [6.0]], [[3.0], [4.0]]], dtype=np.float32)
    vectors = np.array([[10.0]], dtype=np.float32)
    assert beam_search(vectors, tables, inner_products(tables), beam=beam).tolist() == [tokens]


def test_least_squares_is_numpys() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(0, 1, (300, 5)).astype(np.float32)
    tokens = rng.integers(0, 6, (300, 2))
    tables = rng.normal(0, 1, (2, 6, 5)).astype(np.float32)
    chosen = np.zeros((300, 12))
    chosen[np.arange(300), tokens[:, 0]] = chosen[np.arange(300), 6 + tokens[:, 1]] = 1
    rows, wanted = np.concatenate([chosen, np.eye(12)]), np.concatenate([vectors, tables.reshape(12, 5)])
    expected = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    np.testing.assert_allclose(least_squares(vectors, tokens, tables).reshape(12, 5), expected, atol=1e-5)


def test_kmeans_reaches_scipys_distortion() -> None:
    rng = np.random.default_rng(7)
    centres = rng.normal(0, 10, (8, 3))
    vectors = (centres[rng.integers(0, 8, 4_000)] + rng.normal(0, 0.5, (4_000, 3))).astype(np.float32)
    ours = min(
        np.square(vectors - table[nearest(vectors, table)]).sum()
        for table in (kmeans(vectors, 8, rng=np.random.default_rng(s), iterations=20) for s in range(4))
    )
    theirs, labels = vq.kmeans2(vectors, 8, minit="++", seed=0, iter=20)
    assert ours <= 1.05 * np.square(vectors - theirs[labels]).sum()


def test_an_unused_entry_restarts() -> None:
    vectors = np.repeat(np.array([[0.0], [1.0], [9.0]], dtype=np.float32), [50, 50, 1], axis=0)
    table = kmeans(vectors, 3, rng=np.random.default_rng(0), iterations=20)
    np.testing.assert_allclose(np.sort(table.ravel()), [0.0, 1.0, 9.0], atol=1e-6)


def test_refinement_and_beam_lower_the_error_and_a_seed_repeats() -> None:
    mels = np.random.default_rng(8).normal(0, 1, (2_000, 6)).astype(np.float32) - 5
    plain = fit_tables(mels, 1, n_codebooks=2, codebook_size=16, refinements=0)
    refined = fit_tables(mels, 1, n_codebooks=2, codebook_size=16, refinements=4)
    errors = [
        mel_distortion_db(c.decode(c.encode(mels, beam=b)), mels) for c, b in ((plain, 1), (plain, 8), (refined, 8))
    ]
    assert errors[0] > errors[1] > errors[2]
    again = fit_tables(mels, 1, n_codebooks=2, codebook_size=16, refinements=4)
    np.testing.assert_array_equal(again.tables, refined.tables)
