"""Changes that are shown by undoing them, on real speech: each is named with its figures, and none where it is not."""

from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile

import audio_metrics as am
import precision_eval
from audio_metrics.signal import ArraySource
from audio_metrics.undoing import moved_or_misread

FS = 16000
SPEECH = Path(precision_eval.__file__).parent / "cases/voice/data/speech.flac"
BYTES = 2


@pytest.fixture(scope="module")
def real():
    return soundfile.read(SPEECH, start=30 * FS, frames=5 * FS)[0]


def headline(x, y):
    align = None if len(x) == len(y) else "length"
    return am.compare(x, np.ascontiguousarray(y, float), sample_rate_hz=FS, align=align, inspect_each=True).headline


def with_gaps(x, chunk, gap):
    parts = [part for start in range(0, len(x), chunk) for part in (x[start : start + chunk], np.zeros(gap))]
    return np.concatenate(parts[:-1])


def reread(x, change, start=0):
    """Samples whose 16-bit bytes are changed from a sample on."""
    raw = np.round(x * 32767).astype("<i2").tobytes()
    changed = change(raw[start * BYTES :])
    return np.frombuffer(raw[: start * BYTES] + changed, "<i2") / 32768


def swap(raw):
    return np.frombuffer(raw, "<i2").byteswap().tobytes()


def shift(raw):
    return b"\0" + raw[:-1]


def flip(raw):
    return (np.frombuffer(raw, "<u2") ^ 0x8000).tobytes()


def echo(x, samples):
    return x + 0.6 * np.concatenate([np.zeros(samples), x[:-samples]])


def levels(x):
    return x * np.repeat([1.0, 0.5, 0.8, 0.3, 0.9], FS)


def without_band(x):
    return scipy.signal.sosfiltfilt(scipy.signal.butter(6, [1500, 2500], "bandstop", fs=FS, output="sos"), x)


PLANTED = {
    "15 gaps of silence of 80 samples (5 ms) in the estimate, whose samples go on after, one after every 320 ms": (
        lambda x: with_gaps(x, 5120, 80)
    ),
    "a gap of silence of 700 samples": lambda x: np.concatenate([x[:50000], np.zeros(700), x[50000:]]),
    "16-bit samples of the estimate are read one byte off; ": lambda x: reread(x, shift),
    "16-bit samples of the estimate are read one byte off, from 0:02.0": lambda x: reread(x, shift, 2 * FS),
    "16-bit samples of the estimate are read in the other byte order": lambda x: reread(x, swap),
    "16-bit samples of the estimate are read as unsigned": lambda x: reread(x, flip),
    "the estimate plays 1.5 times too slow, as 24000 Hz played as 16000 Hz": (
        lambda x: scipy.signal.resample_poly(x, 3, 2)[: len(x)]
    ),
    "the estimate plays 2 times too slow, as 32000 Hz played as 16000 Hz or two channels": lambda x: np.repeat(x, 2),
    "the estimate plays 1.03 times too slow": lambda x: scipy.signal.resample_poly(x, 103, 100),
    "the estimate is the reference backwards": lambda x: x[::-1],
    "an echo 100 ms later": lambda x: echo(x, FS // 10),
    "the spectrum is filtered: little is left from 1.5 kHz to 2.": without_band,
    "loud and soft samples have another ratio": lambda x: np.tanh(4 * x) / 4,
    "the level changes on the way, between -10 and +0 dB, first at 0:01.0": levels,
    "an offset of +0.05 of full scale": lambda x: x + 0.05,
    "a tone at 50 Hz is added": lambda x: x + 0.02 * np.sin(2 * np.pi * 50 * np.arange(len(x)) / FS),
    "steady noise is added": lambda x: x + 0.01 * np.random.default_rng(0).standard_normal(len(x)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_done_is_named(real, name):
    assert headline(real, PLANTED[name](real)).startswith(f"DIFFERS: {name}")


def test_silence_in_place_of_samples_is_no_gap_between_them(real):
    y = real.copy()
    y[50000:50700] = 0.0
    text = headline(real, y)
    assert "gap" not in text
    assert "is zero for" in text


def test_another_recording_is_at_no_speed_and_in_no_byte_order(real):
    other = soundfile.read(SPEECH, start=60 * FS, frames=5 * FS)[0]
    text = headline(real, np.round(other * 32767) / 32768)
    assert text.startswith("DIFFERS: the estimate is another recording")


@pytest.mark.parametrize("pause", [0.0, 1e-5])
def test_pauses_of_zeros_in_both_are_no_gaps(real, pause):
    x = real.copy()
    x[20000:21000] *= pause
    pair = tuple(ArraySource(signal, sample_rate_hz=FS, name="x") for signal in (x, np.round(x * 32767) / 32768))
    assert moved_or_misread(pair, correlation=1.0) == []
