"""Put a freshly trained voice into the package: weights, held-out scripts, original speech, training log, hashes.

Conventions: every script is a contiguous held-out passage of one speaker; stream b of the suite is speaker b. The
original speech is shipped for speaker 0 only, as 16-bit FLAC, and begins with the script's first frame.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from precision_eval.cases.voice.assets import ASSETS, MANIFEST, asset_path, manifest, sha256_of
from precision_eval.cases.voice.codec import HOP_SAMPLES, SAMPLE_RATE_HZ, Codec, log_mel
from precision_eval.core.errors import IntegrityError

SCRIPT_MINUTES = 11.0
ORIGINAL_SPEECH_S = 124.0  # the 4 s prompt and two minutes
SCRIPT_SEED = 20_261_120


def write_scripts(path: Path, flac_path: Path, *, minutes: float = SCRIPT_MINUTES) -> None:
    """Speak the held-out scripts and store phonemes, tokens and, for speaker 0, the speech."""
    import soundfile

    from tools.voice.corpus import SPEAKERS, long_passage

    codec = Codec.load(ASSETS / "codec.safetensors")
    arrays: dict[str, np.ndarray] = {}
    for speaker in range(len(SPEAKERS)):
        passage = long_passage(world="heldout", speaker=speaker, minutes=minutes, seed=SCRIPT_SEED)
        lengths = passage.segments[:, 2] - passage.segments[:, 1]
        n_frames = int(passage.segments[-1, 2])
        arrays[f"phoneme.{speaker}"] = passage.segments[:, 0].astype(np.uint8)
        arrays[f"length.{speaker}"] = np.minimum(lengths, 255).astype(np.uint8)
        if lengths.max() > 255:
            raise IntegrityError(
                f"a phoneme of speaker {speaker} lasts {lengths.max()} frames, at most 255 can be stored"
            )
        arrays[f"tokens.{speaker}"] = codec.encode(log_mel(passage.audio))[:n_frames]
        if speaker == 0:
            audio = passage.audio[: round(ORIGINAL_SPEECH_S * SAMPLE_RATE_HZ) // HOP_SAMPLES * HOP_SAMPLES]
            soundfile.write(flac_path, audio, SAMPLE_RATE_HZ, subtype="PCM_16")
    save_file(arrays, path)


def install(training_dir: Path) -> Path:
    """Copy a finished training into the package's assets and write the manifest."""
    import torch

    from tools.voice.espeak import espeak_version

    for needed in (training_dir / "voice.safetensors", *(ASSETS / f"{name}.safetensors" for name in _FITTED)):
        if not needed.exists():
            raise IntegrityError(f"{needed} is missing; run 'python -m tools train-voice' to its end first")
    shutil.copyfile(training_dir / "voice.safetensors", ASSETS / "voice.safetensors")
    shutil.copyfile(training_dir / "training_log.jsonl", ASSETS / "training_log.jsonl")
    write_scripts(ASSETS / "scripts.safetensors", ASSETS / "speech.flac")
    plan = json.loads((training_dir / "plan.json").read_text(encoding="utf-8"))
    espeak = f"espeak-ng {espeak_version()}"
    made_with = {"torch": torch.__version__, "numpy": np.__version__, "machine": platform.machine()}
    trained: dict[str, Any] = {"made_by": "precision-eval train-voice", "plan": plan, "speech": espeak, **made_with}
    spoken = {
        "made_by": "precision-eval train-voice --install",
        "seed": SCRIPT_SEED,
        "world": "heldout",
        "speech": espeak,
    }
    return write_manifest(
        {
            "voice.safetensors": trained,
            "training_log.jsonl": trained,
            "scripts.safetensors": spoken,
            "speech.flac": spoken,
            **{f"{name}.safetensors": {"made_by": command, "speech": espeak} for name, command in _FITTED.items()},
        }
    )


def write_manifest(provenance: dict[str, dict[str, Any]]) -> Path:
    """Hash the files and write the manifest."""
    files = {
        name: {"sha256": sha256_of(ASSETS / name), "bytes": (ASSETS / name).stat().st_size, **facts}
        for name, facts in sorted(provenance.items())
    }
    path = ASSETS / MANIFEST
    path.write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")
    manifest.cache_clear()
    asset_path.cache_clear()
    return path


_FITTED = {
    "codec": "python -m tools.voice.fitting codec",
    "vocoder": "python -m tools.voice.fitting vocoder",
    "recogniser": "python -m tools.voice.recogniser_training",
}
