import numpy as np
import pytest
import scipy.signal

import audio_metrics as am
from audio_metrics.free_running import FREE_RUNNING, Description, signed_clock_skew_ppm

FS = 8000
PLAIN = [name for name in FREE_RUNNING if name not in ("frechet_distance", "ltas_distance_db")]


def reading(seed, *, seconds=30, script=0):
    """A voice that reads a script (bursts of coloured noise at set times) with details of its own."""
    words, own = np.random.default_rng(script), np.random.default_rng(1000 + seed)
    x = 1e-4 * own.standard_normal(seconds * FS)
    at = 0.0
    while at < seconds - 0.5:
        length = words.uniform(0.08, 0.25)
        colour = words.standard_normal(8)
        n = round(length * FS)
        excitation = words.standard_normal(n) + 0.5 * own.standard_normal(n)
        burst = scipy.signal.lfilter(colour, 1.0, excitation) * np.hanning(n)
        start = round(at * FS)
        x[start : start + n] += 0.05 * burst
        at += length + words.choice([0.0, 0.02, 0.3], p=[0.5, 0.4, 0.1])
    return x


def describe(x):
    return am.describe(x, sample_rate_hz=FS)


@pytest.fixture(scope="module")
def plain_and_null():
    return reading(1, script=1), reading(2, script=2)


def test_equal_signals_are_at_0(plain_and_null):
    one = describe(plain_and_null[0])
    for name, value in am.free_running_distances(one, one).items():
        assert value == pytest.approx(0.0, abs=1.0 if name == "clock_skew_ppm" else 1e-8), name


def test_plain_functions_are_the_distances(plain_and_null):
    x, y = plain_and_null[0], reading(5, script=1)
    distances = am.free_running_distances(describe(x), describe(y))
    assert set(distances) == set(FREE_RUNNING)
    for name in PLAIN:
        assert am.metric_by_name(name).function(x, y, sample_rate_hz=FS) == distances[name], name
    assert am.ltas_distance_db(x, y, sample_rate_hz=FS) == pytest.approx(distances["ltas_distance_db"], rel=1e-9)
    assert am.frechet_distance(x, y, sample_rate_hz=FS) == pytest.approx(distances["frechet_distance"], rel=1e-6)


def test_a_gain_is_level_only(plain_and_null):
    x = plain_and_null[0]
    loud = 10 ** (2 / 20) * x
    assert am.tilt_difference_db_per_octave(x, loud, sample_rate_hz=FS) < 0.2
    assert am.noise_floor_difference_db(x, loud, sample_rate_hz=FS) == pytest.approx(2.0, abs=1e-3)
    steady = 0.05 * np.random.default_rng(3).standard_normal(30 * FS)
    ramp = 10 ** (np.linspace(0, 3, len(steady)) / 20)  # 6 dB in a minute
    assert am.course_difference_db_per_min(steady, ramp * steady, sample_rate_hz=FS) == pytest.approx(6.0, abs=0.01)


@pytest.mark.parametrize("slope", [0.5, -2.0])
def test_a_tilt_is_its_slope(plain_and_null, slope):
    x = plain_and_null[0]
    hz = np.fft.rfftfreq(len(x), 1 / FS)
    tilted = np.fft.irfft(np.fft.rfft(x) * 10 ** (slope * np.log2(np.maximum(hz, 30) / 1000) / 20), len(x))
    assert am.tilt_difference_db_per_octave(x, tilted, sample_rate_hz=FS) == pytest.approx(abs(slope), rel=0.05)


@pytest.mark.parametrize("ppm", [400.0, -1000.0])
def test_a_clock_skew_of_readings_of_one_script(ppm):
    x, y = reading(1, seconds=40), reading(2, seconds=40)
    t = np.arange(len(y)) * (1 - ppm * 1e-6)
    slow = np.interp(t, np.arange(len(y)), y)
    still = signed_clock_skew_ppm(describe(x), describe(y))
    assert abs(still) < 100
    assert signed_clock_skew_ppm(describe(x), describe(slow)) == pytest.approx(ppm, abs=130)
    assert am.clock_skew_ppm(x, slow, sample_rate_hz=FS) == pytest.approx(abs(ppm), abs=130)


def test_other_scripts_have_no_skew(plain_and_null):
    with pytest.raises(am.UndefinedMetricError, match="do not follow one script in time"):
        am.clock_skew_ppm(*plain_and_null, sample_rate_hz=FS)


def fake(rng, *, tilt=0.0, floor=0.0, course=0.0, template=None):
    bands = np.linspace(-1, 1, 80)
    basis = np.cos(np.pi / 80 * np.outer(np.arange(10), np.arange(80) + 0.5))
    return Description(
        sample_rate_hz=FS,
        level_db=-40 + rng.standard_normal(10) @ basis + tilt * bands,
        noise_floor_db=-90 + 0.3 * rng.standard_normal(10) @ basis + floor,
        course_db_per_min=rng.standard_normal(10) @ basis + course * bands,
        moments=template.moments,
        steps=rng.standard_normal((400, 24)),
        hop_s=template.hop_s,
    )


def test_the_null_model_finds_what_is_beyond_the_null(plain_and_null):
    template, rng = describe(plain_and_null[0]), np.random.default_rng(0)

    def pairs(n, **fault):
        return [(fake(rng, template=template), fake(rng, template=template, **fault)) for _ in range(n)]

    model = am.NullModel.fit(pairs(60))
    held_out = np.array([model.score(*pair) for pair in pairs(60)])
    limit = np.quantile(held_out, 0.95)
    for fault in ({"tilt": 10.0}, {"floor": 6.0}, {"course": 15.0}):
        group = {"tilt": "level", "floor": "noise_floor", "course": "course"}[next(iter(fault))]
        faulty = pairs(40, **fault)
        assert np.mean([model.score(*pair) > limit for pair in faulty]) > 0.9
        for pair in faulty[:5]:
            scores = model.scores(*pair)
            assert max((value, name) for name, value in scores.items() if not np.isnan(value))[1] == group
            assert np.isnan(scores["clock_skew"])  # the null's pairs follow no common script


def test_what_is_refused(plain_and_null):
    x, y = plain_and_null
    with pytest.raises(am.AudioParameterError, match=r"signal has 9\.00 s; expected 10 s or more"):
        describe(x[: 9 * FS])
    with pytest.raises(am.UndefinedMetricError, match=r"reference has 0.00 s of active frames"):
        am.band_level_distance_db(np.zeros_like(x), y, sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match="dtypes differ"):
        am.band_level_distance_db(x.astype(np.float32), y, sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match="3 pairs of references; expected 20 or more"):
        am.NullModel.fit([(describe(x), describe(y))] * 3)
    other = am.describe(np.tile(x, 2), sample_rate_hz=2 * FS)
    with pytest.raises(am.AudioParameterError, match="sample rates differ: 8000 Hz and 16000 Hz"):
        am.free_running_distances(describe(x), other)
