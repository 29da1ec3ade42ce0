"""Recordings as half precision breaks them: dead, not finite, late; none may score well, and the first line tells."""

import inspect

import numpy as np
import pytest

import audio_metrics as am
from audio_metrics.comparison import DISTANCES, MOST_LSD_DB, SUMMARISED
from audio_metrics.flags import clock

FS = 16000


def measured(metric, *signals):
    """A metric of the catalog on signals, with what it must be told."""
    takes = inspect.signature(metric.function).parameters
    options = {"sample_rate_hz": FS} if "sample_rate_hz" in takes else {}
    options |= {"zero_mean": False} if "zero_mean" in takes else {}
    return metric.function(*signals[-metric.n_signals :], **options)


OF_SIGNALS = [metric for metric in am.METRICS if metric.takes == "signal"]
SILENCE = {"dc_offset", "clipping_fraction", "silence_fraction", "longest_silence_s", "jumps_per_min"}
"""What silence has a value of."""


@pytest.mark.parametrize("metric", OF_SIGNALS, ids=lambda metric: metric.name)
def test_bad_samples_and_silence_are_errors_and_no_scores(metric, speech):
    x = speech(12, 1)
    broken = x.copy()
    broken[4321] = np.nan
    if metric.name != "lag_s":  # whose correlation counts them as zero
        with pytest.raises(am.AudioParameterError, match="sample 4321 is not finite"):
            measured(metric, x, broken)
    silent = np.zeros_like(x)
    for pair in ((x, silent), (silent, silent), (silent, x))[: 3 if metric.n_signals == 2 else 1]:
        if metric.name in SILENCE:
            assert measured(metric, *pair) in (0.0, 1.0, pytest.approx(12.0, abs=0.1))
        else:
            with pytest.raises(am.UndefinedMetricError):
                measured(metric, *pair)


def compare(x, y, **options):
    return am.compare(x, y, sample_rate_hz=FS, **options)


def kinds(result, signal):
    return {flag.kind for flag in result.flags if flag.signal == signal}


@pytest.fixture
def six_seconds(speech):
    return speech(6, 1)


def test_an_estimate_that_dies_is_as_bad_as_one_that_nearly_does(six_seconds):
    dead, nearly = six_seconds.copy(), six_seconds.copy()
    dead[3 * FS :] = 0.0
    nearly[3 * FS :] = 1e-8
    found, expected = compare(six_seconds, dead), compare(six_seconds, nearly)
    for name in ("log_spectral_distance_db", "mel_mcd_db", "level_error_db", "snr_db"):
        assert found.summaries[name].whole_file == pytest.approx(expected.summaries[name].whole_file, rel=0.05), name
        assert found.summaries[name].n_undefined == 0
    assert found.summaries["log_spectral_distance_db"].whole_file > 15
    assert found.summaries["si_sdr_db"].worst == -np.inf
    assert found.frechet_distance > 100
    assert str(found).startswith("FAILED: estimate is digital silence in 3 windows of 1 s")
    assert found.t_div_s == 3.0
    assert "silent" in kinds(found, "estimate")
    plain = am.log_spectral_distance_db(six_seconds, dead, sample_rate_hz=FS)
    assert plain == pytest.approx(found.summaries["log_spectral_distance_db"].whole_file, rel=1e-10)


def test_windows_silent_in_both_are_left_out_and_counted(six_seconds):
    x = six_seconds.copy()
    x[2 * FS : 4 * FS] = 0.0
    result = compare(x, x)
    for name in SUMMARISED:
        assert result.summaries[name].n_undefined == 2, name
    assert result.summaries["log_spectral_distance_db"].whole_file == 0.0
    assert str(result).count("2 of 6") == len(SUMMARISED)
    (flag,) = [flag for flag in result.flags if flag.kind == "left_out"]
    assert (flag.signal, flag.time_s, flag.count) == ("pair", 2.0, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_an_estimate_that_is_not_finite_is_no_perfect_one(six_seconds, bad):
    broken = six_seconds.copy()
    broken[3 * FS :] = bad
    result = compare(six_seconds, broken)
    for name, summary in result.summaries.items():
        assert np.isnan([summary.whole_file, summary.mean, summary.last_third]).all(), name
        worst = -np.inf if am.metric_by_name(name).direction == "higher" else np.inf
        assert summary.worst == worst, name
        assert summary.n_failed >= 1
    assert np.isnan([getattr(result, name) for name in DISTANCES]).all()
    assert result.t_div_s == 3.0
    assert kinds(result, "estimate") - {"floored"} == {"non_finite"}  # and not silent
    assert result.failed
    assert str(result).splitlines()[0].startswith("FAILED: estimate has 48000 samples that are not finite, from 0:03.0")


def test_one_bad_sample_fails_its_window_and_the_file(six_seconds):
    broken = six_seconds.copy()
    broken[2 * FS + 8000] = np.nan
    result = compare(six_seconds, broken)
    for name in SUMMARISED:
        summary = result.summaries[name]
        np.testing.assert_array_equal(np.isnan(summary.series.value), np.arange(6) == 2)
        assert np.isnan(summary.whole_file)
        assert (summary.n_undefined, summary.n_failed) == (1, 1)
        assert np.isinf(summary.worst)
    assert result.t_div_s == 2.5


@pytest.mark.parametrize("delay_ms", [0.01, 0.1, 1.0, 10.67, 50.0])
def test_a_lag_is_flagged_and_taken_out_on_request(speech, delay_ms):
    x = speech(8, 1)
    samples = delay_ms * FS / 1000
    spectrum = np.fft.rfft(x, 2 * len(x)) * np.exp(-2j * np.pi * np.fft.rfftfreq(2 * len(x)) * samples)
    late = np.fft.irfft(spectrum)[: len(x)] + 1e-4 * np.random.default_rng(0).standard_normal(len(x))
    result = compare(x, late)
    assert result.fine_lag_s == pytest.approx(delay_ms / 1000, abs=0.02 / FS)
    assert result.headline.startswith(f"{'DIFFERS' if result.differs else 'WARNING'}: the estimate is")
    assert "ms late" in result.headline
    aligned = compare(x, late, align="lag")
    assert aligned.settings["align"] == "lag"
    assert {"aligned", "short"} == {flag.kind for flag in aligned.flags}
    assert aligned.summaries["snr_db"].median > 35


def test_noise_is_no_lag(speech):
    x = speech(8, 1)
    for level in (1e-6, 1e-3, 0.03):
        result = compare(x, x + level * np.random.default_rng(0).standard_normal(len(x)))
        assert not [flag for flag in result.flags if flag.kind == "lag"], level
    with pytest.raises(am.AudioParameterError, match="align is 'dtw'; expected None, 'lag' or 'length'"):
        compare(x, x, align="dtw")


@pytest.mark.parametrize("level", [0.7, 0.5, 0.3])
def test_clipping_is_found_at_any_level_and_only_where_it_is_new(speech, level):
    x = speech(6, 1)
    clipped = np.clip(x, -level * np.abs(x).max(), level * np.abs(x).max())
    assert "clipped" in kinds(compare(x, clipped), "estimate")
    assert kinds(compare(clipped, clipped), "estimate") == set()
    quiet_tone = np.round(3000 * np.sin(2 * np.pi * 100 * np.arange(2 * FS) / FS)) / 32768  # flat crests in 16 bits
    assert "clipped" not in {flag.kind for flag in am.inspect(quiet_tone, sample_rate_hz=FS).flags}


@pytest.mark.parametrize("length_ms", [5, 40, 300])
def test_a_dropout_is_found(speech, length_ms):
    x = speech(6, 1)
    start = 3 * FS + int(np.argmax(np.abs(x[3 * FS : 4 * FS])))
    y = x + 1e-4 * np.random.default_rng(0).standard_normal(len(x))
    assert kinds(compare(x, y), "estimate") == set()
    y[start : start + length_ms * FS // 1000] = 0.0
    (flag,) = [flag for flag in compare(x, y).flags if flag.kind == "dropout"]
    assert flag.time_s == pytest.approx(start / FS, abs=0.003)


@pytest.mark.parametrize(("seconds", "text"), [(61.5, "1:01.5"), (59.97, "1:00.0"), (3600.04, "1:00:00.0")])
def test_a_place_reads_as_a_clock_whose_tenths_carry_over(seconds, text):
    assert clock(seconds) == text


def test_what_formats_do_to_a_waveform_is_no_difference(speech):
    x = speech(6, 1)
    for estimate in (x, x.astype(np.float16).astype(float), np.round(x * 32767) / 32768):
        result = compare(x, estimate)
        assert not result.differs
        assert result.headline.startswith("no fault found: finite")


def test_soft_noise_in_soft_pauses_is_no_difference(speech):
    x = speech(6, 1)
    x[: 5 * len(x) // 6] *= 1e-6
    noise = np.random.default_rng(0).standard_normal(len(x))
    result = compare(x, x + 10**-2.5 * x.std() * noise)
    assert result.summaries["log_spectral_distance_db"].whole_file > MOST_LSD_DB  # and 50 dB below the speech
    assert not result.differs
