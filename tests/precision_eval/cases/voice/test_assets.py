"""The shipped voice: whole, hashed, free of pickle, and what it says it is."""

import shutil
from pathlib import Path

import pytest
import torch
from voice_mels import mel_distortion_db

from precision_eval.cases.voice import assets
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, load_codec, log_mel
from precision_eval.core.errors import IntegrityError, ParameterError


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
    files = {path.name for path in assets.ASSETS.iterdir()}
    assert files - {assets.MANIFEST} == set(assets.manifest()["files"])
    assets.check_files()


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
