"""https://github.com/hkjarral/AVA-AI-Voice-Agent-for-Asterisk/issues/553 (2026)

The agent's voice on the telephone (24 kHz from the provider, 8 kHz to the caller) has harsh, metallic "s"
sounds; vowels are fine, nothing clips.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech(rate, seconds=4.0, seed=13):
    rng, t = np.random.default_rng(seed), np.arange(int(rate * seconds)) / rate
    f0 = 125 + 18 * np.sin(2 * np.pi * 0.45 * t) + 6 * np.sin(2 * np.pi * 1.7 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    f1, f2 = 520 + 220 * np.sin(2 * np.pi * 1.3 * t), 1500 + 600 * np.sin(2 * np.pi * 0.9 * t + 1)
    voice = sum(np.sin(k * phase) * (np.exp(-((k * f0 - f1) / 180) ** 2) + 0.5 * np.exp(-((k * f0 - f2) / 260) ** 2)
                                     + 0.12 * np.exp(-((k * f0 - 2700) / 400) ** 2)) for k in range(1, 32))
    syllable = np.clip(np.sin(2 * np.pi * 2.1 * t + np.sin(2 * np.pi * 0.5 * t)), 0, None) ** 0.7
    hiss = np.diff(rng.standard_normal(t.size), prepend=0) * np.clip(np.sin(2 * np.pi * 1.05 * t + 3) - 0.6, 0, None)
    x = voice * syllable + 0.9 * hiss + 0.0005 * rng.standard_normal(t.size)
    return 0.6 * x / np.abs(x).max()


def resample_audio(x, source, target):
    pos = np.arange(int(len(x) * target / source)) * (source / target)
    return np.interp(pos, np.arange(len(x)), x)


def main(folder, source=24000, target=8000):
    x = speech(source)
    n = np.arange(-96, 97)
    taps = np.sinc(n * 3600 * 2 / source) * np.hamming(n.size)
    clean = np.convolve(x, taps / taps.sum(), mode="same")[::3]
    sf.write(folder / "reference.wav", clean, target)
    sf.write(folder / "degraded.wav", resample_audio(x, source, target), target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
