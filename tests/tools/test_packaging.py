"""Putting a trained voice into the package."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file
from safetensors.torch import save_file as save_torch

from precision_eval.cases.voice.assets import ASSETS, MANIFEST, asset_path, load_model, load_streams
from precision_eval.cases.voice.codec import HOP_SAMPLES, load_codec
from precision_eval.cases.voice.model import VoiceConfig, VoiceModel
from precision_eval.cases.voice.script import conditioning_from_lengths
from precision_eval.core.errors import IntegrityError, ParameterError
from tools.voice import packaging
from tools.voice.packaging import install, write_scripts


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
