import numpy as np
import pytest
import scipy.fft

import audio_metrics as am
from audio_metrics import spectral
from audio_metrics.frames import blocks
from audio_metrics.signal import ArraySource
from audio_metrics.spectra import mel_filter_bank

FS = 16000
DB = 10 / np.log(10)


@pytest.fixture
def log_mel(naive_power):
    """Log mel power by a loop over frames, and the filters that ``test_spectra`` holds to librosa's."""
    return lambda x: np.log(np.maximum(naive_power(x) @ mel_filter_bank(FS, 684).T, 1e-10))


def spectra_of(x, y):
    sources = [ArraySource(s, sample_rate_hz=FS, name="signal") for s in (x, y)]
    return [block.spectra for _, block in blocks(sources)]


def frame_values(x, y, kernel=spectral.frame_mel_mcd_db):
    return np.concatenate([kernel(spectra) for spectra in spectra_of(x, y)])


def kernel_mean(kernel, x, y):
    return frame_values(x, y, kernel).mean()


def test_against_a_loop_and_scipy(pair, log_mel):
    x, y = pair
    difference = scipy.fft.dct(log_mel(x) - log_mel(y), norm="ortho")
    expected = np.mean(DB * np.sqrt(np.sum(difference[:, 1:25] ** 2, axis=1) / 80))
    assert am.mel_mcd_db(x, y, sample_rate_hz=FS) == pytest.approx(expected, rel=1e-9)
    level = np.mean(DB * np.abs(difference[:, 0]) / np.sqrt(80))
    assert am.level_error_db(x, y, sample_rate_hz=FS) == pytest.approx(level, rel=1e-9)


def test_at_full_order_it_is_the_mean_removed_level_difference(pair, log_mel):
    x, y = pair
    difference_db = DB * (log_mel(x) - log_mel(y))
    centred = difference_db - difference_db.mean(axis=1, keepdims=True)
    full_order = DB * np.sqrt(np.sum(scipy.fft.dct(log_mel(x) - log_mel(y), norm="ortho")[:, 1:] ** 2, axis=1) / 80)
    np.testing.assert_allclose(full_order, np.sqrt(np.mean(centred**2, axis=1)), rtol=1e-12)
    assert am.mel_mcd_db(x, y, sample_rate_hz=FS) <= full_order.mean()


def pure_gain_costs_nothing(kernel, x):
    return abs(kernel_mean(kernel, x, 2.0 * x)) < 1e-12


def test_a_pure_gain_is_all_level(speech):
    x = speech(3, 1) + 1e-3 * np.random.default_rng(0).standard_normal(3 * FS)
    assert pure_gain_costs_nothing(spectral.frame_mel_mcd_db, x)
    assert am.level_error_db(x, 2.0 * x, sample_rate_hz=FS) == pytest.approx(20 * np.log10(2), abs=1e-12)
    assert am.mel_mcd_db(x, x, sample_rate_hz=FS) == 0.0


def leaking_c0(spectra):
    difference = spectra.cepstra[0] - spectra.cepstra[1]
    return DB * np.sqrt(np.sum(difference**2, axis=1) / 80)


def test_planted_fault_c0_leaks(speech):
    x = speech(3, 1) + 1e-3 * np.random.default_rng(0).standard_normal(3 * FS)
    assert not pure_gain_costs_nothing(leaking_c0, x)
    assert kernel_mean(leaking_c0, x, 2.0 * x) == pytest.approx(20 * np.log10(2), abs=1e-9)  # the gain itself


def tilted(x, coefficient):
    """Cepstra that differ by 1 in one coefficient only: kernels on hand-made spectra."""
    spectra = spectra_of(x, x)[0]
    cepstra = spectra.cepstra.copy()
    cepstra[1, :, coefficient] += 1.0
    spectra.__dict__["cepstra"] = cepstra
    return spectra


@pytest.mark.parametrize("coefficient", range(1, 25))
def test_one_coefficient_offset_scores_the_same_wherever_it_is(speech, coefficient):
    expected = DB / np.sqrt(80)
    np.testing.assert_allclose(spectral.frame_mel_mcd_db(tilted(speech(1, 1), coefficient)), expected, rtol=1e-12)
    np.testing.assert_allclose(spectral.frame_level_error_db(tilted(speech(1, 1), coefficient)), 0.0, atol=1e-12)


def test_no_frame_depends_on_another(speech):
    """A decibel range below the file's maximum (librosa's top_db) would couple quiet frames to a loud one."""
    quiet = 1e-4 * speech(2, 1)
    other = quiet + 1e-5 * np.random.default_rng(1).standard_normal(len(quiet))
    loud = np.sin(2 * np.pi * 440 * np.arange(94 * 171) / FS)  # 94 hops
    alone = frame_values(quiet, other)
    behind = frame_values(np.concatenate([loud, quiet]), np.concatenate([loud, other]))
    assert alone.mean() > 0.01
    np.testing.assert_allclose(behind[94:], alone, rtol=1e-9)
