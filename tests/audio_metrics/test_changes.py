"""What was done to a recording is named in the first line, on real speech; nothing is where formats alone differ."""

import io
import re
import runpy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile

import audio_metrics as am
import precision_eval
from audio_metrics import reading
from audio_metrics.changes import changes_of
from audio_metrics.matching import match
from audio_metrics.signal import ArraySource, Resampled

FS = 16000
ROOT = Path(__file__).resolve().parents[2]
SPEECH = Path(precision_eval.__file__).parent / "cases/voice/data/speech.flac"


def spoken(start_s, seconds):
    return soundfile.read(SPEECH, start=round(start_s * FS), frames=round(seconds * FS))[0]


@pytest.fixture(scope="module")
def real():
    return spoken(30, 8)


def compare(x, y, **options):
    return am.compare(x, np.asarray(y, float), sample_rate_hz=FS, align="length", inspect_each=True, **options)


def sources(*signals):
    return tuple(ArraySource(np.ascontiguousarray(x), sample_rate_hz=FS, name="x") for x in signals)


def stored(x, **options):
    """The recording through a codec of libsndfile, whose delay stays in."""
    file = io.BytesIO()
    soundfile.write(file, x, FS, **options)
    file.seek(0)
    return soundfile.read(file)[0][: len(x)]


def mp3(x):
    return stored(x, format="MP3", bitrate_mode="CONSTANT", compression_level=0.85)


def vorbis(x):
    return stored(x, format="OGG", subtype="VORBIS", compression_level=0.95)


def low_pass(x, hz=4000):
    return scipy.signal.sosfiltfilt(scipy.signal.butter(16, hz, fs=FS, output="sos"), x)


def loud_16_bit(x):
    return np.round(1.3 * x / np.abs(x).max() * 32767).astype(int)


def wrap(x):
    return ((loud_16_bit(x) + 32768) % 65536 - 32768) / 32768


def click(x):
    y = x.copy()
    y[1600::4000] += 0.02
    return y


def fold_seams(x, n=7, length=512):
    """A crossfade that folds the same number of samples away at each seam."""
    ramp, pieces = np.linspace(0, 1, length), np.array_split(x, n + 1)
    parts, tail = [pieces[0][:-length]], pieces[0][-length:]
    for piece in pieces[1:]:
        parts += [tail * (1 - ramp) + piece[:length] * ramp, piece[length:-length]]
        tail = piece[-length:]
    return np.concatenate([*parts, tail])


def loop(x, ms, start_s=2.0, seconds=4.0):
    y, start, n = x.copy(), round(start_s * FS), round(seconds * FS)
    y[start : start + n] = np.resize(x[start : start + round(ms * FS / 1000)], n)
    return y


def soften(x):
    """One second of ±1 step of 16 bits."""
    y = x.copy()
    y[2 * FS : 3 * FS] = np.random.default_rng(0).integers(-1, 2, FS) / 32768
    return y


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_was_done_is_in_the_first_line(real, half):
    noise = np.random.default_rng(0).standard_normal(len(real))
    planted = {
        "the level is 6.02 dB lower": real / 2,
        "the polarity is inverted": -real,
        "the band is limited: nothing above 4": low_pass(real),
        "a lossy codec": mp3(real),
        "a lossy codec, or a loss like it": vorbis(real),
        "the estimate is another recording": spoken(50, 8),
        "the halves of the estimate are swapped": np.roll(real, len(real) // 2),
        "the estimate is another sound, from 0:05.0": np.where(np.arange(len(real)) < 5 * FS, real, spoken(50, 8)),
        "the estimate is noise: no part": 0.1 * noise,
        "the estimate wraps": wrap(real),
        "the estimate has 32 clicks of 1 sample, every 250 ms": click(real),
        "3,584 samples are missing from the estimate: 7 seams of 512 samples each, at 0:01.0, 0:02.0": fold_seams(real),
        "2,000 samples are missing from the estimate, at 0:01.3": np.delete(real, np.s_[20000:22000]),
        "the lag grows by ": scipy.signal.resample_poly(real, 1001, 1000),
        "the estimate is 592 samples longer, 37 ms late": np.concatenate([np.zeros(592), real]),
        "the estimate is noise at -92 dBFS for 1.0 s": soften(real),
        "estimate repeats 100 ms over 4.0 s, from 0:02.0": loop(real, 100),
        "estimate repeats 20 ms over 4.0 s, from 0:02.0": loop(real, 20),
        "the spectrum is filtered": scipy.signal.lfilter([1, -0.6], [1], real),
        "steady noise is added, 10 dB below": real + 0.3 * real.std() * noise,
    }
    for name, estimate in list(planted.items())[half::2]:
        result = compare(real, estimate)
        assert result.differs, name
        assert result.headline.startswith(f"DIFFERS: {name}"), result.headline
        assert result.headline.count("SI-SDR") >= 1


def interleave(x, y):
    return np.stack([x, y], axis=1).ravel()


def mu_law(x):
    """G.711's codes, by its tables of segments."""
    size = np.clip(np.abs(x) * 32635, 0, 32635).astype(int) + 132
    step = np.floor(np.log2(size)).astype(int) - 7
    return (~((x < 0) * 128 | step << 4 | size >> step + 3 & 15) & 255).astype(np.uint8)


def read_as(x, stored, read):
    """The bytes of samples in one format, as another reads them."""
    floats = np.dtype(stored).kind == "f"
    scale = 1.0 if floats else 2.0 ** (8 * np.dtype(stored).itemsize - 1) - 1
    raw = (x if floats else np.round(x * scale)).astype(stored).tobytes()
    return np.frombuffer(raw, read).astype(np.float64) / 2.0 ** (8 * np.dtype(read).itemsize - 1)


def test_samples_of_another_width_or_coding_are_named(real):
    quiet = 0.1 * np.roll(real, 50)[::-1]
    planted = {
        "16-bit samples that are read as 32-bit samples": read_as(real, "<i2", "<i4"),
        "32-bit samples that are read as 16-bit samples": read_as(0.9 * real, "<i4", "<i2"),
        "16-bit samples that are read as signed 8-bit samples": read_as(real, "<i2", "i1"),
        "32-bit floats that are read as 16-bit samples": read_as(real, "<f4", "<i2"),
        "32-bit floats that are read as 32-bit samples": read_as(real, "<f4", "<i4"),
        "mu-law codes that are read as unsigned 8-bit samples": mu_law(real) / 128.0 - 1.0,
        "mu-law codes that are read as signed 8-bit samples": mu_law(real).astype(np.int8) / 128.0,
    }
    for name, estimate in planted.items():
        head = compare(real, estimate).headline
        assert head.startswith(f"DIFFERS: the samples of the estimate are {name}; SI-SDR"), head
    for estimate in (interleave(real, quiet), interleave(quiet, real)[: len(real)]):
        assert "two channels, a sample of each in turn" in compare(real, estimate).headline
    assert "2 times too slow" in compare(real, np.repeat(real, 2)).headline  # or two channels that are alike


@pytest.mark.parametrize("law", ["mu-law", "A-law"])
def test_the_codes_are_those_of_g711(law, tmp_path):
    """libsndfile decodes every code to the level of the table."""
    codes = np.arange(256, dtype=np.uint8)
    path, subtype = tmp_path / "x.raw", {"mu-law": "ULAW", "A-law": "ALAW"}[law]
    path.write_bytes(codes.tobytes())
    levels, _ = soundfile.read(path, samplerate=8000, channels=1, subtype=subtype, format="RAW")
    np.testing.assert_array_equal(reading._decode(codes.tobytes(), law), levels)


def test_folded_energy_is_named_with_its_frequency(real):
    n = np.arange(len(real))
    planted = {
        "what lies above 4 kHz is folded about it (aliases": scipy.signal.resample_poly(real[::2], 2, 1)[: len(real)],
        "what lies below 4 kHz is folded about it (images": np.where(n % 2 == 0, 2 * real, 0.0),
        "the spectrum is mirrored about 4 kHz": real * (1 - 2 * (n % 2)),
    }
    for name, estimate in planted.items():
        assert compare(real, estimate).headline.startswith(f"DIFFERS: {name}")
    for estimate in (low_pass(real, 3000), real + 0.3 * real.std() * np.random.default_rng(0).standard_normal(len(n))):
        assert "fold" not in compare(real, estimate).headline


def test_what_is_heard_at_the_rate_of_frames_is_named(real):
    n = np.arange(len(real))
    pulses = np.where(n % 320 == 0, 0.05, 0.0)
    hum = sum(0.02 * np.sin(2 * np.pi * 60 * k * n / FS + k) / k for k in range(1, 6))
    ripple = real * (1.0 - 0.35 * np.abs(np.cos(np.pi * n / 320)))
    assert "a buzz or hum of 50 Hz (every 20 ms) is added" in compare(real, real + pulses).headline
    assert "a buzz or hum of 59.9 Hz" in compare(real, real + hum).headline
    assert "the level ripples by 3.6 dB every 20 ms (50 Hz)" in compare(real, ripple).headline


def test_lost_parts_a_resynthesis_and_polarity(real):
    n = np.arange(len(real))
    power = np.convolve(np.square(real), np.ones(800), "same")
    starts = [a + int(np.argmax(power[a : a + FS])) - 400 for a in (FS, 3 * FS, 5 * FS)]
    lost = real.copy()
    for start in starts:
        lost[start : start + 800] = 0.0
    head = compare(real, lost).headline
    assert head.startswith("DIFFERS: the estimate is zero 3 times, 50 ms each, where the reference goes on")
    ends = compare(real, np.where(n < 7 * FS, real, 0.0)).headline
    assert "the estimate is zero for 1 s, to its end" in ends
    turned = compare(real, np.where((n // 10000) % 2 == 0, real, -real)).headline
    assert turned.startswith("DIFFERS: the polarity of the estimate changes on the way, from 0:00.6")
    spectra = scipy.signal.stft(real, FS, nperseg=512)[2]
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(spectra.shape))
    anew = scipy.signal.istft(np.abs(spectra) * phases, FS, nperseg=512)[1][: len(real)]
    assert compare(real, anew).headline.startswith("DIFFERS: the estimate has the reference's spectrum over time")
    assert "another recording" in compare(real, spoken(50, 8)).headline


def test_steps_a_rectifier_and_a_steady_pitch_are_no_lost_parts_ripples_or_buzzes(real):
    for estimate in (np.round(real * 31) / 31, np.maximum(real, 0.0)):
        assert "is zero" not in compare(real, estimate).headline
    n = np.arange(4 * FS)
    voice = sum(np.sin(2 * np.pi * 125 * k * n / FS + k * k) / k for k in range(1, 20))
    voice *= 0.1 * np.clip(np.sin(2 * np.pi * 1.3 * n / FS), 0, 1)
    for estimate in (scipy.signal.lfilter([1, -0.7], [1], voice), np.tanh(9 * voice) / 9, low_pass(voice, 1500)):
        head = compare(voice, estimate).headline
        assert [word for word in ("ripples", "buzz", "echo") if word in head] == []


def test_chunks_that_change_places_and_a_speed_that_is_not_steady(real):
    parts = np.split(real, [FS, 2 * FS, 3 * FS])
    swapped = np.concatenate([parts[0], parts[2], parts[1], parts[3]])
    assert compare(real, swapped).headline.startswith("DIFFERS: parts of the estimate are in another order")
    n = np.arange(len(real))
    wow = np.interp(n + 30 * np.sin(2 * np.pi * 0.25 * n / FS), n, real)
    assert compare(real, wow).headline.startswith("DIFFERS: the lag wanders between -1.")


def test_what_no_change_explains_names_none(real):
    curve = np.sign(real) * (256.0 ** np.abs(real) - 1.0) / 255.0  # expanded twice: no level undoes it
    assert compare(real, curve).headline.startswith("DIFFERS: loud and soft samples have another ratio")
    speech_with_offset = compare(real, real + 0.05).headline
    assert speech_with_offset.startswith("DIFFERS: an offset of +0.05 of full scale is added")


def test_two_changes_are_both_named(real):
    head = compare(real, -0.5 * low_pass(real)).headline
    assert head.startswith("DIFFERS: the polarity is inverted; the level is 6.")
    assert "the band is limited" in head


def test_a_pause_of_zeros_that_becomes_noise(real):
    quiet = np.round(real * 32767) / 32768
    quiet[2 * FS : 3 * FS] = 0.0
    assert "the estimate is noise at -92 dBFS for 1.0 s" in compare(quiet, soften(quiet)).headline
    everywhere = quiet + np.random.default_rng(0).integers(-1, 2, len(quiet)) / 32768  # dither is no change
    assert "noise at" not in compare(quiet, everywhere).headline


def test_wraps_are_counted_and_a_clipped_reference_is_not_blamed(real):
    (flag,) = changes_of(sources(real, wrap(real)), differs=True)
    assert flag.count == np.count_nonzero(np.abs(loud_16_bit(real) + 0.5) > 32768)
    clipped = np.clip(loud_16_bit(real), -32768, 32767) / 32768
    head = compare(clipped, wrap(real)).headline
    assert head.startswith("DIFFERS: the estimate wraps")
    assert "reference" not in head
    assert "wraps" not in compare(wrap(real), wrap(real)).headline


def limit(x, over=3.0):
    """A limiter's plateaus at full scale, as 16 bits hold them."""
    return np.round(np.clip(over * x / np.abs(x).max(), -1.0, 1.0) * 32767) / 32768


def wrap_rail(x):
    """Scaled by 32768 instead of 32767: full scale does not fit into int16."""
    return np.where(x == 32767 / 32768, -1.0, x)


@pytest.fixture(scope="module")
def buzz():
    """A made-up voice of the public reports, clipped; its wraps put the peak of the correlation 12 samples off."""
    (samples, _), _ = runpy.run_path(str(ROOT / "docs/reports/cases/47_peak_wraps.py"))["wavs"]()
    return samples / 32768


@pytest.mark.parametrize("options", [{}, {"align": "lag"}], ids=["in time", "aligned"])
@pytest.mark.parametrize("sound", ["speech", "buzz"])
def test_plateaus_that_wrap_are_neither_late_nor_clipped(request, real, sound, options):
    limited = limit(real) if sound == "speech" else request.getfixturevalue(sound)
    wrapped = wrap_rail(limited)
    result = am.compare(limited, wrapped, sample_rate_hz=FS, inspect_each=True, **options)
    (flag,) = (flag for flag in result.flags if flag.kind == "wrapped")
    assert flag.count == np.count_nonzero(limited == 32767 / 32768)
    assert result.headline.startswith(f"DIFFERS: the estimate wraps: {flag.count:,} samples beyond full scale")
    assert "scale by 32767" in result.headline
    assert [word for word in ("late", "early", "is clipped", "reference") if word in result.headline] == []


@pytest.mark.parametrize(("over", "samples"), [(3.0, 1), (3.0, 60), (1000.0, 12)])
def test_a_clipped_copy_that_is_late_does_not_wrap(real, over, samples):
    limited = limit(real, over)
    late = np.concatenate([np.zeros(samples), limited])[: len(limited)]
    assert "wraps" not in compare(limited, late).headline
    assert "wraps" not in compare(limited, -limited).headline


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1, 0.2])
def test_a_square_wave_that_is_late_does_not_wrap(noise):
    """Each sample of it that differs is at the other end of full scale."""
    rng = np.random.default_rng(0)
    square = np.repeat(np.resize([0.999, -0.999], 400), rng.integers(40, 600, 400))[: 4 * FS]
    head = compare(square, np.roll(square, 12) + noise * rng.standard_normal(len(square))).headline
    assert re.search(r"the estimate is 0\.7\d* ms late", head)
    assert "wraps" not in head


@pytest.mark.parametrize("over", [1.5, 3.0, 10.0])
def test_pairs_that_are_clipped_alike_raise_no_alarm(real, over):
    limited = limit(real, over)
    for change in EQUAL:
        same = np.clip(change(limited, np.random.default_rng(0)), -1.0, 1.0)
        result = compare(limited, same)
        assert not result.differs
        assert "wraps" not in " ".join(flag.message for flag in result.flags)


def test_clicks_at_no_fixed_distance_have_no_period(real):
    y = real.copy()
    y[[9000, 31000, 40000, 77000, 99000]] += 0.1
    (flag,) = changes_of(sources(real, y), differs=False)
    assert (flag.message, flag.time_s, flag.count) == ("the estimate has 5 clicks of 1 sample", 9000 / FS, 5)


@pytest.mark.parametrize(("side", "place"), [(0, ", where a pause begins"), (1, ", where a pause ends")])
def test_clicks_beside_pauses_are_placed_and_measured(side, place):
    x = spoken(30, 8)
    pauses = [(2 * FS, 2 * FS + FS // 2), (4 * FS, 4 * FS + FS // 2), (6 * FS, 6 * FS + FS // 2)]
    for start, stop in pauses:
        x[start - FS // 10 : stop + FS // 10] = 0.1 * np.random.default_rng(0).standard_normal(FS // 2 + FS // 5)
        x[start:stop] = 0.0
    y = x.copy()
    for pause in pauses:
        at = pause[side] - 8 * side
        y[at : at + 8] += 0.4
    (flag,) = changes_of(sources(x, y), differs=True)
    assert flag.message == f"the estimate has 3 clicks of 8 samples{place}, every 2e+03 ms"[: len(flag.message)]


def test_seams_are_located_and_sum_up(real):
    power = np.convolve(np.square(real), np.ones(800), "same")
    first, second = (start + int(np.argmax(power[start : start + FS])) for start in (24000, 84000))  # not in a pause
    found = match(*sources(real, np.delete(np.delete(real, np.s_[second : second + 1000]), np.s_[first : first + 300])))
    assert [seam.samples for seam in found.seams] == [300, 1000]
    assert [first <= found.seams[0].at <= first + 400, second <= found.seams[1].at <= second + 1100] == [True, True]
    added = match(*sources(real, np.insert(real, 50000, np.zeros(700))))
    assert [seam.samples for seam in added.seams] == [-700]


@pytest.mark.parametrize("parts_per_million", [-1000, 300])
def test_a_clock_that_runs_off_is_measured(real, parts_per_million):
    up = 10000 + parts_per_million // 100
    message = changes_of(sources(real, scipy.signal.resample_poly(real, up, 10000)), differs=True)[0].message
    assert float(message.split()[4]) == pytest.approx(abs(parts_per_million) / 1000, rel=0.05)
    assert message.endswith("late" if parts_per_million > 0 else "early")


def test_identities(real):
    assert changes_of(sources(real, real), differs=True) == []
    found = match(*sources(real, real))
    assert (found.share, set(found.lags), found.seams) == (1.0, {0}, [])
    late = match(*sources(real, np.concatenate([np.zeros(12345), real])))
    assert set(late.lags) == {12345}  # beyond the half second in which a lag is looked for


def test_a_lag_is_not_another_sound_at_the_end(real):
    late = np.concatenate([0.001 * np.random.default_rng(0).standard_normal(20800), real])[: len(real)]
    assert compare(real, late).headline.startswith("DIFFERS: the estimate is 1.3 s late; SI-SDR")


def test_other_lengths_are_compared_where_both_are(real):
    result = compare(real, real[:-100])
    assert result.differs
    assert result.headline.startswith(
        "DIFFERS: the estimate is 100 samples shorter, cut off at its end; compared where both are; SI-SDR inf"
    )
    start, end = real[:FS], real[-FS:]
    noise = 0.1 * np.random.default_rng(0).standard_normal(FS)
    for tail, what in ((0.0 * noise, "silence"), (noise, "noise"), (end, "a part of the reference once more")):
        assert f"16,000 samples longer, {what} at its end" in compare(real, np.concatenate([real, tail])).headline
    assert "1000 ms late, silence at its start" in compare(real, np.concatenate([0.0 * start, real])).headline
    assert "another sound at its end" in compare(real, np.concatenate([real, spoken(50, 1)])).headline
    asked = am.compare(real, real[:-100], sample_rate_hz=FS, align="lag", inspect_each=True)
    assert not asked.differs
    assert asked.headline.startswith("WARNING: the estimate is 100 samples shorter")
    with pytest.raises(am.AudioParameterError, match=r"lengths differ.*align=\"lag\""):
        am.compare(real, real[:-100], sample_rate_hz=FS)


@pytest.mark.parametrize("rate", [8000, 12000, 24000, 44100])
def test_a_resampled_source_is_scipys_whatever_the_blocks(real, rate):
    (source,) = sources(real[:30001])
    resampled = Resampled(source, rate)
    whole = scipy.signal.resample_poly(real[:30001], rate // np.gcd(rate, FS), FS // np.gcd(rate, FS))
    assert resampled.n_samples == len(whole)
    edges = [0, 1, 777, 8000, 13001, len(whole)]
    parts = [resampled.read(a, b) for a, b in pairwise(edges)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-12)


def test_files_of_another_rate_or_with_channels(real, wav):
    x = real.astype(np.float32)
    path = wav("x.wav", x)
    wrong = am.compare_files(path, wav("half.wav", x, fs=8000), inspect_each=True)
    assert wrong.headline.startswith(
        "DIFFERS: the header of the estimate is wrong: it says 8000 Hz, its samples are those"
    )
    up = wav("up.wav", scipy.signal.resample_poly(real, 3, 2).astype(np.float32), fs=24000)
    with pytest.raises(am.AudioParameterError, match="24000 Hz; add --resample"):
        am.compare_files(path, up)
    assert am.compare_files(path, up, resample=True, inspect_each=True).headline.startswith("no fault found")
    stereo = wav("stereo.wav", np.stack([1.5 * x, 0.5 * x], axis=1))
    with pytest.raises(am.AudioParameterError, match="has 2 channels; expected 1; add --mono"):
        am.compare_files(path, stereo)
    assert am.compare_files(path, stereo, mono=True).summaries["snr_db"].whole_file > 100.0
    assert am.inspect_file(stereo, mono=True).rms_dbfs == pytest.approx(am.rms_dbfs(x), abs=1e-4)


def test_a_low_pass_is_no_other_sound(real):
    result = compare(real, low_pass(real, 500))
    assert np.isfinite(result.t_div_s)
    assert np.isnan(result.parted_s)
    half = compare(real, np.where(np.arange(len(real)) < 4 * FS, real, spoken(50, 8)))
    assert half.parted_s == half.t_div_s >= 4.0


def test_another_sound_after_the_minutes_that_are_searched():
    x = 0.1 * np.random.default_rng(0).standard_normal((2, 150 * 8000))
    x[1] = np.diff(x[1], n=2, append=0, prepend=0) / 2
    y = np.where(np.arange(x.shape[1]) < 130 * 8000, x[0], x[1])
    result = am.compare(x[0], y, sample_rate_hz=8000, inspect_each=True)
    assert result.headline.startswith("DIFFERS: the estimate is another sound")
    assert "2:10.0" in result.headline


def bfloat16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


def noisy(db):
    return lambda x, rng: x + rng.standard_normal(len(x)) * np.sqrt(np.mean(x**2)) * 10 ** (db / 20)


EQUAL = (
    lambda x, rng: x,
    lambda x, rng: x.astype(np.float16),
    lambda x, rng: bfloat16(x),
    lambda x, rng: np.round(x * 32767) / 32768,
    noisy(-60),
    noisy(-50),
    lambda x, rng: x * 10 ** (0.01 / 20),
)


@pytest.mark.parametrize("pairs", [31, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_equal_pairs_never_alarm(pairs):
    """What formats and soft noise do to real speech of any level, with pauses of zeros, −100 and −60 dB."""
    rng = np.random.default_rng(pairs)
    alarms = []
    for number in range(pairs):
        x = spoken(rng.uniform(0, 115), rng.uniform(2, 4 if pairs < 100 else 9))
        x *= rng.uniform(0.05, 0.9) / np.abs(x).max()
        for _ in range(2 * (number % 3 == 0)):
            start = rng.integers(0, len(x) - FS)
            x[start : start + rng.integers(FS // 4, FS)] *= (0.0, 1e-3, 1e-5)[number // 3 % 3]
        y = EQUAL[number % len(EQUAL)](x, rng).astype(np.float32)
        result = am.compare(x.astype(np.float32), y, sample_rate_hz=FS, align="length", inspect_each=True)
        if result.differs or not result.headline.startswith("no fault found"):
            alarms.append((number, result.headline))
    assert alarms == []
