"""Speech with exact phoneme timing, from libespeak-ng through ctypes.

Needed only to regenerate the corpus of the miniature voice; nothing that ships needs it. The library keeps hidden state
(phase, flutter, noise, buffers), so within one process the same text sounds slightly different each time, and phonemes
shift by some samples. `speak_all` therefore speaks in a fresh process, where a list of texts always gives the same.

Audio is mono float32, full scale = 1.0, at the library's own rate (22 050 Hz). A phoneme's start is a sample index.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.workers import context_of

_LIBRARY_NAMES = ("libespeak-ng.so.1", "libespeak-ng.1.dylib", "libespeak-ng.dylib")
_REMEDY = "install it: 'apt install espeak-ng libespeak-ng1' (macOS: 'brew install espeak-ng')"

# speak_lib.h of espeak-ng 1.51
_AUDIO_OUTPUT_SYNCHRONOUS, _PHONEME_EVENTS, _CHARS_UTF8, _POS_CHARACTER = 2, 1, 1, 1
_EVENT_LIST_TERMINATED, _EVENT_PHONEME = 0, 7
_PARAMETER_RATE, _PARAMETER_PITCH = 1, 3
_BUFFER_MS = 500


@dataclass(frozen=True, kw_only=True)
class EspeakVoice:
    """One way of speaking."""

    name: str
    pitch: int
    rate_wpm: int


@dataclass(frozen=True)
class Speech:
    """What was said: samples, the phonemes in them, and the text."""

    audio: np.ndarray
    sample_rate_hz: int
    phonemes: list[tuple[str, int]]
    text: str = ""


class _EventId(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class _Library:
    """The loaded library; one per process, because it is global state itself."""

    def __init__(self) -> None:
        self._dll = _load()
        self._samples: list[bytes] = []
        self._phonemes: list[tuple[str, int]] = []
        self._callback: Callable[..., int] = _Callback(self._receive)  # kept: the library holds only a pointer
        self.sample_rate_hz = int(
            self._dll.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, _BUFFER_MS, None, _PHONEME_EVENTS)
        )
        if self.sample_rate_hz <= 0:
            raise UnsupportedError(f"libespeak-ng did not start (code {self.sample_rate_hz}); {_REMEDY}")
        self._dll.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: Any, n_samples: int, events: Any) -> int:
        if samples and n_samples > 0:
            self._samples.append(ctypes.string_at(samples, 2 * n_samples))
        i = 0
        while events[i].type != _EVENT_LIST_TERMINATED:
            if events[i].type == _EVENT_PHONEME:
                # latin-1 never fails: an exception cannot leave a C callback
                self._phonemes.append((bytes(events[i].id.string).decode("latin-1"), int(events[i].sample)))
            i += 1
        return 0

    def version(self) -> str:
        self._dll.espeak_Info.restype = ctypes.c_char_p
        text: bytes = self._dll.espeak_Info(None)
        return text.decode("ascii").split()[0]

    def speak(self, text: str, voice: EspeakVoice) -> Speech:
        if self._dll.espeak_SetVoiceByName(voice.name.encode()) != 0:
            raise ParameterError(f"espeak-ng has no voice '{voice.name}'; 'espeak-ng --voices=en' lists languages")
        self._dll.espeak_SetParameter(_PARAMETER_RATE, voice.rate_wpm, 0)
        self._dll.espeak_SetParameter(_PARAMETER_PITCH, voice.pitch, 0)
        self._samples.clear()
        self._phonemes.clear()
        data = text.encode()
        status = self._dll.espeak_Synth(data, len(data) + 1, 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None)
        self._dll.espeak_Synchronize()
        if status != 0 or not self._samples:
            raise UnsupportedError(f"espeak-ng gave no audio for {text!r} (code {status}); {_REMEDY}")
        pcm = np.frombuffer(b"".join(self._samples), dtype=np.int16)
        return Speech(pcm.astype(np.float32) / 32768.0, self.sample_rate_hz, list(self._phonemes), text)


def _load() -> ctypes.CDLL:
    """Load the shared library under any of its names."""
    found = ctypes.util.find_library("espeak-ng")
    for name in (*_LIBRARY_NAMES, *([found] if found else [])):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnsupportedError(f"libespeak-ng was not found (tried {', '.join(_LIBRARY_NAMES)}); {_REMEDY}")


@cache
def _library() -> _Library:
    return _Library()


def espeak_version() -> str:
    """Version of the loaded library, for example ``"1.51"``."""
    return _library().version()


def speak(text: str, voice: EspeakVoice) -> Speech:
    """Speak in this process; samples and exact times depend on what was spoken before (see the module)."""
    if not text.strip():
        raise ParameterError("there is no text to speak; give at least one word")
    return _library().speak(text, voice)


def speak_all(texts: Iterable[str], voice: EspeakVoice) -> Generator[Speech, None, None]:
    """Speak texts one after another in a fresh process, lazily: the same texts give the same samples."""
    _library()  # a missing library is said here, not by a dead child
    with ProcessPoolExecutor(1, mp_context=context_of("spawn")) as pool:
        for text in texts:
            try:
                yield pool.submit(speak, text, voice).result()
            except BrokenProcessPool as error:
                raise UnsupportedError(f"the espeak-ng process ended at {text!r}; its own message is above") from error
