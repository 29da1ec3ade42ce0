import numpy as np
import pytest

import audio_metrics as am
from audio_metrics import spectral
from audio_metrics.frames import blocks
from audio_metrics.signal import ArraySource
from audio_metrics.spectra import Spectra

FS = 16000
GAINS_DB = [-20.0, -0.1, 0.001, 6.0, 23.5]


def kernel_mean(kernel, *signals, inner=False):
    """Mean of a kernel over all frames; `inner` leaves out the bins at 0 Hz and at half the rate."""
    return frame_values(kernel, *signals, inner=inner).mean()


def frame_values(kernel, *signals, inner=False):
    values = []
    for _, block in blocks([ArraySource(x, sample_rate_hz=FS, name="signal") for x in signals]):
        found = block.spectra
        if inner:
            found = Spectra(found.power[..., 1:-1], floor=0.0, bands=None, basis=None, bin_hz=found.bin_hz)
        values.append(kernel(found))
    return np.concatenate(values)


@pytest.mark.parametrize("gain_db", GAINS_DB)
def test_a_pure_gain_scores_its_decibels(speech, gain_db):
    x = speech(3, 1)
    k = 10 ** (gain_db / 20)
    assert am.log_spectral_distance_db(x, k * x, sample_rate_hz=FS, floor=0.0) == pytest.approx(abs(gain_db), abs=1e-12)
    assert am.log_magnitude_l1_db(x, k * x, sample_rate_hz=FS, floor=0.0) == pytest.approx(abs(gain_db), abs=1e-12)
    assert am.spectral_convergence(x, k * x, sample_rate_hz=FS) == pytest.approx(abs(1 - k), rel=1e-12)
    assert am.ltas_distance_db(x, k * x, sample_rate_hz=FS, floor=0.0) == pytest.approx(0.0, abs=1e-12)


def test_against_a_direct_computation(pair, naive_power):
    x, y = pair
    p, q = naive_power(x), naive_power(y)
    a, b = np.sqrt(p), np.sqrt(q)
    ratio_db = 10 * np.log10(np.maximum(p, 1e-10)) - 10 * np.log10(np.maximum(q, 1e-10))
    lsd = np.mean([np.sqrt(np.mean(row**2)) for row in ratio_db])
    assert am.log_spectral_distance_db(x, y, sample_rate_hz=FS) == pytest.approx(lsd, rel=1e-9)
    l1 = np.mean(np.abs(ratio_db))
    assert am.log_magnitude_l1_db(x, y, sample_rate_hz=FS) == pytest.approx(l1, rel=1e-9)
    convergence = np.linalg.norm(a - b) / np.linalg.norm(a)
    assert am.spectral_convergence(x, y, sample_rate_hz=FS) == pytest.approx(convergence, rel=1e-9)
    ltas = 10 * np.log10(p.mean(axis=0)) - 10 * np.log10(q.mean(axis=0))
    ltas_db = np.sqrt(np.mean((ltas - ltas.mean()) ** 2))
    assert am.ltas_distance_db(x, y, sample_rate_hz=FS) == pytest.approx(ltas_db, rel=1e-9)
    flatness = np.mean(10 * np.log10(np.exp(np.log(p).mean(axis=1)) / p.mean(axis=1)))
    assert am.spectral_flatness_db(x, sample_rate_hz=FS, floor=0.0) == pytest.approx(flatness, rel=1e-9)
    hz = np.arange(p.shape[1]) * FS / 684
    centroid = np.mean(p @ hz / p.sum(axis=1))
    assert am.spectral_centroid_hz(x, sample_rate_hz=FS) == pytest.approx(centroid, rel=1e-9)


def test_float32_is_near_float64(pair):
    single = [x.astype(np.float32) for x in pair]
    double = [x.astype(np.float64) for x in single]
    for metric in (am.log_spectral_distance_db, am.log_magnitude_l1_db, am.spectral_convergence, am.ltas_distance_db):
        assert metric(*single, sample_rate_hz=FS) == pytest.approx(metric(*double, sample_rate_hz=FS), abs=8.5e-3)


def test_two_white_noises_have_the_distances_of_theory():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 60 * FS))
    lsd = spectral.frame_log_spectral_distance_db
    root_mean_square = np.sqrt(np.mean(frame_values(lsd, x, y, inner=True) ** 2))
    assert root_mean_square == pytest.approx(10 / np.log(10) * np.pi / np.sqrt(3), abs=0.02)
    assert kernel_mean(lsd, x, y) == pytest.approx(7.91, abs=0.03)
    l1_nepers = kernel_mean(spectral.frame_log_magnitude_l1_db, x, y, inner=True) * np.log(10) / 20
    assert l1_nepers == pytest.approx(np.log(2), abs=2e-3)
    assert am.spectral_convergence(x, y, sample_rate_hz=FS) == pytest.approx(np.sqrt(2 - np.pi / 2), abs=2e-3)
    flatness = spectral.frame_flatness_db
    assert kernel_mean(flatness, x, inner=True) == pytest.approx(-10 * np.euler_gamma / np.log(10), abs=0.02)
    assert am.spectral_flatness_db(x, sample_rate_hz=FS) == pytest.approx(-2.512, abs=0.02)
    assert am.spectral_centroid_hz(x, sample_rate_hz=FS) == pytest.approx(FS / 4, rel=2e-3)


def test_a_tone_has_its_frequency_as_centroid():
    tone = 0.5 * np.sin(2 * np.pi * 1234.5 * np.arange(FS) / FS)
    assert am.spectral_centroid_hz(tone, sample_rate_hz=FS) == pytest.approx(1234.5, abs=0.1)
