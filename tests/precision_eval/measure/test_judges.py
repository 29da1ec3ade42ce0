"""Judges from outside: what they say by hand, one that is missing, and the real ones where they are installed."""

import dataclasses

import numpy as np
import pytest

from precision_eval.cases.adapters.wheels import Wheel
from precision_eval.cases.voice.assets import original_speech
from precision_eval.core.errors import UnknownNameError, UnsupportedError
from precision_eval.measure import judges, sound
from precision_eval.measure.judges import JUDGES, Judge, Panel, chosen_judges, share_wrong
from precision_eval.results.minutes import MINUTE_METRICS
from precision_eval.results.sound import JUDGE_METRICS, judged_sound, margins_text

WHEEL = Wheel(name="no-such-wheel-of-anybody", version="1", licence="none", alone=True, files=(("weights", "0" * 64),))


def judge(name="level", *, there=True):
    """Hears the mean level."""

    def opened():
        return (lambda samples: float(np.abs(samples).mean())) if there else WHEEL.path("weights")

    return Judge(
        name=name,
        title=name,
        wheel=WHEEL,
        opened=opened,
        scored=lambda truth, heard: {f"{name}_change": abs(truth - heard)},
    )


def test_share_wrong_by_hand():
    assert share_wrong(["a", "cat"], ["a", "dog", "sat"]) == 2 / 3
    assert share_wrong(["a"], ["a"] * 50) == 49 / 50  # a transcript that loops is no worse than 1
    assert share_wrong([], []) == share_wrong(["x"], ["x"]) == 0.0
    assert share_wrong(["a"], []) == share_wrong([], ["a"]) == 1.0


def test_a_judge_that_is_missing_is_one_line_and_the_others_judge():
    panel = Panel([judge("absent", there=False), judge()])
    (line,) = panel.missing
    assert line == (
        "judge absent is unsupported: no-such-wheel-of-anybody 1 is not installed; "
        "pip install --no-deps 'no-such-wheel-of-anybody==1'"
    )
    assert panel.scores(panel.hear(np.zeros(9)), panel.hear(np.full(9, 0.5))) == {"level_change": 0.5}


def test_an_unknown_judge_is_refused_with_the_known_ones():
    assert chosen_judges(None) == []
    assert [one.name for one in chosen_judges("resemblyzer,whisper")] == ["resemblyzer", "whisper"]
    with pytest.raises(UnknownNameError, match="unknown judge 'whispers'; did you mean whisper"):
        chosen_judges("whispers")


def test_signals_of_another_rate_reach_a_judge_at_its_own():
    lengths = dataclasses.replace(judge(), opened=lambda: len, scored=lambda truth, heard: {"n": float(heard)})
    panel = Panel([lengths])
    heard = panel.hear(np.zeros(24_000, dtype=np.float32), rate_hz=24_000)
    assert panel.scores(heard, heard) == {"n": 16_000.0}


def test_a_listener_gives_a_judges_figures_beside_its_own():
    passages = sound.passages(1, n_frames=100)
    originals = sound.waveforms(sound.original_tokens(passages, n_frames=100))
    heard = sound.Listener(passages, originals, Panel([judge()])).heard(0.5 * originals)
    assert heard["level_change"] == [pytest.approx(0.5 * float(np.abs(originals[0]).mean()), rel=1e-5)]
    assert heard["level_error_db"][0] > 1.0


def test_what_a_judge_hears_counts_in_the_verdict():
    rng = np.random.default_rng(0)
    names = [metric.name for metric in JUDGE_METRICS]

    def streams(change):
        values = {name: (0.3 + 0.02 * rng.standard_normal(16) + change).tolist() for name in names}
        return {"streams": 16, "stream_s": 5.0, "heard": values}

    reference, noise_floor = streams(0.0), streams(0.0)
    verdicts = judged_sound({"same": streams(0.0), "planted": streams(0.1)}, reference, noise_floor)
    assert verdicts["planted"].verdict == "worse"
    assert verdicts["same"].verdict != "worse"
    assert set(verdicts["planted"].metrics) == set(names)
    one = judged_sound({"planted": streams(0.1)}, reference, noise_floor, metrics=JUDGE_METRICS[3:4])
    assert list(one["planted"].metrics) == ["speaker_distance"]


def test_a_recogniser_can_speak_against_a_fix_and_does_not_keep_it_undecided():
    rng = np.random.default_rng(1)

    def streams(words, speaker=0.0):
        noise = 0.001 * rng.standard_normal((2, 16))
        heard = {
            "whisper_words_wrong": (0.3 + words + 0.2 * rng.random(16)).tolist(),
            "speaker_distance": (0.02 + noise[0] + speaker).tolist(),
        }
        return {"streams": 16, "stream_s": 5.0, "heard": heard}

    heard = {"same": streams(0.0), "words": streams(0.5), "voice": streams(0.0, speaker=0.01)}
    verdicts = judged_sound(heard, streams(0.0), streams(0.0))
    assert {name: verdict.verdict for name, verdict in verdicts.items()} == {
        "same": "no worse",
        "words": "worse",
        "voice": "worse",
    }
    assert "words wrong" in verdicts["words"].decisive
    assert "words" not in margins_text(verdicts["same"].metrics)


def test_a_recogniser_alone_never_says_that_a_fix_is_no_worse():
    """Its margin is all of its range: within it lies a rendering of which every word is wrong."""
    rng = np.random.default_rng(2)

    def streams():
        return {
            "streams": 16,
            "stream_s": 5.0,
            "heard": {"whisper_words_wrong": (0.3 + 0.2 * rng.random(16)).tolist()},
        }

    verdict = judged_sound({"same": streams()}, streams(), streams())["same"]
    assert (verdict.verdict, verdict.no_worse) == ("undecided", False)


def test_words_skipped_and_doubled_stand_beside_the_words_wrong():
    scored = chosen_judges("whisper")[0].scored
    found = scored("so it goes on and on", "so it goes goes on and")
    assert (found["whisper_words_skipped"], found["whisper_words_doubled"]) == (1 / 6, 1 / 6)
    assert {"whisper_words_skipped", "whisper_words_doubled"} <= {metric.name for metric in MINUTE_METRICS}


def test_visqol_loses_the_whole_scale_to_silence_without_asking_the_wheel():
    scored = chosen_judges("visqol")[0].scored
    speech, silence = np.ones(9, dtype=np.float32), np.zeros(9, dtype=np.float32)
    assert scored(speech, silence) == scored(silence, speech) == {"visqol_lost": 4.0}
    assert scored(silence, silence) == {"visqol_lost": 0.0}


@pytest.mark.weights
@pytest.mark.parametrize("judge", JUDGES, ids=[judge.name for judge in JUDGES])
def test_a_real_judge_hears_itself_without_distance_and_no_utterance_from_the_one_before(judge):
    try:
        hear = judge.opened()
    except UnsupportedError as error:
        pytest.skip(str(error))
    samples, rate_hz = original_speech()
    assert rate_hz == judges.SAMPLE_RATE_HZ
    words = samples[3 * rate_hz : 6 * rate_hz]
    first = hear(words)
    assert set(judge.scored(first, first)) <= {metric.name for metric in (*JUDGE_METRICS, *MINUTE_METRICS)}
    assert list(judge.scored(first, first).values()) == pytest.approx([0.0] * len(judge.scored(first, first)), abs=1e-6)
    backwards = judge.scored(first, hear(words[::-1].copy()))
    judged = {metric.name for metric in JUDGE_METRICS}
    assert min(value for name, value in backwards.items() if name in judged) > 0.02  # planted
    assert judge.scored(first, hear(words)) == judge.scored(first, first)
