from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am
from audio_metrics import pitch
from audio_metrics.pitch import PITCH_METRICS, PitchErrors, pitch_errors_of, sampled_pitch_errors
from audio_metrics.signal import ArraySource

FS = 16000
NAN = float("nan")


def errors(reference, estimate):
    return pitch_errors_of(np.asarray(reference), np.asarray(estimate))


def test_by_hand():
    found = errors([100.0, 100.0, NAN, 100.0, NAN], [100.0, 200.0, 150.0, NAN, NAN])
    assert (found.n_frames, found.n_both_voiced, found.n_voicing_errors, found.n_gross_errors) == (5, 2, 2, 1)
    assert found.value("voicing_decision_error") == 0.4
    assert found.value("gross_pitch_error") == 0.5
    assert found.value("f0_frame_error") == 0.6
    assert found.value("f0_error_cents") == 600.0  # median of 0 and an octave


def test_against_mir_eval(pitch_tracks, references):
    found = errors(*pitch_tracks)
    for name in PITCH_METRICS:
        assert found.value(name) == pytest.approx(references["pitch"][name], abs=1e-9), name


@settings(max_examples=60)
@given(seed=st.integers(0, 10000), cut=st.integers(0, 50))
def test_parts_make_the_whole(seed, cut):
    rng = np.random.default_rng(seed)
    tracks = rng.uniform(60, 500, (2, 50))
    tracks[rng.random((2, 50)) < 0.4] = NAN
    whole = errors(*tracks)
    parts = PitchErrors.pooled([errors(*tracks[:, :cut]), errors(*tracks[:, cut:])])
    assert whole.n_frames == parts.n_frames
    for name in PITCH_METRICS:
        assert parts.value(name) == pytest.approx(whole.value(name), nan_ok=True)
    swapped = errors(*tracks[::-1])
    assert swapped.value("voicing_decision_error") == whole.value("voicing_decision_error")
    assert swapped.value("f0_error_cents") == pytest.approx(whole.value("f0_error_cents"), nan_ok=True)
    identical = errors(tracks[0], tracks[0])
    assert identical.value("f0_frame_error") == 0.0


def test_planted_fault_unvoiced_frames_as_0_hz(pitch_tracks):
    """Counting unvoiced frames as 0 Hz makes every voicing error a gross error."""
    reference, estimate = (np.nan_to_num(track) for track in pitch_tracks)
    wrong = np.abs(estimate / np.maximum(reference, 1e-9) - 1) > 0.2
    assert wrong[(reference > 0) | (estimate > 0)].mean() > 1.5 * errors(*pitch_tracks).value("gross_pitch_error")


@pytest.fixture
def counted_tracking(monkeypatch):
    """A tracker that knows a constant, and how often and on what it was called."""
    calls = []

    def track(samples, *, sample_rate_hz):
        calls.append(len(samples))
        return np.full(10, 100.0 if samples[0] < 0.5 else 103.0)

    monkeypatch.setattr(pitch, "track", track)
    return calls


def sources(*signals):
    return [ArraySource(signal, sample_rate_hz=FS, name=name) for signal, name in zip(signals, "re", strict=True)]


@pytest.mark.parametrize(
    ("seconds", "starts"), [(3, [0]), (12, [0, 7]), (85, [0, 11.42, 22.85, 34.28, 45.71, 57.14, 68.57, 80])]
)
def test_windows_are_spread_over_the_file(counted_tracking, seconds, starts):
    x = np.full(seconds * FS, 0.1)
    time_s, found = sampled_pitch_errors(*sources(x, x + 0.5))
    np.testing.assert_allclose(time_s, starts, atol=0.01)
    assert counted_tracking == [min(5, seconds) * FS] * 2 * len(starts)
    assert all(part.cents[0] == pytest.approx(1200 * np.log2(1.03)) for part in found)
    assert am.f0_error_cents(x, x + 0.5, sample_rate_hz=FS) == pytest.approx(51.17, abs=0.01)


def test_silent_and_broken_windows_are_left_out(counted_tracking):
    x = np.full(20 * FS, 0.1)
    silent = x.copy()
    silent[: 5 * FS] = 0.0
    silent[6 * FS] = NAN
    _, found = sampled_pitch_errors(*sources(x, silent))
    assert [part is None for part in found] == [False, True, False, False]  # silence in one signal is a failure
    with pytest.raises(am.UndefinedMetricError, match="no frame of the sampled windows"):
        am.f0_frame_error(np.zeros_like(x), np.zeros_like(x), sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match="estimate: sample 96000 is not finite"):
        am.gross_pitch_error(x, silent, sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match="max_windows is 0"):
        am.voicing_decision_error(x, x, sample_rate_hz=FS, max_windows=0)


@pytest.fixture
def tracker(request, monkeypatch):
    """librosa's, which numba compiles for half a minute, or a coarse one: the nearest tenth of a semitone."""

    def pyin(signal, *, fmin, fmax, sr, frame_length, hop_length, fill_na):
        hz = np.argmax(np.abs(np.fft.rfft(signal))) * sr / len(signal)
        frames = 1 + len(signal) // hop_length
        return np.full(frames, fmin * 2 ** (round(120 * np.log2(hz / fmin)) / 120)), np.arange(frames) > 1, None

    if request.param == "coarse":
        monkeypatch.setattr(pitch, "backend", lambda *_, **__: SimpleNamespace(pyin=pyin))
    return request.param


@pytest.mark.parametrize("tracker", ["coarse", pytest.param("librosa", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("fs", [16000, 24000])
def test_tones_100_cents_apart_are_recovered(fs, tracker):
    t = np.arange(fs // 2) / fs
    noise = 1e-4 * np.random.default_rng(0).standard_normal(len(t))
    tracks = []
    for hz in (220.0, 220.0 * 2 ** (1 / 12)):
        tracks.append(pitch.track(0.3 * np.sin(2 * np.pi * hz * t) + noise, sample_rate_hz=fs))
        assert np.nanmedian(tracks[-1]) == pytest.approx(hz, abs=0.1)
        if tracker == "coarse":  # librosa 0.11 takes a half frame of the tone for voiced
            assert np.isnan(tracks[-1][:2]).all()
    assert pitch.pitch_errors_of(*tracks).value("f0_error_cents") == pytest.approx(100.0, abs=0.5)


def test_what_is_too_short_or_silent():
    with pytest.raises(am.AudioParameterError, match="800 samples are too few for a pitch; expected at least 1024"):
        am.f0_error_cents(np.ones(800), np.ones(800), sample_rate_hz=FS)
    assert np.isnan(pitch.track(np.zeros(FS), sample_rate_hz=FS)).all()


@pytest.mark.slow
def test_on_signals(speech, monkeypatch):
    tracks, track = {}, pitch.track

    def tracked_once(samples, **options):
        key = samples.tobytes()
        if key not in tracks:
            tracks[key] = track(samples, **options)
        return tracks[key]

    monkeypatch.setattr(pitch, "track", tracked_once)
    x = speech(1.2, 1)
    noisy = x + 1e-3 * np.random.default_rng(0).standard_normal(len(x))
    assert am.f0_error_cents(x, x, sample_rate_hz=FS) == 0.0
    assert am.f0_frame_error(x, x, sample_rate_hz=FS) == 0.0
    assert 0.0 < am.f0_error_cents(x, noisy, sample_rate_hz=FS) < 18.0
    result = am.compare(x, noisy, sample_rate_hz=FS, metrics=PITCH_METRICS)
    for name in PITCH_METRICS:
        plain = am.metric_by_name(name).function(x, noisy, sample_rate_hz=FS)
        assert result.summaries[name].whole_file == plain
