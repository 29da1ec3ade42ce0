"""English text without end, from a seeded template grammar.

Three worlds never share a content word or a template: ``train`` for the voice, ``recogniser`` for the recogniser that
judges it, ``heldout`` for the evaluation. Numbers and function words are common to all. A template is a string with
slots, ``{verb:past}`` or ``{noun:plural}``; text is plain ASCII, one sentence per item, and the same seed always gives
the same sentences.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from precision_eval.core.errors import unknown_name
from tools.voice.words import WORLD_WORDS, WordClasses

WORLDS: tuple[str, ...] = ("train", "heldout", "recogniser")

TEMPLATES: dict[str, tuple[str, ...]] = {
    "train": (
        "The {adjective} {noun} is in the {place}.",
        "The {person} {verb:past} the {adjective} {noun} near the {place}.",
        "{name} and {name} {adverb} {verb} the {noun:plural} of the {person}.",
        "Did the {person} {verb} the {noun} in the {adjective} {place}?",
        "There are {number} {adjective} {noun:plural} behind the {place}.",
        "Please {verb} the {noun}, and then {verb} the {adjective} {noun}.",
        "When the {person} {verb:past} the {noun}, the {person} {adverb} {verb:past} the {noun}.",
        "{name} will {adverb} {verb} the {noun} before {name} comes to the {place}.",
        "My {person} said that the {noun} was too {adjective} for the {place}.",
        "Why did {name} {verb} a {adjective} {noun} and {number} {noun:plural}?",
        "It was a {adjective} and {adjective} {place}, with a {noun} under every {noun}.",
        "If you {verb} the {noun}, I shall {verb} the {noun} as well.",
        "Nobody {adverb} {verb:past} the {adjective} {noun} that {name} {verb:past}.",
        "From the {place} to the {place} it is {number} steps, said {name}.",
        "The {noun} and the {noun} were {adjective}, but the {noun} was {adjective}.",
        "In the year {year}, a {adjective} {person} {verb:past} this {place}.",
        "Where is the {noun} of the {adjective} {person}? It is by the {place}.",
        "{name} has {number} {noun:plural}, {number} {noun:plural} and one {adjective} {noun}.",
        "They {verb:past} the {noun}, {verb:past} the {noun}, and {adverb} {verb:past} the {place}.",
        "Every {person} in this {place} would like to {verb} a {noun}.",
        "The {person} with the {adjective} {noun} is the {person} of {name}.",
        "Can {name} {verb} the {noun:plural}, or must the {person} {verb} them?",
        "{adverb}, the {person} {verb:past} a {noun} made of {noun}.",
        "We {verb:past} the {place} at {hour}, and {name} {verb:past} us there.",
        "Who {verb:past} the {adjective} {noun:plural} from the {place}?",
        "No, {name}, the {noun} is not {adjective}; it is {adjective} and {adjective}.",
        "A {person} and a {person} {adverb} {verb:past} the same {noun}.",
        "I think the {adjective} {noun} on the {noun} belongs to {name}.",
        "{number} {person:plural} {verb:past} the {adjective} {place} this week.",
        "Look at the {noun}! The {person} wants to {verb} it {adverb}.",
        "Between the {place} and the {place} stands a {adjective} {noun}.",
        "The {noun} costs {number} pounds, which is {adjective}, said the {person}.",
        "After supper {name} {verb:past} the {noun} for the {adjective} {person}.",
        "Have you {adverb} seen a {adjective} {noun} inside a {noun}?",
        "She {verb:past} it, he {verb:past} it, and the {person} {adverb} {verb:past} it.",
        "At {hour} the {person} must {verb} the {noun} across the {place}.",
    ),
    "heldout": (
        "Our {adjective} {person} could not {verb} that {noun} without {name}.",
        "Beyond this {place} lies another {place}, full of {adjective} {noun:plural}.",
        "Although {name} {verb:past} {number} {noun:plural}, none seemed {adjective}.",
        "Would any {person} {adverb} {verb} such a {adjective} {noun}?",
        "Either {name} or {name} {verb:past} your {noun} {adverb}.",
        "Since {hour}, these {person:plural} have been at our {place}, looking for {noun:plural}.",
        "How {adjective} this {noun} looks beside those {noun:plural}!",
        "Having {verb:past} her {noun}, {name} {adverb} {verb:past} his {noun} too.",
        "During {year} some {person:plural} {verb:past} {number} {adjective} {noun:plural}.",
        "Until {name} {verb:past} our {place}, no {person} had {verb:past} any {noun}.",
        "What should {name} {verb} first, this {noun} or that {adjective} {noun}?",
        "Without its {noun}, his {noun} became {adjective}, {adjective} and {adjective}.",
        "Both {person:plural} hoped to {verb} {name} {adverb}, outside that {place}.",
        "Only {number} of those {noun:plural} could {verb} our {adjective} {person}.",
        "Whose {noun} is this? That of {name}, our {adjective} {person}.",
        "Let us {verb} {name}, {verb} those {noun:plural}, and {verb} that {place}.",
    ),
    "recogniser": (
        "{name} {verb:past} me about some {adjective} {noun:plural}, while you {verb:past} her {noun}.",
        "Many {person:plural} {adverb} {verb} their {noun:plural} along each {place}.",
        "Which {person} {verb:past} more than {number} {noun:plural}?",
        "His {noun} was {adverb} {adjective}, so {name} {verb:past} him.",
        "Because each {place} has {number} {noun:plural}, {name} should {verb} {adverb}.",
        "At about {hour} we may {verb} your {adjective} {person}, though {name} might {verb} us.",
        "To {verb} or to {verb}, thought {name}, over {adjective} {noun} and {noun}.",
        "You could {verb} my {noun}; then you would {verb} your own {noun} {adverb}.",
        "Somewhere above their {place}, {number} {adjective} {noun:plural} {verb:past} one {person}.",
        "Do {person:plural} {adverb} {verb} {adjective} {noun:plural} with both hands?",
        "{name}, who {verb:past} {name}, was born during {year} around that {place}.",
        "Such {adjective} {person:plural} cannot {verb} us, whether they {verb} or {verb}.",
        "{adjective} {noun}, {adjective} {noun}, {adjective} {noun}: these are what {name} {verb:past}.",
        "How much {noun} can {number} {person:plural} {verb}?",
        "Her {person} went out of their {place} through one {adjective} {noun}, towards {name}.",
        "Not {name} but {name} was {adverb} {adjective} among those {person:plural}.",
    ),
}

_SLOT = re.compile(r"\{(\w+)(?::(\w+))?\}")
_CLASS = {
    "noun": "nouns",
    "place": "places",
    "person": "people",
    "name": "names",
    "adjective": "adjectives",
    "verb": "verbs",
    "adverb": "adverbs",
}


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


def _check_world(world: str) -> WordClasses:
    if world not in WORLD_WORDS:
        raise unknown_name("text world", world, WORLDS)
    return WORLD_WORDS[world]


def _sentence(template: str, words: WordClasses, rng: random.Random) -> str:
    """Fill a template; no word stands twice in one sentence."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        slot, form = match.group(1), match.group(2)
        digits = _number(rng, slot)
        if digits is not None:
            return digits
        known = getattr(words, _CLASS[slot])
        word = rng.choice(known)
        while word in used:
            word = rng.choice(known)
        used.add(word)
        return _FORMS[form](word)

    text = _SLOT.sub(fill, template)
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]


def sentences(*, world: str, seed: int) -> Iterator[str]:
    """Sentences of one world, without end."""
    words = _check_world(world)
    return _endless(TEMPLATES[world], words, random.Random(f"{world}/{seed}"))


def _endless(templates: tuple[str, ...], words: WordClasses, rng: random.Random) -> Iterator[str]:
    while True:
        for template in rng.sample(templates, len(templates)):
            yield _sentence(template, words, rng)


def content_words(world: str) -> frozenset[str]:
    """Every word form, in lower case, that a slot of this world can produce."""
    words = _check_world(world)
    forms = {
        "nouns": (None, "plural"),
        "people": (None, "plural"),
        "verbs": (None, "past"),
    }
    return frozenset(
        _FORMS[form](word).lower()
        for field in _CLASS.values()
        for word in getattr(words, field)
        for form in forms.get(field, (None,))
    )
