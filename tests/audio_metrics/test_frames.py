import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio_metrics.frames import FrameGrid, blocks
from audio_metrics.signal import ArraySource

FS = 16000


def source(samples, fs=FS):
    return ArraySource(samples, sample_rate_hz=fs, name="signal")


@pytest.mark.parametrize(
    ("fs", "hop"), [(8000, 85), (16000, 171), (22050, 235), (24000, 256), (44100, 470), (48000, 512)]
)
def test_frames_are_scaled_by_time(fs, hop):
    grid = FrameGrid(fs, fs)
    assert (grid.hop_samples, grid.frame_samples, grid.n_bins) == (hop, 4 * hop, 2 * hop + 1)


def test_the_tail_is_dropped_and_counted():
    grid = FrameGrid(FS, 684 + 171 * 9 + 50)
    assert (grid.n_frames, grid.dropped_samples) == (10, 50)


@pytest.mark.parametrize(("n", "kept", "started"), [(16000, 1, 1), (23999, 1, 2), (24000, 2, 2), (7999, 0, 1)])
def test_a_last_window_is_kept_from_half_its_length(n, kept, started):
    grid = FrameGrid(FS, n)
    assert (grid.n_windows, grid.n_started_windows) == (kept, started)


@pytest.mark.parametrize("fs", [16000, 24000])
def test_power_is_that_of_a_naive_loop(fs, naive_power):
    x = np.random.default_rng(3).standard_normal(round(2.7 * fs))
    power = np.concatenate([b.spectra.power[0].copy() for _, b in blocks([source(x, fs)], block_windows=2)])
    np.testing.assert_allclose(power, naive_power(x, fs), rtol=1e-10, atol=1e-12)
    single = np.concatenate([b.spectra.power[0].copy() for _, b in blocks([source(x.astype(np.float32), fs)])])
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, power, rtol=1e-3, atol=1e-5)


def test_white_noise_has_its_variance_in_every_bin():
    x = 0.3 * np.random.default_rng(4).standard_normal(FS * 60)
    total = sum(b.spectra.power[0].sum(axis=0) for _, b in blocks([source(x)]))
    mean = total / FrameGrid(FS, len(x)).n_frames
    np.testing.assert_allclose(mean[1:-1], 0.09, rtol=0.1)


def test_the_gate_is_absolute():
    tone = np.sin(2 * np.pi * 1000 * np.arange(FS) / FS) * np.sqrt(2)
    for level_db, expected in ((-59.9, True), (-60.1, False)):
        quiet = tone * 10 ** (level_db / 20)
        both = np.concatenate([tone, np.zeros(FS), quiet])  # something loud before it changes nothing
        for x in (quiet, both):
            last = list(blocks([source(x)], block_windows=1))[-1][1]
            assert (last.spectra.active[0, 4:] == expected).all()


@settings(max_examples=40)
@given(n=st.integers(472, 60000), block_windows=st.integers(1, 9), fs=st.sampled_from([8000, 8001, 11025]))
def test_every_frame_and_sample_is_in_one_block_and_its_own_half_window(n, block_windows, fs):
    grid = FrameGrid(fs, n)
    x = np.arange(1.0, n + 1) / n
    frames = samples = 0
    for _, block in blocks([source(x, fs)], block_windows=block_windows):
        start = block.first_window * fs
        np.testing.assert_array_equal(block.samples[0], x[start : start + len(block.samples[0])])
        samples += len(block.samples[0])
        for half in block.half_of_frame:
            begin = start + block.half_starts[half]
            end = start + (block.half_starts[half + 1] if half + 1 < len(block.half_starts) else len(block.samples[0]))
            assert begin <= frames * grid.hop_samples < end
            frames += 1
    assert (frames, samples) == (grid.n_frames, n)


def test_frames_that_a_bad_sample_touches_are_marked():
    x = np.random.default_rng(6).standard_normal(3 * FS)
    at = 2 * FS + 100
    x[at] = np.nan
    finite = np.concatenate([b.finite[0] for _, b in blocks([source(x)], block_windows=1)])
    starts = np.arange(len(finite)) * 171
    np.testing.assert_array_equal(finite, (starts > at) | (starts + 684 <= at))
