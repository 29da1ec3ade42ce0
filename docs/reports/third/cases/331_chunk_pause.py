"""https://github.com/drakulavich/kesha-voice-kit/issues/808 (2026)

A long sentence without punctuation is synthesized in two chunks; where they are joined the speech stops for
about a second, two and a half times the natural pauses of the same clip.
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

out, sr = Path(sys.argv[1]), 24000
rng = np.random.default_rng(3)
voice = speech(sr, 6.0) * 0.9
floor = lambda seconds: 0.0004 * rng.standard_normal(int(seconds * sr))
quiet = np.flatnonzero(np.abs(voice[3 * sr : 4 * sr]) < 1e-3)
split = 3 * sr + int(quiet[len(quiet) // 2]) if len(quiet) else 3 * sr
first, second = voice[:split], voice[split:]
n = int(0.02 * sr)
ramp = np.linspace(0, 1, n)
first = np.concatenate([first[:-n], first[-n:] * ramp[::-1]])
second = np.concatenate([second[:n] * ramp, second[n:]])
sf.write(out / "reference.wav", np.concatenate([first, floor(0.12), second]), sr)
sf.write(out / "degraded.wav", np.concatenate([first, floor(0.55), floor(0.5), second]), sr)
