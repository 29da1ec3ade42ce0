"""https://github.com/speaches-ai/speaches/issues/599 (2026)

Kokoro through Speaches: louder speech is distorted, with cracks on the strongest syllables; quiet passages are
clean, and another Kokoro server gives clean audio for the same text.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech(rate, seconds=4.0, seed=14):
    rng, t = np.random.default_rng(seed), np.arange(int(rate * seconds)) / rate
    f0 = 180 + 18 * np.sin(2 * np.pi * 0.45 * t) + 6 * np.sin(2 * np.pi * 1.7 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    f1, f2 = 520 + 220 * np.sin(2 * np.pi * 1.3 * t), 1500 + 600 * np.sin(2 * np.pi * 0.9 * t + 1)
    voice = sum(np.sin(k * phase) * (np.exp(-((k * f0 - f1) / 180) ** 2) + 0.5 * np.exp(-((k * f0 - f2) / 260) ** 2)
                                     + 0.12 * np.exp(-((k * f0 - 2700) / 400) ** 2)) for k in range(1, 32))
    syllable = np.clip(np.sin(2 * np.pi * 2.1 * t + np.sin(2 * np.pi * 0.5 * t)), 0, None) ** 0.7
    hiss = np.diff(rng.standard_normal(t.size), prepend=0) * np.clip(np.sin(2 * np.pi * 1.05 * t + 3) - 0.6, 0, None)
    x = voice * syllable + 0.25 * hiss + 0.0005 * rng.standard_normal(t.size)
    return 0.6 * x / np.abs(x).max()


def main(folder, rate=24000):
    audio_data = speech(rate) / 0.6 * 1.25
    full = np.iinfo(np.int16).max
    sf.write(folder / "reference.wav", np.clip(audio_data * full, -32768, 32767).astype(np.int16), rate)
    normalized_audio_data = (audio_data * full).astype(np.int64).astype(np.int16)
    sf.write(folder / "degraded.wav", normalized_audio_data, rate)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
