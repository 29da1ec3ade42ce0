import numpy as np
import pytest
import scipy.spatial.distance

from audio_metrics.distribution import discrepancy_of, sampled_cepstra
from audio_metrics.frames import FLOOR, blocks
from audio_metrics.signal import ArraySource

FS = 8000


def source(samples):
    return ArraySource(samples, sample_rate_hz=FS, name="signal")


def naive(x, y, skip=None):
    """Three loops over pairs; scipy's distances give the median."""
    sigma = np.median(scipy.spatial.distance.pdist(x))

    def kernel(a, b):
        return np.exp(-np.sum((a - b) ** 2) / (2 * sigma**2))

    within = [kernel(x[i], x[j]) for i in range(len(x)) for j in range(len(x)) if i != j]
    others = [kernel(y[i], y[j]) for i in range(len(y)) for j in range(len(y)) if i != j]
    across = [
        kernel(x[i], y[j]) for i in range(len(x)) for j in range(len(y)) if skip is None or skip[0][i] != skip[1][j]
    ]
    return np.mean(within) + np.mean(others) - 2 * np.mean(across)


def test_against_loops():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((17, 4)), 1.3 * rng.standard_normal((12, 4)) + 0.5
    assert discrepancy_of(x, y) == pytest.approx(naive(x, y), abs=1e-12)
    places = np.arange(17), np.arange(12)
    assert discrepancy_of(x, y, places) == pytest.approx(naive(x, y, places), abs=1e-12)


def test_by_hand():
    """Two points each: the reference's only distance is 2, so σ = 2."""
    x, y = np.array([[0.0], [2.0]]), np.array([[0.0], [4.0]])
    expected = np.exp(-4 / 8) + np.exp(-16 / 8) - 2 * (1 + np.exp(-16 / 8) + np.exp(-4 / 8) + np.exp(-4 / 8)) / 4
    assert discrepancy_of(x, y) == pytest.approx(expected, abs=1e-14)


def test_it_is_unbiased_and_a_biased_one_is_not():
    """Planted fault: leaving the diagonal in adds about 2 (1 - mean kernel) / n."""
    rng = np.random.default_rng(1)
    found, biased = [], []
    for _ in range(400):
        x, y = rng.standard_normal((2, 20, 3))
        found.append(discrepancy_of(x, y))
        sigma = np.median(scipy.spatial.distance.pdist(x))
        kernels = [
            np.exp(-scipy.spatial.distance.cdist(a, b, "sqeuclidean") / (2 * sigma**2)).mean()
            for a, b in ((x, x), (y, y), (x, y))
        ]
        biased.append(kernels[0] + kernels[1] - 2 * kernels[2])
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found)) < 4 * error
    assert np.mean(biased) > 10 * error
    assert min(found) < 0.0 < min(biased)


@pytest.mark.parametrize(("seconds", "windows"), [(5, 1), (60, 1), (89, 1), (91, 2), (150, 3)])
def test_every_kth_frame_of_each_window(speech, seconds, windows):
    x = speech(seconds, 1, fs=FS)
    parts = list(sampled_cepstra(source(x), floor=FLOOR))
    assert len(parts) == windows
    cepstra = np.concatenate([block.spectra.cepstra[0] for _, block in blocks([source(x)])])
    for window, (places, found) in enumerate(parts):
        assert 60 < len(places) <= 200
        assert len(set(np.diff(places))) == 1
        first = -(-window * 60 * FS // 85)
        np.testing.assert_allclose(found, cepstra[first + places], rtol=1e-12, atol=1e-12)


def test_too_few_frames_have_no_value():
    assert np.isnan(discrepancy_of(np.zeros((1, 3)), np.ones((5, 3))))
    assert np.isnan(discrepancy_of(np.zeros((9, 3)), np.ones((5, 3))))  # no distance within the reference
