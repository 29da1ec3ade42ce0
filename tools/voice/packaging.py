"""Put a freshly trained voice into the package: weights, held-out scripts, original speech, training log, hashes.

Conventions: every script is a contiguous held-out passage of one speaker; stream b of the suite is speaker b. The
original speech is shipped for speaker 0 only, as 16-bit FLAC, and begins with the script's first frame. A voice of
other speech, or with capped attention, is a folder of its own, with its codec and vocoder.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from precision_eval.cases.voice.assets import (
    ASSETS,
    MANIFEST,
    VOICES,
    asset_path,
    manifest,
    original_speech,
    sha256_of,
)
from precision_eval.cases.voice.codec import HOP_SAMPLES, SAMPLE_RATE_HZ, Codec, log_mel
from precision_eval.core.errors import IntegrityError, unknown_name
from tools.voice.corpus import long_passage, source_by_name
from tools.voice.encoding import encode
from tools.voice.training import FORMER_PLAN

SCRIPT_MINUTES = 11.0
ORIGINAL_SPEECH_S = 124.0  # the 4 s prompt and two minutes
SHIPPED_SPEECH_S = 64  # of a voice beside the first
SCRIPT_SEED = 20_261_120


def packed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pack matrices with an even number of columns as integers of 12 bits, two in three bytes, and a scale per row."""
    result: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if value.ndim != 2 or value.shape[1] % 2:
            result[name] = value
            continue
        scale = np.maximum(np.abs(value).max(axis=1, keepdims=True), np.finfo(np.float32).tiny) / np.float32(2047)
        whole = (np.rint(value / scale) + 2048).astype(np.uint16)
        first, second = whole[:, ::2], whole[:, 1::2]
        parts = (first >> 4, (first & 15) << 4 | second >> 8, second & 255)
        result[f"{name}.packed"] = np.stack(parts, axis=-1).astype(np.uint8).reshape(len(value), -1)
        result[f"{name}.scale"] = scale
    return result


def write_scripts(folder: Path, codec: Codec, *, speech: str = "espeak", minutes: float = SCRIPT_MINUTES) -> None:
    """Speak the held-out scripts and store phonemes, tokens and sentences, and, of the first, the speech."""
    import soundfile

    arrays: dict[str, np.ndarray] = {}
    said: dict[str, str] = {}
    for speaker in range(source_by_name(speech).n_scripts):
        passage = long_passage(world="heldout", speaker=speaker, minutes=minutes, seed=SCRIPT_SEED, speech=speech)
        lengths = passage.segments[:, 2] - passage.segments[:, 1]
        n_frames = int(passage.segments[-1, 2])
        arrays[f"phoneme.{speaker}"] = passage.segments[:, 0].astype(np.uint8)
        arrays[f"length.{speaker}"] = np.minimum(lengths, 255).astype(np.uint8)
        said[f"sentences.{speaker}"] = json.dumps(passage.sentences)
        if lengths.max() > 255:
            raise IntegrityError(
                f"a phoneme of speaker {speaker} lasts {lengths.max()} frames, at most 255 can be stored"
            )
        arrays[f"tokens.{speaker}"] = encode(codec, log_mel(passage.audio))[:n_frames]
        if speaker == 0:
            audio = passage.audio[: round(ORIGINAL_SPEECH_S * SAMPLE_RATE_HZ) // HOP_SAMPLES * HOP_SAMPLES]
            soundfile.write(folder / "speech.flac", audio, SAMPLE_RATE_HZ, subtype="PCM_16")
    save_file(arrays, folder / "scripts.safetensors", metadata=said)


def install(training_dir: Path) -> Path:
    """Put a finished training with scripts, hashes and a manifest into a folder; returns the manifest.

    The shipped voice, made anew by its own plan, goes into the package, any other into ``voice`` beside its corpus.
    """
    import torch

    plan_path = training_dir / "plan.json"
    stored = json.loads(plan_path.read_text(encoding="utf-8")) if plan_path.exists() else {}
    plan = FORMER_PLAN | stored
    own = plan == FORMER_PLAN | manifest()["files"]["voice.safetensors"]["plan"]
    folder = ASSETS if own else training_dir / "voice"
    has_codec = plan["speech"] != "espeak"
    fitted_in = training_dir if has_codec else ASSETS
    fitted = {"codec": _TRAINED, "vocoder": _TRAINED} if has_codec else _FITTED
    needed = (training_dir / "voice.safetensors", *(fitted_in / f"{name}.safetensors" for name in fitted))
    for path in needed:
        if not path.exists():
            raise IntegrityError(f"{path} is missing; run 'python -m tools train-voice' to its end first")
    folder.mkdir(exist_ok=True)
    for path in (*needed, training_dir / "training_log.jsonl"):
        if path.parent != folder:
            shutil.copyfile(path, folder / path.name)
    write_scripts(folder, Codec.load(folder / "codec.safetensors"), speech=plan["speech"])
    source = source_by_name(plan["speech"])
    speech = f"{_NAMES.get(source.name, source.name)} {source.version()}"
    made_with = {"torch": torch.__version__, "numpy": np.__version__, "machine": platform.machine()}
    trained: dict[str, Any] = {"made_by": _TRAINED, "plan": plan, "speech": speech, **made_with}
    spoken = {"made_by": f"{_TRAINED} --install", "seed": SCRIPT_SEED, "world": "heldout", "speech": speech}
    return write_manifest(
        {
            "voice.safetensors": trained,
            "training_log.jsonl": trained,
            "scripts.safetensors": spoken,
            "speech.flac": spoken,
            **{f"{name}.safetensors": {"made_by": command, "speech": speech} for name, command in fitted.items()},
        },
        folder=folder,
        config={"qk_norm": True} if plan["qk_norm"] else {},
    )


def ship(installed: Path, case: str, *, shares: str = "") -> Path:
    """Put a voice that was installed in a folder into the package, as that of a case; returns the manifest.

    Weights are packed, the original speech is cut to a minute. One that `shares` another's codec leaves that and the
    scripts to it, where they are the same.
    """
    import soundfile

    folder = VOICES.get(case)
    if folder is None:
        raise unknown_name("case of a voice that a folder holds", case, [name for name, at in VOICES.items() if at])
    provenance = {
        name: {key: value for key, value in facts.items() if key not in ("sha256", "bytes")}
        for name, facts in manifest(installed)["files"].items()
    }
    if shares:
        for name in ("codec.safetensors", "vocoder.safetensors", "scripts.safetensors", "speech.flac"):
            other = folder.parent / shares / name
            if name != "speech.flac" and not _alike(other, asset_path(name, installed)):
                raise IntegrityError(f"{name} of {installed} is not that of {other.parent}; it cannot be shared")
            del provenance[name]
    folder.mkdir(exist_ok=True)
    for name in provenance:
        if name == "speech.flac":
            samples, rate_hz = original_speech(installed)
            soundfile.write(folder / name, samples[: SHIPPED_SPEECH_S * rate_hz], rate_hz, subtype="PCM_16")
        elif name == "voice.safetensors":
            save_file(packed(load_file(asset_path(name, installed))), folder / name)
            (folder / name).chmod(0o644)  # safetensors lets only the owner read
        else:
            shutil.copyfile(asset_path(name, installed), folder / name)
    (folder / "LICENSE.md").write_text(_LICENCE, encoding="utf-8")
    provenance["LICENSE.md"] = {"made_by": "python -m tools ship-voice"}
    more = {"shares": shares} if shares else {}
    return write_manifest(provenance, folder=folder, config=manifest(installed).get("config", {}), more=more)


def _alike(path: Path, other: Path) -> bool:
    """Whether two files hold the same tensors and metadata, which safetensors writes in any order."""
    from safetensors import SafetensorError, safe_open

    try:
        tensors, others = load_file(path), load_file(other)
        with safe_open(path, framework="numpy") as file, safe_open(other, framework="numpy") as second:
            same_facts = file.metadata() == second.metadata()
    except SafetensorError:
        return False
    return (
        same_facts and tensors.keys() == others.keys() and all(np.array_equal(tensors[k], others[k]) for k in tensors)
    )


def write_manifest(
    provenance: dict[str, dict[str, Any]],
    *,
    folder: Path,
    config: dict[str, Any],
    more: dict[str, Any] | None = None,
) -> Path:
    """Hash the files and write the manifest."""
    files = {
        name: {"sha256": sha256_of(folder / name), "bytes": (folder / name).stat().st_size, **facts}
        for name, facts in sorted(provenance.items())
    }
    path = folder / MANIFEST
    content = {"files": files} | ({"config": config} if config else {}) | (more or {})
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    manifest.cache_clear()
    asset_path.cache_clear()
    return path


_LICENCE = """# Licence of these weights: Apache-2.0

Apache License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0), all the way:

1. Kokoro-82M (hexgrad), Apache-2.0: the text-to-speech model that hibari-tts says it was distilled from.
2. hibari-tts 0.2.1, Apache-2.0, from PyPI: it spoke what this voice learned from, the held-out scripts and
   `speech.flac`. None of its weights is here.
3. This voice: trained from random weights by `python -m tools train-voice --speech hibari`; how, stands in
   `manifest.json`.
"""
_TRAINED = "python -m tools train-voice"
_NAMES = {"espeak": "espeak-ng", "hibari": "hibari-tts"}
_FITTED = {
    "codec": "python -m tools.voice.fitting codec",
    "vocoder": "python -m tools.voice.fitting vocoder",
    "recogniser": "python -m tools.voice.recogniser_training",
}
