import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am
from audio_metrics.detectors import Jumps, Loops, Repeats, loop_score_of
from audio_metrics.frames import FrameGrid, blocks
from audio_metrics.signal import ArraySource

FS = 16000


@pytest.fixture
def speaking(speech):
    """Speech-like with changing noise, so that nothing in it recurs."""

    def make(seconds, seed):
        rng = np.random.default_rng(seed)
        x = speech(seconds, seed)
        for _ in range(round(3 * seconds)):
            start = rng.integers(0, len(x))
            n = rng.integers(800, 4000)
            burst = np.convolve(rng.standard_normal(n), rng.standard_normal(6), mode="same")[: len(x) - start]
            x[start : start + n] += 0.05 * np.hanning(n)[: len(burst)] * burst
        return x

    return make


def detect(x, kind, block_windows):
    source = ArraySource(x, sample_rate_hz=FS, name="signal")
    detector = kind(FrameGrid(FS, len(x)))
    for _, block in blocks([source], block_windows=block_windows):
        detector.add(block)
    if kind is not Repeats:
        detector.finish()
    return detector


def test_clean_signals_have_none(speaking):
    for seed in range(3):
        x = speaking(25, seed)
        assert am.jumps_per_min(x, sample_rate_hz=FS) == 0.0
        assert am.repeat_fraction(x, sample_rate_hz=FS) == 0.0
    noise = 0.1 * np.random.default_rng(0).standard_normal(20 * FS)
    assert am.loop_score(noise, sample_rate_hz=FS) < 0.1
    assert am.jumps_per_min(noise, sample_rate_hz=FS) == 0.0


@settings(max_examples=40)
@given(at=st.integers(0, 3 * FS), block_windows=st.integers(1, 5), sign=st.sampled_from([-1.0, 1.0]))
def test_a_step_is_found_where_it_is(at, block_windows, sign):
    t = np.arange(3 * FS + 4000) / FS
    x = 0.2 * np.sin(2 * np.pi * 150 * t)
    x[at + 2000 :] += 0.1 * sign
    found = detect(x, Jumps, block_windows).starts
    assert len(found) == 1
    assert abs(found[0] - (at + 2000)) <= 164


def test_jumps_per_minute():
    t = np.arange(30 * FS) / FS
    x = 0.2 * np.sin(2 * np.pi * 150 * t)
    for at in (40080, 200080, 300080):
        x[at] += 0.1
    assert am.jumps_per_min(x, sample_rate_hz=FS) == pytest.approx(6.0)


def test_planted_fault_a_jump_measured_against_itself():
    """A scale that holds the jump's own differences caps the ratio at the root of the cell's length, and hides it."""
    x = 1e-4 * np.random.default_rng(0).standard_normal(FS)
    x[7920] += 0.5
    steps = np.abs(np.diff(x, n=4))[7840:8160].reshape(2, 160)
    own = steps.max(axis=1) / np.sqrt(np.mean(steps**2, axis=1))
    assert own.max() < 16.0
    assert len(detect(x, Jumps, 4).starts) == 1


@pytest.mark.parametrize("block_windows", [1, 3, 4, 50])
def test_repeats_are_found_at_any_distance(speaking, block_windows):
    x = speaking(40, 3)
    x[33 * FS : 36 * FS] = x[2 * FS + 17 : 5 * FS + 17]
    found = detect(x, Repeats, block_windows)
    assert found.fraction == pytest.approx(3 / 40, abs=0.05)
    later, earlier = found.first
    assert later - earlier == 31 * FS - 17
    assert (found.n_compared, found.n_repeated) == (detect(x, Repeats, 7).n_compared, detect(x, Repeats, 7).n_repeated)


def test_near_repeats_are_none(speaking):
    x = speaking(20, 3)
    x[12 * FS : 15 * FS] = (1 + 1e-6) * x[2 * FS : 5 * FS]
    assert am.repeat_fraction(x.astype(np.float32), sample_rate_hz=FS) == 0.0


def test_pauses_are_no_repeats(speaking):
    x = np.concatenate([speaking(5, 1), np.zeros(5 * FS), speaking(5, 2), np.full(5 * FS, 1e-3)])
    assert am.repeat_fraction(x, sample_rate_hz=FS) == 0.0
    with pytest.raises(am.UndefinedMetricError, match="no stretch"):
        am.repeat_fraction(np.zeros(FS), sample_rate_hz=FS)
    stored = np.round(x * 32768) / 32768  # 16-bit samples: empty low bits must not choose every stretch, or none
    assert am.repeat_fraction(stored, sample_rate_hz=FS) < 0.01
    assert 30 < detect(stored, Repeats, 4).n_compared < 300


@pytest.mark.parametrize("period_s", [0.31, 1.5, 7.0])
def test_a_loop_scores_1(period_s, speaking):
    piece = speaking(period_s, 5)
    x = np.tile(piece, int(20 / period_s) + 1)[: 20 * FS]
    assert am.loop_score(x, sample_rate_hz=FS) > 0.85
    lag = detect(x, Loops, 4).lags_s[0] / period_s
    assert abs(lag - round(lag)) < 0.05


def test_loop_score_against_a_loop_over_lags():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 3)).cumsum(axis=0)
    used = rng.random(60) < 0.8
    centred = np.where(used[:, None], features - features[used].mean(axis=0), 0.0)
    expected = max(
        (np.sum(centred[:-k] * centred[k:]) / np.sqrt(np.sum(centred[:-k] ** 2) * np.sum(centred[k:] ** 2)), k)
        for k in range(4, 31)
    )
    assert loop_score_of(features, used, lags=(4, 30)) == pytest.approx(expected)


def test_planted_fault_loops_with_the_mean_left_in():
    """Without centring, any steady spectrum is a loop."""
    rng = np.random.default_rng(0)
    features = 10.0 + rng.standard_normal((500, 8))
    assert loop_score_of(features, np.ones(500, bool), lags=(20, 200))[0] < 0.3
    raw = np.sum(features[:-50] * features[50:]) / np.sqrt(np.sum(features[:-50] ** 2) * np.sum(features[50:] ** 2))
    assert raw > 0.9


def test_what_has_no_value(speaking):
    for x in (speaking(9, 1), np.zeros(30 * FS), 1e-4 * speaking(30, 1)):
        with pytest.raises(am.UndefinedMetricError, match="a loop has no score"):
            am.loop_score(x, sample_rate_hz=FS)
    broken = speaking(2, 1)
    broken[99] = np.nan
    assert detect(broken, Jumps, 4).starts == []  # a hole is no jump
