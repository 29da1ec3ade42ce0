# microsoft/VibeVoice#281: a loud recording pops after float32 -> int16: samples at +1.0 become -32768
# answer: scale by 32767 (or clip) before the cast; 32768 does not fit into int16 and wraps
import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000


def voice(seconds=3.0):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(130 + 20 * np.sin(2 * np.pi * 0.9 * t)) / RATE
    tone = sum(np.sin(k * phase) / k for k in range(1, 12))
    return tone * np.abs(np.sin(2 * np.pi * 1.7 * t)) ** 0.5


def wavs():
    x = np.clip(voice(), -1.0, 1.0)  # a limiter leaves plateaus at full scale
    reference = (x * 32767.0).astype(np.int16)
    degraded = (x * 32768.0).astype(np.int64).astype(np.int16)
    return (reference, RATE), (degraded, RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
