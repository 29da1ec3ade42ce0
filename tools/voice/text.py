"""English text without end, from a seeded template grammar.

The worlds never share a content word or a template: ``train`` for the voice, ``recogniser`` for the recogniser that
judges it, ``heldout`` for the evaluation; so neither of these profits from what the voice was trained on. Numbers and
function words are common to all. A world is a file of ``worlds/``: templates with slots, ``{verb:past}`` or
``{noun:plural}``, and words per class, a verb as ``base/past`` where its past form is irregular. Text is plain ASCII,
one sentence per item, and the same seed always gives the same sentences.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from precision_eval.core.errors import unknown_name

WORLDS: tuple[str, ...] = ("train", "heldout", "recogniser")
Words = Mapping[str, tuple[str, ...]]
"""Class of words, which is the name of its slot, to the words."""


def _read(world: str) -> tuple[tuple[str, ...], Words]:
    content = tomllib.loads(Path(__file__).with_name("worlds").joinpath(f"{world}.toml").read_text(encoding="utf-8"))
    return tuple(content["templates"]), {slot: tuple(words.split()) for slot, words in content["words"].items()}


_READ = {world: _read(world) for world in WORLDS}
TEMPLATES = {world: templates for world, (templates, _) in _READ.items()}
_WORDS = {world: words for world, (_, words) in _READ.items()}
_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")


def _past(verb: str) -> str:
    """Past form of a verb as the word lists write it."""
    base, _, irregular = verb.partition("/")
    if irregular:
        return irregular
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"


def _plural(noun: str) -> str:
    """Regular plural of a noun."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


_FORMS: dict[str | None, Callable[[str], str]] = {
    None: lambda word: word.partition("/")[0],
    "past": _past,
    "plural": _plural,
}


def _number(rng: random.Random, slot: str) -> str | None:
    """Digits for the numeric slots, `None` for a slot that takes a word."""
    if slot == "number":
        return str(rng.choice((rng.randint(2, 20), rng.randint(2, 99), rng.randint(100, 999))))
    if slot == "year":
        return str(rng.randint(1500, 2019))
    if slot == "hour":
        return f"{rng.randint(1, 12)} o'clock"
    return None


def _words_of(world: str) -> Words:
    if world not in _WORDS:
        raise unknown_name("text world", world, WORLDS)
    return _WORDS[world]


def _sentence(template: str, words: Words, rng: random.Random, lexicon: Sequence[str]) -> str:
    """Fill a template; no word stands twice in one sentence. With a lexicon every second word is of it."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        slot, form = match.group(1), match.group(2)
        digits = _number(rng, slot)
        if digits is not None:
            return digits
        if lexicon and rng.random() < 0.5:
            return rng.choice(lexicon)
        known = words[slot]
        word = rng.choice(known)
        while word in used:
            word = rng.choice(known)
        used.add(word)
        return _FORMS[form](word)

    text = _SLOT.sub(fill, template)
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]


def sentences(*, world: str, seed: int, lexicon: Sequence[str] = ()) -> Iterator[str]:
    """Sentences of one world, without end; with a lexicon they mean less and hold more sounds."""
    words, rng = _words_of(world), random.Random(f"{world}/{seed}")
    while True:
        for template in rng.sample(TEMPLATES[world], len(TEMPLATES[world])):
            yield _sentence(template, words, rng, lexicon)


def content_words(world: str) -> frozenset[str]:
    """Every word form, in lower case, that a slot of this world can produce."""
    forms = {"noun": (None, "plural"), "person": (None, "plural"), "verb": (None, "past")}
    return frozenset(
        _FORMS[form](word).lower()
        for slot, words in _words_of(world).items()
        for word in words
        for form in forms.get(slot, (None,))
    )
