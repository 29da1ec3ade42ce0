"""Passages: the contract of their segments, capped silences, and sameness for a seed."""

import numpy as np
import pytest

from precision_eval.core.errors import ParameterError
from tools.voice import corpus
from tools.voice.corpus import (
    PHONEMES,
    SPEAKERS,
    Passage,
    conditioning_from_segments,
    frame_segments,
    generate_passages,
    long_passage,
)
from tools.voice.espeak import Speech


def check_contract(passage: Passage) -> None:
    """Contiguous, non-empty, covering, of known ids, and with short silences only."""
    segments = passage.segments
    assert segments.dtype == np.int32
    assert passage.audio.dtype == np.float32
    assert segments[0, 1] == 0
    assert segments[-1, 2] == len(passage.audio) // 320
    assert np.array_equal(segments[1:, 1], segments[:-1, 2])
    lengths = segments[:, 2] - segments[:, 1]
    assert lengths.min() >= 1
    assert segments[:, 0].min() >= 0
    assert segments[:, 0].max() < len(PHONEMES)
    assert lengths[segments[:, 0] == 0].max() <= 13  # 0.25 s, on the frame grid


def test_the_inventory_is_fixed():
    assert len(PHONEMES) == len(set(PHONEMES)) == 72
    assert PHONEMES[0] == "_"
    assert (PHONEMES.index("t"), PHONEMES.index("z")) == (63, 71)  # ids are in shipped files: append, never insert
    assert len({s.voice.name for s in SPEAKERS}) == len(SPEAKERS) == 12


def test_a_frame_takes_the_phoneme_at_its_centre():
    # centres 0.5 1.5 2.5 3.5 4.5 5.5: phone 9 at 1.6 to 2.4 covers none, two equal phones stay apart
    found = frame_segments([0, 5, 9, 5, 7, 7], np.array([0.0, 0.6, 1.6, 2.4, 3.2, 4.2]), 6)
    assert found.tolist() == [[0, 0, 1], [5, 1, 2], [5, 2, 3], [7, 3, 4], [7, 4, 6]]


def test_silences_on_either_side_of_a_vanished_phoneme_join():
    found = frame_segments([0, 9, 0, 3], np.array([0.0, 1.6, 2.4, 4.0]), 6)
    assert found.tolist() == [[0, 0, 4], [3, 4, 6]]


def test_frames_against_an_independent_loop():
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 70, 400).tolist()
    starts = np.concatenate([[0.0], np.cumsum(rng.exponential(3.0, 399))])
    n_frames = int(starts[-1]) + 3
    expected = [ids[max(i for i in range(400) if starts[i] <= frame + 0.5)] for frame in range(n_frames)]
    segments = frame_segments(ids, starts, n_frames)
    assert conditioning_from_segments(segments).phoneme.tolist() == expected


@pytest.mark.parametrize(
    "segments", [[[1, 1, 2]], [[1, 0, 2], [2, 3, 4]], [[1, 0, 2], [2, 2, 2]], [[1, 0, 3], [2, 2, 4]], np.empty((0, 3))]
)
def test_broken_segments_are_refused(segments):
    with pytest.raises(ParameterError, match="segments must"):
        conditioning_from_segments(np.array(segments))


def test_the_middle_of_a_long_silence_goes():
    audio = np.arange(2000, dtype=np.float32)
    part = corpus._cap_silences(Speech(audio, 1000, [("a", 100), ("_:", 200), ("_", 700), ("b", 900)]))
    assert part.ids == [0, corpus.phoneme_id("a"), 0, corpus.phoneme_id("b")]
    assert part.starts == [0, 100, 200, 450]  # 700 ms became 250
    assert part.audio[200:450].tolist() == [*range(200, 325), *range(775, 900)]
    assert part.audio[450:].tolist() == list(range(900, 2000))


@pytest.mark.parametrize(("phonemes", "total"), [([("a", 0), ("_", 1500)], 1600), ([("a", 0)], 2100)])
def test_a_sentence_ends_in_the_pause_asked_for(phonemes, total):
    speech = Speech(np.ones(2000, dtype=np.float32), 1000, phonemes)
    part = corpus._with_pause(corpus._cap_silences(speech), pause_s=0.1, sample_rate_hz=1000)
    assert len(part.audio) == total
    assert part.ids[-1] == 0
    assert part.starts[-1] == total - 100


@pytest.mark.parametrize(
    ("speaker", "minutes", "match"), [(12, 1.0, "speaker 12"), (-1, 1.0, "speaker -1"), (0, 0.0, "minutes is 0")]
)
def test_wrong_arguments_are_refused(speaker, minutes, match):
    for make in (lambda **asked: next(generate_passages(**asked)), long_passage):
        with pytest.raises(ParameterError, match=match):
            make(world="train", speaker=speaker, minutes=minutes, seed=0)


@pytest.fixture(scope="module")
def passages() -> list[Passage]:
    return list(generate_passages(world="heldout", speaker=3, minutes=1.2, seed=5))


@pytest.mark.espeak
def test_passages_keep_the_contract(passages):
    seconds = [len(p.audio) / 16_000 for p in passages]
    assert sum(seconds) >= 72
    assert all(20 <= s <= 60 for s in seconds)
    for passage in passages:
        check_contract(passage)


@pytest.mark.espeak
def test_phonemes_stand_where_the_sound_is(passages):
    passage = passages[0]
    labels = conditioning_from_segments(passage.segments).phoneme
    energy = np.square(passage.audio[: len(labels) * 320].reshape(-1, 320)).mean(axis=1)
    vowels = [PHONEMES.index(name) for name in ("a", "aI", "oU", "eI", "i:", "O:")]
    assert energy[labels == 0].mean() < 0.01 * energy[np.isin(labels, vowels)].mean()
    assert 0.05 < np.sqrt(energy[labels > 0].mean()) < 0.1
    shifted = np.roll(labels, 10)  # planted fault: labels 0.2 s late
    assert energy[shifted == 0].mean() > 0.1 * energy[np.isin(shifted, vowels)].mean()


@pytest.mark.espeak
def test_the_contract_check_can_fail(passages):
    passage = passages[0]
    gap, unknown = passage.segments.copy(), passage.segments.copy()
    gap[5, 2] -= 1
    unknown[3, 0] = len(PHONEMES)
    long_silence = np.array([[0, 0, gap[-1, 2]]], dtype=np.int32)
    for segments in (gap, unknown, passage.segments[:-1], long_silence):
        with pytest.raises(AssertionError):
            check_contract(Passage(passage.speaker, passage.audio, segments))


@pytest.mark.espeak
def test_a_seed_repeats_and_another_differs(passages):
    again = list(generate_passages(world="heldout", speaker=3, minutes=1.2, seed=5))
    for one, other in zip(passages, again, strict=True):
        assert np.array_equal(one.audio, other.audio)
        assert np.array_equal(one.segments, other.segments)
    other = next(generate_passages(world="heldout", speaker=3, minutes=1.2, seed=6))
    assert not np.array_equal(other.segments, passages[0].segments)
