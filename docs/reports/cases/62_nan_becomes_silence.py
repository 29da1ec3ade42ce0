# jundot/omlx#2934: the speech endpoint answers with a proper WAV of pure silence
# answer: snake() of the codec is NaN in float16 and NaN becomes 0 as int16; take the release that mends snake()
import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 24000


def voice(seconds=2.5):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(150 + 20 * np.sin(2 * np.pi * 0.8 * t)) / RATE
    return 0.25 * sum(np.sin(k * phase) / k for k in range(1, 12)) * np.abs(np.sin(2 * np.pi * 1.9 * t))


def wavs():
    x = voice()
    decoded = np.full_like(x, np.nan)  # what the codec returns in float16
    pcm = np.where(np.isnan(decoded), 0, decoded * 32767)  # an int16 cast makes 0 of NaN there
    return ((x * 32767).astype(np.int16), RATE), (pcm.astype(np.int16), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
