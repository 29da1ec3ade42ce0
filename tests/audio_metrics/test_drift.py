import numpy as np
import pytest

import audio_metrics as am
from audio_metrics.distribution import window_statistics
from audio_metrics.frames import blocks
from audio_metrics.signal import ArraySource

FS = 8000


@pytest.fixture(scope="module")
def long_noise():
    """200 s of coloured noise, always active."""
    noise = np.random.default_rng(0).standard_normal(200 * FS)
    return 0.1 * np.convolve(noise, [1.0, 0.7], mode="same")


def test_statistics_are_numpys(speech):
    x = speech(130, 1, fs=FS) * np.repeat([1.0, 1e-6], [100 * FS, 30 * FS])
    source = ArraySource(x, sample_rate_hz=FS, name="signal")
    parts = [(b.spectra.log_bands[0], b.spectra.active[0]) for _, b in blocks([source])]
    level_db = 10 / np.log(10) * np.concatenate([level for level, _ in parts])
    active = np.concatenate([active for _, active in parts])
    window = np.arange(len(level_db)) * 85 // (60 * FS)
    found = window_statistics(source)
    assert found.shape == (2, 2, 80)  # 10 s are under half a window
    for index in range(2):
        mine = level_db[active & (window == index)]
        np.testing.assert_allclose(found[0, index], mine.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(found[1, index], mine.std(axis=0), rtol=1e-7)


def test_a_change_of_level_drifts_by_its_decibels(long_noise):
    step = np.where(np.arange(len(long_noise)) < 60 * FS, 1.0, 10 ** (3 / 20))
    still = am.mel_mean_drift_db(long_noise, sample_rate_hz=FS)
    assert still < 0.3
    assert am.mel_mean_drift_db(step * long_noise, sample_rate_hz=FS) == pytest.approx(3.0, abs=0.1)
    spread = am.mel_spread_drift_db(long_noise, sample_rate_hz=FS)
    assert am.mel_spread_drift_db(step * long_noise, sample_rate_hz=FS) == pytest.approx(spread, abs=0.02)


def test_a_gain_differs_by_its_decibels(long_noise):
    y = 10 ** (-4 / 20) * long_noise
    assert am.mel_mean_difference_db(long_noise, y, sample_rate_hz=FS) == pytest.approx(4.0, abs=1e-9)
    assert am.mel_spread_difference_db(long_noise, y, sample_rate_hz=FS) == pytest.approx(0.0, abs=1e-6)
    assert am.mel_mean_difference_db(long_noise, long_noise, sample_rate_hz=FS) == 0.0
    assert am.mel_spread_difference_db(long_noise, long_noise, sample_rate_hz=FS) == 0.0


def test_growing_modulation_is_a_drift_of_spread(long_noise):
    t = np.arange(len(long_noise)) / FS
    depth = np.where(t < 60, 0.0, 0.9)
    modulated = long_noise * (1 + depth * np.sin(2 * np.pi * 2 * t))
    assert am.mel_spread_drift_db(modulated, sample_rate_hz=FS) > 1.0
    assert am.mel_spread_drift_db(long_noise, sample_rate_hz=FS) < 0.3
