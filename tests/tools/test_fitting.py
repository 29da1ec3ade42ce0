"""How the codec and the vocoder are made: what the network learns, its level, and the whole way in miniature."""

import numpy as np
import pytest

from precision_eval.cases.voice.codec import HOP_SAMPLES, N_MELS, SAMPLE_RATE_HZ, load_codec, log_mel, mel_distortion_db
from precision_eval.cases.voice.vocoder import N_BINS, SILENT_MAGNITUDE, MagnitudeNetwork, load_network, vocode
from tools.voice import fitting


def tone(n_frames: int) -> np.ndarray:
    time_s = np.arange(n_frames * HOP_SAMPLES) / SAMPLE_RATE_HZ
    return (0.25 * np.sin(2 * np.pi * 1_000 * time_s)).astype(np.float32)


def test_what_the_network_learns_by_hand() -> None:
    """1000 Hz is bin 40 of 640 samples; the Hann window halves it in the bins beside and ends it beyond."""
    logarithms = fitting.spectrum_logarithms(tone(10))
    assert logarithms.shape == (10, 2 * N_BINS)
    middle = logarithms[5].reshape(2, N_BINS)
    np.testing.assert_allclose(middle[:, 39:42], np.log([[0.125, 0.25, 0.125]] * 2), atol=1e-4)
    np.testing.assert_allclose(middle[:, 50:], np.log(SILENT_MAGNITUDE), rtol=1e-6)


def test_levelling_undoes_a_wrong_level() -> None:
    """Planted fault: a network 6 dB too soft in half of the bins."""
    noise = [np.random.default_rng(seed).normal(0, 0.05, 100 * HOP_SAMPLES).astype(np.float32) for seed in (0, 1)]
    network = fitting.levelled(load_network(), noise)
    soft = network.tensors["output_mean"].copy()
    soft[::2] -= np.float16(np.log(2))
    faulty = MagnitudeNetwork({**network.tensors, "output_mean": soft})
    difference = faulty.tensors["output_mean"] - network.tensors["output_mean"]
    assert np.abs(difference).max() > 0.6
    mended = fitting.levelled(faulty, noise).tensors["output_mean"] - network.tensors["output_mean"]
    assert np.abs(mended.astype(np.float32)).max() < 0.1


@pytest.mark.slow
@pytest.mark.espeak
def test_the_whole_way_in_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SPEAKERS", fitting.SPEAKERS[:2])
    monkeypatch.setattr(fitting, "CALIBRATION_MINUTES", 0.5)
    codec = fitting.fit_codec(minutes=0.5, seed=3, refinements=1)
    assert set(codec.metadata) >= {"seed", "minutes", "espeak_version", "mel_distortion_db"}
    assert float(codec.metadata["mel_distortion_db"]) < 4.0
    network = fitting.fit_network(minutes=0.5, seed=3, epochs=1)
    assert all(tensor.dtype == np.float16 for tensor in network.tensors.values())


@pytest.mark.slow
@pytest.mark.espeak
def test_shipped_codec_and_vocoder_on_speech_they_have_not_seen() -> None:
    codec = load_codec()
    audio = np.concatenate([passage[: 100 * HOP_SAMPLES] for passage in fitting.held_out_speech(minutes=0.5)])
    mel = log_mel(audio)
    coded = codec.decode(codec.encode(mel))
    assert mel.shape == (audio.size // HOP_SAMPLES, N_MELS)
    assert mel_distortion_db(coded, mel) < 2.5
    spoken = vocode(coded)
    assert mel_distortion_db(log_mel(spoken), mel) < 2.8
    assert 20 * np.log10(np.std(spoken) / np.std(audio)) == pytest.approx(0, abs=1.0)
