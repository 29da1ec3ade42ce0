"""https://github.com/jianchang512/pyvideotrans/pull/1194 (2026)

Dubbing with background music: the voice volume is set to 200 %, but in the finished video it is no louder than at
100 %. reference.wav is voice (200 %) and music as they should sound together, degraded.wav what came out.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf

SR = 44100


def voice(t, rng):
    f0 = 165 + 20 * np.sin(2 * np.pi * 0.9 * t)
    phase = 2 * np.pi * np.cumsum(f0) / SR
    x = sum(np.exp(-((k * 165 - 700) / 1000) ** 2) * np.sin(k * phase) for k in range(1, 22))
    gate = np.clip(1.4 * np.sin(2 * np.pi * 1.9 * t) + 0.5, 0, 1)
    x = x * gate + 0.01 * rng.standard_normal(t.size) * gate
    return 0.3 * x / np.abs(x).max()


def music(t):
    chord = sum(np.sin(2 * np.pi * f * t) for f in (220.0, 277.2, 329.6))
    return 0.06 * chord * (0.6 + 0.4 * np.exp(-((t * 2) % 1) * 4))


def amix(inputs, normalize):
    mixed = np.sum(inputs, axis=0)
    return mixed / len(inputs) if normalize else mixed


def main(folder):
    folder = Path(folder)
    t = np.arange(int(SR * 4)) / SR
    tracks = [2.0 * voice(t, np.random.default_rng(1)), music(t)]
    sf.write(folder / "reference.wav", amix(tracks, normalize=False), SR, subtype="PCM_16")
    sf.write(folder / "degraded.wav", amix(tracks, normalize=True), SR, subtype="PCM_16")


if __name__ == "__main__":
    main(sys.argv[1])
