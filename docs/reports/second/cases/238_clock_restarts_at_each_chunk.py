"""https://github.com/autonomous-ai/autonomous-os/pull/335 (2026)

ElevenLabs' 24 kHz voice has artefacts on a 44.1 kHz loudspeaker, and they depend on the sizes of the network's chunks.
"""

import sys
from pathlib import Path

import numpy as np
import soundfile

RATE, DEVICE_RATE = 24000, 44100


def voice(seconds=4.0):
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(125 + 24 * np.sin(2 * np.pi * 0.6 * t)) / RATE
    tone = sum(np.sin(k * phase + 0.3 * k * k) / k for k in range(1, 16))
    return 0.18 * tone * (0.3 + np.abs(np.sin(2 * np.pi * 1.4 * t)))


def resample(chunk):
    count = int(len(chunk) * DEVICE_RATE / RATE)
    return np.interp(np.linspace(0, len(chunk) - 1, count), np.arange(len(chunk)), chunk)


def wavs():
    x = voice()
    positions = np.arange(int(len(x) * DEVICE_RATE / RATE)) * RATE / DEVICE_RATE
    reference = np.interp(positions, np.arange(len(x)), x)
    sizes = np.random.default_rng(7).integers(200, 1100, 400)
    edges = np.minimum(np.cumsum(sizes), len(x))
    degraded = np.concatenate([resample(chunk) for chunk in np.split(x, edges) if len(chunk)])
    return (reference.astype(np.float32), DEVICE_RATE), (degraded.astype(np.float32), DEVICE_RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
