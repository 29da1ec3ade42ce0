"""hibari-tts as a source of speech: where its phonemes lie, and its place among the sources."""

import importlib.util

import numpy as np
import pytest

from precision_eval.core.errors import UnknownNameError
from tools.voice import hibari
from tools.voice.corpus import SOURCES, generate_passages, source_by_name
from tools.voice.text import content_words, sentences

needs_hibari = pytest.mark.skipif(
    importlib.util.find_spec("hibari") is None or importlib.util.find_spec("onnx") is None,
    reason="needs hibari-tts 0.2.1 and onnx",
)


def test_a_stress_mark_gives_its_time_to_its_vowel_and_punctuation_is_a_pause() -> None:
    """'hˈæ kˌɪ,' by hand: the mark's start is the vowel's; secondary stress names no vowel of its own."""
    symbols = ["_", "h", "ˈ", "æ", " ", "k", "ˌ", "ɪ", ",", "_"]
    found = hibari.phonemes_of(symbols, list(range(0, 100, 10)))
    assert found == [
        *(("_", 0), ("h", 10), ("ˈæ", 20), (" ", 40), ("k", 50), ("ɪ", 60), ("_", 80), ("_", 90)),
    ]


def test_phonemes_fit_the_model_and_are_told_apart() -> None:
    for source in SOURCES:
        assert len(source.phonemes) == len(set(source.phonemes)) <= 80
        assert source.phonemes[0] == "_"
        assert source.n_scripts <= len(source.speakers)
    with pytest.raises(UnknownNameError, match="flite"):
        source_by_name("flite")


def test_a_lexicon_replaces_words_and_not_numbers_or_function_words() -> None:
    plain = [next(texts) for texts in [sentences(world="train", seed=1)] for _ in range(50)]
    mixed = [next(texts) for texts in [sentences(world="train", seed=1, lexicon=["xyzzy"])] for _ in range(50)]
    words = " ".join(mixed).lower().split()
    share = sum(word.strip(",.?!") == "xyzzy" for word in words) / len(words)
    assert 0.1 < share < 0.4
    assert not any("xyzzy" in text.lower() for text in plain)


@needs_hibari
def test_the_lexicon_holds_no_word_of_the_evaluation() -> None:
    words = set(hibari.lexicon())
    assert len(words) > 10_000
    assert not words & (content_words("heldout") | content_words("recogniser"))


@needs_hibari
def test_vowels_are_louder_than_pauses_and_closures() -> None:
    """Planted fault: with labels 100 ms late, as the graph's durations alone would be half of that, it fails."""
    passage = next(iter(generate_passages(world="heldout", speaker=0, minutes=0.1, seed=0, speech="hibari")))
    labels = np.repeat(passage.segments[:, 0], passage.segments[:, 2] - passage.segments[:, 1])
    power = np.square(passage.audio[: len(labels) * 320].reshape(-1, 320)).mean(axis=1)
    names = np.array(hibari.PHONEMES)[labels]
    vowel = np.array([name.startswith("ˈ") for name in names])
    assert passage.sentences[0][0] == 0

    def contrast(late: int) -> float:
        heard = np.roll(power, late)
        return float(heard[vowel].mean() / heard[np.isin(names, list("_kptbdɡ"))].mean())

    assert contrast(0) > 2.0
    assert contrast(0) > 1.3 * contrast(-5)
