import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am
from audio_metrics.waveform import projection_sums

FS = 16000


def test_against_torchmetrics(padded_pair, references):
    theirs = references["waveform"]
    assert am.si_sdr_db(*padded_pair, zero_mean=False) == pytest.approx(theirs["si_sdr_db"], abs=1e-9)
    assert am.si_sdr_db(*padded_pair, zero_mean=True) == pytest.approx(theirs["si_sdr_zero_mean_db"], abs=1e-9)
    assert am.snr_db(*padded_pair) == pytest.approx(theirs["snr_db"], abs=1e-9)


def orthogonal_noise(x, seed=0):
    noise = np.random.default_rng(seed).standard_normal(len(x))
    return noise - (noise @ x) / (x @ x) * x


@pytest.mark.parametrize("target_db", [-20, 0, 30, 90, 120, 150])
@pytest.mark.parametrize("gain", [1.0, 0.25, -3.7])
def test_noise_orthogonal_to_the_signal_scores_its_level(speech, target_db, gain):
    x = speech(20, 1)
    noise = orthogonal_noise(x)
    noise *= np.linalg.norm(x) / np.linalg.norm(noise) * 10 ** (-target_db / 20)
    found = am.si_sdr_db(x, gain * (x + noise), zero_mean=False)
    assert found == pytest.approx(target_db, abs=1e-3)
    if gain == 1.0:
        assert am.snr_db(x, x + noise) == pytest.approx(target_db, abs=1e-3)


def test_planted_faults_in_si_sdr_precision(speech):
    """Difference of energies, or float32 sums: both are far off where the residual form in float64 is exact."""
    x = speech(20, 1)
    noise = orthogonal_noise(x)
    noise *= np.linalg.norm(x) / np.linalg.norm(noise) * 10 ** (-150 / 20)
    y = 0.25 * (x + noise)
    target = (x @ y) ** 2 / (x @ x)
    residual = target * 10 ** (-150 / 10)
    assert abs((y @ y - target) / residual - 1.0) > 0.1  # more than 0.4 dB off, or negative
    x32, y32 = x.astype(np.float32), (x + noise * 10 ** (110 / 20)).astype(np.float32)
    scale = np.sum(x32 * y32, dtype=np.float32) / np.add.accumulate(x32 * x32)[-1]  # a plain running float32 sum
    in_float32 = 10 * np.log10(np.sum((scale * x32) ** 2) / np.sum((y32 - scale * x32) ** 2))
    in_float64 = am.si_sdr_db(x32, y32, zero_mean=False)
    assert in_float64 == pytest.approx(40.0, abs=1e-3)
    assert abs(in_float32 - in_float64) > 1e-3


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_a_quantised_full_scale_sine(bits):
    t = np.arange(10 * FS)
    x = np.sin(2 * np.pi * 997 * t / FS) * (1 - 2.0**-bits)
    step = 2.0 ** (1 - bits)
    quantised = np.round(x / step) * step
    assert am.snr_db(x, quantised) == pytest.approx(6.02 * bits + 1.76, abs=0.2)


def test_zero_mean_removes_both_means(pair):
    x, y = pair
    expected = am.si_sdr_db(x - x.mean(), y - y.mean(), zero_mean=False)
    assert am.si_sdr_db(x + 0.3, y - 0.2, zero_mean=True) == pytest.approx(expected, abs=1e-9)
    assert am.si_sdr_db(x, y - 0.2, zero_mean=False) < expected - 10


def test_perfect_and_orthogonal_estimates():
    x = np.tile([1.0, -1.0], 500)
    assert am.si_sdr_db(x, x, zero_mean=False) == np.inf
    assert am.si_sdr_db(x, 2.0 * x, zero_mean=False) == np.inf
    assert am.snr_db(x, x) == np.inf
    assert am.si_sdr_db(x, np.tile([1.0, 1.0], 500), zero_mean=False) == -np.inf


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    cuts=st.sets(st.integers(1, 299), max_size=8),
    gain=st.floats(-4, 4),
    noise_db=st.floats(-120, 20),
)
def test_pooled_stretches_are_the_whole(seed, cuts, gain, noise_db):
    rng = np.random.default_rng(seed)
    r = rng.standard_normal(300)
    r[100:180] = 0.0
    e = gain * r + 10 ** (noise_db / 20) * rng.standard_normal(300)
    pooled = projection_sums(r, e, np.array([0, *sorted(cuts)])).pooled()
    scale = (e @ r) / (r @ r)
    residual = e - scale * r
    np.testing.assert_allclose(pooled.residual, residual @ residual, rtol=1e-9)
    np.testing.assert_allclose(pooled.noise, (e - r) @ (e - r), rtol=1e-12)
    np.testing.assert_allclose(pooled.product, e @ r, rtol=1e-9, atol=1e-12)


def test_level_offset_and_clipping():
    sine = np.sin(2 * np.pi * 100 * np.arange(FS) / FS)
    assert am.rms_dbfs(sine) == pytest.approx(-3.0103, abs=1e-4)
    assert am.rms_dbfs(np.full(1000, -1.0)) == 0.0
    assert am.dc_offset(sine + 0.125) == pytest.approx(0.125, abs=1e-12)
    assert am.clipping_fraction(np.array([0.0, 1.0, -1.0, 0.999, 1.5])) == pytest.approx(0.6)
    assert am.dc_offset(np.zeros(10)) == 0.0
    with pytest.raises(am.UndefinedMetricError, match="digital silence"):
        am.rms_dbfs(np.zeros(1000))


def test_sums_are_float64_for_float32_signals():
    x = np.full(1 << 22, 0.1, np.float32)
    exact = float(np.float64(np.float32(0.1)) ** 2)
    assert am.rms_dbfs(x) == pytest.approx(10 * np.log10(exact), abs=1e-5)
    running = np.add.accumulate(x * x)[-1]  # planted fault: a running float32 sum
    assert abs(10 * np.log10(running / len(x)) - 10 * np.log10(exact)) > 1e-3


def naive_silence(x):
    n, hop = 684, 171
    w = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)
    silent = [np.sum((w * x[s : s + n]) ** 2) / np.sum(w**2) < 1e-6 for s in range(0, len(x) - n + 1, hop)]
    longest = run = 0
    for frame in silent:
        run = run + 1 if frame else 0
        longest = max(longest, run)
    return np.mean(silent), longest * hop / FS


@pytest.mark.parametrize("seed", range(6))
def test_silence_against_a_loop(seed):
    rng = np.random.default_rng(seed)
    x = 0.1 * rng.standard_normal(11 * FS)
    for start in rng.integers(0, len(x), 5):
        x[start : start + rng.integers(100, 5 * FS)] *= 1e-4
    fraction, longest_s = naive_silence(x)
    assert am.silence_fraction(x, sample_rate_hz=FS) == pytest.approx(fraction, abs=1e-12)
    assert am.longest_silence_s(x, sample_rate_hz=FS) == pytest.approx(longest_s, abs=1e-12)


@pytest.mark.parametrize("delay", [0, 1, -1, 160, -777, 7999])
@pytest.mark.parametrize("polarity", [1.0, -1.0])
def test_lag_finds_a_delay_and_its_sign(speech, delay, polarity):
    x = speech(7, 1) + 0.01 * np.random.default_rng(1).standard_normal(7 * FS)
    late = polarity * np.concatenate([np.zeros(max(delay, 0)), x, np.zeros(max(-delay, 0))])[max(-delay, 0) :][: len(x)]
    assert am.lag_s(x, late, sample_rate_hz=FS) == delay / FS


def test_lag_is_that_of_scipys_correlation():
    rng = np.random.default_rng(2)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, y = rng.standard_normal((2, 9001))
        y += 0.3 * np.roll(x, int(rng.integers(-700, 700)))
        full = np.abs(scipy.signal.correlate(y, x, mode="full"))
        lags = scipy.signal.correlation_lags(len(y), len(x), mode="full")
        near = np.abs(lags) <= 800
        expected = lags[near][np.argmax(full[near])]
        assert am.lag_s(x, y, sample_rate_hz=FS, max_lag_s=0.05) == expected / FS
