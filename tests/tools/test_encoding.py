"""The codec's encoder: against hand-made tables, an exhaustive search and scipy."""

import numpy as np
import pytest
from scipy.cluster import vq

from precision_eval.cases.voice.codec import Codec
from tools.voice import encoding
from tools.voice.encoding import encode


def codec_of(tables: np.ndarray, mean: np.ndarray) -> Codec:
    return Codec({"tables": tables.astype(np.float32), "mean": mean.astype(np.float32)})


@pytest.mark.parametrize("beam", [1, 2, 8])
def test_a_sum_of_entries_encodes_to_itself(beam: int) -> None:
    rng = np.random.default_rng(3)
    tables = np.zeros((3, 7, 6), dtype=np.float32)
    for level in range(3):  # each table owns two bands, so the sums are unique
        tables[level, :, 2 * level : 2 * level + 2] = rng.normal(0, 1, (7, 2))
    codec = codec_of(tables, np.zeros(6))
    tokens = rng.integers(0, 7, (200, 3))
    np.testing.assert_array_equal(encode(codec, codec.decode(tokens), beam=beam), tokens)


def test_greedy_search_is_scipys_nearest_code_level_by_level() -> None:
    rng = np.random.default_rng(4)
    codec = codec_of(rng.normal(0, 1, (3, 16, 8)), rng.normal(0, 1, 8))
    mel = rng.normal(0, 2, (500, 8)).astype(np.float32)
    residual = mel - codec.mean
    for level, tokens in enumerate(encode(codec, mel, beam=1).T):
        expected, _ = vq.vq(residual, codec.tables[level])
        np.testing.assert_array_equal(tokens, expected)
        residual = residual - codec.tables[level][expected]


def test_a_wide_beam_is_the_exhaustive_search() -> None:
    rng = np.random.default_rng(5)
    codec = codec_of(rng.normal(0, 1, (3, 5, 4)), np.zeros(4))
    mel = rng.normal(0, 2, (100, 4)).astype(np.float32)
    every = np.stack(np.meshgrid(*[np.arange(5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    distance = np.square(mel[:, None] - codec.decode(every)[None]).sum(axis=-1)
    np.testing.assert_array_equal(encode(codec, mel, beam=25), every[distance.argmin(axis=1)])


def test_encoding_does_not_depend_on_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    codec = codec_of(rng.normal(0, 1, (2, 16, 8)), np.zeros(8))
    mel = rng.normal(0, 2, (300, 8)).astype(np.float32)
    whole = encode(codec, mel)
    monkeypatch.setattr(encoding, "FRAMES_PER_BLOCK", 7)
    np.testing.assert_array_equal(encode(codec, mel), whole)
