"""https://github.com/FluidInference/FluidAudio/pull/868 (2026)

Japanese Kokoro on Core ML is too loud and harsh; English and Mandarin, which are peak-normalised, are not.
"""

import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 24000


def voice(seconds=4.0):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(190 + 35 * np.sin(2 * np.pi * 0.7 * t) + 12 * np.sin(2 * np.pi * 2.3 * t)) / RATE
    tone = sum(np.sin(k * phase + 0.7 * k) / k**1.1 for k in range(1, 20))
    x = tone * (0.15 + np.abs(np.sin(2 * np.pi * 1.1 * t)) ** 1.5)
    return 0.82 * x / np.abs(x).max()


def istft(x, win=20, hop=5, normalised=True):
    """Overlap-add with a periodic Hann window twice, as the converted tail does it."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / win)
    padded = np.concatenate([np.zeros(win), x, np.zeros(win)])
    out, envelope = np.zeros_like(padded), np.zeros_like(padded)
    for start in range(0, len(padded) - win + 1, hop):
        out[start : start + win] += padded[start : start + win] * window**2
        envelope[start : start + win] += window**2
    out = out / np.maximum(envelope, 1e-8) if normalised else out
    return out[win : win + len(x)]


def wavs():
    x = voice()
    reference = istft(x)
    degraded = istft(x, normalised=False)  # the sum of the squared windows is 1.5
    return tuple((np.clip(np.round(y * 32767), -32768, 32767).astype(np.int16), RATE) for y in (reference, degraded))


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
