"""Speech with frame-exact phonemes, generated and not shipped.

Twelve espeak-ng voices, or the one of hibari-tts on twelve texts, speak the sentences of `tools.voice.text`. Audio is
mono float32 at 16 kHz, full scale = 1.0, 0.07 RMS while someone speaks. Time is counted in frames of 320 samples (50 a
second), and a frame carries the phoneme at its centre. A phoneme that covers no frame centre (a few per cent of them,
closures and glides of some 10 ms) is merged into its neighbours; adjacent silences are one silence, of 0.25 s at most.

One core makes some hundreds of minutes of espeak-ng's speech per minute, and ninety of hibari-tts's; for more, give
each speaker to a process of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, SAMPLE_RATE_HZ
from precision_eval.cases.voice.script import Conditioning, conditioning_from_lengths
from precision_eval.core.errors import ParameterError, entry_of, unknown_name
from tools.voice import hibari
from tools.voice.espeak import EspeakVoice, Speech, espeak_version, speak_all
from tools.voice.text import sentences

MAX_SILENCE_S = 0.25
PASSAGE_MIN_S, PASSAGE_MAX_S = 20.0, 60.0
_SENTENCE_PAUSE_S = (0.1, 0.19)  # the next sentence begins with up to 0.05 s of silence of its own
SILENCE_ID = 0

# "IR", "VR", "aI2" and "w#" belong to accents that none of the twelve has; ids are in shipped files, so they stay
PHONEMES: tuple[str, ...] = (
    "_",  # every pause: espeak-ng's "_", "_:", "_!", ...
    *("0", "3", "3:", ";", "?", "@", "@-", "@2", "@5", "@L", "A:", "A@", "D", "E", "I", "I#", "I2", "IR", "N", "O2"),
    *("O:", "O@", "OI", "S", "T", "U", "U@", "V", "VR", "Z", "a", "a#", "aI", "aI2", "aI3", "aI@", "aU", "aa", "b"),
    *("d", "dZ", "e@", "eI", "f", "g", "h", "i", "i:", "i@", "i@3", "j", "k", "l", "m", "n", "n-", "o@", "oU", "p"),
    *("r", "r-", "s", "t", "t#", "t2", "tS", "u:", "v", "w", "w#", "z"),
)


@dataclass(frozen=True)
class Speaker:
    """A voice, and the gain that brings it to the common level."""

    voice: Any
    gain: float


SPEAKERS: tuple[Speaker, ...] = (
    Speaker(EspeakVoice(name="en-us", pitch=45, rate_wpm=165), 0.79),
    Speaker(EspeakVoice(name="en-us+f2", pitch=50, rate_wpm=160), 0.62),
    Speaker(EspeakVoice(name="en+m3", pitch=35, rate_wpm=155), 0.74),
    Speaker(EspeakVoice(name="en-gb-x-rp+Annie", pitch=50, rate_wpm=165), 0.70),
    Speaker(EspeakVoice(name="en-gb-x-rp+m5", pitch=60, rate_wpm=170), 0.75),
    Speaker(EspeakVoice(name="en-us+f4", pitch=40, rate_wpm=175), 0.67),
    Speaker(EspeakVoice(name="en-us+Alicia", pitch=45, rate_wpm=170), 0.68),
    Speaker(EspeakVoice(name="en+steph", pitch=45, rate_wpm=150), 0.71),
    Speaker(EspeakVoice(name="en-us+Mario", pitch=55, rate_wpm=160), 0.66),
    Speaker(EspeakVoice(name="en+linda", pitch=40, rate_wpm=165), 0.55),
    Speaker(EspeakVoice(name="en-us+Mike", pitch=30, rate_wpm=150), 1.21),
    Speaker(EspeakVoice(name="en+adam", pitch=65, rate_wpm=175), 0.86),
)


@dataclass(frozen=True, kw_only=True)
class SpeechSource:
    """Who speaks, in which phonemes, how many scripts show it, and words for training beyond the texts' own."""

    name: str
    n_scripts: int
    version: Callable[[], str]
    speakers: tuple[Speaker, ...]
    phonemes: tuple[str, ...]
    speak_all: Callable[[Iterable[str], Any], Generator[Speech, None, None]]
    lexicon: Callable[[], tuple[str, ...]] = tuple


SOURCES: tuple[SpeechSource, ...] = (
    SpeechSource(
        name="espeak", n_scripts=12, version=espeak_version, speakers=SPEAKERS, phonemes=PHONEMES, speak_all=speak_all
    ),
    SpeechSource(
        name="hibari",
        n_scripts=4,
        version=hibari.hibari_version,
        speakers=(Speaker(hibari.HibariVoice(), 1.3),) * len(SPEAKERS),
        phonemes=hibari.PHONEMES,
        speak_all=hibari.speak_all,
        lexicon=hibari.lexicon,
    ),
)


def source_by_name(name: str) -> SpeechSource:
    """The source of that name."""
    return entry_of("source of speech", name, SOURCES, by="name")


@dataclass(frozen=True)
class Passage:
    """Continuous speech of one speaker with the phoneme of every frame, and each sentence with its first frame."""

    speaker: int
    audio: np.ndarray
    segments: np.ndarray
    sentences: tuple[tuple[int, str], ...] = ()


def conditioning_from_segments(segments: np.ndarray) -> Conditioning:
    """Expand phoneme segments to per-frame inputs."""
    segments = np.asarray(segments)
    if segments.ndim != 2 or segments.shape[1] != 3 or len(segments) == 0:
        raise ParameterError(f"segments must have shape (n ≥ 1, 3), found {segments.shape}")
    phoneme_ids, starts, ends = segments.T
    if starts[0] != 0 or np.any(starts[1:] != ends[:-1]) or np.any(ends <= starts):
        raise ParameterError(
            "segments must start at frame 0 and follow each other without gap, overlap or empty segment"
        )
    return conditioning_from_lengths(phoneme_ids, ends - starts)


def phoneme_id(name: str, phonemes: tuple[str, ...] = PHONEMES) -> int:
    """Id of a phoneme name; every name that begins with ``_`` is silence."""
    if name.startswith("_"):
        return SILENCE_ID
    if name not in phonemes:
        raise unknown_name("phoneme", name, phonemes)
    return phonemes.index(name)


@dataclass
class _Part:
    """A sentence at the library's rate: samples, and phonemes with their first samples."""

    audio: np.ndarray
    ids: list[int]
    starts: list[int]
    text: str = ""


def _phones(speech: Speech, phonemes: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Ids and first samples, beginning with silence at 0 and with adjacent silences joined."""
    ids, starts = [SILENCE_ID], [0]
    for name, start in speech.phonemes:
        found = phoneme_id(name, phonemes)
        if found == SILENCE_ID and ids[-1] == SILENCE_ID:
            continue
        ids.append(found)
        starts.append(start)
    return ids, starts


def _cap_silences(speech: Speech, phonemes: tuple[str, ...] = PHONEMES) -> _Part:
    """Cut the middle out of each silence that is longer than `MAX_SILENCE_S`."""
    longest = int(MAX_SILENCE_S * speech.sample_rate_hz)
    ids, starts = _phones(speech, phonemes)
    ends = [*starts[1:], len(speech.audio)]
    pieces, new_starts, total = [], [], 0
    for found, start, end in zip(ids, starts, ends, strict=True):
        piece = speech.audio[start:end]
        if found == SILENCE_ID and len(piece) > longest:
            piece = np.concatenate([piece[: longest // 2], piece[len(piece) - (longest - longest // 2) :]])
        pieces.append(piece)
        new_starts.append(total)
        total += len(piece)
    return _Part(np.concatenate(pieces), ids, new_starts, speech.text)


def _with_pause(part: _Part, *, pause_s: float, sample_rate_hz: int) -> _Part:
    """Make the silence at the end of a sentence last exactly `pause_s`."""
    end = part.starts[-1] if part.ids[-1] == SILENCE_ID else len(part.audio)
    wanted = end + int(pause_s * sample_rate_hz)
    audio = np.zeros(wanted, dtype=np.float32)
    kept = min(wanted, len(part.audio))
    audio[:kept] = part.audio[:kept]
    if end == len(part.audio):
        return _Part(audio, [*part.ids, SILENCE_ID], [*part.starts, end], part.text)
    return _Part(audio, part.ids, part.starts, part.text)


def frame_segments(ids: list[int], start_frames: np.ndarray, n_frames: int) -> np.ndarray:
    """Give each frame the phoneme at its centre and join the frames of one phoneme."""
    index = np.searchsorted(start_frames, np.arange(n_frames) + 0.5, side="right") - 1
    phone = np.asarray(ids)[index]
    changes = np.diff(index).astype(bool) & ~((phone[1:] == SILENCE_ID) & (phone[:-1] == SILENCE_ID))
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1]) if n_frames else np.zeros(0, dtype=int)
    ends = np.append(starts[1:], n_frames) if n_frames else starts
    return np.stack([phone[starts], starts, ends], axis=1).astype(np.int32)


def _assemble(parts: list[_Part], *, speaker: int, gain: float, sample_rate_hz: int) -> Passage:
    """Join sentences, resample to 16 kHz and lay the phonemes on the frame grid."""
    from scipy.signal import resample_poly

    offsets = np.cumsum([0, *(len(part.audio) for part in parts)])
    raw = np.concatenate([part.audio for part in parts])
    divisor = np.gcd(SAMPLE_RATE_HZ, sample_rate_hz)
    audio = resample_poly(raw, SAMPLE_RATE_HZ // divisor, sample_rate_hz // divisor)
    audio = np.clip(audio * gain, -1.0, 1.0).astype(np.float32)
    ids = [found for part in parts for found in part.ids]
    starts = np.concatenate([np.asarray(p.starts) + offset for p, offset in zip(parts, offsets, strict=False)])
    segments = frame_segments(ids, starts * (FRAME_RATE_HZ / sample_rate_hz), len(audio) // HOP_SAMPLES)
    firsts = (offsets[:-1] * FRAME_RATE_HZ / sample_rate_hz).round().astype(int).tolist()
    return Passage(speaker, audio, segments, tuple(zip(firsts, (part.text for part in parts), strict=True)))


def _checked_source(name: str, speaker: int, minutes: float) -> SpeechSource:
    source = source_by_name(name)
    if not 0 <= speaker < len(source.speakers):
        raise ParameterError(f"speaker {speaker} does not exist; use 0 to {len(source.speakers) - 1}")
    if not minutes > 0:
        raise ParameterError(f"minutes is {minutes}; it must be positive")
    return source


def _passages(
    source: SpeechSource, *, world: str, speaker: int, seed: int, shortest_s: float, longest_s: float
) -> Generator[Passage, None, None]:
    """Passages without end; each lasts between the two lengths, which must lie a sentence (10 s) apart."""
    rng = random.Random(f"corpus/{world}/{speaker}/{seed}/{longest_s}")
    lexicon = source.lexicon() if world == "train" else ()
    texts = sentences(world=world, seed=rng.getrandbits(62), lexicon=lexicon)
    who = source.speakers[speaker]
    parts: list[_Part] = []
    n_samples, wanted_s = 0, rng.uniform(shortest_s, longest_s - 10.0)
    with closing(source.speak_all(texts, who.voice)) as speeches:
        for speech in speeches:
            rate = speech.sample_rate_hz
            capped = _cap_silences(speech, source.phonemes)
            part = _with_pause(capped, pause_s=rng.uniform(*_SENTENCE_PAUSE_S), sample_rate_hz=rate)
            parts.append(part)
            n_samples += len(part.audio)
            if n_samples >= wanted_s * rate:
                yield _assemble(parts, speaker=speaker, gain=who.gain, sample_rate_hz=rate)
                parts, n_samples, wanted_s = [], 0, rng.uniform(shortest_s, longest_s - 10.0)


def generate_passages(
    *, world: str, speaker: int, minutes: float, seed: int, speech: str = "espeak"
) -> Iterator[Passage]:
    """Passages of 20 to 60 s until their sum reaches a length."""
    source = _checked_source(speech, speaker, minutes)
    missing = round(minutes * 60 * SAMPLE_RATE_HZ)
    lengths = {"shortest_s": PASSAGE_MIN_S, "longest_s": PASSAGE_MAX_S}
    with closing(_passages(source, world=world, speaker=speaker, seed=seed, **lengths)) as passages:
        while missing > 0:
            passage = next(passages)
            missing -= len(passage.audio)
            yield passage


def long_passage(*, world: str, speaker: int, minutes: float, seed: int, speech: str = "espeak") -> Passage:
    """One contiguous passage of at least that many minutes, and less than 20 s more."""
    source = _checked_source(speech, speaker, minutes)
    lengths = {"shortest_s": minutes * 60, "longest_s": minutes * 60 + 20.0}
    with closing(_passages(source, world=world, speaker=speaker, seed=seed, **lengths)) as passages:
        return next(passages)
