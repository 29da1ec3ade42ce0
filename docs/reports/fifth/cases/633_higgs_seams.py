"""https://github.com/0xShug0/audio.cpp/pull/436 (2026)

Higgs Audio TTS: in speech longer than one decode window there is a click every few seconds, right in the middle of a
word. reference.wav is the same codes decoded in one go, degraded.wav what the program wrote.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf

SR, HOP, HARMONICS = 24000, 960, 22


def codes(seconds=15.0):
    t = (np.arange(int(seconds * SR / HOP)) * HOP / SR)[:, None]
    k = np.arange(1, HARMONICS + 1)
    formant = 650 + 250 * np.sin(2 * np.pi * 0.9 * t)
    level = np.exp(-((k * 125 - formant) / 800) ** 2) * (0.55 + 0.45 * np.sin(2 * np.pi * 2.1 * t + 2.0))
    return level * np.exp(1j * k * (k + 1.5 * np.sin(2 * np.pi * 0.5 * t)))


def decode(z, reach=27):
    taps = np.arange(-reach, reach + 1)
    kernel = 0.3 * np.sign(taps) * np.exp(-np.abs(taps) / 4.0) + (taps == 0)
    padded = np.pad(z, ((reach, reach), (0, 0)))
    hidden = sum(w * padded[i:i + len(z)] for i, w in enumerate(kernel))
    t = np.arange(len(z) * HOP) / HOP
    y = np.zeros(t.size)
    for k in range(HARMONICS):
        envelope = np.interp(t, np.arange(len(z)), hidden[:, k])
        y += (envelope * np.exp(2j * np.pi * 125 * (k + 1) * t * HOP / SR)).real
    return 0.08 * y


def decode_chunked(z, frames=128, left=8, right=0):
    out = []
    for start in range(0, len(z), frames):
        first, stop = max(0, start - left), min(len(z), start + frames)
        y = decode(z[first:stop + right])
        out.append(y[(start - first) * HOP:(stop - first) * HOP])
    return np.concatenate(out)


def main(folder):
    z = codes()
    sf.write(Path(folder) / "reference.wav", decode(z), SR, subtype="PCM_16")
    sf.write(Path(folder) / "degraded.wav", decode_chunked(z), SR, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
