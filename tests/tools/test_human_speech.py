"""Human speech laid out of packages: which prompts count, how they are joined, and a package that is missing."""

import numpy as np
import pytest

from precision_eval.core.errors import IntegrityError
from tools import human_speech

LISTED = """; Core Sounds

activated: Activated.
beep: [this is a simple beep tone]
letters/at: at [@]
letters/a: a
digits/h-1: first
vm-rec-name: After the tone: say your name.
empty: ...
"""


def test_prompts_of_words_count():
    assert list(human_speech.texts(LISTED)) == [
        ("activated", "Activated."),
        ("digits/h-1", "first"),
        ("vm-rec-name", "After the tone: say your name."),
    ]


def test_prompts_are_joined_with_half_a_second_between_until_they_are_long_enough():
    def prompt(said, seconds):
        return said, np.full(round(16_000 * seconds), ord(said), dtype=np.int16)

    given = [prompt("a", 12), prompt("b", 9), prompt("c", 31), prompt("d", 15), prompt("e", 20), prompt("f", 1)]
    spoken = list(human_speech.joined(iter(given)))
    assert [said for said, _ in spoken] == ["a b", "d", "e", "f"]  # c is too long to be heard; d and e together too
    assert [len(samples) / 16_000 for _, samples in spoken] == [21.5, 15, 20, 1]
    first = spoken[0][1]
    assert set(first[: 12 * 16_000]) == {ord("a")}
    assert set(first[12 * 16_000 : 200_000]) == {0}
    assert set(first[200_000:]) == {ord("b")}


def test_a_package_that_is_missing_or_another_is_refused_in_one_line(tmp_path):
    name = next(iter(human_speech.PACKAGES))
    with pytest.raises(IntegrityError, match=r"no such file; expected 973e797d28e3: apt-get download asterisk-core"):
        human_speech.lay_out(tmp_path, tmp_path / "out")
    (tmp_path / name).write_bytes(b"other")
    with pytest.raises(IntegrityError, match=r"has SHA-256 d9298a10d1b0; expected") as found:
        human_speech.lay_out(tmp_path, tmp_path / "out")
    assert "\n" not in str(found.value)
