"""Each failure from the field in small: it fails as reported, and float64 cures it or does not."""

import re
from functools import cache
from types import SimpleNamespace

import pytest

from precision_eval.measure.sound import passages
from validation import field_failures
from validation.field_failures import EXPERIMENT, FAILURES, built, examined, repeated, spoken, verdict_of
from validation.frame import Options

N_FRAMES, STREAMS = 20, 2


@cache
def streams():
    return passages(STREAMS, n_frames=N_FRAMES)


@cache
def tokens(failure, *, wide=False):
    return spoken(built(failure, wide=wide, n_streams=STREAMS)[0], streams(), n_frames=N_FRAMES)


def same(failure, *, wide):
    return float((tokens(failure, wide=wide) == tokens(None)).mean())


def failure(name):
    return next(one for one in FAILURES if one.name == name)


@pytest.mark.parametrize(
    ("name", "module"), [("repeated tokens", "voice.blocks"), ("silence", "voice.blocks.0.attention")]
)
def test_numbers_that_do_not_fit_repeat_one_token_and_the_doctor_says_where(name, module):
    assert repeated(tokens(failure(name))) == 1.0
    assert repeated(tokens(failure(name), wide=True)) < 0.8
    found = examined(failure(name), streams()[0])
    assert found["status"] == "non_finite"
    assert re.match(rf"(first_non_finite|drift) in {module}", found["fault"]), "the result, or the rounding before it"


def test_keys_that_overflow_are_the_same_model_in_float64():
    assert same(failure("repeated tokens"), wide=True) == 1.0


def test_positions_summed_in_bfloat16_are_off_and_in_float64_are_not():
    assert same(failure("accumulated error"), wide=False) < 0.9
    assert same(failure("accumulated error"), wide=True) == 1.0


def test_positions_that_restart_with_the_ring_are_off_in_float64_too():
    assert max(same(failure("decay with a rotating cache"), wide=wide) for wide in (False, True)) < 0.9


def test_a_norm_under_autocast_raises_the_sentence_and_the_doctor_says_where():
    norm = failure("autocast layer norm")
    with pytest.raises(
        RuntimeError, match=r"Expected query, key, and value to have the same dtype.*query\.dtype: float"
    ):
        tokens(norm)
    assert same(norm, wide=True) == 1.0
    assert examined(norm, streams()[0]) == {"status": "raised", "fault": "raise in voice.blocks.0.attention"}


@pytest.mark.parametrize(
    ("reported", "wide", "verdict"),
    [
        ("worse", "no worse", "precision"),
        ("worse", "undecided", "precision"),
        (None, "no worse", "precision"),
        ("worse", "worse", "bug"),
        (None, None, "bug"),
        ("undecided", "no worse", "undecided"),
    ],
)
def test_the_verdict_by_hand(reported, wide, verdict):
    heard = [None if name is None else SimpleNamespace(verdict=name) for name in (reported, wide)]
    assert verdict_of(*heard) == verdict


def test_a_run_of_the_experiment_has_a_row_per_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(field_failures, "FAILURES", (failure("autocast layer norm"),))
    options = Options(out=tmp_path, settings={"streams": 8, "seconds": 0.2})
    lines = list(EXPERIMENT.run(iter(EXPERIMENT.trials(options)), options))
    content = EXPERIMENT.summary(lines, options)
    (figure,) = EXPERIMENT.figures(content)
    assert (figure.found, figure.met) == ("precision", True)
    assert figure.rivals["as reported"] == "raised"
    assert content["rows"]["autocast layer norm"]["raised"].startswith("Expected query, key, and value")
    assert EXPERIMENT.summary(lines[1:], options) is None
