import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am
from audio_metrics import pitch
from audio_metrics.comparison import DISTANCES, SUMMARISED
from audio_metrics.pitch import PITCH_METRICS

FS = 8000
CHEAP = (
    "multi_resolution_stft_distance",
    "maximum_mean_discrepancy",
    "mel_mean_difference_db",
    "mel_spread_difference_db",
)


def compare(x, y, **options):
    return am.compare(x, y, sample_rate_hz=FS, **options)


@pytest.fixture
def noisy(speech):
    x = speech(95, 1, fs=FS)
    return x, x + 1e-3 * np.random.default_rng(0).standard_normal(len(x))


def test_figures_are_those_of_the_plain_functions(noisy):
    result = compare(*noisy, metrics=CHEAP)
    assert set(result.summaries) == {*SUMMARISED, *CHEAP}
    for name in CHEAP:
        plain = am.metric_by_name(name).function(*noisy, sample_rate_hz=FS)
        assert result.summaries[name].whole_file == pytest.approx(plain, rel=1e-12), name
    assert len(result.summaries["multi_resolution_stft_distance"].series.value) == 95
    np.testing.assert_array_equal(result.summaries["maximum_mean_discrepancy"].series.time_s, [0.0, 60.0])
    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["settings"]["metrics"] == [name for name in am.OPTIONAL if name in CHEAP]
    assert plain["mel_mean_difference_db"]["series"]["time_s"] == [0.0, 60.0]


def test_files_blocks_and_progress(noisy, wav):
    x, y = (signal.astype(np.float32) for signal in noisy)
    paths = wav("x.wav", x, fs=FS), wav("y.wav", y, fs=FS)
    seen = []
    result = am.compare_files(*paths, null_path=paths[1], metrics=CHEAP, on_progress=seen.append, block_windows=7)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert len(seen) > 20
    expected = compare(x, y, metrics=CHEAP)
    for name in CHEAP:
        assert result.summaries[name].whole_file == pytest.approx(expected.summaries[name].whole_file, rel=1e-5)
        assert result.ratio_to_null[name] == pytest.approx(1.0)
    assert set(result.ratio_to_null) == {*SUMMARISED, *DISTANCES, *CHEAP}


def test_ratios_of_scores_and_of_estimates_under_0(pair, monkeypatch):
    from audio_metrics.comparison import _as_distance

    assert _as_distance(0.75, "stoi") == 0.25
    assert _as_distance(20.0, "snr_db") == pytest.approx(0.1)
    assert _as_distance(0.5, "maximum_mean_discrepancy") == 0.5
    assert np.isnan(_as_distance(-1e-3, "maximum_mean_discrepancy"))


def test_aligned_metrics_stop_at_divergence(speech):
    x = speech(20, 1, fs=FS)
    other = np.diff(np.random.default_rng(3).standard_normal(len(x) + 3), n=3) * 0.02
    y = np.where(np.arange(len(x)) < 8.5 * FS, x, other)
    stopped = compare(x, y, metrics=CHEAP, stop_at_divergence=True)
    assert stopped.t_div_s == 8.5
    assert stopped.summaries["multi_resolution_stft_distance"].whole_file == 0.0
    assert len(stopped.summaries["multi_resolution_stft_distance"].series.value) == 8
    assert stopped.summaries["maximum_mean_discrepancy"].whole_file > 0.0
    never = compare(x, np.where(np.arange(len(x)) < 0, x, other), metrics=CHEAP, stop_at_divergence=True)
    assert np.isnan(never.summaries["multi_resolution_stft_distance"].whole_file)


def test_silence_and_bad_samples_are_no_errors(speech):
    x = speech(35, 1, fs=FS)
    for y in (np.zeros_like(x), np.where(np.arange(len(x)) == 99, np.nan, x)):
        result = compare(x, y, metrics=CHEAP)
        json.dumps(result.to_dict(), allow_nan=False)
        for name in CHEAP:
            assert np.isnan(result.summaries[name].whole_file), name


def test_pitch_is_tracked_once_for_all_four(pair, monkeypatch):
    calls = []

    def track(samples, *, sample_rate_hz):
        calls.append(len(samples))
        return np.full(10, 100.0)

    monkeypatch.setattr(pitch, "track", track)
    result = compare(*pair, metrics=PITCH_METRICS)
    assert len(calls) == 4  # two windows of each signal
    assert [result.summaries[name].whole_file for name in PITCH_METRICS] == [0.0, 0.0, 0.0, 0.0]


@settings(max_examples=12)
@given(n=st.integers(1200, 9 * FS), gain_db=st.floats(-20, 20), seed=st.integers(0, 1000))
def test_any_length_and_gain(n, gain_db, seed):
    x = 0.05 * np.random.default_rng(seed).standard_normal(n)
    k = 10 ** (gain_db / 20)
    found = compare(x, k * x, metrics=CHEAP, floor=1e-30).summaries
    distance = abs(1 - k) + abs(np.log(k))
    assert found["multi_resolution_stft_distance"].whole_file == pytest.approx(distance, abs=1e-10)
    assert found["mel_mean_difference_db"].whole_file == pytest.approx(abs(gain_db), abs=1e-9)
    assert found["mel_spread_difference_db"].whole_file == pytest.approx(0.0, abs=1e-6)
    for name in CHEAP:
        plain = am.metric_by_name(name).function(x, k * x, sample_rate_hz=FS, floor=1e-30)
        assert found[name].whole_file == plain
