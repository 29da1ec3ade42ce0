import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am
from audio_metrics.comparison import DISTANCES, SUMMARISED

FS = 16000
FIELDS = {
    "mean", "median", "p95", "worst", "slope_per_min", "slope_low", "slope_high", "first_third", "last_third", "series"
}  # fmt: skip


def compare(x, y, **options):
    return am.compare(x, y, sample_rate_hz=FS, **options)


def flags_of(result, kind):
    return [flag for flag in result.flags if flag.kind == kind]


def figures(result):
    found = [getattr(result, name) for name in (*DISTANCES, "t_div_s", "lag_s", "lag_correlation", "active_fraction")]
    for name in SUMMARISED:
        summary = result.summaries[name]
        found += [summary.whole_file, summary.mean, summary.median, summary.p95, summary.worst, summary.slope_per_min]
        found += [summary.first_third, summary.last_third, *summary.series.value]
        if summary.active is not None:
            found += [summary.active.mean, *summary.active.series.value]
    return np.array(found)


def test_the_shape_of_the_result(pair):
    result = compare(*pair)
    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    for name in SUMMARISED:
        assert set(plain[name]) >= FIELDS
        assert set(plain[name]["series"]) == {"time_s", "value"}
        assert plain[name]["series"]["time_s"] == [0.0, 1.0, 2.0, 3.0, 4.0]  # 5.3 s: the rest is under half a window
        assert len(plain[name]["series"]["value"]) == 5
    assert set(plain) >= {"ltas_distance_db", "frechet_distance", "t_div_s", "lag_s", "flags"}
    assert plain["t_div_s"] is None
    assert plain["lag_s"] == 0.0


def test_whole_file_figures_are_the_plain_functions(pair):
    x, y = pair
    result = compare(x, y)
    for name in SUMMARISED + DISTANCES:
        function = am.metric_by_name(name).function
        options = {"zero_mean": False} if name == "si_sdr_db" else {} if name == "snr_db" else {"sample_rate_hz": FS}
        found = getattr(result, name) if name in DISTANCES else result.summaries[name].whole_file
        assert found == pytest.approx(function(x, y, **options), rel=1e-10), name


def test_windows_are_what_the_plain_functions_say_of_them(pair):
    x, y = pair
    result = compare(x, y)
    for index in range(5):
        part = slice(index * FS, (index + 1) * FS)
        found = result.summaries["snr_db"].series.value[index]
        assert found == pytest.approx(am.snr_db(x[part], y[part]), abs=1e-9)
        found = result.summaries["si_sdr_db"].series.value[index]
        assert found == pytest.approx(am.si_sdr_db(x[part], y[part], zero_mean=False), abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_block_size_changes_nothing(pair, dtype):
    x, y = (signal.astype(dtype) for signal in pair)
    whole = figures(compare(x, y, block_windows=100))
    for block_windows in (1, 2, 3, 5):
        blocked = figures(compare(x, y, block_windows=block_windows))
        np.testing.assert_allclose(blocked, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("subtype", "dtype"), [("FLOAT", "float32"), ("DOUBLE", "float64")])
def test_a_file_is_its_array(pair, wav, subtype, dtype):
    x, y = (signal.astype(dtype) for signal in pair)
    from_files = am.compare_files(wav("x.wav", x, subtype=subtype), wav("y.wav", y, subtype=subtype), dtype=dtype)
    np.testing.assert_array_equal(figures(from_files), figures(compare(x, y)))
    assert from_files.settings["dtype"] == dtype


def test_equal_signals():
    x = np.random.default_rng(0).standard_normal(4 * FS) * 0.1
    result = compare(x, x)
    for name in SUMMARISED[:5]:
        assert result.summaries[name].worst == 0.0
    for name in ("snr_db", "si_sdr_db"):
        summary = result.summaries[name]
        assert summary.whole_file == summary.worst == np.inf
        assert summary.n_infinite == 4
    assert result.ltas_distance_db == 0.0
    assert result.frechet_distance == pytest.approx(0.0, abs=1e-8)
    plain = result.to_dict()["snr_db"]
    assert (plain["mean"], plain["n_infinite"], plain["series"]["value"]) == (None, 4, [None] * 4)
    json.dumps(result.to_dict(), allow_nan=False)


@settings(max_examples=15)
@given(gain_db=st.floats(-30, 10), seed=st.integers(0, 1000))
def test_a_gain_is_all_level(gain_db, seed):
    x = 0.05 * np.random.default_rng(seed).standard_normal(2 * FS)
    k = 10 ** (gain_db / 20)
    found = compare(x, k * x, floor=0.0).summaries
    for name in ("log_spectral_distance_db", "log_magnitude_l1_db", "level_error_db"):
        assert found[name].whole_file == pytest.approx(abs(gain_db), abs=1e-11)
    assert found["mel_mcd_db"].worst == pytest.approx(0.0, abs=1e-11)
    assert found["spectral_convergence"].whole_file == pytest.approx(abs(1 - k), abs=1e-11)


def test_a_growing_fault_has_a_slope(speech):
    x = speech(40, 1)
    ramp = np.linspace(1e-4, 3e-2, len(x))
    found = compare(x, x + ramp * np.random.default_rng(0).standard_normal(len(x))).summaries
    for name, sign in (("log_spectral_distance_db", 1), ("mel_mcd_db", 1), ("snr_db", -1)):
        summary = found[name]
        assert sign * summary.slope_per_min > 0
        assert summary.slope_low <= summary.slope_per_min <= summary.slope_high
        assert min(sign * summary.slope_low, sign * summary.slope_high) > 0
        assert sign * (summary.last_third - summary.first_third) > 0


def test_active_frames_are_reported_apart(speech):
    x = speech(6, 1)
    x[2 * FS : 4 * FS] *= 1e-5  # a pause, not digital silence
    y = x + 1e-5 * np.random.default_rng(0).standard_normal(len(x))
    result = compare(x, y)
    summary = result.summaries["log_spectral_distance_db"]
    assert summary.active is not None
    assert summary.active.mean < summary.mean / 2
    assert np.isnan(summary.active.series.value[2])
    assert summary.series.value[2] > 0
    assert 0.5 < result.active_fraction < 0.75
    assert "series" not in result.to_dict()["log_spectral_distance_db"]["active"]


@pytest.mark.parametrize("which", ["reference", "estimate"])
def test_a_window_silent_in_one_signal_is_measured_and_flagged(pair, which):
    x, y = (signal.copy() for signal in pair)
    (x if which == "reference" else y)[2 * FS : 4 * FS] = 0.0
    result = compare(x, y)
    for name in SUMMARISED:
        ratio_of_reference = which == "reference" and name in ("snr_db", "si_sdr_db")
        if (which, name) != ("reference", "spectral_convergence"):  # whose frames reach into the next window
            value = result.summaries[name].series.value
            np.testing.assert_array_equal(np.isnan(value), np.isin(range(5), [2, 3]) & ratio_of_reference)
    (flag,) = flags_of(result, "silent")
    assert (flag.signal, flag.time_s, flag.count) == (which, 2.0, 2)
    spared = [
        value for index, value in enumerate(compare(*pair).summaries["mel_mcd_db"].series.value) if index in (0, 4)
    ]
    assert result.summaries["mel_mcd_db"].series.value[[0, 4]] == pytest.approx(spared, rel=1e-12)


def test_divergence_is_found_to_the_half_second(speech):
    x = speech(20, 1)
    other = np.diff(np.random.default_rng(3).standard_normal(len(x) + 3), n=3) * 0.02  # bright where x is dark
    y = np.where(np.arange(len(x)) < 8.5 * FS, x, other)
    assert compare(x, y).t_div_s == 8.5
    assert np.isnan(compare(x, x + 1e-3 * other).t_div_s)
    stopped = compare(x, y, stop_at_divergence=True)
    value = stopped.summaries["log_spectral_distance_db"].series.value
    np.testing.assert_array_equal(np.isnan(value), np.arange(20) >= 8)
    assert stopped.summaries["snr_db"].whole_file == np.inf
    assert stopped.frechet_distance == compare(x, y).frechet_distance


def test_ratio_to_null(speech, wav):
    rng = np.random.default_rng(0)
    x = speech(8, 1)
    fix, null = x + 1e-4 * rng.standard_normal(len(x)), x + 1e-2 * rng.standard_normal(len(x))
    ratios = am.ratio_to_null(compare(x, fix), compare(x, null))
    assert set(ratios) == set(SUMMARISED + DISTANCES)
    assert all(0 < ratio < 1 for ratio in ratios.values())
    assert ratios["snr_db"] == pytest.approx(0.01, rel=0.02)  # residual amplitudes
    assert am.ratio_to_null(compare(x, x), compare(x, null))["snr_db"] == 0.0
    assert am.ratio_to_null(compare(x, null), compare(x, null))["mel_mcd_db"] == 1.0
    paths = [wav(f"{name}.wav", signal, subtype="DOUBLE") for name, signal in (("x", x), ("f", fix), ("n", null))]
    from_files = am.compare_files(paths[0], paths[1], null_path=paths[2], dtype="float64")
    assert from_files.ratio_to_null == ratios
    assert from_files.to_dict()["ratio_to_null"]["mel_mcd_db"] == ratios["mel_mcd_db"]


def test_unlike_nulls_are_refused(speech):
    x = speech(8, 1)
    noise = 1e-3 * np.random.default_rng(0).standard_normal(len(x))
    dead = np.where(np.arange(len(x)) < 5 * FS, x + noise, 0.0)
    result = compare(x, x)
    for null, message in (
        (compare(x, x + noise, floor=1e-9), "floor is 1e-10, the null's 1e-09"),
        (compare(x[: 6 * FS], (x + noise)[: 6 * FS]), r"covers 8.000 s, the null 6.000 s"),
        (compare(x, x), "the null is the reference itself; expected another rendering"),
        (compare(x, dead), "the null cannot be one: estimate is digital silence in 3 windows"),
        (compare(x, np.where(dead == 0.0, np.nan, dead)), "the null cannot be one: estimate has 48000 samples"),
    ):
        with pytest.raises(am.AudioParameterError, match=message):
            am.ratio_to_null(result, null)


def peak_bytes(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_flat_with_length(wav):
    rng = np.random.default_rng(0)
    paths = {}
    for minutes in (2, 4):
        x = 0.1 * rng.standard_normal(60 * minutes * 8000, dtype=np.float32)
        paths[minutes] = tuple(
            wav(f"{name}{minutes}.wav", signal, fs=8000) for name, signal in (("x", x), ("y", np.float32(0.9) * x))
        )
    am.compare_files(*paths[2])  # tables and imports
    two, four = (peak_bytes(lambda m=m: am.compare_files(*paths[m])) for m in (2, 4))
    assert four < 16e6
    assert four - two < 1e6  # the sums per half window, and the pairs of the slope
