"""A recogniser trained on tones tells them apart, and hears where a recording is spoilt."""

import numpy as np
import pytest

from precision_eval.cases.voice.codec import log_mel
from precision_eval.cases.voice.recogniser import Recogniser
from tools.voice.recogniser_training import fit_recogniser

TONES_HZ = (0, 300, 800, 1700, 3500)  # "phoneme" i is a tone; 0 is silence


def tone_speech(seed: int, n_segments: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Audio of random tones, and which one each frame is."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 12, n_segments)
    ids = rng.integers(0, len(TONES_HZ), n_segments)
    time_s = np.arange(320 * lengths.sum()) / 16_000
    hz = np.repeat(np.array(TONES_HZ)[ids], 320 * lengths)
    audio = 0.1 * np.where(hz > 0, np.sin(2 * np.pi * hz * time_s), 0.0)
    return audio.astype(np.float32), np.repeat(ids, lengths)


@pytest.fixture(scope="module")
def tones() -> Recogniser:
    examples = [(log_mel(audio), labels) for audio, labels in map(tone_speech, range(8))]
    return fit_recogniser(examples, n_phonemes=len(TONES_HZ), steps=40, seed=0)


def test_it_learns_tones_and_does_not_take_one_for_another(tones):
    audio, labels = tone_speech(100, 150)
    right = tones.phoneme_accuracy(audio, labels)
    assert right.value > 0.9
    is_speech = labels > 0
    assert right.value == pytest.approx((tones.recognise(audio) == labels)[is_speech].mean())
    _, other = tone_speech(101, 150)
    n_frames = min(len(labels), len(other))
    assert tones.phoneme_accuracy(audio[: 320 * n_frames], other[:n_frames]).value < 0.4
    assert tones.phoneme_accuracy(np.zeros_like(audio), labels).value < 0.05


def test_a_spoilt_last_third_shows_there_and_only_there(tones):
    audio, labels = tone_speech(102, 150)
    clean = tones.phoneme_accuracy(audio, labels)
    spoilt = audio.copy()
    spoilt[len(audio) * 2 // 3 + 320 :] = 0
    found = tones.phoneme_accuracy(spoilt, labels)
    assert found.first_third == clean.first_third
    assert found.last_third < 0.1 < clean.last_third
    assert found.value < clean.value - 0.2
