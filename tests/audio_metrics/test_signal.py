import numpy as np
import pytest
import soundfile

import audio_metrics as am
from audio_metrics.signal import ArraySource, FileSource, clean

FS = 16000
OK = np.linspace(-0.5, 0.5, FS)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.stack([OK, OK], axis=1), r"shape \(16000, 2\); expected mono"),
        ((OK * 32767).astype(np.int16), "dtype int16; expected float32 or float64"),
        (OK.astype(np.float16), "dtype float16"),
        (OK.astype(">f8"), "dtype >f8"),
        (OK[:0], "is empty"),
        (list(OK), "is a list; expected a numpy array"),
    ],
)
def test_what_is_no_mono_floating_signal_is_refused(samples, message):
    with pytest.raises(am.AudioParameterError, match=message):
        am.compare(samples, OK, sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match=message):
        am.inspect(samples, sample_rate_hz=FS)
    with pytest.raises(ValueError, match=message):
        am.snr_db(OK, samples)


@pytest.mark.parametrize("rate", [0, -16000, 4000, 16000.0, "16000", True, None])
def test_unusable_sample_rates_are_refused(rate):
    with pytest.raises(am.AudioParameterError, match="sample_rate_hz is"):
        am.compare(OK, OK, sample_rate_hz=rate)


def test_unlike_signals_are_refused():
    with pytest.raises(am.AudioParameterError, match="lengths differ: reference 16000 samples, estimate 15999"):
        am.compare(OK, OK[:-1], sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match="dtypes differ: reference float64, estimate float32"):
        am.compare(OK, OK.astype(np.float32), sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match="lengths differ"):
        am.si_sdr_db(OK, OK[1:], zero_mean=False)


def test_a_signal_shorter_than_a_frame_is_refused():
    with pytest.raises(am.AudioParameterError, match="683 samples; expected at least one frame of 684 at 16000 Hz"):
        am.compare(OK[:683], OK[:683], sample_rate_hz=FS)
    assert am.compare(OK[:684], OK[:684], sample_rate_hz=FS).n_frames == 1


def test_files_of_other_rate_or_channels_are_refused(wav):
    mono, other = (
        wav("a.wav", OK),
        wav("b.wav", np.random.default_rng(0).standard_normal(len(OK)).astype(OK.dtype), fs=24000),
    )
    stereo, empty = wav("c.wav", np.stack([OK, OK], axis=1)), wav("d.wav", OK[:0])
    with pytest.raises(am.AudioParameterError, match=r"sample rates differ: reference .* 16000 Hz, estimate .* 24"):
        am.compare_files(mono, other)
    with pytest.raises(am.AudioParameterError, match="has 2 channels; expected 1"):
        am.compare_files(mono, stereo)
    with pytest.raises(am.AudioParameterError, match="has no samples"):
        am.inspect_file(empty)
    with pytest.raises(am.AudioParameterError, match="expected 'float32' or 'float64'"):
        am.inspect_file(mono, dtype="float16")


def test_missing_broken_and_torn_files_name_the_file(wav, tmp_path):
    with pytest.raises(am.SignalFileError, match=r"reference: no file at .*nowhere\.wav"):
        am.compare_files(tmp_path / "nowhere.wav", tmp_path / "nowhere.wav")
    text = tmp_path / "text.wav"
    text.write_text("no audio at all")
    with pytest.raises(OSError, match=r"text\.wav is not a readable audio file"):
        am.inspect_file(text)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(wav, tmp_path):
    path = tmp_path / "torn.wav"
    wav("torn.wav", np.tile(OK, 4))
    with FileSource(path, dtype="float32", name="reference") as source:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(am.SignalFileError, match="its header promises 64000; write the file again"):
            source.read(0, source.n_samples)


def test_sources_read_the_same_ranges(wav):
    samples = np.random.default_rng(0).uniform(-1, 1, 1000).astype(np.float32)
    array = ArraySource(samples, sample_rate_hz=FS, name="signal")
    with FileSource(wav("r.wav", samples), dtype="float32", name="signal") as file:
        for start, stop in [(0, 10), (10, 400), (390, 1000), (5, 6)]:
            np.testing.assert_array_equal(file.read(start, stop), array.read(start, stop))
        assert (file.n_samples, file.sample_rate_hz, file.dtype) == (1000, FS, np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e13])
def test_clean_finds_every_bad_sample(bad):
    samples = np.array([0.5, bad, -0.75, 0.0])
    finite, where, peak = clean(samples)
    np.testing.assert_array_equal(finite, [0.5, 0.0, -0.75, 0.0])
    np.testing.assert_array_equal(where, [False, True, False, False])
    assert peak == 0.75


CONTAINERS = [
    ("WAV", "FLOAT"), ("WAVEX", "PCM_24"), ("RF64", "FLOAT"), ("W64", "FLOAT"), ("AIFF", "FLOAT"), ("AU", "FLOAT"),
    ("OGG", "VORBIS"), ("OGG", "OPUS"), ("FLAC", "PCM_24"), ("MP3", "MPEG_LAYER_III"), ("WAV", "IMA_ADPCM"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "subtype"), CONTAINERS)
def test_every_container_whole_and_torn(tmp_path, container, subtype):
    whole, torn = tmp_path / f"whole.{container.lower()}", tmp_path / f"torn.{container.lower()}"
    samples = 0.1 * np.random.default_rng(0).standard_normal(3 * FS)
    soundfile.write(whole, samples, FS, format=container, subtype=subtype)
    result = am.compare_files(whole, whole)
    lossy = subtype in ("VORBIS", "OPUS", "MPEG_LAYER_III", "IMA_ADPCM")
    assert ("quantised" in {flag.kind for flag in result.flags}) == lossy
    content = whole.read_bytes()
    for kept in (0.5, 0.98):
        torn.write_bytes(content[: int(kept * len(content))])
        if container != "MP3":  # which does not say how long it is
            with pytest.raises(am.SignalFileError, match=r"write (it|the file) again"):
                am.compare_files(torn, torn)


def test_a_wav_whose_sizes_lie(tmp_path):
    path = tmp_path / "x.wav"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(FS), FS, subtype="FLOAT")
    content = bytearray(path.read_bytes())
    data = content.index(b"data")
    for size, message in ((4000, "its sizes lie"), (10**6, "its header promises")):
        content[data + 4 : data + 8] = size.to_bytes(4, "little")
        path.write_bytes(content)
        with pytest.raises(am.SignalFileError, match=message):
            am.inspect_file(path)
    content[4:8] = content[data + 4 : data + 8] = b"\xff" * 4  # written to a pipe
    path.write_bytes(content)
    assert am.inspect_file(path).duration_s == 1.0


def test_odd_inputs_are_one_clear_line(tmp_path):
    x = 0.1 * np.random.default_rng(0).standard_normal(FS)
    soundfile.write(tmp_path / "fast.wav", x, 20_000_000)
    with pytest.raises(am.AudioParameterError, match="sample_rate_hz is 20000000; expected at most 768000"):
        am.inspect_file(tmp_path / "fast.wav")
    with pytest.raises(am.AudioParameterError, match="signal is a masked array"):
        am.inspect(np.ma.masked_array(x, x > 0.2), sample_rate_hz=FS)
    (flag,) = [flag for flag in am.inspect(32768 * x, sample_rate_hz=FS).flags if flag.kind == "full_scale"]
    assert "divide 16-bit samples by 32768" in flag.message
    for arguments in (([1, 2, 3], x), (x, None), (x[:3], np.array(["a", "b", "c"])), (x, x[:-1])):
        with pytest.raises(am.AudioParameterError, match="expected"):
            am.theil_sen(*arguments)
