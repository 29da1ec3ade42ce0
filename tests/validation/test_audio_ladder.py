"""Each degradation does what its name says, by figures worked out by hand; the ladder runs."""

import numpy as np
import pytest
import soundfile

from audio_metrics import AudioParameterError
from validation import frame
from validation.audio_ladder import EXPERIMENT, degrade, rungs
from validation.audio_ladder.rungs import RUNGS, rung_by_name

FS = 16000


def sine(hz, seconds=1.0, *, fs=FS):
    return np.sin(2 * np.pi * hz * np.arange(round(seconds * fs)) / fs)


def make_speech(seconds):
    """Harmonics, noise and an envelope with soft pauses."""
    noise = np.random.default_rng(3).standard_normal(round(seconds * FS))
    voice = sum(sine(120 * k, seconds) / k for k in range(1, 12))
    return 0.08 * (0.05 + np.clip(sine(1.1, seconds), 0, 1)) * (voice + 0.3 * noise)


def level_db(samples):
    return 10 * np.log10(np.mean(samples**2))


def inner(samples, margin_s=0.2):
    margin = round(margin_s * FS)
    return samples[margin:-margin]


@pytest.mark.parametrize("snr_db", [60.0, 20.0])
def test_noise_has_the_snr_it_says(snr_db):
    signal = make_speech(2)
    noise = degrade.add_noise(signal, snr_db=snr_db) - signal
    assert level_db(signal) - level_db(noise) == pytest.approx(snr_db, abs=1e-9)
    assert np.array_equal(degrade.add_noise(signal, snr_db=snr_db), degrade.add_noise(signal, snr_db=snr_db))


@pytest.mark.parametrize("bits", [16, 12, 8])
def test_a_full_scale_sine_keeps_six_decibels_per_bit(bits):
    signal = (1 - 2.0 ** (1 - bits)) * sine(997.1234, 4.0)  # the largest that fits
    error = degrade.quantise(signal, bits=bits) - signal
    assert level_db(signal) - level_db(error) == pytest.approx(6.0206 * bits + 1.761, abs=0.15)
    multiples = degrade.quantise(np.array([-1.0, -0.3, 0.0, 0.26, 0.9999]), bits=3)
    assert multiples.tolist() == [-1.0, -0.25, 0.0, 0.25, 0.75]


def test_a_low_pass_keeps_what_is_below_and_drops_what_is_above():
    passed = degrade.low_pass(sine(1000.0), cutoff_hz=2000, sample_rate_hz=FS)
    assert inner(passed) == pytest.approx(inner(sine(1000.0)), abs=1e-3)  # no phase, no gain
    assert level_db(inner(degrade.low_pass(sine(3000.0), cutoff_hz=2000, sample_rate_hz=FS))) < -60


@pytest.mark.parametrize(("hz", "gain_db"), [(500.0, 2.0), (1000.0, 0.0), (4000.0, -4.0)])
def test_a_tilt_has_its_slope_about_one_kilohertz(hz, gain_db):
    tilted = degrade.tilt(sine(hz), db_per_octave=-2.0, sample_rate_hz=FS)
    assert level_db(inner(tilted)) - level_db(inner(sine(hz))) == pytest.approx(gain_db, abs=0.01)


def test_drop_outs_come_as_often_and_last_as_long_as_they_say():
    signal = np.ones(FS * 60)
    dropped = degrade.drop_out(signal, per_minute=10, length_s=0.02, sample_rate_hz=FS)
    edges = np.flatnonzero(np.diff(np.concatenate(([1.0], dropped, [1.0]))))
    assert len(edges) == 20
    assert set(edges[1::2] - edges[::2]) == {320}


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(AudioParameterError, match="fill a minute; ask for fewer or shorter ones"):
        degrade.drop_out(np.arange(8.0), per_minute=60, length_s=1.0, sample_rate_hz=1)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_rung_changes_something_keeps_the_length_and_leaves_its_input_alone(rung):
    signal = make_speech(61 if rung.name.endswith(" 1 /min") else 13)
    before = signal.copy()
    degraded = rung.apply(signal, sample_rate_hz=FS)
    assert (degraded.shape, degraded.dtype) == (signal.shape, np.float64)
    assert np.isfinite(degraded).all()
    assert np.array_equal(signal, before)
    assert not np.array_equal(degraded, signal)


def test_the_ladder_is_monotone_in_noise_reads_what_was_put_in_and_is_written_as_a_table(tmp_path, monkeypatch):
    folder, out = tmp_path / "recordings", tmp_path / "out"
    folder.mkdir()
    for name, seed in (("reference", 4), ("noise_floor", 5)):
        swell = 1.1 + np.sin(2 * np.pi * 0.3 * np.arange(10 * FS) / FS + seed)
        samples = 0.05 * swell * (sine(180 + seed, 10.0) + 0.2 * np.random.default_rng(seed).standard_normal(10 * FS))
        soundfile.write(folder / f"{name}.wav", samples, FS, subtype="FLOAT")
    names = ("noise 60 dB SNR", "noise 40 dB SNR", "noise 20 dB SNR", "quantised 12 bit", "other words")
    chosen = tuple(rung_by_name(name) for name in names)
    monkeypatch.setattr(rungs, "RUNGS", chosen)
    given = {name: str(folder / f"{name}.wav") for name in ("reference", "noise_floor")}
    options = EXPERIMENT.options(given, out=out)
    frame.run(EXPERIMENT, options, progress=lambda *step: None)
    ladder = frame.content_of(EXPERIMENT, options)["rungs"]
    assert [rung["name"] for rung in ladder][-2:] == ["other words", "noise_floor"]
    for name in ("log_spectral_distance_db", "mel_mcd_db", "spectral_convergence"):
        found = [rung[name] for rung in ladder[:3]]
        assert found == sorted(found)
    assert ladder[1]["snr_db"] == pytest.approx(40.0, abs=1e-3)
    (out / "audio-ladder.jsonl").unlink()  # what is stored is enough
    figures, (table,) = frame.report(EXPERIMENT, EXPERIMENT.options({}, out=out, report=True))
    assert (table.name, "| quantised 12 bit |" in table.read_text()) == ("table.md", True)
    assert ("mel MCD" in figures[0].found, len(figures)) == (True, len(ladder))
