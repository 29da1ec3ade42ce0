"""The files that ship with the package: weights, tables, scripts, speech; and their hashes.

Nothing is loaded whose SHA-256 differs from the ``manifest.json`` beside it; nothing is pickled. The manifest also says
where each file comes from and which command makes it anew, and what the model has that the shipped one has not. A voice
that was trained elsewhere is the folder that ``python -m tools train-voice --install`` wrote, given as ``voice=``.
The shipped ones beside the first are folders too: :data:`VOICES`. Their weights are integers of 12 bits with a float32
scale per row, which gives float32 weights that no half format holds; a twin has its codec, vocoder and scripts from the
voice that its manifest names under ``shares``.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from precision_eval.core.errors import IntegrityError, ParameterError, UnsupportedError
from precision_eval.core.files import sha256_of

if TYPE_CHECKING:
    from precision_eval.cases.voice.model import VoiceModel
    from precision_eval.cases.voice.synthesis import Stream

ASSETS = Path(__file__).parent / "data"
VOICES: dict[str, Path | None] = {
    "voice": None,
    "voice-natural": ASSETS / "natural",
    "voice-natural-capped": ASSETS / "natural-capped",
}
"""By case; None is the voice of ``ASSETS`` itself, the others are in the repository and not in the wheel."""
MANIFEST = "manifest.json"
CHECKPOINT_DTYPES = ("float32", "bfloat16")


@functools.cache
def manifest(voice: Path | None = None) -> dict[str, Any]:
    """The manifest: ``{"files": {name: {"sha256", "bytes", "made_by", ...}}, "config": {...}}``."""
    path = (voice or ASSETS) / MANIFEST
    if voice in VOICES.values() and voice is not None and not voice.is_dir():
        raise UnsupportedError(
            f"the weights of the voice '{voice.name}' are in the repository, not in the package; run in a clone"
        )
    if not path.exists() and voice is not None:
        raise ParameterError(f"{voice} holds no voice: it has no {MANIFEST}; 'train-voice --install' writes one")
    if not path.exists():
        raise IntegrityError(
            f"{path} is missing; reinstall precision-eval, or make the voice with 'precision-eval train-voice'"
        )
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def asset_path(name: str, voice: Path | None = None) -> Path:
    """Path of a shipped file, or of one of another voice, after checking its hash."""
    path = (voice or ASSETS) / name
    listed = manifest(voice)["files"].get(name)
    if listed is None and voice is not None and "shares" in manifest(voice):
        return asset_path(name, voice.parent / manifest(voice)["shares"])
    if listed is None or not path.exists():
        found = "not in the manifest" if listed is None else "missing"
        raise IntegrityError(f"shipped file {name} is {found}; reinstall precision-eval")
    actual = sha256_of(path)
    if actual != listed["sha256"]:
        raise IntegrityError(
            f"shipped file {name} is damaged: SHA-256 {actual[:12]}… found, {listed['sha256'][:12]}… expected; "
            "reinstall precision-eval"
        )
    return path


def check_files(voice: Path | None = None) -> None:
    """Check every file of a voice against its hash, before a long run relies on them."""
    if voice is None or voice.is_dir():  # what is not here is unsupported, each cell says so
        for name in manifest(voice)["files"]:
            asset_path(name, voice)


@dataclass(frozen=True, eq=False)
class StoredTensors:
    """Named arrays of one safetensors file, and what it says of how they were made."""

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str] = field(default_factory=dict)
    kind: ClassVar[str]
    names: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        if set(self.tensors) != set(self.names):
            raise ParameterError(f"{self.kind} has tensors {sorted(self.tensors)}; expected {sorted(self.names)}")

    @functools.cached_property
    def _single(self) -> dict[str, np.ndarray]:
        """The tensors in the dtype they are used in."""
        return {name: tensor.astype(np.float32) for name, tensor in self.tensors.items()}

    def save(self, path: Path) -> None:
        """Write the file."""
        from safetensors.numpy import save_file

        save_file(self.tensors, str(path), metadata=self.metadata)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote."""
        from safetensors import SafetensorError, safe_open

        remedy = "expected the shipped tables: reinstall the package"
        if not path.is_file():
            raise IntegrityError(f"no {cls.kind} at {path.name}; {remedy}")
        try:
            with safe_open(str(path), framework="numpy") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
                return cls(tensors, dict(stored.metadata() or {}))
        except (SafetensorError, ParameterError) as error:
            raise IntegrityError(f"{path.name} is not a {cls.kind} ({error}); {remedy}") from error


def unpacked(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return float32 weights of what was packed as integers of 12 bits, and what was not as it is."""
    result = {name: value for name, value in stored.items() if not name.endswith((".packed", ".scale"))}
    for name in (key.removesuffix(".packed") for key in stored if key.endswith(".packed")):
        a, b, c = np.moveaxis(stored[f"{name}.packed"].reshape(len(stored[f"{name}.packed"]), -1, 3), -1, 0).astype(int)
        whole = np.stack([a << 4 | b >> 4, (b & 15) << 8 | c], axis=-1).reshape(len(a), -1) - 2048
        result[name] = whole.astype(np.float32) * stored[f"{name}.scale"]
    return result


def load_model(*, checkpoint_dtype: str = "float32", voice: Path | None = None) -> VoiceModel:
    """Load the trained voice, in its as-shipped state except for the cache, which has yet to be allocated."""
    import torch
    from safetensors.numpy import load_file

    from precision_eval.cases.voice.model import VoiceConfig, VoiceModel

    if checkpoint_dtype not in CHECKPOINT_DTYPES:
        raise ParameterError(f"checkpoint_dtype must be one of {CHECKPOINT_DTYPES}, found {checkpoint_dtype!r}")
    model = VoiceModel(VoiceConfig(**manifest(voice).get("config", {})))
    stored = unpacked(load_file(asset_path("voice.safetensors", voice)))
    weights = {name: torch.from_numpy(value) for name, value in stored.items()}
    if checkpoint_dtype == "bfloat16":
        weights = {name: value.to(torch.bfloat16).float() for name, value in weights.items()}
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False)


def load_streams(n_streams: int, *, n_frames: int, voice: Path | None = None) -> list[Stream]:
    """Held-out scripts with their original tokens, spread over speakers and places."""
    from safetensors.numpy import load_file

    from precision_eval.cases.voice.script import conditioning_from_lengths
    from precision_eval.cases.voice.synthesis import Stream

    arrays = load_file(asset_path("scripts.safetensors", voice))
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


def original_speech(voice: Path | None = None) -> tuple[np.ndarray, int]:
    """The original speech of stream 0 from its first frame: samples float32 (n,), and its rate in Hz."""
    import soundfile

    samples, sample_rate_hz = soundfile.read(asset_path("speech.flac", voice), dtype="float32")
    return samples, int(sample_rate_hz)
