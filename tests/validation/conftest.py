"""Sound for the tests of the ladder."""

import numpy as np
import pytest

FS = 16000


def make_speech(seconds, seed):
    """Harmonics with a moving pitch, noise and an envelope with soft pauses."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * FS)) / FS
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * t + seed) + 10 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / FS
    voice = sum(np.sin(k * phase) / k for k in range(1, 12))
    noise = np.convolve(rng.standard_normal(len(t)), [1.0, 0.8, 0.4], mode="same")
    return 0.08 * (0.05 + np.clip(np.sin(2 * np.pi * 1.1 * t + seed), 0, 1)) * (voice + 0.3 * noise)


@pytest.fixture
def speech():
    return make_speech


@pytest.fixture
def pair():
    """A reference of 5.3 s and the same with noise 30 dB below it."""
    reference = make_speech(5.3, 1)
    noise = np.random.default_rng(2).standard_normal(len(reference))
    return reference, reference + noise * np.sqrt(np.mean(reference**2) / np.mean(noise**2)) * 10 ** (-30 / 20)
