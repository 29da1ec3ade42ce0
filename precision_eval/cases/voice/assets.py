"""The files that ship with the package: weights, tables, scripts, speech; and their hashes.

Nothing is loaded whose SHA-256 differs from ``manifest.json``; nothing is pickled. The weights were trained up to
commit 88c8bf2f; the code that trained them lies in git's history, last in f6d76c55 (``tools/voice``).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from precision_eval.core.errors import IntegrityError, ParameterError
from precision_eval.core.files import sha256_of

if TYPE_CHECKING:
    from precision_eval.cases.voice.model import VoiceModel
    from precision_eval.cases.voice.synthesis import Stream

ASSETS = Path(__file__).parent / "data"
MANIFEST = "manifest.json"
CHECKPOINT_DTYPES = ("float32", "bfloat16")


@functools.cache
def manifest() -> dict[str, Any]:
    """The manifest: ``{"files": {name: {"sha256", "bytes", "made_by", ...}}}``."""
    path = ASSETS / MANIFEST
    if not path.exists():
        raise IntegrityError(f"{path} is missing; reinstall precision-eval")
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def asset_path(name: str) -> Path:
    """Path of a shipped file, after checking its hash."""
    path, listed = ASSETS / name, manifest()["files"].get(name)
    if listed is None or not path.exists():
        problem = "not in the manifest" if listed is None else "missing"
        raise IntegrityError(f"shipped file {name} is {problem}; reinstall precision-eval")
    actual = sha256_of(path)
    if actual != listed["sha256"]:
        raise IntegrityError(
            f"shipped file {name} is damaged: SHA-256 {actual[:12]}… found, {listed['sha256'][:12]}… expected; "
            "reinstall precision-eval"
        )
    return path


def check_files() -> None:
    """Check every file of the voice against its hash, before a long run relies on them."""
    for name in manifest()["files"]:
        asset_path(name)


@dataclass(frozen=True, eq=False)
class StoredTensors:
    """Named arrays of one safetensors file."""

    tensors: dict[str, np.ndarray]

    @functools.cached_property
    def _single(self) -> dict[str, np.ndarray]:
        """The tensors in the dtype they are used in."""
        return {name: tensor.astype(np.float32) for name, tensor in self.tensors.items()}

    @classmethod
    def load(cls, name: str) -> Self:
        """Read a shipped file."""
        from safetensors.numpy import load_file

        return cls(load_file(asset_path(name)))


def load_model(*, checkpoint_dtype: str = "float32") -> VoiceModel:
    """Load the trained voice, in its as-shipped state except for the cache, which has yet to be allocated."""
    import torch
    from safetensors.numpy import load_file

    from precision_eval.cases.voice.model import VoiceConfig, VoiceModel

    if checkpoint_dtype not in CHECKPOINT_DTYPES:
        raise ParameterError(f"checkpoint_dtype must be one of {CHECKPOINT_DTYPES}, found {checkpoint_dtype!r}")
    model = VoiceModel(VoiceConfig())
    stored = load_file(asset_path("voice.safetensors"))
    weights = {name: torch.from_numpy(value) for name, value in stored.items()}
    if checkpoint_dtype == "bfloat16":
        weights = {name: value.to(torch.bfloat16).float() for name, value in weights.items()}
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False)


def load_streams(n_streams: int, *, n_frames: int) -> list[Stream]:
    """Held-out scripts with their original tokens, spread over speakers and places."""
    from safetensors.numpy import load_file

    from precision_eval.cases.voice.script import conditioning_from_lengths
    from precision_eval.cases.voice.synthesis import Stream

    arrays = load_file(asset_path("scripts.safetensors"))
    n_speakers = sum(name.startswith("tokens.") for name in arrays)
    rounds = -(-n_streams // n_speakers)
    streams = []
    for index in range(n_streams):
        turn, speaker = divmod(index, n_speakers)
        conditioning = conditioning_from_lengths(arrays[f"phoneme.{speaker}"], arrays[f"length.{speaker}"])
        tokens = arrays[f"tokens.{speaker}"]
        start = turn * (max(0, len(tokens) - n_frames) // rounds)
        streams.append(Stream(conditioning[start:], tokens[start:]))
    return streams


def original_speech() -> tuple[np.ndarray, int]:
    """The original speech of stream 0 from its first frame: samples float32 (n,), and its rate in Hz."""
    import soundfile

    samples, sample_rate_hz = soundfile.read(asset_path("speech.flac"), dtype="float32")
    return samples, int(sample_rate_hz)
