"""Putting a trained voice into the package."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file

from precision_eval.cases.voice.codec import HOP_SAMPLES
from precision_eval.cases.voice.script import conditioning_from_lengths
from precision_eval.core.errors import IntegrityError
from tools.voice.packaging import install, write_scripts


def test_an_unfinished_training_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"voice\.safetensors is missing; run 'python -m tools train-voice'"):
        install(tmp_path)


@pytest.mark.espeak
@pytest.mark.slow
def test_scripts_hold_tokens_for_every_frame(tmp_path: Path) -> None:
    write_scripts(tmp_path / "scripts.safetensors", tmp_path / "speech.flac", minutes=0.3)
    arrays = load_file(tmp_path / "scripts.safetensors")
    for speaker in range(12):
        script = conditioning_from_lengths(arrays[f"phoneme.{speaker}"], arrays[f"length.{speaker}"])
        assert len(script) == len(arrays[f"tokens.{speaker}"]) >= 0.3 * 60 * 50
        assert arrays[f"tokens.{speaker}"].dtype == np.uint8
    assert soundfile.info(tmp_path / "speech.flac").frames <= len(arrays["tokens.0"]) * HOP_SAMPLES + HOP_SAMPLES
