"""https://github.com/SceneWorks/SceneWorks/pull/1809 (2026)

A sound effect comes out as loud hiss at full scale; the same render from the engine itself is nearly silent.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 44100


def render(seconds=2.5):
    """A render that failed: little more than its noise floor, with a peak of 0.0205."""
    t = np.arange(int(seconds * RATE)) / RATE
    x = np.random.default_rng(5).standard_normal(len(t)) + 0.6 * np.sin(2 * np.pi * 220 * t) * np.exp(-t)
    return 0.0205 * x / np.abs(x).max()


def write_wav_pcm16(samples):
    peak = np.abs(samples).max()
    scale = 32767 / peak if peak > 0 else 0.0
    return (samples * scale).astype(np.int16)


def wavs():
    samples = render()
    return ((np.clip(samples, -1, 1) * 32767).astype(np.int16), RATE), (write_wav_pcm16(samples), RATE)


def write(folder):
    for name, (samples, rate) in zip(("reference", "degraded"), wavs(), strict=True):
        soundfile.write(Path(folder) / f"{name}.wav", samples, rate)


if __name__ == "__main__":
    write(sys.argv[1])
