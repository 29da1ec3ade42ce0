"""The ctypes binding: what it says without the library, and what it gives with it."""

import ctypes

import numpy as np
import pytest

from precision_eval.core.errors import UnsupportedError
from tools.voice import espeak
from tools.voice.espeak import EspeakVoice, speak, speak_all

VOICE = EspeakVoice(name="en-us", pitch=50, rate_wpm=170)


def test_the_event_has_the_layout_of_the_c_header():
    pointer = ctypes.sizeof(ctypes.c_void_p)
    assert espeak._Event.user_data.offset == 24
    assert espeak._Event.id.offset == 24 + pointer
    assert espeak._Event.sample.offset == 20


def test_a_missing_library_is_unsupported_and_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(espeak, "_LIBRARY_NAMES", ("libnowhere.so.9",))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"libnowhere\.so\.9.*apt install espeak-ng"):
        espeak._load()


@pytest.mark.espeak
def test_speech_has_ascending_phonemes_inside_its_audio():
    speech = speak("The sailor repaired seven boats.", VOICE)
    starts = [start for _, start in speech.phonemes]
    assert speech.sample_rate_hz == 22050
    assert starts == sorted(starts)
    assert 0 <= starts[0] <= starts[-1] <= len(speech.audio)
    assert 1.0 < len(speech.audio) / speech.sample_rate_hz < 4.0
    assert [name for name, _ in speech.phonemes][:4] == ["D", "@2", "s", "eI"]
    assert 0.01 < np.sqrt(np.mean(speech.audio**2)) < 0.5


@pytest.mark.espeak
def test_a_fresh_process_repeats_itself_to_the_sample():
    texts = ["The sailor repaired seven boats.", "Did she?"]
    once, again = list(speak_all(texts, VOICE)), list(speak_all(texts, VOICE))
    assert len(once) == 2
    for one, other in zip(once, again, strict=True):
        assert np.array_equal(one.audio, other.audio)
        assert one.phonemes == other.phonemes
    here = speak(texts[0], VOICE)  # a process with a past: same phonemes, a millisecond to either side
    assert [name for name, _ in here.phonemes] == [name for name, _ in once[0].phonemes]
    for (_, start), (_, start_here) in zip(once[0].phonemes, here.phonemes, strict=True):
        assert abs(start - start_here) <= 100
