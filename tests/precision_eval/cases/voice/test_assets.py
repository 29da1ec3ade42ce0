"""The shipped voice: whole, hashed, free of pickle, and what it says it is."""

import shutil
from pathlib import Path

import pytest
import torch
from voice_mels import mel_distortion_db

from precision_eval.cases.systems import case_by_id
from precision_eval.cases.voice import assets
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, load_codec, log_mel
from precision_eval.core.errors import IntegrityError, ParameterError, UnsupportedError


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private copy of the assets, to be damaged."""
    folder = tmp_path / "assets"
    shutil.copytree(assets.ASSETS, folder)
    monkeypatch.setattr(assets, "ASSETS", folder)
    assets.manifest.cache_clear()
    assets.asset_path.cache_clear()
    yield folder
    assets.manifest.cache_clear()
    assets.asset_path.cache_clear()


def test_every_file_is_listed_and_has_its_hash() -> None:
    for voice in assets.VOICES.values():
        files = {path.name for path in (voice or assets.ASSETS).iterdir() if path.is_file()}
        assert files - {assets.MANIFEST} == set(assets.manifest(voice)["files"])
        assets.check_files(voice)
        assert all(facts["made_by"] for facts in assets.manifest(voice)["files"].values())


def test_the_voices_beside_the_first_are_small_and_say_their_licence() -> None:
    folders = [voice for voice in assets.VOICES.values() if voice is not None]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= 15e6
    for folder in folders:
        text = (folder / "LICENSE.md").read_text(encoding="utf-8")
        assert all(step in text for step in ("Apache-2.0", "Kokoro-82M", "hibari-tts 0.2.1"))


@pytest.mark.parametrize("case", ["voice-natural", "voice-natural-capped"])
def test_a_natural_voice_raises_as_the_first_does_and_its_weights_are_not_rounded(case: str) -> None:
    built = case_by_id(case).build("default", device="cpu", seed=0)
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        built.model(*built.inputs)
    weights = assets.load_model(voice=assets.VOICES[case]).state_dict()
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert not any(bool((value == value.half().float()).all()) for value in weights.values() if value.ndim == 2)


def test_a_damaged_file_is_refused(copied: Path) -> None:
    path = copied / "voice.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"voice\.safetensors is damaged: SHA-256 .* expected; reinstall"):
        assets.load_model()


def test_the_weights_are_float32_and_not_rounded() -> None:
    weights = assets.load_model().state_dict()
    assert {value.dtype for value in weights.values()} == {torch.float32}
    rounded = [bool((value == value.bfloat16().float()).all()) for value in weights.values() if value.ndim == 2]
    assert not any(rounded)


def test_the_rounded_checkpoint_makes_half_storage_lossless() -> None:
    weights = assets.load_model(checkpoint_dtype="bfloat16").state_dict()
    assert all(torch.equal(value, value.bfloat16().float()) for value in weights.values())
    with pytest.raises(ParameterError, match="checkpoint_dtype must be one of"):
        assets.load_model(checkpoint_dtype="float16")


def test_tokens_are_those_of_the_original_speech() -> None:
    """What ships as speech and what ships as its tokens are one recording ; other frames' tokens are far off."""
    samples, sample_rate_hz = assets.original_speech()
    assert sample_rate_hz == 16_000
    n_frames = len(samples) // HOP_SAMPLES
    assert n_frames >= 2 * 60 * FRAME_RATE_HZ
    frames = slice(500, 700)
    around = samples[(frames.start - 4) * HOP_SAMPLES : (frames.stop + 4) * HOP_SAMPLES]
    tokens = assets.load_streams(1, n_frames=n_frames)[0].tokens
    decoded, original = load_codec().decode(tokens), log_mel(around)[4:-4]
    assert mel_distortion_db(decoded[frames], original) < 3.5
    assert mel_distortion_db(decoded[300:500], original) > 7.0


def test_a_voice_that_is_not_installed_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(assets.VOICES, "voice-natural", tmp_path / "natural")
    assets.check_files(tmp_path / "natural")
    with pytest.raises(UnsupportedError, match="'natural' are in the repository, not"):
        assets.load_model(voice=tmp_path / "natural")
