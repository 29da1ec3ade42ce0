"""The text worlds: the same seed says the same, and no two worlds share a word or a sentence."""

import itertools
import re

import pytest

from tools.voice import text
from tools.voice.text import TEMPLATES, WORLDS, content_words, sentences

PAIRS = list(itertools.combinations(WORLDS, 2))


def first(world: str, seed: int, n: int) -> list[str]:
    return list(itertools.islice(sentences(world=world, seed=seed), n))


def words_between_slots(world: str) -> set[str]:
    return {word for t in TEMPLATES[world] for word in re.findall(r"[a-z]+", re.sub(r"\{.*?\}", " ", t).lower())}


def shared(words: frozenset[str], other: frozenset[str]) -> list[str]:
    return sorted(words & other)


def test_a_seed_gives_its_sentences_for_ever():
    assert first("train", 1, 2) == [
        "The sandal costs 468 pounds, which is broken, said the porter.",
        "Softly, the daughter wrapped a finger made of fan.",
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_seeds_differ_and_repeat(world):
    assert first(world, 3, 50) == first(world, 3, 50)
    assert len(set(first(world, 3, 50)) & set(first(world, 4, 50))) <= 1


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_worlds_share_no_content_word_and_no_template(one, other):
    assert shared(content_words(one), content_words(other)) == []
    assert not set(TEMPLATES[one]) & set(TEMPLATES[other])
    assert not content_words(one) & words_between_slots(other)
    assert not content_words(other) & words_between_slots(one)


def test_the_disjointness_check_notices_one_common_word():
    assert shared(content_words("train") | {"zebra"}, content_words("heldout")) == ["zebra"]


@pytest.mark.parametrize("world", WORLDS)
def test_sentences_hold_only_words_of_their_world(world):
    allowed = content_words(world) | words_between_slots(world) | {"an", "o", "clock"}
    for sentence in first(world, 11, 300):
        assert sentence.isascii()
        assert sentence[-1] in ".?!"
        assert "{" not in sentence
        assert set(re.findall(r"[a-z]+", sentence.lower())) <= allowed | {"father", "in", "law", "laws"}
        assert not re.search(r"\b[Aa] [aeiou]", sentence)


def test_forms():
    assert [*map(text._past, ("bake", "carry", "enjoy", "take/took"))] == ["baked", "carried", "enjoyed", "took"]
    assert [*map(text._plural, ("box", "key", "ruby", "oar"))] == ["boxes", "keys", "rubies", "oars"]
