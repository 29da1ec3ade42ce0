# 0xShug0/audio.cpp#622: streaming VoxCPM2 clicks at every 160 ms patch boundary; the offline model id is clean
# answer: not a dtype fault: each patch is decoded without its neighbours and joined hard; decode it with left context
import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 24000
PATCH = int(0.160 * RATE)


def voice(seconds=4.0):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(140 + 30 * np.sin(2 * np.pi * 0.6 * t)) / RATE
    tone = sum(np.sin(k * phase + k) / k for k in range(1, 14))
    return 0.2 * tone * (0.2 + np.abs(np.sin(2 * np.pi * 1.3 * t)))


def wavs():
    x = voice()
    y = x.copy()
    edge = np.exp(-np.arange(120) / 25)  # a decoder that lacks context is off at both edges of its patch
    for start in range(0, len(x) - PATCH + 1, PATCH):
        y[start : start + 120] *= 1 - 0.6 * edge
        y[start + PATCH - 120 : start + PATCH] *= 1 + 0.4 * edge[::-1]
    return (x.astype(np.float32), RATE), (y.astype(np.float32), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
