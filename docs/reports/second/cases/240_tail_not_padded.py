"""https://github.com/sarulab-speech/Sidon/issues/1 (2025)

Speech restored by the whole pipeline loses some tens of milliseconds at its end.
"""

import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 48000
HOP = 960  # samples of output for one frame of features
KERNEL = 3  # frames that the last convolutions see, without padding at the end


def voice(seconds=2.5):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(140 + 26 * np.sin(2 * np.pi * 0.8 * t)) / RATE
    tone = sum(np.sin(k * phase + 0.4 * k) / k for k in range(1, 18))
    return 0.15 * tone * (0.25 + np.abs(np.sin(2 * np.pi * 1.3 * t)))


def wavs():
    x = voice()
    frames = len(x) // HOP - (KERNEL - 1)
    return (x.astype(np.float32), RATE), (x[: frames * HOP].astype(np.float32), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
