"""Signals that the tests of audio_metrics share: made here, seeded, never read from a file of the repository."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import soundfile

FS = 16000


def make_speech_like(seconds: float, seed: int, *, fs: int = FS, dtype: str = "float64") -> np.ndarray:
    """Harmonics with a moving pitch, coloured noise and an envelope with soft pauses; about −20 dB re full scale."""
    rng = np.random.default_rng(seed)
    n = round(seconds * fs)
    t = np.arange(n) / fs
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * t + seed) + 10 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / fs
    voice = sum(np.sin(k * phase) / k for k in range(1, 12))
    noise = np.convolve(rng.standard_normal(n), [1.0, 0.8, 0.4], mode="same")
    envelope = 0.05 + np.clip(np.sin(2 * np.pi * 1.1 * t + seed), 0, 1)
    return (0.08 * envelope * (voice + 0.3 * noise)).astype(dtype)


@pytest.fixture
def speech() -> Callable[..., np.ndarray]:
    return make_speech_like


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    """A reference of 5.3 s and the same with noise 30 dB below it, float64."""
    reference = make_speech_like(5.3, 1)
    noise = np.random.default_rng(2).standard_normal(len(reference))
    noise *= np.sqrt(np.mean(reference**2) / np.mean(noise**2)) * 10 ** (-30 / 20)
    return reference, reference + noise


@pytest.fixture
def wav(tmp_path) -> Callable[..., str]:
    def write(name: str, samples: np.ndarray, *, fs: int = FS, subtype: str = "FLOAT") -> str:
        path = tmp_path / name
        soundfile.write(path, samples, fs, subtype=subtype)
        return str(path)

    return write
