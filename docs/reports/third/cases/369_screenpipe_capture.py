"""https://github.com/screenpipe/screenpipe/pull/534 (2024)

Recording from a display's audio device gives useless transcripts, the recording sounds slow and far too deep;
a one-channel microphone is transcribed well.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech(rate, seconds=4.0, seed=12):
    rng, t = np.random.default_rng(seed), np.arange(int(rate * seconds)) / rate
    f0 = 150 + 18 * np.sin(2 * np.pi * 0.45 * t) + 6 * np.sin(2 * np.pi * 1.7 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    f1, f2 = 520 + 220 * np.sin(2 * np.pi * 1.3 * t), 1500 + 600 * np.sin(2 * np.pi * 0.9 * t + 1)
    voice = sum(np.sin(k * phase) * (np.exp(-((k * f0 - f1) / 180) ** 2) + 0.5 * np.exp(-((k * f0 - f2) / 260) ** 2)
                                     + 0.12 * np.exp(-((k * f0 - 2700) / 400) ** 2)) for k in range(1, 32))
    syllable = np.clip(np.sin(2 * np.pi * 2.1 * t + np.sin(2 * np.pi * 0.5 * t)), 0, None) ** 0.7
    hiss = np.diff(rng.standard_normal(t.size), prepend=0) * np.clip(np.sin(2 * np.pi * 1.05 * t + 3) - 0.6, 0, None)
    x = voice * syllable + 0.25 * hiss + 0.0005 * rng.standard_normal(t.size)
    return 0.6 * x / np.abs(x).max()


def main(folder, rate=16000):
    left = speech(rate)
    right = 0.8 * left + 0.002 * np.random.default_rng(5).standard_normal(left.size)
    device_buffer = np.stack([left, right], axis=1).astype(np.float32).reshape(-1)
    sf.write(folder / "reference.wav", device_buffer.reshape(-1, 2).mean(axis=1), rate)
    sf.write(folder / "degraded.wav", device_buffer, rate)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
