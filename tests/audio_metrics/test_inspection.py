import json

import numpy as np
import pytest

import audio_metrics as am

FS = 16000


def test_figures_are_those_of_the_plain_functions(speech):
    x = speech(96.4, 1)
    x[FS : 2 * FS + 3000] *= 1e-5
    x[3 * FS : 4 * FS + 3000] = 0.0
    found = am.inspect(x, sample_rate_hz=FS)
    for metric in am.METRICS:
        if metric.n_signals == 1 and metric.takes == "signal":
            takes_rate = metric.name not in ("rms_dbfs", "clipping_fraction", "dc_offset")
            expected = metric.function(x, **({"sample_rate_hz": FS} if takes_rate else {}))
            assert getattr(found, metric.name) == pytest.approx(expected, rel=1e-9, abs=1e-12), metric.name


def test_strict_json_and_series(speech):
    x = np.concatenate([speech(2, 1), np.zeros(FS), speech(1.6, 2)])
    found = am.inspect(x, sample_rate_hz=FS)
    plain = found.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    for name in ("spectral_flatness_db", "spectral_centroid_hz", "rms_dbfs"):
        series = plain["series"][name]
        assert series["time_s"] == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert [value is None for value in series["value"]][:4] == [False, False, True, False]
    assert [flag.kind for flag in found.flags] == ["silent", "floored"]
    assert found.longest_silence_s == pytest.approx(1.0, abs=0.05)


def test_silence_has_no_level():
    found = am.inspect(np.zeros(3 * FS), sample_rate_hz=FS)
    assert np.isnan([found.rms_dbfs, found.spectral_flatness_db, found.spectral_centroid_hz]).all()
    assert found.silence_fraction == 1.0
    assert found.dc_offset == 0.0
    assert found.to_dict()["rms_dbfs"] is None


def test_bad_samples_are_flagged(speech):
    x = speech(3, 1)
    x[FS] = np.nan
    found = am.inspect(x, sample_rate_hz=FS)
    assert [(flag.kind, flag.time_s) for flag in found.flags] == [("non_finite", 1.0)]
    assert found.rms_dbfs == pytest.approx(am.rms_dbfs(np.nan_to_num(x)), abs=1e-3)


def test_faults_are_flagged_with_their_times(speech):
    rng = np.random.default_rng(0)
    x = speech(130, 1) + 1e-3 * rng.standard_normal(130 * FS)
    x[50 * FS] += 0.8
    x[80 * FS : 100 * FS] = np.tile(x[FS : 3 * FS], 10)
    x[100 * FS :] *= 2.0
    found = am.inspect(x, sample_rate_hz=FS, block_windows=3)
    flags = {flag.kind: flag for flag in found.flags}
    assert {"jump", "repeat", "loop"} <= set(flags)
    assert 49.9 < min(flag.time_s for flag in found.flags if flag.kind == "jump") <= 50.0
    assert 80.0 <= flags["repeat"].time_s < 80.6
    scores = found.series["loop_score"].value  # this made-up speech has a rhythm, and so a score, of its own
    assert scores.shape == (6,)
    assert int(np.argmax(scores)) == 4
    assert found.loop_score == scores[4] > 0.9
    assert flags["loop"].message.startswith(f"signal has {flags['loop'].count} windows of 20 s that repeat themselves")
    short = am.inspect(x[: 5 * FS], sample_rate_hz=FS)
    assert np.isnan(short.loop_score)
    assert short.to_dict()["loop_score"] is None
