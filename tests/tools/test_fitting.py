"""How the codec and the vocoder are made: what the network learns, its level, and the whole way in miniature."""

from dataclasses import replace

import numpy as np
import pytest

from precision_eval.cases.voice.codec import (
    HOP_SAMPLES,
    N_MELS,
    SAMPLE_RATE_HZ,
    load_codec,
    log_mel,
)
from precision_eval.cases.voice.vocoder import N_BINS, SILENT_MAGNITUDE, MagnitudeNetwork, load_network, vocode
from tools.voice import corpus, fitting
from tools.voice.encoding import beam_search, encode, inner_products, mel_distortion_db
from tools.voice.fitting import fit_tables, least_squares


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
    espeak = corpus.source_by_name("espeak")
    monkeypatch.setattr(fitting, "source_by_name", lambda name: replace(espeak, speakers=espeak.speakers[:2]))
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
    coded = codec.decode(encode(codec, mel))
    assert mel.shape == (audio.size // HOP_SAMPLES, N_MELS)
    assert mel_distortion_db(coded, mel) < 2.5
    spoken = vocode(coded)
    assert mel_distortion_db(log_mel(spoken), mel) < 2.8
    assert 20 * np.log10(np.std(spoken) / np.std(audio)) == pytest.approx(0, abs=1.0)


@pytest.mark.parametrize(("beam", "tokens"), [(1, [0, 0]), (2, [1, 1])])
def test_a_beam_sees_what_greed_misses(beam: int, tokens: list[int]) -> None:
    """10 is nearest to 9 (then 9 + 3), but 6 + 4 is exact."""
    tables = np.array([[[9.0], [6.0]], [[3.0], [4.0]]], dtype=np.float32)
    vectors = np.array([[10.0]], dtype=np.float32)
    assert beam_search(vectors, tables, inner_products(tables), beam=beam).tolist() == [tokens]


def test_least_squares_is_numpys() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(0, 1, (300, 5)).astype(np.float32)
    tokens = rng.integers(0, 6, (300, 2))
    tables = rng.normal(0, 1, (2, 6, 5)).astype(np.float32)
    chosen = np.zeros((300, 12))
    chosen[np.arange(300), tokens[:, 0]] = chosen[np.arange(300), 6 + tokens[:, 1]] = 1
    rows, wanted = np.concatenate([chosen, np.eye(12)]), np.concatenate([vectors, tables.reshape(12, 5)])
    expected = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    np.testing.assert_allclose(least_squares(vectors, tokens, tables).reshape(12, 5), expected, atol=1e-5)


def test_refinement_and_beam_lower_the_error_and_a_seed_repeats() -> None:
    mels = np.random.default_rng(8).normal(0, 1, (2_000, 6)).astype(np.float32) - 5
    plain = fit_tables(mels, 1, n_codebooks=2, codebook_size=16, refinements=0)
    refined = fit_tables(mels, 1, n_codebooks=2, codebook_size=16, refinements=4)
    errors = [
        mel_distortion_db(c.decode(encode(c, mels, beam=b)), mels) for c, b in ((plain, 1), (plain, 8), (refined, 8))
    ]
    assert errors[0] > errors[1] > errors[2]
    again = fit_tables(mels, 1, n_codebooks=2, codebook_size=16, refinements=4)
    np.testing.assert_array_equal(again.tables, refined.tables)
