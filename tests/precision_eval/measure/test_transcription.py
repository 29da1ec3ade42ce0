"""Words and tokens of a transcript: hand-computed, against another implementation, and a whole cell on a tiny model."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precision_eval.cases.adapters import whisper
from precision_eval.cases.adapters.speech import Utterance
from precision_eval.core.cells import Cell, Options
from precision_eval.core.shapes import DATA, misfit

pytest.importorskip("transformers")
from tiny_whisper import tiny_model

from precision_eval.cases.adapters import whisper_model
from precision_eval.measure import transcription
from precision_eval.measure.transcription import token_figures, word_errors, word_figures, words_skipped_and_doubled

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=7)


def test_word_errors_by_hand():
    assert word_errors(["the", "cat", "sat"], ["the", "hat", "sat", "down"]) == 2
    assert word_errors(["a", "b", "c", "d"], ["b", "c", "d"]) == 1
    assert word_errors([], ["a", "b"]) == word_errors(["a", "b"], []) == 2


@given(WORDS, WORDS)
def test_word_errors_against_the_recursive_definition(said, heard):
    @cache
    def distance(i, j):
        if not i or not j:
            return i + j
        kept = distance(i - 1, j - 1) + (said[i - 1] != heard[j - 1])
        return min(kept, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    assert word_errors(said, heard) == distance(len(said), len(heard))
    assert word_errors(said, said) == 0


@pytest.mark.parametrize(
    ("said", "heard", "skipped", "doubled"),
    [
        ("the cat sat", "the cat sat", 0, 0),
        ("the cat sat down", "the sat down", 1, 0),
        ("the cat sat", "the hat sat", 0, 0),  # replaced
        ("the cat sat", "the cat cat sat", 0, 1),
        ("the cat sat", "the big cat sat", 0, 0),  # put in, and no repetition
        ("the cat sat down", "the cat sat the cat sat the cat sat down", 0, 6),
        ("the cat sat", "", 3, 0),
        ("", "no no no", 0, 0),  # a repetition of nothing that is said
        ("", "", 0, 0),
    ],
)
def test_words_skipped_and_doubled_by_hand(said, heard, skipped, doubled):
    assert words_skipped_and_doubled(said.split(), heard.split()) == (skipped, doubled)


@given(WORDS, WORDS)
def test_words_skipped_and_doubled_are_no_more_than_the_edits(said, heard):
    skipped, doubled = words_skipped_and_doubled(said, heard)
    assert skipped + doubled <= word_errors(said, heard)
    assert skipped >= len(said) - len(heard)


def test_wer_by_hand_with_whispers_normaliser():
    texts = [("Mister Brown, it's five!", "Mr. Brown, it is 5."), ("dog cat herd", "dog cat bird")]
    found = word_figures(texts, ["mr brown it is five", "dog cat bird"])
    assert (found["words_said"], found["errors"], found["reference_errors"]) == (8, [0, 1], [0, 0])
    assert found["wer"] == found["wer_difference"] == 1 / 8
    assert found["reference_wer"] == 0.0
    assert found["words_changed"] == 1
    assert found["wer_difference_low"] == 0.0  # both drawn from the first
    assert found["wer_difference_high"] == pytest.approx(1 / 3)


def test_the_same_transcript_differs_by_nothing_and_without_texts_there_is_no_wer():
    found = word_figures([("so it goes", "so it goes")] * 3, [None] * 3)
    assert (found["words_changed"], found["word_divergence"], found["word_divergence_high"]) == (0, 0.0, 0.0)
    assert not any(name.startswith(("wer", "reference_wer")) for name in found)


def test_the_interval_covers_a_known_difference(monkeypatch):
    monkeypatch.setattr(transcription, "RESAMPLES", 399)
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(40):
        wrong = rng.binomial(10, 0.1, size=40)
        texts = [("x " * int(n) + "b " * (10 - int(n)), "b " * 10) for n in wrong]
        found = word_figures(texts, ["b " * 10] * 40, seed=trial)
        covered += found["wer_difference_low"] <= 0.1 <= found["wer_difference_high"]
    assert 31 <= covered <= 40  # five standard errors below 38


def test_tokens_that_leave_the_reference():
    same = ([1, 2, 3], [1, 2, 3])
    found = token_figures([same, ([1, 5, 3], [1, 2, 3]), ([1, 2], [1, 2, 3])])
    assert found["first_divergent_token"] == [None, 1, 2]
    assert (found["diverged"], found["tokens"]) == (2, 9)
    assert token_figures([same] * 12)["diverged_fraction_high"] == pytest.approx(1 - 0.025 ** (1 / 12))


@pytest.fixture
def tiny(monkeypatch):
    """A tiny model in the place of the real one, and two utterances of noise."""
    model = tiny_model(seed=0)
    rng = np.random.default_rng(0)
    spoken = [Utterance(str(i), rng.normal(size=8000).astype(np.float32), said) for i, said in enumerate(("7 8", None))]
    monkeypatch.setattr(transcription, "utterances", lambda folder: spoken)
    monkeypatch.setattr(transcription, "MOST_TOKENS", 5)
    monkeypatch.setattr(
        whisper_model, "decoder", lambda: whisper_model.WhisperStep(model, cache_dtype=torch.float16).eval()
    )
    monkeypatch.setattr(whisper_model, "likeliest", lambda logits, first: int(logits.argmax()))
    monkeypatch.setattr(whisper_model, "text_of", lambda tokens: " ".join(map(str, tokens)))
    return model


def cell_of(*fixes):
    return Cell(
        case="whisper-decode", fixes=fixes, mode="eager", device="cpu", size=whisper.SIZE, threads=1,
        measure="transcription", options=Options(),
    )  # fmt: skip


def test_every_fix_of_a_cell_has_its_own_outcome(tiny, tmp_path):
    fixes = ("as_shipped", "kv_to_query", "full_float32", "bfloat16")
    raised, cast, wide, half = transcription.transcription(cell_of(*fixes), tmp_path)
    assert raised.status == "raised"
    assert "Expected query, key, and value to have the same dtype" in raised.reason
    assert cast.status == wide.status == half.status == "passed"
    assert wide.data["relative_error"] < 1e-5 < cast.data["relative_error"] < half.data["relative_error"]
    assert (wide.data["diverged"], wide.data["utterances"], wide.data["wer_difference"]) == (0, 2, 0.0)
    assert wide.data["reference_wer"] == wide.data["wer"]
    assert all(not misfit(one.data, DATA["transcription"], where="data") for one in (cast, wide, half))


def test_a_logit_that_is_no_number_is_said(tiny, tmp_path):
    tiny.model.decoder.layer_norm.bias.fill_(1e5)  # beyond float16
    (outcome,) = transcription.transcription(cell_of("float16"), tmp_path)
    assert outcome.status == "non_finite"
