import numpy as np
import pytest
import scipy.linalg

import audio_metrics as am
from audio_metrics.distribution import Moments, frechet_distance_of, signal_moments
from audio_metrics.frames import FLOOR, blocks
from audio_metrics.signal import ArraySource

FS = 16000


class FakeSpectra:
    """Cepstra as given; moments read nothing else."""

    def __init__(self, cepstra):
        self.cepstra = cepstra[None]
        self.power_sum = np.full((1, 3), len(cepstra))


def moments_of(cepstra, chunks=1):
    moments = Moments(3, cepstra=True)
    for chunk in np.array_split(cepstra, chunks):
        moments.add(FakeSpectra(chunk), 0, np.ones(len(chunk), bool))
    return moments


@pytest.fixture
def cepstra():
    rng = np.random.default_rng(0)
    return rng.standard_normal((400, 25)) @ rng.standard_normal((25, 25)) + 30 * rng.standard_normal(25)


@pytest.mark.parametrize("chunks", [1, 3, 57])
def test_moments_are_numpys_however_they_arrive(cepstra, chunks):
    moments = moments_of(cepstra, chunks)
    np.testing.assert_allclose(moments.mean_cepstrum, cepstra.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.covariance, np.cov(cepstra.T), rtol=1e-9, atol=1e-12)  # over n − 1


def test_frechet_identities(cepstra):
    one = moments_of(cepstra)
    trace = np.trace(np.cov(cepstra.T))
    assert frechet_distance_of(one, one) == pytest.approx(0.0, abs=1e-9 * trace)
    shift = np.linspace(-1, 2, 25)
    assert frechet_distance_of(one, moments_of(cepstra + shift)) == pytest.approx(shift @ shift, rel=1e-9)
    spread = cepstra.mean(axis=0) + 2.0 * (cepstra - cepstra.mean(axis=0))  # covariance × 4
    assert frechet_distance_of(one, moments_of(spread)) == pytest.approx(trace, rel=1e-9)


def test_frechet_against_the_matrix_root(cepstra):
    rng = np.random.default_rng(1)
    other = rng.standard_normal((300, 25)) @ rng.standard_normal((25, 25))
    first, second = np.cov(cepstra.T), np.cov(other.T)
    shift = cepstra.mean(axis=0) - other.mean(axis=0)
    root = scipy.linalg.sqrtm(first @ second)
    expected = shift @ shift + np.trace(first + second - 2 * np.real(root))
    assert frechet_distance_of(moments_of(cepstra), moments_of(other)) == pytest.approx(expected, rel=1e-8)
    assert frechet_distance_of(moments_of(other), moments_of(cepstra)) == pytest.approx(expected, rel=1e-8)


def test_planted_fault_traces_without_the_cross_term(cepstra):
    covariance = np.cov(cepstra.T)
    assert 2 * np.trace(covariance) - 2 * np.sqrt(np.diag(covariance) ** 2).sum() == pytest.approx(0.0, abs=1e-6)
    rotation = np.linalg.qr(np.random.default_rng(2).standard_normal((25, 25)))[0]
    rotated = (cepstra - cepstra.mean(axis=0)) @ rotation + cepstra.mean(axis=0)
    of_diagonals = 2 * np.trace(covariance) - 2 * np.sqrt(np.diag(covariance) * np.diag(np.cov(rotated.T))).sum()
    assert frechet_distance_of(moments_of(cepstra), moments_of(rotated)) > 2 * of_diagonals


def test_a_gain_shifts_c0_only(speech):
    x = speech(5, 1) + 0.01 * np.random.default_rng(0).standard_normal(5 * FS)
    expected = 80 * np.log(4.0) ** 2  # Δc0 = √80 · ln 4
    assert am.frechet_distance(x, 2 * x, sample_rate_hz=FS) == pytest.approx(expected, rel=1e-9)


def test_moments_of_a_signal_are_those_of_its_frames_outside_silence(speech):
    x = np.concatenate([speech(2, 1), np.zeros(2 * FS), speech(1.2, 3)])
    cepstra = np.concatenate(
        [block.spectra.cepstra[0] for _, block in blocks([ArraySource(x, sample_rate_hz=FS, name="signal")])]
    )
    start = np.arange(len(cepstra)) * 171 // FS
    kept = cepstra[(start < 2) | (start >= 4)]
    found = signal_moments(ArraySource(x, sample_rate_hz=FS, name="signal"), floor=FLOOR, cepstra=True)
    assert found.n_frames == len(kept)
    np.testing.assert_allclose(found.mean_cepstrum, kept.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(found.covariance, np.cov(kept.T), rtol=1e-8, atol=1e-10)
