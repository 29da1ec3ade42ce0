"""https://github.com/dograh-hq/pipecat/pull/59 (2026)

With Speechify at pcm_16000 the voice is one and a half times too slow, and too low.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile

SENT, CLAIMED = 24000, 16000  # what the service streams, and what its response header says


def voice(seconds=3.0):
    t = np.arange(int(seconds * SENT)) / SENT
    phase = 2 * np.pi * np.cumsum(180 + 35 * np.sin(2 * np.pi * 0.8 * t)) / SENT
    tone = sum(np.sin(k * phase) / k**1.2 for k in range(1, 16))
    return 0.25 * tone * np.abs(np.sin(2 * np.pi * 2.4 * t)) ** 0.6


def wavs():
    pcm = (voice() * 32767).astype(np.int16)
    return (pcm, SENT), (pcm, CLAIMED)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
