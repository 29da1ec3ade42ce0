"""https://github.com/peteonrails/voxtype/issues/641 (2026)

Dictation from a 48 kHz microphone: what the recognizer gets at 16 kHz is measurably dirtier than what the
microphone captured, with tones and hiss that were not in the room.
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

def resample(samples, source_rate, target_rate):
    ratio = source_rate / target_rate
    pos = np.arange(int(len(samples) / ratio)) * ratio
    return np.interp(pos, np.arange(len(samples)), samples)


def bandlimited(samples, source_rate, target_rate):
    spec = np.fft.rfft(samples)
    n = len(samples) * target_rate // source_rate
    return np.fft.irfft(spec[: n // 2 + 1], n) * target_rate / source_rate


out = Path(sys.argv[1])
microphone = speech(48000, 4.0)
sf.write(out / "reference.wav", bandlimited(microphone, 48000, 16000), 16000)
sf.write(out / "degraded.wav", resample(microphone, 48000, 16000), 16000)
