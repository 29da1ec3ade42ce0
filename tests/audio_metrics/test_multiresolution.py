import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am
from audio_metrics.signal import ArraySource
from audio_metrics.spectral import RESOLUTIONS, resolution_sums

FS = 16000


def distance(x, y, **options):
    return am.multi_resolution_stft_distance(x, y, sample_rate_hz=FS, **options)


def padded(x, resolution):
    """As auraloss centres its frames: half a window before the first sample."""
    return np.pad(x, resolution.window_samples // 2)


@pytest.mark.parametrize("resolution", RESOLUTIONS, ids=lambda r: str(r.n_fft))
def test_each_resolution_is_auralosses(padded_pair, references, resolution):
    x, y = padded_pair
    energy = 0.375 * resolution.window_samples  # Σ w²
    found = distance(padded(x, resolution), padded(y, resolution), resolutions=(resolution,), floor=1e-8 / energy)
    theirs = references["spectral"]["resolutions"][str(resolution.n_fft)]
    assert found == pytest.approx(theirs["convergence"] + theirs["log_l1"], rel=1e-7)  # its window is float32


def test_the_mean_over_resolutions_is_auralosses(padded_pair, references):
    x, y = padded_pair
    found = [
        distance(padded(x, r), padded(y, r), resolutions=(r,), floor=1e-8 / (0.375 * r.window_samples))
        for r in RESOLUTIONS
    ]
    assert np.mean(found) == pytest.approx(references["spectral"]["multi_resolution"], rel=1e-7)
    assert distance(x, y) == pytest.approx(references["spectral"]["multi_resolution"], rel=0.02)  # other ends and floor


@settings(max_examples=10)
@given(n=st.integers(1200, 60000), seed=st.integers(0, 1000))
def test_windows_make_the_whole_at_any_length(n, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, n))
    sums = resolution_sums(*(ArraySource(s, sample_rate_hz=FS, name="signal") for s in (x, y)))
    for index, r in enumerate(RESOLUTIONS):
        w = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(r.window_samples) / r.window_samples)
        starts = range(0, n - r.window_samples + 1, r.hop_samples)
        a, b = (np.abs(np.fft.rfft([w * s[i : i + r.window_samples] for i in starts], r.n_fft)) for s in (x, y))
        scale = np.sqrt(np.sum(w**2))
        assert sums.frames[index].sum() == len(starts)
        assert sums.error[index].sum() == pytest.approx(np.sum((a - b) ** 2) / scale**2, rel=1e-9)
        l1 = np.abs(np.log(np.maximum(a / scale, 1e-5) / np.maximum(b / scale, 1e-5))).mean(axis=1).sum()
        assert sums.log_l1[index].sum() == pytest.approx(l1, rel=1e-9)


def test_identity_polarity_and_noise(speech):
    x = speech(3, 1)
    noise = np.random.default_rng(0).standard_normal(len(x))
    assert distance(x, x) == 0.0
    assert distance(x, -x) == 0.0
    values = [distance(x, x + level * noise) for level in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)]
    assert values == sorted(values)
    single = distance(x.astype(np.float32), (x + 1e-3 * noise).astype(np.float32))
    assert single == pytest.approx(values[2], rel=1e-3)


def test_silence_and_bad_samples_are_never_measured(speech):
    x = speech(4, 1)
    half = x.copy()
    half[FS : 2 * FS] = 0.0
    sums = resolution_sums(*(ArraySource(s, sample_rate_hz=FS, name="signal") for s in (half, half)))
    assert (sums.frames[:, 1] == 0).all()  # left out with all its frames
    assert np.isnan(sums.distance()[1])
    broken = x.copy()
    broken[20000] = np.nan
    assert distance_with_hole(x, broken) == 0.0  # the zero put in its place is never measured


def distance_with_hole(x, y):
    return resolution_sums(*(ArraySource(s, sample_rate_hz=FS, name="signal") for s in (x, y))).pooled()


def test_planted_fault_mean_of_convergences():
    """Averaging the convergence of windows is not that of the whole; loud windows must count more."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(2 * FS) * np.repeat([1.0, 0.01], FS)
    y = x + 0.005 * rng.standard_normal(2 * FS)
    sums = resolution_sums(*(ArraySource(s, sample_rate_hz=FS, name="signal") for s in (x, y)))
    whole = np.sqrt(sums.error.sum(axis=1) / sums.energy.sum(axis=1))
    of_windows = np.sqrt(sums.error / sums.energy).mean(axis=1)
    assert (of_windows > 10 * whole).all()
    assert sums.pooled() == pytest.approx(np.mean(whole + sums.log_l1.sum(axis=1) / sums.frames.sum(axis=1)))


def test_centred_frames_are_torchs(speech):
    """Against ``torch.stft`` itself, on a signal that does not end in silence."""
    import torch

    x = speech(1.37, 1)
    y = x + 0.01 * np.random.default_rng(0).standard_normal(len(x))
    expected = []
    for size in RESOLUTIONS:
        window = torch.hann_window(size.window_samples, dtype=torch.float64)
        spectra = [
            torch.stft(
                torch.from_numpy(s), size.n_fft, size.hop_samples, size.window_samples, window, return_complex=True
            ).abs()
            / window.square().sum().sqrt()
            for s in (x, y)
        ]
        a, b = (spectrum.clamp(min=1e-5) for spectrum in spectra)
        convergence = (spectra[0] - spectra[1]).norm() / spectra[0].norm()
        expected.append(float(convergence + (a.log() - b.log()).abs().mean()))
    found = am.multi_resolution_stft_distance(x, y, sample_rate_hz=FS, centred=True)
    assert found == pytest.approx(np.mean(expected), rel=1e-10)
    assert found != pytest.approx(distance(x, y), rel=1e-4)
