"""A recogniser trained on tones tells them apart, and hears where a recording is spoilt."""

import numpy as np
import pytest

from precision_eval.cases.voice.codec import log_mel
from precision_eval.cases.voice.recogniser import Recogniser, frame_labels
from tools.voice.recogniser_training import fit_recogniser

TONES_HZ = (0, 300, 800, 1700, 3500)  # "phoneme" i is a tone; 0 is silence


def tone_speech(seed: int, n_segments: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Audio of random tones, and its segments."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 12, n_segments)
    ids = rng.integers(0, len(TONES_HZ), n_segments)
    time_s = np.arange(320 * lengths.sum()) / 16_000
    hz = np.repeat(np.array(TONES_HZ)[ids], 320 * lengths)
    audio = 0.1 * np.where(hz > 0, np.sin(2 * np.pi * hz * time_s), 0.0)
    ends = np.cumsum(lengths)
    return audio.astype(np.float32), np.stack([ids, ends - lengths, ends], axis=1).astype(np.int32)


@pytest.fixture(scope="module")
def tones() -> Recogniser:
    examples = [(log_mel(audio), frame_labels(segments)) for audio, segments in map(tone_speech, range(8))]
    return fit_recogniser(examples, n_phonemes=len(TONES_HZ), steps=40, seed=0)


def test_it_learns_tones_and_does_not_take_one_for_another(tones):
    audio, segments = tone_speech(100, 150)
    right = tones.phoneme_accuracy(audio, segments)
    assert right.value > 0.9
    assert right.per_frame.shape == right.is_speech.shape == (len(audio) // 320,)
    assert right.value == pytest.approx(right.per_frame[right.is_speech].mean())
    _, other = tone_speech(101, 150)
    n_frames = min(int(segments[-1, 2]), int(other[-1, 2]))
    other = other[other[:, 1] < n_frames]
    other[-1, 2] = n_frames
    assert tones.phoneme_accuracy(audio[: 320 * n_frames], other).value < 0.4
    assert tones.phoneme_accuracy(np.zeros_like(audio), segments).value < 0.05


def test_a_spoilt_last_third_shows_there_and_only_there(tones):
    audio, segments = tone_speech(102, 150)
    clean = tones.phoneme_accuracy(audio, segments)
    spoilt = audio.copy()
    spoilt[len(audio) * 2 // 3 + 320 :] = 0
    found = tones.phoneme_accuracy(spoilt, segments)
    assert found.first_third == clean.first_third
    assert found.last_third < 0.1 < clean.last_third
    assert found.value < clean.value - 0.2
