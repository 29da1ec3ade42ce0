"""https://github.com/openai/openai-agents-python/pull/4755 (2026)

StreamedAudioResult divides PCM16 samples by 32767, so -32768 becomes -1.00003; a contributor asks to divide by
32768 and compares the two float outputs.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech(rate, seconds=4.0, seed=15):
    rng, t = np.random.default_rng(seed), np.arange(int(rate * seconds)) / rate
    f0 = 105 + 18 * np.sin(2 * np.pi * 0.45 * t) + 6 * np.sin(2 * np.pi * 1.7 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    f1, f2 = 520 + 220 * np.sin(2 * np.pi * 1.3 * t), 1500 + 600 * np.sin(2 * np.pi * 0.9 * t + 1)
    voice = sum(np.sin(k * phase) * (np.exp(-((k * f0 - f1) / 180) ** 2) + 0.5 * np.exp(-((k * f0 - f2) / 260) ** 2)
                                     + 0.12 * np.exp(-((k * f0 - 2700) / 400) ** 2)) for k in range(1, 32))
    syllable = np.clip(np.sin(2 * np.pi * 2.1 * t + np.sin(2 * np.pi * 0.5 * t)), 0, None) ** 0.7
    hiss = np.diff(rng.standard_normal(t.size), prepend=0) * np.clip(np.sin(2 * np.pi * 1.05 * t + 3) - 0.6, 0, None)
    x = voice * syllable + 0.25 * hiss + 0.0005 * rng.standard_normal(t.size)
    return 0.6 * x / np.abs(x).max()


def main(folder, rate=24000):
    pcm = np.round(speech(rate) / 0.6 * 32767).astype(np.int16)
    pcm[np.argmin(pcm)] = -32768
    sf.write(folder / "reference.wav", pcm.astype(np.float32) / 32768.0, rate, subtype="FLOAT")
    sf.write(folder / "degraded.wav", pcm.astype(np.float32) / 32767.0, rate, subtype="FLOAT")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
