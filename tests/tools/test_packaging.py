"""Putting a trained voice into the package."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file
from safetensors.torch import save_file as save_torch

from precision_eval.cases.voice.assets import (
    ASSETS,
    MANIFEST,
    asset_path,
    load_model,
    load_streams,
    original_speech,
    unpacked,
)
from precision_eval.cases.voice.codec import HOP_SAMPLES, load_codec
from precision_eval.cases.voice.model import VoiceConfig, VoiceModel
from precision_eval.cases.voice.script import conditioning_from_lengths
from precision_eval.core.errors import IntegrityError, ParameterError, UnknownNameError
from tools.voice import packaging
from tools.voice.packaging import install, packed, write_scripts


def test_an_unfinished_training_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"voice\.safetensors is missing; run 'python -m tools train-voice'"):
        install(tmp_path)


def test_a_voice_of_other_speech_is_a_folder_and_leaves_the_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (ASSETS / MANIFEST).read_bytes()
    plan = {"million_frames": 1.0, "corpus_hours": 1.0, "ranks": 1, "seed": 0, "speech": "hibari", "qk_norm": True}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "training_log.jsonl").write_text("")
    save_torch(VoiceModel(VoiceConfig(qk_norm=True)).state_dict(), tmp_path / "voice.safetensors")
    with pytest.raises(IntegrityError, match=r"codec\.safetensors is missing"):
        install(tmp_path)
    for name in ("codec", "vocoder"):
        shutil.copyfile(ASSETS / f"{name}.safetensors", tmp_path / f"{name}.safetensors")

    def scripts(folder: Path, codec: object, *, speech: str) -> None:
        assert speech == "hibari"
        for name in ("scripts.safetensors", "speech.flac"):
            shutil.copyfile(ASSETS / name, folder / name)

    monkeypatch.setattr(packaging, "write_scripts", scripts)
    voice = install(tmp_path).parent
    assert voice == tmp_path / "voice"
    assert load_model(voice=voice).config.qk_norm
    assert not load_model().config.qk_norm
    assert len(load_streams(2, n_frames=100, voice=voice)) == 2
    assert "hibari-tts 0.2.1" in (voice / MANIFEST).read_text()
    assert (ASSETS / MANIFEST).read_bytes() == before
    with pytest.raises(ParameterError, match="holds no voice"):
        load_model(voice=tmp_path)
    (voice / "voice.safetensors").write_bytes(b"torn")
    asset_path.cache_clear()
    with pytest.raises(IntegrityError, match="is damaged"):
        load_model(voice=voice)


@pytest.mark.parametrize("change", [{"million_frames": 3.0}, {"number_format": "float16"}, {"ranks": 1}])
def test_a_voice_of_another_plan_does_not_replace_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict
) -> None:
    before = (ASSETS / MANIFEST).read_bytes()
    plan = {"million_frames": 10.0, "corpus_hours": 24.0, "ranks": 2, "seed": 0, "speech": "espeak"}
    (tmp_path / "plan.json").write_text(json.dumps(plan | change))
    (tmp_path / "training_log.jsonl").write_text("")
    save_torch(VoiceModel(VoiceConfig()).state_dict(), tmp_path / "voice.safetensors")

    def scripts(folder: Path, codec: object, *, speech: str) -> None:
        assert folder != ASSETS
        for name in ("scripts.safetensors", "speech.flac"):
            shutil.copyfile(ASSETS / name, folder / name)

    monkeypatch.setattr(packaging, "write_scripts", scripts)
    monkeypatch.setattr(packaging, "source_by_name", lambda name: SimpleNamespace(name=name, version=lambda: "1.51"))
    assert install(tmp_path).parent == tmp_path / "voice"
    assert load_model(voice=tmp_path / "voice").config == VoiceConfig()
    assert (ASSETS / MANIFEST).read_bytes() == before


def test_shipped_weights_are_close_hold_no_half_format_and_share_what_a_twin_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = {"voice-natural": tmp_path / "natural", "voice-natural-capped": tmp_path / "capped"}
    monkeypatch.setattr(packaging, "VOICES", voices)
    with pytest.raises(UnknownNameError, match="voice-natural"):
        packaging.ship(ASSETS, "voice-natrual")
    (tmp_path / "capped").mkdir()
    packaging.ship(ASSETS, "voice-natural")
    packaging.ship(ASSETS, "voice-natural-capped", shares="natural")
    names = {path.name for path in (tmp_path / "capped").iterdir()}
    assert names.isdisjoint({"codec.safetensors", "vocoder.safetensors", "scripts.safetensors", "speech.flac"})
    assert "Apache-2.0" in (tmp_path / "natural" / "LICENSE.md").read_text()
    assert len(original_speech(tmp_path / "capped")[0]) == 64 * 16_000
    assert len(load_streams(2, n_frames=100, voice=tmp_path / "capped")) == 2
    trained = load_model().state_dict()
    for name, value in load_model(voice=tmp_path / "capped").state_dict().items():
        if value.ndim == 2:
            step = trained[name].abs().amax(1, keepdim=True) / 2047
            assert ((value - trained[name]).abs() <= 0.501 * step + 1e-9).all()
            assert (value.half().float() != value).float().mean() > 0.8
    (tmp_path / "natural" / "codec.safetensors").write_bytes(b"another")
    with pytest.raises(IntegrityError, match="cannot be shared"):
        packaging.ship(ASSETS, "voice-natural-capped", shares="natural")


def test_a_matrix_is_packed_by_hand() -> None:
    matrix = np.array([[2047.0, -2047.0], [0.5, -0.25], [0.0, 0.0]], np.float32)
    stored = packed({"w": matrix, "norm": np.ones(3, np.float32)})
    assert stored["w.packed"].tolist()[0] == [0xFF, 0xF0, 0x01]  # 4095 and 1
    assert stored["w.packed"].nbytes == 9
    back = unpacked(stored)
    np.testing.assert_allclose(back["w"], matrix, atol=0.5 / 4094)
    assert back["norm"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.espeak
@pytest.mark.slow
def test_scripts_hold_tokens_for_every_frame(tmp_path: Path) -> None:
    write_scripts(tmp_path, load_codec(), minutes=0.3)
    arrays = load_file(tmp_path / "scripts.safetensors")
    for speaker in range(12):
        script = conditioning_from_lengths(arrays[f"phoneme.{speaker}"], arrays[f"length.{speaker}"])
        assert len(script) == len(arrays[f"tokens.{speaker}"]) >= 0.3 * 60 * 50
        assert arrays[f"tokens.{speaker}"].dtype == np.uint8
    assert soundfile.info(tmp_path / "speech.flac").frames <= len(arrays["tokens.0"]) * HOP_SAMPLES + HOP_SAMPLES
