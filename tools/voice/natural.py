"""Natural-sounding synthesised speech with its exact texts, for what transcribes: made by hibari-tts, and not shipped.

hibari-tts 0.2.1 (Apache-2.0; one voice, distilled from Kokoro-82M, Apache-2.0) speaks the held-out sentences of
:mod:`tools.voice.text`. It is no human speech, and whatever is measured on it has to say so.
"""

from __future__ import annotations

from pathlib import Path

from precision_eval.cases.adapters.wheels import Wheel
from tools.voice.text import sentences

MODEL = "hibari/assets/hibari.onnx"
WHEEL = Wheel(
    name="hibari-tts",
    version="0.2.1",
    licence="Apache-2.0",
    files=((MODEL, "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"),),
)
RATE_HZ, WORDS = 24_000, 60
"""About 25 s of speech, what Whisper hears at once."""


def speak(folder: Path, *, minutes: float, seed: int) -> int:
    """Write so many minutes as WAV files with a text beside each; returns how many files."""
    import numpy as np
    import soundfile

    WHEEL.path(MODEL)
    from hibari import Hibari

    voice, texts = Hibari(), sentences(world="heldout", seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    spoken_s, count = 0.0, 0
    while spoken_s < 60.0 * minutes:
        text = next(texts)
        while len(text.split()) < WORDS:
            text += " " + next(texts)
        samples = np.asarray(voice(text, seed=seed))
        if len(samples) > 29 * RATE_HZ:
            continue
        path = folder / f"{count:04}.wav"
        soundfile.write(path, samples, RATE_HZ, subtype="PCM_16")
        path.with_suffix(".txt").write_text(text, encoding="utf-8")
        spoken_s, count = spoken_s + len(samples) / RATE_HZ, count + 1
    return count
