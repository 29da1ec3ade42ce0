"""The codec: mel frames against hand values and a loop, tokens against hand-made tables."""

import numpy as np
import pytest
from voice_mels import mel_distortion_db

from precision_eval.cases.voice.codec import (
    CODEBOOK_SIZE,
    HOP_SAMPLES,
    N_CODEBOOKS,
    N_MELS,
    SAMPLE_RATE_HZ,
    WINDOW_SAMPLES,
    Codec,
    load_codec,
    log_mel,
    mel_filters,
)
from precision_eval.core.errors import ParameterError

TINY = Codec(
    {
        "tables": np.array([[[0.0, 0.0], [10.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]], dtype=np.float32),
        "mean": np.array([1.0, 2.0], dtype=np.float32),
    }
)


def tone(frequency_hz: float, amplitude: float, n_samples: int = 16_000) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * frequency_hz * np.arange(n_samples) / SAMPLE_RATE_HZ)


def test_log_mel_is_that_of_a_loop_over_frames() -> None:
    audio = np.random.default_rng(0).normal(0, 0.1, 8_000).astype(np.float32)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_SAMPLES) / WINDOW_SAMPLES)
    for frame in range(3, 20):
        start = frame * HOP_SAMPLES + HOP_SAMPLES // 2 - WINDOW_SAMPLES // 2
        magnitude = np.abs(np.fft.rfft(window * audio[start : start + WINDOW_SAMPLES])) * 2 / window.sum()
        np.testing.assert_allclose(log_mel(audio)[frame], np.log(mel_filters() @ magnitude), atol=1e-4)


def test_a_full_scale_sine_on_a_bin_has_magnitude_one() -> None:
    frequency_hz = 64 * SAMPLE_RATE_HZ / WINDOW_SAMPLES  # 1000 Hz
    mel = log_mel(tone(frequency_hz, 1.0))[25]
    lobe = np.zeros(WINDOW_SAMPLES // 2 + 1)
    lobe[63:66] = [0.5, 1.0, 0.5]  # the Hann window's transform
    expected = mel_filters() @ lobe
    strong = expected > 1e-2
    np.testing.assert_allclose(mel[strong], np.log(expected[strong]), atol=1e-3)


@pytest.mark.parametrize("audio", [np.zeros((2, 400)), np.zeros(400, dtype=np.int16), np.array([0.0, np.nan])])
def test_unusable_audio_is_refused(audio: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="expected"):
        log_mel(audio)


def test_tiny_quantiser_by_hand() -> None:
    # mean (1, 2); first table moves x by 0 or 10, second moves y by +1 or -1
    np.testing.assert_array_equal(TINY.decode(np.array([[1, 0], [0, 1]])), [[11.0, 3.0], [1.0, 1.0]])


def test_planted_fault_is_caught() -> None:
    """Swapping two entries of a table, as a wrong index would, must move the decoded frames."""
    codec = load_codec()
    tokens = np.random.default_rng(9).integers(0, CODEBOOK_SIZE, (50, N_CODEBOOKS))
    mel = codec.decode(tokens)
    swapped = codec.tables.copy()
    swapped[0] = np.roll(swapped[0], 1, axis=0)
    assert mel_distortion_db(Codec({"tables": swapped, "mean": codec.mean}).decode(tokens), mel) > 3.0


@pytest.mark.parametrize(
    "tokens", [np.zeros((3, 3), int), np.zeros((3, 2)), np.array([[0, 2]]), np.array([[-1, 0]]), np.zeros(2, int)]
)
def test_unusable_tokens_are_refused(tokens: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="expected"):
        TINY.decode(tokens)


def test_the_shipped_codec() -> None:
    codec = load_codec()
    assert codec.tables.shape == (N_CODEBOOKS, CODEBOOK_SIZE, N_MELS)
    scale = [float(np.square(table).mean()) for table in codec.tables]
    assert scale == sorted(scale, reverse=True)  # coarse to fine
