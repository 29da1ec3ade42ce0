"""Strips: bands and times where they belong, differences with the right sign and size, against a plain reckoning."""

import base64
import io

import made_sound as made
import numpy as np
import pytest
from PIL import Image

from audio_metrics.signal import ArraySource
from audio_metrics.spectra import band_centres_hz, mel_filter_bank
from precision_eval.report.html.sound import spectrogram
from precision_eval.report.html.sound.spectrogram import (
    difference_columns,
    difference_picture,
    level_columns,
    level_picture,
)

RATE_HZ = made.RATE_HZ


def source(samples):
    return ArraySource(samples, sample_rate_hz=RATE_HZ, name="made")


def rgba(picture):
    data = base64.b64decode(picture.data.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGBA")).astype(int)


@pytest.fixture(scope="module")
def sound():
    return made.speech(8.0)


def plain_levels(samples):
    """Frames, windows and filters written out, float64: middles of the frames in samples, levels (n_frames, 80) dB."""
    hop = round(256 * RATE_HZ / 24000)
    size = 4 * hop
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    starts = np.arange(0, len(samples) - size + 1, hop)
    frames = np.stack([samples[start : start + size].astype(np.float64) * window for start in starts])
    power = np.abs(np.fft.rfft(frames)) ** 2 / np.sum(window**2)
    return starts + size // 2, 10 * np.log10(np.maximum(power @ mel_filter_bank(RATE_HZ, size).T, 1e-10))


def test_columns_are_those_of_a_plain_reckoning(sound):
    wide = sound.astype(np.float64)
    middles, level = plain_levels(wide)
    column = middles * 100 // len(sound)
    expected = np.stack([level[column == index].mean(axis=0) for index in range(100)], axis=1)
    assert level_columns(source(wide), n_columns=100) == pytest.approx(expected, abs=1e-9)
    assert level_columns(source(sound), n_columns=100) == pytest.approx(expected, abs=0.02)  # in float32

    other = made.speech(8.0, 30.0).astype(np.float64)
    more = plain_levels(other)[1] - level
    parts = [more[column == index] for index in range(100)]
    expected = np.stack([np.sign(part.mean(axis=0)) * np.sqrt((part**2).mean(axis=0)) for part in parts], axis=1)
    assert difference_columns(source(wide), source(other), n_columns=100) == pytest.approx(expected, abs=1e-9)


def test_what_is_louder_and_quieter_by_turns_does_not_cancel():
    noise = 0.1 * np.random.default_rng(0).standard_normal(8 * RATE_HZ)
    turns = 10 ** (np.where(np.arange(len(noise)) // (RATE_HZ // 2) % 2, 6.0, -6.0) / 20)
    columns = difference_columns(source(noise), source(noise * turns), n_columns=4)  # two turns of each in a column
    assert np.abs(columns) == pytest.approx(np.full((80, 4), 6.0), abs=0.5)


def test_equal_sounds_leave_the_picture_clear(sound):
    columns = difference_columns(source(sound), source(sound.copy()))
    assert np.array_equal(columns, np.zeros_like(columns))
    assert rgba(difference_picture(columns, share=1.0))[..., 3].max() == 0


@pytest.mark.parametrize("gain_db", [6.0, -12.5])
def test_a_gain_shows_as_itself(gain_db):
    noise = 0.1 * np.random.default_rng(0).standard_normal(4 * RATE_HZ)
    columns = difference_columns(source(noise), source(noise * 10 ** (gain_db / 20)))
    assert columns == pytest.approx(np.full_like(columns, gain_db), abs=1e-9)
    pixels = rgba(difference_picture(columns, share=1.0))
    assert abs(pixels[..., 3] - 255 * abs(gain_db) / 20).max() <= 255 / 40 + 1  # half a step of colour
    redder = pixels[..., 0].mean() > pixels[..., 2].mean()
    assert redder == (gain_db > 0)


def test_a_difference_begins_where_the_sounds_part(sound):
    changed = made.differing(sound, from_s=5.0)
    columns = difference_columns(source(sound), source(changed))
    n_columns = columns.shape[1]
    middle_s = (np.arange(n_columns) + 0.5) * len(sound) / RATE_HZ / n_columns
    assert not columns[:, middle_s < 4.9].any()
    assert (np.abs(columns[:, middle_s > 5.1]).max(axis=0) > 1.0).all()


def test_a_shift_in_time_would_be_noticed(sound, monkeypatch):
    changed = made.differing(sound, from_s=5.0)
    real = spectrogram.blocks

    def late(*sources, **options):
        for grid, block in real(*sources, **options):
            object.__setattr__(block, "first_frame", max(0, block.first_frame - 40))
            yield grid, block

    monkeypatch.setattr(spectrogram, "blocks", late)
    with pytest.raises(AssertionError):
        test_a_difference_begins_where_the_sounds_part(sound)
    assert len(changed) == len(sound)


def test_low_is_at_the_bottom_and_a_tone_in_its_band():
    time_s = np.arange(3 * RATE_HZ) / RATE_HZ
    tone = 0.3 * np.sin(2 * np.pi * 1000.0 * time_s)
    columns = level_columns(source(tone))
    band = int(np.argmin(np.abs(band_centres_hz(RATE_HZ) - 1000.0)))
    assert set(np.argmax(columns, axis=0)) == {band}
    brightest = rgba(level_picture(columns, share=1.0))[..., 3].argmax(axis=0)
    assert set(brightest) == {79 - band}
