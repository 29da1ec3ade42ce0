from __future__ import annotations

import numpy as np
import pytest
import scipy.fft

from audio_metrics.spectra import MelBands, cosine_basis, mel_filter_bank, product


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
