"""https://github.com/OHF-Voice/piper1-gpl/issues/253 (2026)

piper --sentence-silence 0.25 with a 22,050 Hz voice: the first sentence is right, all that follows is white noise.
"""

import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 22050


def sentence(seconds, pitch):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(pitch + 25 * np.sin(2 * np.pi * 0.8 * t)) / RATE
    tone = sum(np.sin(k * phase + 0.4 * k) / k for k in range(1, 14))
    return np.round(4000 * tone * np.abs(np.sin(2 * np.pi * 1.4 * t))).astype("<i2")


def joined(silence_bytes):
    parts = [sentence(1.5, 150), sentence(1.8, 165), sentence(1.3, 140)]
    data = bytes(silence_bytes).join(part.tobytes() for part in parts)
    return np.frombuffer(data[: len(data) // 2 * 2], "<i2")


def wavs():
    nbytes = int(RATE * 0.25 * 2)  # 11,025: half a frame
    return (joined(nbytes + 1), RATE), (joined(nbytes), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
