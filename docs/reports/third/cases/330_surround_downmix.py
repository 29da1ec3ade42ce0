"""https://github.com/Ryujinx/Ryujinx/pull/6160 (2024)

Games that output surround sound crackle loudly on stereo in the loud passages; quiet passages are clean.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech(sr, seconds, seed=0):
    """Voiced syllables with formants and hiss in between, about the level of a TTS voice."""
    rng = np.random.default_rng(seed)
    n = int(sr * seconds)
    t = np.arange(n) / sr
    f0 = 120 + 18 * np.sin(2 * np.pi * 0.45 * t) + 6 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    out = np.zeros(n)
    for k in range(1, 36):
        f = 120 * k
        amp = sum(g / (1 + ((f - c) / b) ** 2) for c, b, g in ((550, 120, 1.0), (1500, 180, 0.5), (2600, 250, 0.25)))
        out += amp * np.sin(k * phase + rng.uniform(0, 6.28))
    gate = np.clip(np.sin(2 * np.pi * 2.1 * t + 0.4 * np.sin(2 * np.pi * 0.6 * t)) * 3, 0, 1)
    hiss = np.diff(rng.standard_normal(n + 1)) * np.clip(-np.sin(2 * np.pi * 2.1 * t + 0.9), 0, 1) ** 6
    out = out * gate / np.abs(out).max() + 0.25 * hiss / np.abs(hiss).max()
    return 0.5 * out / np.abs(out).max()

def downsample_surround_to_stereo(front, center, back, coefficients):
    return sum(c * channel.astype(np.int64) for c, channel in zip(coefficients, (front, center, back)))


out, sr = Path(sys.argv[1]), 48000
fade = 0.35 + 0.65 * np.clip(np.sin(2 * np.pi * 0.3 * np.arange(4 * sr) / sr), 0, 1)
voice = speech(sr, 4.0) * fade * 32767
channels = [(np.roll(voice, delay) * gain).astype(np.int16) for delay, gain in ((0, 1.6), (3, 1.4), (7, 1.2))]
mixed = downsample_surround_to_stereo(*channels, (1, 0.7, 0.7)).astype(np.int64)
sf.write(out / "reference.wav", np.clip(mixed, -32768, 32767).astype(np.int16), sr)
sf.write(out / "degraded.wav", mixed.astype(np.int16), sr)
