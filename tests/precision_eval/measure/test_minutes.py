from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from precision_eval.cases.voice.assets import load_streams
from precision_eval.cases.voice.codec import HOP_SAMPLES, SAMPLE_RATE_HZ, load_codec
from precision_eval.cases.voice.vocoder import vocode
from precision_eval.measure import minutes
from precision_eval.measure.minutes import MinuteListener
from precision_eval.results.minutes import courses_of, flags_text

N_FRAMES = 100


@pytest.fixture
def speech(monkeypatch, tmp_path):
    """Four minutes of two seconds of original speech, from where the prompt ends, and a listener to them."""
    monkeypatch.setattr(minutes, "MINUTE_FRAMES", N_FRAMES)
    monkeypatch.setattr(minutes, "_HELD_S", 0.5)
    listener = MinuteListener(prompt_frames=200)
    path = tmp_path / "speech.wav"
    soundfile.write(path, np.zeros(4 * N_FRAMES * HOP_SAMPLES, np.float32), SAMPLE_RATE_HZ, subtype="FLOAT")
    next(listener._minutes(path))
    samples = np.concatenate([listener.original(index)[0] for index in range(4)])

    def heard(change):
        altered = samples.copy().reshape(4, -1)
        change(altered)
        soundfile.write(path, altered.reshape(-1), SAMPLE_RATE_HZ, subtype="FLOAT")
        return listener.heard(path)

    return heard


def test_the_original_itself_has_no_fault(speech):
    found = speech(lambda minutes: None)
    assert found["mel_mcd_db"] == [0.0] * 4
    assert min(found["phonemes_right"]) > 0.5
    assert found["flags"] == [[]] * 4


def silence(minutes):
    minutes[1] = 0.0


def nan(minutes):
    minutes[2, 100] = np.nan


def noise(minutes):
    minutes[3] += np.random.default_rng(0).normal(0, 0.1, minutes.shape[1])


def test_each_fault_stands_in_its_minute_and_in_no_mean(speech):
    def all_at_once(minutes):
        for fault in (silence, nan, noise):
            fault(minutes)

    found = speech(all_at_once)
    assert found["flags"][0] == []
    assert {"silent", "stopped"} <= set(found["flags"][1])
    assert "non_finite" in found["flags"][2]
    assert found["mel_mcd_db"][2] is None
    assert found["mel_mcd_db"][3] > 1.0
    assert "non_finite: 3" in flags_text(found)
    course = next(course for course in courses_of(found) if course.metric.name == "phonemes_right")
    assert (course.n_missing, course.worst_minute) == (1, 1)


def test_a_stream_that_stops_or_holds_one_token_within_a_minute_is_flagged(speech):
    """Less than half of its speech is missing, and what repeats one token has no course that could repeat itself."""
    (script,) = load_streams(1, n_frames=0)
    hum = vocode(load_codec().decode(np.repeat(script.tokens[700:701], N_FRAMES, axis=0)))

    def stops_and_hums(minutes):
        rest = minutes.shape[1] * 3 // 5
        minutes[1, rest:] = 1e-4 * np.random.default_rng(0).normal(size=minutes.shape[1] - rest)
        minutes[2, rest:] = hum[rest : minutes.shape[1]]

    found = speech(stops_and_hums)
    assert found["flags"] == [[], ["stopped"], ["stuck"], []]
    assert found["speech_missed"][1] < 0.5


def test_judges_hear_every_part_and_keep_what_they_heard_of_the_original(speech, monkeypatch, tmp_path):
    monkeypatch.setattr(minutes, "_PART_SAMPLES", N_FRAMES * HOP_SAMPLES // 2)
    calls = []

    def hear(samples):
        calls.append(len(samples))
        return float(np.abs(samples).mean())

    panel = SimpleNamespace(hear=hear, scores=lambda truth, heard: {"change": abs(heard - truth)})
    listener = MinuteListener(panel, prompt_frames=200)
    path = tmp_path / "speech.wav"
    speech(silence)
    first, again = listener.judged(path), listener.judged(path)
    assert first == again
    assert len(calls) == 3 * 4 * 2
    assert first["change"][1] > 0.0 == first["change"][0]


def test_a_judge_without_an_answer_is_in_no_mean(speech, tmp_path):
    """Such as a distance to silence that is 0 over 0."""
    panel = SimpleNamespace(
        hear=lambda samples: float(np.abs(samples).max()),
        scores=lambda truth, heard: {"speaker_distance": 0.1 if heard else float("nan")},
    )
    speech(silence)
    found = MinuteListener(panel, prompt_frames=200).judged(tmp_path / "speech.wav")
    assert found["speaker_distance"] == [0.1, None, 0.1, 0.1]
    (course,) = courses_of(found)
    assert (course.mean, course.n_missing) == (pytest.approx(0.1), 1)


def test_minutes_that_are_not_finite_are_named(tmp_path):
    samples = np.zeros(3 * 60 * 100 + 50, np.float32)
    samples[[6_001, 18_020]] = np.nan, np.inf  # in the second minute, and in what follows the third
    soundfile.write(tmp_path / "made.wav", samples, 100, subtype="FLOAT")
    assert minutes.minutes_not_finite(tmp_path / "made.wav") == [2, 4]


def test_the_course_finds_a_decay_and_its_worst_minute():
    values = [0.9 - 0.001 * minute for minute in range(60)]
    values[17] = 0.2
    (course,) = courses_of({"phonemes_right": values, "flags": [[]] * 60})
    assert course.slope_high < 0.0
    assert course.slope_per_hour == pytest.approx(-0.06, abs=1e-3)
    assert course.worst_minute == 17
    assert course.worst_text == "0.200 (minute 18)"
    assert course.first_third > course.last_third
    assert courses_of({"phonemes_right": [0.9, None, 0.8]}) == []


def test_minutes_in_a_row_are_named_once():
    assert flags_text({"flags": [["silent"], ["silent"], [], ["silent", "stuck"]]}) == "silent: 1–2, 4; stuck: 4"
    assert flags_text({"flags": [[], []]}) == "none"
