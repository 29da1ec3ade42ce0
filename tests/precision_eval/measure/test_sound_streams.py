"""The voice in many short streams, for real: trained weights, a few frames, and what is heard of them."""

from pathlib import Path

import numpy as np
import pytest

from precision_eval.cases.voice.codec import HOP_SAMPLES
from precision_eval.core.cells import Cell, Options
from precision_eval.core.figures import figures_of
from precision_eval.measure import shipped_voice, voice
from precision_eval.measure.registry import run_cell
from precision_eval.results.sound import VOICE_METRICS
from validation.audio_ladder.degrade import add_noise

N_FRAMES, STREAMS = 100, 3


def cell_of(fix: str, case: str = "voice") -> Cell:
    return Cell(
        case=case, fixes=(fix,), mode="eager", device="cpu", size="default", threads=1, measure="sound",
        options=Options(minutes=0.1, streams=STREAMS),
    )  # fmt: skip


def measured(run_dir: Path, fix: str, case: str = "voice") -> dict:
    (outcome,) = run_cell(cell_of(fix, case), run_dir).outcomes
    assert outcome.status == "passed", outcome.reason
    return outcome.data


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def reference(run_dir: Path) -> dict:
    return measured(run_dir, "reference")


@pytest.fixture(scope="module")
def passages():
    return shipped_voice.passages(STREAMS, n_frames=N_FRAMES)


@pytest.fixture(scope="module")
def originals(passages) -> np.ndarray:
    return shipped_voice.waveforms(shipped_voice.original_tokens(passages, n_frames=N_FRAMES))


def test_float32_says_what_the_reference_says_and_other_noise_does_not(run_dir, reference):
    same, other = measured(run_dir, "full_float32"), measured(run_dir, "noise_floor")
    assert same["tokens"] == reference["tokens"]
    assert same["heard"] == reference["heard"]
    assert not set(other["tokens"]) & set(reference["tokens"])
    assert (reference["streams"], reference["stream_s"]) == (STREAMS, N_FRAMES / 50)
    assert set(reference["heard"]) == {metric.name for metric in VOICE_METRICS}
    assert figures_of("sound", reference).streams == STREAMS
    assert len(list((run_dir / "streams").glob("original-sound*"))) == 1


def test_a_stream_does_not_depend_on_its_batch(passages, monkeypatch):
    """Passages come in batches; each has noise of its own, and its first stream that of the seed."""
    whole = shipped_voice.spoken_tokens("full_float32", passages, n_frames=5, seed=0)
    monkeypatch.setattr(shipped_voice, "BATCH_STREAMS", 1)
    alone = shipped_voice.spoken_tokens("full_float32", passages, n_frames=5, seed=0)
    assert whole.shape == alone.shape == (STREAMS, 5, 4)
    np.testing.assert_array_equal(whole[0], alone[0])
    assert (whole[1:] != alone[1:]).any()


def test_the_original_is_heard_without_distance_and_what_is_planted_is_heard(passages, originals):
    listener = shipped_voice.Listener(passages, originals)
    itself = listener.heard(originals)
    assert [itself[name] for name in ("mel_mcd_db", "log_spectral_distance_db", "level_error_db")] == [[0.0] * 3] * 3
    assert np.mean(itself["phonemes_right"]) > 0.8
    noisy = listener.heard(np.stack([add_noise(x.astype(np.float64), snr_db=20.0) for x in originals]).astype("f4"))
    assert all(min(noisy[name]) > 1.0 for name in ("mel_mcd_db", "log_spectral_distance_db", "level_error_db"))
    late = listener.heard(np.roll(originals, 20 * HOP_SAMPLES, axis=1))  # planted: other phonemes at each frame
    assert max(late["phonemes_right"]) < 0.5


def test_sound_that_is_not_finite_is_that_status(run_dir, reference, monkeypatch):
    spoil = shipped_voice.waveforms
    planted = np.arange(32000) == 7
    monkeypatch.setattr(shipped_voice, "waveforms", lambda tokens: np.where(planted, np.nan, spoil(tokens)))
    (outcome,) = voice.sound(cell_of("full_float32"), run_dir)
    assert outcome.status == "non_finite"


@pytest.mark.parametrize(("minutes", "frames"), [(0.05, 100), (0.25, 250), (1.0, 1000), (10.0, 1000)])
def test_length_of_a_stream(minutes, frames):
    assert shipped_voice.stream_frames(minutes) == frames
