"""Natural-sounding speech with exact phoneme timing, from the ONNX model of hibari-tts.

hibari-tts 0.2.1 (Apache-2.0) is one voice, distilled from Kokoro-82M (Apache-2.0). Its model predicts how many 25 ms
frames each symbol lasts; that tensor is inside the graph, and is made an output here, so phonemes lie where the model
put them. Needed only to make the corpus of the natural voice, and speech for what transcribes; nothing that ships needs
it: ``pip install hibari-tts==0.2.1 onnx``.

Audio is mono float32, full scale = 1.0, at 24 kHz. The same texts always give the same samples.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.cases.adapters.wheels import Wheel
from precision_eval.core.errors import UnsupportedError
from tools.voice.espeak import Speech
from tools.voice.text import content_words, sentences

MODEL, LEXICON = "hibari/assets/hibari.onnx", "hibari/assets/lexicon_us_gold.json.gz"
WHEEL = Wheel(
    name="hibari-tts",
    version="0.2.1",
    licence="Apache-2.0",
    files=(
        (MODEL, "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"),
        (LEXICON, "63ae94f8ef0e906d5b24fe9b59ffcbd1529aca5686a774610e43973cbaa86ad2"),
    ),
)
RATE_HZ = 24_000
_HOP_SAMPLES = 600
_LEAD_SAMPLES = 1200
"""How far the sound is ahead of the durations: where phonemes explain most of the mel's variance."""

_DURATIONS = "/Clip_output_0"
_STRESS, _SECONDARY = "ˈ", "ˌ"
_VOWELS = "AIOWYiuæɑɔəɛɜɪʊʌᵊᵻɐ"
_CONSONANTS = "bdfhjklmnpstvwzðŋɡɹʃʒʤʧθTɾʔx"
PHONEMES: tuple[str, ...] = ("_", " ", *_VOWELS, *(_STRESS + vowel for vowel in _VOWELS), *_CONSONANTS)
"""Pauses, the border between words, vowels, the same with primary stress, consonants."""

WORDS = 60
"""About 25 s of speech, what Whisper hears at once."""


@dataclass(frozen=True, kw_only=True)
class HibariVoice:
    """One way of speaking."""

    name: str = "heart"


class _Model:
    """The wheel's front end, and its network with the durations among the outputs."""

    def __init__(self) -> None:
        path = WHEEL.path(MODEL)
        try:
            import onnx
        except ModuleNotFoundError as error:
            raise UnsupportedError("onnx is not installed; pip install onnx") from error
        import onnxruntime
        from hibari import Hibari, dsp

        graph = onnx.load(str(path))
        graph.graph.output.append(onnx.helper.make_tensor_value_info(_DURATIONS, onnx.TensorProto.FLOAT, None))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(graph.SerializeToString(), options)
        self._front, self._synth = Hibari(), dsp.synth

    def speak(self, text: str) -> Speech:
        rng = np.random.default_rng(zlib.crc32(text.encode()))
        audio: list[np.ndarray] = []
        named: list[tuple[str, int]] = []
        first = 0
        for symbols in self._front.phonemize(text):
            known = [symbol for symbol in symbols if symbol in self._front.vocab]
            ids = np.asarray([self._front.ids(symbols)], np.int64)
            *spectra, durations = self._session.run(None, {"ids": ids, "speed": np.ones(1, np.float32)})
            starts = _HOP_SAMPLES * np.concatenate([[0], np.cumsum(durations.ravel())]).astype(int) - _LEAD_SAMPLES
            named += phonemes_of(["_", *known, "_"], (first + np.maximum(starts, 0)).tolist())
            audio.append(self._synth(*(part[0] for part in spectra), rng))
            first += len(audio[-1])
        return Speech(np.concatenate(audio), RATE_HZ, named, text)


def phonemes_of(symbols: list[str], starts: list[int]) -> list[tuple[str, int]]:
    """Give a stress mark's time to its vowel, and call all punctuation a pause."""
    named: list[tuple[str, int]] = []
    stressed_from: int | None = None
    mark = ""
    for symbol, start in zip(symbols, starts, strict=False):
        if symbol in (_STRESS, _SECONDARY):
            stressed_from, mark = start, symbol
            continue
        name = mark + symbol if mark == _STRESS and symbol in _VOWELS else symbol
        pause = not symbol.isalpha() and symbol != " "
        named.append(("_" if pause else name, start if stressed_from is None else stressed_from))
        stressed_from, mark = None, ""
    return named


@cache
def _model() -> _Model:
    return _Model()


def hibari_version() -> str:
    """Version of the wheel whose speech this is."""
    return WHEEL.version


def speak_all(texts: Iterable[str], voice: HibariVoice) -> Generator[Speech, None, None]:
    """Speak texts one after another, lazily."""
    model = _model()
    for text in texts:
        yield model.speak(text)


@cache
def lexicon() -> tuple[str, ...]:
    """Common English words, for training alone: none that the evaluation or the recogniser's texts hold."""
    import gzip

    words = json.loads(gzip.decompress(Path(WHEEL.path(LEXICON)).read_bytes()))
    kept = {word for word in words if word.isascii() and word.isalpha() and word.islower() and 3 <= len(word) <= 10}
    return tuple(sorted(kept - content_words("heldout") - content_words("recogniser")))


def write_speech(folder: Path, *, minutes: float, seed: int) -> int:
    """Write so many minutes of held-out sentences as WAV files with a text beside each; returns how many files."""
    import soundfile

    texts = sentences(world="heldout", seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    spoken_s, count = 0.0, 0
    while spoken_s < 60.0 * minutes:
        text = next(texts)
        while len(text.split()) < WORDS:
            text += " " + next(texts)
        samples: Any = _model().speak(text).audio
        if len(samples) > 29 * RATE_HZ:
            continue
        path = folder / f"{count:04}.wav"
        soundfile.write(path, samples, RATE_HZ, subtype="PCM_16")
        path.with_suffix(".txt").write_text(text, encoding="utf-8")
        spoken_s, count = spoken_s + len(samples) / RATE_HZ, count + 1
    return count
