"""https://github.com/hajimehoshi/ebiten/pull/3687 (2026)

A decoded Vorbis file played as 16-bit PCM has harsh noise at the loud places.
"""
import os
import sys
import numpy as np
import soundfile as sf


def voice(rate, seconds=3.0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(int(rate * seconds)) / rate
    f0 = 130 + 25 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(f0) / rate
    x = sum(np.sin(k * phase + k) * np.exp(-((k * 130 - 650) / 900) ** 2) / k ** 0.3 for k in range(1, 25))
    env = np.clip(np.sin(2 * np.pi * 1.7 * t), 0, 1) ** 0.7
    x = x * env + 0.02 * env * rng.standard_normal(t.size)
    return x / np.abs(x).max()


def to_int16(samples):
    return (samples * 32767).astype(np.int64).astype(np.uint16).view(np.int16)


def main(folder):
    rate = 44100
    decoded = voice(rate) * 1.25
    sf.write(os.path.join(folder, "reference.wav"), decoded.clip(-1, 1), rate, subtype="FLOAT")
    sf.write(os.path.join(folder, "degraded.wav"), to_int16(decoded), rate, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
