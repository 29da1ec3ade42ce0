"""Sound compressed for the HTML report: MP3 at one constant bit rate for all conditions, and what that costs."""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.signal

from audio_metrics.signal import Source
from audio_metrics.spectral import log_spectral_distance_db, mel_mcd_db
from audio_metrics.waveform import snr_db

BITRATES_KBPS = (96, 80, 64, 48)
"""Tried in this order. A copy of the voice has an SNR of 42, 37, 31 and 22 dB and a log-spectral distance of 2.3, 3.5,
4.9 and 6.4 dB to its WAV; the noise floor has 7.7 dB to the reference, which at 40 kbit/s (7.9 dB) a copy would
exceed."""

EXCERPT_KBPS = 64

MP3_RATES_HZ = (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)

SHORTEST_PART_S = 5
"""Of an excerpt; below it there is nothing to be heard."""

_HEAD_BYTES = 1500  # of a stream, beside its bit rate: first frame, delay and padding
_SHRINK = 0.9  # of an excerpt that came out longer than was reckoned
_WRITE_SAMPLES = 1 << 18
_HALF_TAPS = 256
_ENCODER_GAIN = np.float32(0.95)
_DELAY_TAG_BYTES = 156


@dataclass(frozen=True, kw_only=True)
class CodingPlan:
    """How sounds are put into the HTML report."""

    bitrate_kbps: int
    parts: tuple[tuple[int, int], ...]
    whole: bool

    def heard(self, n_samples: int) -> tuple[tuple[int, int], ...]:
        """Return the parts, as far as a sound of that length reaches."""
        cut = ((start, min(stop, n_samples)) for start, stop in self.parts)
        return tuple((start, stop) for start, stop in cut if start < stop)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Distance of a compressed copy to its WAV."""

    log_spectral_distance_db: float
    mel_mcd_db: float
    snr_db: float
    level_db: float


def why_not(sample_rate_hz: int) -> str:
    """Say why sound of that rate cannot be compressed here; empty where it can."""
    import soundfile

    if "MP3" not in soundfile.available_formats():
        return f"libsndfile {soundfile.__libsndfile_version__} writes no MP3; 1.1 does: pip install -U soundfile"
    if "compression_level" not in inspect.signature(soundfile.SoundFile).parameters:
        return f"soundfile {soundfile.__version__} cannot set a bit rate; 0.13 can: pip install -U soundfile"
    if coded_rate_hz(sample_rate_hz) not in MP3_RATES_HZ:
        return f"MP3 has no sample rate of {coded_rate_hz(sample_rate_hz)} Hz"
    return ""


def coded_rate_hz(sample_rate_hz: int) -> int:
    """Sample rate of a copy: twice that of the WAV up to 24 kHz, else the same."""
    return sample_rate_hz * _factor(sample_rate_hz)


def _factor(sample_rate_hz: int) -> int:
    return 2 if sample_rate_hz <= 24_000 else 1


def bitrates_kbps(sample_rate_hz: int) -> tuple[int, ...]:
    """Bit rates at which the first frame of a stream has room for the encoder's delay, of :data:`BITRATES_KBPS`."""
    rate_hz = coded_rate_hz(sample_rate_hz)
    bytes_per_kbps, head = (144_000 / rate_hz, 21) if rate_hz >= 32_000 else (72_000 / rate_hz, 13)
    return tuple(rate for rate in BITRATES_KBPS if math.floor(rate * bytes_per_kbps) >= head + _DELAY_TAG_BYTES)


def plans(
    lengths: Sequence[int], *, sample_rate_hz: int, budget_bytes: int, around: Sequence[int] = ()
) -> Iterator[CodingPlan]:
    """Yield what to try, the best first: every bit rate that fits as a whole, then ever shorter excerpts.

    Excerpts are of both ends and `around` some samples.
    """
    longest = max(lengths)
    rates = bitrates_kbps(sample_rate_hz)
    for bitrate_kbps in rates:
        plan = CodingPlan(bitrate_kbps=bitrate_kbps, parts=((0, longest),), whole=True)
        if _reckoned_bytes(plan, lengths, sample_rate_hz) <= budget_bytes:
            yield plan
    part_s = longest // ((2 + len(around)) * sample_rate_hz)
    excerpt_kbps = min((rate for rate in rates if rate >= EXCERPT_KBPS), default=EXCERPT_KBPS)
    while part_s >= SHORTEST_PART_S:
        parts = _excerpts(longest, part_s * sample_rate_hz, around)
        plan = CodingPlan(bitrate_kbps=excerpt_kbps, parts=parts, whole=False)
        reckoned = _reckoned_bytes(plan, lengths, sample_rate_hz)
        if reckoned <= budget_bytes:
            yield plan
            part_s = math.floor(part_s * _SHRINK)
        else:
            part_s = min(part_s - 1, math.floor(part_s * budget_bytes / reckoned))


def _excerpts(longest: int, part: int, around: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Stretches of `part` samples at both ends and around places, in order; those that meet are one."""
    starts = sorted({0, longest - part, *(min(max(place - part // 2, 0), longest - part) for place in around)})
    parts: list[tuple[int, int]] = []
    for start in starts:
        if parts and start < parts[-1][1]:
            parts[-1] = (parts[-1][0], start + part)
        else:
            parts.append((start, start + part))
    return tuple(parts)


def base64_bytes(n_bytes: int) -> int:
    """Length of `n_bytes` as base64 text."""
    return 4 * math.ceil(n_bytes / 3)


def _reckoned_bytes(plan: CodingPlan, lengths: Sequence[int], sample_rate_hz: int) -> int:
    heard = [sum(stop - start for start, stop in plan.heard(length)) for length in lengths]
    bytes_per_sample = plan.bitrate_kbps * 125 / sample_rate_hz
    return sum(base64_bytes(math.ceil(count * bytes_per_sample) + _HEAD_BYTES) for count in heard)


def encode(source: Source, plan: CodingPlan) -> bytes:
    """Compress the parts of a sound that are heard, one after the other, in blocks."""
    import soundfile

    parts = plan.heard(source.n_samples)
    if not parts:
        return b""
    buffer = io.BytesIO()
    rate_hz = coded_rate_hz(source.sample_rate_hz)
    with soundfile.SoundFile(
        buffer,
        "w",
        samplerate=rate_hz,
        channels=1,
        format="MP3",
        subtype="MPEG_LAYER_III",
        compression_level=_compression_level(plan.bitrate_kbps, rate_hz),
        bitrate_mode="CONSTANT",
    ) as file:
        for first, last in parts:
            for start in range(first, last, _WRITE_SAMPLES):
                file.write(_upsampled(source, start, min(start + _WRITE_SAMPLES, last)) / _ENCODER_GAIN)
    return buffer.getvalue()


@cache
def _taps(factor: int) -> np.ndarray:
    """A low-pass filter at the WAV's half rate, for changes of the rate by `factor`, float32."""
    taps = scipy.signal.firwin(2 * _HALF_TAPS + 1, 1 / factor, window=("kaiser", 6.0))
    return np.asarray(taps, dtype=np.float32)


def _upsampled(source: Source, start: int, stop: int) -> np.ndarray:
    """Samples `start` to `stop` at the rate of the copy; neighbours are read for the filter."""
    factor = _factor(source.sample_rate_hz)
    if factor == 1:
        return source.read(start, stop)
    first, last = max(0, start - _HALF_TAPS), min(source.n_samples, stop + _HALF_TAPS)
    wide = scipy.signal.resample_poly(source.read(first, last), factor, 1, window=_taps(factor))
    return np.asarray(wide[factor * (start - first) : factor * (stop - first)])


def _compression_level(bitrate_kbps: int, sample_rate_hz: int) -> float:
    """Return libsndfile's level, 0 to 1, for a bit rate."""
    highest, lowest = (320, 32) if sample_rate_hz >= 32_000 else (160, 8) if sample_rate_hz >= 16_000 else (64, 8)
    level = (highest - bitrate_kbps - 0.5) / (highest - lowest)
    return min(max(level, 0.0), 1.0)


def decode(stream: bytes, *, sample_rate_hz: int) -> np.ndarray:
    """Return the samples of a compressed sound at the rate of its WAV, shape (n_samples,), float32."""
    import soundfile

    samples: np.ndarray = soundfile.read(io.BytesIO(stream), dtype="float32")[0]
    factor = _factor(sample_rate_hz)
    return samples if factor == 1 else np.asarray(scipy.signal.resample_poly(samples, 1, factor, window=_taps(factor)))


def heard_samples(source: Source, plan: CodingPlan) -> np.ndarray:
    """Return the samples of the parts of a sound that are heard, one after the other, shape (n_samples,)."""
    return np.concatenate([source.read(start, stop) for start, stop in plan.heard(source.n_samples)])


def loss_of(source: Source, stream: bytes, plan: CodingPlan) -> Loss:
    """Measure what the compression did to a sound."""
    rate = source.sample_rate_hz
    original, copy = heard_samples(source, plan), decode(stream, sample_rate_hz=rate)
    return Loss(
        log_spectral_distance_db=log_spectral_distance_db(original, copy, sample_rate_hz=rate),
        mel_mcd_db=mel_mcd_db(original, copy, sample_rate_hz=rate),
        snr_db=snr_db(original, copy),
        level_db=_level_db(original, copy),
    )


def _level_db(original: np.ndarray, copy: np.ndarray) -> float:
    """20·log10 ⟨x, y⟩ / ⟨x, x⟩ of a WAV x and its copy y; NaN where they have nothing in common."""
    wide = original.astype(np.float64)
    shared = float(wide @ copy)
    return 20.0 * math.log10(shared / float(wide @ wide)) if shared > 0.0 else math.nan
