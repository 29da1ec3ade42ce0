"""Compressed copies: the bit rate that was asked for, constant, aligned to the sample, and what fits into a budget."""

import io
from itertools import pairwise

import made_sound as made
import numpy as np
import pytest
import scipy.signal
import soundfile

from audio_metrics import AudioParameterError, lag_s, log_spectral_distance_db
from audio_metrics.signal import ArraySource
from precision_eval.report.html.sound import coding
from precision_eval.report.html.sound.coding import (
    BITRATES_KBPS,
    CodingPlan,
    base64_bytes,
    decode,
    encode,
    loss_of,
    plans,
)

RATE_HZ = made.RATE_HZ
MPEG_1_LAYER_3_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)


def source(samples, rate_hz=RATE_HZ):
    return ArraySource(samples, sample_rate_hz=rate_hz, name="made")


def whole(n_samples, bitrate_kbps):
    return CodingPlan(bitrate_kbps=bitrate_kbps, parts=((0, n_samples),), whole=True)


def frame_bitrates(stream):
    """Bit rate of every frame of an MPEG-1 layer III stream at 32 kHz, read from its headers."""
    found, at = [], 0
    while at + 4 <= len(stream):
        head = int.from_bytes(stream[at : at + 4], "big")
        assert head >> 21 == 0x7FF, f"no frame at byte {at}"
        assert (head >> 19 & 3, head >> 17 & 3, head >> 10 & 3) == (3, 1, 2)  # MPEG 1, layer III, 32 kHz
        found.append(MPEG_1_LAYER_3_KBPS[head >> 12 & 15])
        at += 144 * found[-1] * 1000 // 32_000 + (head >> 9 & 1)
    return found


@pytest.fixture(scope="module")
def sound():
    return made.speech(8.0)


@pytest.mark.parametrize("bitrate_kbps", BITRATES_KBPS)
def test_every_frame_has_the_rate_that_was_asked_for(sound, bitrate_kbps):
    stream = encode(source(sound), whole(len(sound), bitrate_kbps))
    assert set(frame_bitrates(stream)) == {bitrate_kbps}


def test_a_variable_rate_would_be_noticed(sound):
    buffer = io.BytesIO()
    soundfile.write(buffer, np.repeat(sound, 2), 32_000, format="MP3", compression_level=0.5, bitrate_mode="VARIABLE")
    assert len(set(frame_bitrates(buffer.getvalue()))) > 1


@pytest.mark.parametrize("bitrate_kbps", BITRATES_KBPS)
def test_a_copy_is_aligned_to_the_sample(sound, bitrate_kbps):
    stream = encode(source(sound), whole(len(sound), bitrate_kbps))
    played = soundfile.read(io.BytesIO(stream))[0]  # as a player has it: at 32 kHz, without the encoder's delay
    wide = scipy.signal.resample(sound, 2 * len(sound))
    assert len(played) == len(wide)
    spectrum = np.fft.rfft(wide, 2 * len(wide)).conj() * np.fft.rfft(played, 2 * len(wide))
    assert int(np.argmax(np.fft.irfft(spectrum))) == 0  # of the cross-correlation, wrapped
    copy = decode(stream, sample_rate_hz=RATE_HZ)
    assert len(copy) == len(sound)
    assert lag_s(sound, copy, sample_rate_hz=RATE_HZ) == 0.0
    assert float(np.dot(sound, copy) / np.dot(sound, sound)) == pytest.approx(1.0, abs=0.01)  # levels are kept


def test_a_frame_without_room_for_the_delay_is_not_used(sound, monkeypatch):
    """At 32 kbit/s the stream cannot say its delay, and every player starts a frame late."""
    assert coding.bitrates_kbps(RATE_HZ) == BITRATES_KBPS
    copy = decode(encode(source(sound), whole(len(sound), 33)), sample_rate_hz=RATE_HZ)
    assert len(copy) > len(sound)
    assert lag_s(sound, copy[: len(sound)], sample_rate_hz=RATE_HZ) > 0.03
    monkeypatch.setattr(coding, "BITRATES_KBPS", (48, 40, 32))
    assert coding.bitrates_kbps(RATE_HZ) == (48, 40)  # frames of 216, 180 and 144 bytes; 177 are needed
    assert coding.bitrates_kbps(24_000) == ()  # at 48 kHz: 144, 120, 96


def test_the_top_of_the_band_is_kept():
    """At the WAV's own rate the encoder would leave nothing above 7.5 kHz."""
    noise = 0.1 * np.random.default_rng(2).standard_normal(8 * RATE_HZ).astype(np.float32)
    copy = decode(encode(source(noise), whole(len(noise), 96)), sample_rate_hz=RATE_HZ)
    power = [np.abs(np.fft.rfft(samples)) ** 2 for samples in (noise, copy)]
    top = slice(7500 * 8, 7800 * 8)
    assert 10 * np.log10(power[1][top].sum() / power[0][top].sum()) > -3.0


def test_a_shift_would_be_noticed(sound):
    copy = decode(encode(source(sound), whole(len(sound), 48)), sample_rate_hz=RATE_HZ)
    assert lag_s(sound, np.roll(copy, 576), sample_rate_hz=RATE_HZ) == pytest.approx(576 / RATE_HZ)


def test_loss_is_the_distance_of_the_copy_and_grows_as_the_rate_falls(sound):
    streams = {rate: encode(source(sound), whole(len(sound), rate)) for rate in (64, 48)}
    losses = {rate: loss_of(source(sound), stream, whole(len(sound), rate)) for rate, stream in streams.items()}
    own = log_spectral_distance_db(sound, decode(streams[64], sample_rate_hz=RATE_HZ), sample_rate_hz=RATE_HZ)
    assert losses[64].log_spectral_distance_db == own
    assert 0.0 < losses[64].mel_mcd_db < losses[48].mel_mcd_db
    assert losses[64].snr_db > losses[48].snr_db > 15.0
    assert losses[64].level_db == pytest.approx(0.0, abs=0.1)
    with pytest.raises(AudioParameterError, match="lengths differ"):
        loss_of(source(sound), streams[64], whole(len(sound) // 2, 64))


class TestPlans:
    MINUTE = 60 * RATE_HZ

    def test_the_highest_rate_that_fits_by_hand(self):
        needed = 4 * -(-(60 * 96 * 125 + 1500) // 3)  # 96 kbit/s, the stream's head, base64
        assert needed == 962_000 == base64_bytes(721_500)
        first = [next(plans([self.MINUTE], sample_rate_hz=RATE_HZ, budget_bytes=n)) for n in (needed, needed - 1)]
        assert [(plan.bitrate_kbps, plan.whole) for plan in first] == [(96, True), (80, True)]

    def test_what_is_reckoned_is_enough(self):
        sound = made.speech(8.0)
        for plan in plans([len(sound)], sample_rate_hz=RATE_HZ, budget_bytes=120_000):
            stream = encode(source(sound), plan)
            assert 0.9 * 8 * plan.bitrate_kbps * 125 < len(stream)
            assert base64_bytes(len(stream)) <= 120_000

    def test_an_excerpt_from_both_ends_where_the_whole_is_too_much(self):
        lengths = [10 * self.MINUTE] * 11 + [self.MINUTE]  # the last one ends early
        budget = 6_000_000
        found = list(plans(lengths, sample_rate_hz=RATE_HZ, budget_bytes=budget))
        plan = found[0]
        (first, part), (second, end) = plan.parts
        assert (plan.bitrate_kbps, plan.whole, first, end) == (64, False, 0, 10 * self.MINUTE)
        assert end - second == part
        assert part % RATE_HZ == 0
        # 12 streams of 64 kbit/s: 32,000 bytes of base64 in 3 s; the short one has only the first part
        reckoned = (11 * 2 + 1) * (part // RATE_HZ) * 32_000 / 3 + 12 * 2000
        assert 0.94 * budget < reckoned <= budget
        assert all(one.parts[0][1] > other.parts[0][1] for one, other in pairwise(found))


def test_a_library_that_cannot_compress_is_named(monkeypatch):
    assert coding.why_not(RATE_HZ) == ""
    assert coding.why_not(9000) == "MP3 has no sample rate of 18000 Hz"
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": "WAV"})
    assert "writes no MP3" in coding.why_not(RATE_HZ)

    def test_excerpts_around_places_keep_the_budget_and_do_not_overlap(self):
        hour, budget = 60 * self.MINUTE, 6_000_000
        places = [100 * RATE_HZ, 20 * self.MINUTE, 20 * self.MINUTE + RATE_HZ, hour - 1]
        plan = next(plans([hour] * 3, sample_rate_hz=RATE_HZ, budget_bytes=budget, around=places))
        assert plan.parts[0][0] == 0
        assert plan.parts[-1][1] == hour
        assert all(end <= start for (_, end), (start, _) in pairwise(plan.parts))
        assert all(any(start <= place < end for start, end in plan.parts) for place in places)
        heard_s = sum(end - start for start, end in plan.parts) / RATE_HZ
        assert 3 * heard_s * 32_000 / 3 < budget
