from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from precision_eval.cases.voice.codec import HOP_SAMPLES, SAMPLE_RATE_HZ
from precision_eval.measure import minutes
from precision_eval.measure.minutes import MinuteListener
from precision_eval.results.minutes import courses_of, flags_text

N_FRAMES = 100


@pytest.fixture
def speech(monkeypatch, tmp_path):
    """Four minutes of two seconds of original speech, from where the prompt ends, and a listener to them."""
    monkeypatch.setattr(minutes, "MINUTE_FRAMES", N_FRAMES)
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
