import math

import numpy as np
import pytest
import scipy.fft

from audio_metrics.frames import Wanted, blocks
from audio_metrics.signal import ArraySource
from audio_metrics.spectra import (
    FLOOR,
    MelBands,
    Spectra,
    cosine_basis,
    inner_product,
    mel_filter_bank,
    product,
    row_products,
    row_sums,
)
from audio_metrics.spectral import frame_log_spectral_distance_db

FS = 16000


@pytest.mark.parametrize("n", [1, 513, 8192, 8193, 20000])
def test_products_are_those_of_exact_arithmetic(n):
    rng = np.random.default_rng(n)
    first, second = rng.standard_normal((2, 3, n))
    exact = [math.fsum(a * b) for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(row_products(first, second), exact, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(
        row_products(first, second[0]), [math.fsum(row * second[0]) for row in first], atol=1e-10
    )
    np.testing.assert_allclose(row_sums(first), [math.fsum(row) for row in first], atol=1e-10)
    assert inner_product(first[0], second[0]) == pytest.approx(exact[0], rel=1e-12, abs=1e-10)


def pair(speech, dtype="float32"):
    x = speech(3.3, 1, dtype=dtype)
    return [ArraySource(s, sample_rate_hz=FS, name="signal") for s in (x, np.clip(2.0 * x, -0.1, 0.1))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pieces_say_what_the_whole_block_says(speech, dtype):
    names = ("floored_bins", "power_sum", "bin_sum", "log_bands", "cepstra")
    wanted = Wanted(kernels={"lsd": frame_log_spectral_distance_db}, attributes=names)
    sources = pair(speech, dtype)
    for (_, lazy), (_, eager) in zip(blocks(sources), blocks(sources, wanted=wanted), strict=True):
        assert set(names) <= set(vars(eager.spectra))
        for name in names:
            np.testing.assert_allclose(
                getattr(eager.spectra, name), getattr(lazy.spectra, name), rtol=1e-12, atol=1e-12
            )
        np.testing.assert_allclose(
            eager.values["lsd"], frame_log_spectral_distance_db(lazy.spectra), rtol=1e-12, atol=1e-12
        )


def spectra_of(power, floor=FLOOR):
    return Spectra(power, floor=floor, bands=None, basis=None, bin_hz=1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_floor_is_a_maximum(dtype):
    rng = np.random.default_rng(0)
    power = (10.0 ** rng.uniform(-14, 0, (2, 5, 33))).astype(dtype)
    power[0, 0, 0] = 0.0
    power[1, 1, 1] = dtype(FLOOR)
    spectra = spectra_of(power)
    np.testing.assert_array_equal(spectra.log_power, np.log(np.maximum(power, dtype(FLOOR))))
    np.testing.assert_array_equal(spectra.floored_bins, (power < dtype(FLOOR)).sum(axis=(1, 2)))


def test_the_log_ratio_is_the_difference_of_logarithms():
    rng = np.random.default_rng(0)
    power = (10.0 ** rng.uniform(-12, 3, (2, 5, 33))).astype(np.float32)
    for floor in (FLOOR, 1e-14):
        exact = np.log(np.maximum(power.astype(np.float64), np.float32(floor)))
        np.testing.assert_allclose(spectra_of(power, floor).log_ratio, exact[0] - exact[1], atol=1e-5)
    near = np.stack([power[0], power[0] * np.float32(1 + 2**-20)])
    np.testing.assert_allclose(spectra_of(near, 1e-10).log_ratio, np.where(power[0] < 1e-10, 0, -(2.0**-20)), rtol=0.2)
    loud = np.full((2, 1, 33), 1e27, np.float32)
    loud[1] = 0.0
    for floor in (1e-10, 1e-14):  # the quotient overflows float32 under the second
        expected = np.log(np.float64(loud[0]) / np.float32(floor))
        np.testing.assert_allclose(spectra_of(loud, floor).log_ratio, expected, rtol=1e-6)
    assert np.all(spectra_of(np.stack([power[0], power[0]])).log_ratio == 0.0)


def test_equal_signals_have_equal_spectra_to_the_last_bit(speech):
    x = speech(3.3, 1, dtype="float32")
    source = ArraySource(x, sample_rate_hz=FS, name="signal")
    for _, block in blocks([source, source], block_windows=3):
        np.testing.assert_array_equal(block.spectra.power[0], block.spectra.power[1])
        np.testing.assert_array_equal(block.spectra.cepstra[0], block.spectra.cepstra[1])


@pytest.mark.parametrize(("fs", "n_fft"), [(8000, 340), (16000, 684), (22050, 940), (24000, 1024), (48000, 2048)])
def test_the_bank_is_librosas(fs, n_fft):
    librosa = pytest.importorskip("librosa")
    theirs = librosa.filters.mel(sr=fs, n_fft=n_fft, n_mels=80, htk=False, norm="slaney", dtype=np.float64)
    np.testing.assert_allclose(mel_filter_bank(fs, n_fft), theirs, rtol=1e-9, atol=1e-14)


def test_the_basis_is_scipys_orthonormal_dct():
    x = np.random.default_rng(0).standard_normal((7, 80))
    np.testing.assert_allclose(x @ cosine_basis().T, scipy.fft.dct(x, norm="ortho")[:, :25], atol=1e-13)
    full = cosine_basis(80, 80)
    np.testing.assert_allclose(full @ full.T, np.eye(80), atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_grouped_bands_are_the_dense_product(dtype):
    power = np.random.default_rng(1).exponential(size=(2, 30, 343)).astype(dtype)
    found = MelBands(16000, 684).power(power)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, power.astype(np.float64) @ mel_filter_bank(16000, 684).T, rtol=1e-12)


@pytest.mark.parametrize(("n", "k", "m"), [(1, 3, 2), (5000, 80, 25), (10, 900, 600), (0, 4, 4)])
def test_the_piecewise_product_is_the_product(n, k, m):
    rng = np.random.default_rng(2)
    rows, matrix = rng.standard_normal((2, n, k)), rng.standard_normal((k, m))
    np.testing.assert_allclose(product(rows, matrix), rows @ matrix, rtol=1e-10, atol=1e-12)
