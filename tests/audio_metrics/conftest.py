"""Signals that the tests of audio_metrics share: made here, seeded, never read from a file of the repository."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def make_naive_power(x: np.ndarray, fs: int = FS) -> np.ndarray:
    """A direct transcription of the convention: a loop over frames, a full complex DFT, no shared code."""
    hop = round(256 * fs / 24000)
    n = 4 * hop
    w = np.array([0.5 - 0.5 * np.cos(2 * np.pi * i / n) for i in range(n)])
    rows = [np.abs(np.fft.fft(w * x[s : s + n])[: n // 2 + 1]) ** 2 for s in range(0, len(x) - n + 1, hop)]
    return np.array(rows) / np.sum(w * w)


def make_padded_pair() -> tuple[np.ndarray, np.ndarray]:
    """A pair of 3.3 s with noise 20 dB down, both silent for 0.1 s at either end, float64."""
    x = make_speech_like(3.1, 1) + 1e-4 * np.random.default_rng(5).standard_normal(round(3.1 * FS))
    noise = np.random.default_rng(6).standard_normal(len(x))
    y = x + noise * np.sqrt(np.mean(x**2) / np.mean(noise**2)) * 0.1
    return np.pad(x, FS // 10), np.pad(y, FS // 10)


@pytest.fixture
def references() -> dict[str, Any]:
    """What torchmetrics says, made by ``make_references.py``."""
    return json.loads(Path(__file__).with_name("references.json").read_text(encoding="utf-8"))


@pytest.fixture
def padded_pair() -> tuple[np.ndarray, np.ndarray]:
    return make_padded_pair()


@pytest.fixture
def naive_power() -> Callable[..., np.ndarray]:
    return make_naive_power


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
