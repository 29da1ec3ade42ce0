"""DistillMOS and Resemblyzer's speaker encoder with their weights, as cases and as judges; imports torch."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.adapters import listeners
from precision_eval.cases.base import BuiltCase
from precision_eval.cases.voice.assets import original_speech

SAMPLE_RATE_HZ = 16_000
_BANDS, _WIDTH, _PART_FRAMES, _STEP_FRAMES = 40, 256, 160, 77  # frames of 10 ms
_LEAST_RMS = 10 ** (-30 / 20)
_MOS_SAMPLES = 122_880
_FIRST_S = 30  # of the espeak recording: beyond the prompt


class SpeakerEncoder(nn.Module):
    """Parts of a mel spectrogram in, an embedding of unit length each out, as in ``resemblyzer/voice_encoder.py``."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(_BANDS, _WIDTH, 3, batch_first=True)
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """Embed parts, (N, 160, 40)."""
        _, (hidden, _) = self.lstm(mels)
        return nn.functional.normalize(torch.relu(self.linear(hidden[-1])))


def speaker_encoder() -> SpeakerEncoder:
    """Load the encoder, in float32."""
    path = listeners.RESEMBLYZER.path(listeners.ENCODER)
    stored = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    encoder = SpeakerEncoder()
    encoder.load_state_dict({name: stored[name] for name in encoder.state_dict()})
    return encoder.eval().requires_grad_(False)


def speaker_parts(samples: np.ndarray) -> torch.Tensor:
    """Mel spectrogram of 16 kHz speech in overlapping parts of 1.6 s; of upstream's preparation, no silence is cut."""
    from librosa.feature import melspectrogram  # slow to import, and needed only here

    louder = max(1.0, _LEAST_RMS / max(float(np.sqrt(np.mean(samples**2))), 1e-9))
    mel = melspectrogram(y=samples * louder, sr=SAMPLE_RATE_HZ, n_fft=400, hop_length=160, n_mels=_BANDS).T
    mel = np.pad(mel, ((0, max(0, _PART_FRAMES - len(mel))), (0, 0)))  # (frames, bands)
    starts = range(0, len(mel) - _PART_FRAMES + 1, _STEP_FRAMES)
    return torch.from_numpy(np.stack([mel[start : start + _PART_FRAMES] for start in starts])).float()


def distillmos() -> Any:
    """Load the wheel's own class, in float32."""
    listeners.require_distillmos()
    stub = types.ModuleType("torchaudio")  # it reads files with it, which wants a torch of its own
    try:
        sys.modules.setdefault("torchaudio", stub)
        from distillmos import ConvTransformerSQAModel
    finally:
        if sys.modules["torchaudio"] is stub:
            del sys.modules["torchaudio"]

    model = ConvTransformerSQAModel(load_weights=False)  # which prints
    path = listeners.DISTILLMOS.path(listeners.MOS_WEIGHTS)
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["model"])
    return model.eval().requires_grad_(False)


def _speech(seed: int, n_samples: int) -> np.ndarray:
    samples, rate_hz = original_speech()
    first = (_FIRST_S + seed % 30) * rate_hz
    return samples[first : first + n_samples]


def distillmos_case(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build the transformer in half behind float32 batch norms, and the features that its convolutions give it."""
    model, samples = distillmos(), torch.from_numpy(_speech(seed, _MOS_SAMPLES))[None]
    features = model.cnn(samples / samples.abs().max()).permute(0, 2, 1).contiguous()
    transformer = model.transformer_pool_attn.half()
    for module in transformer.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.float()
    return BuiltCase(transformer.to(device), (features.to(device),))


def resemblyzer_case(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build the encoder in half, and the parts of 8 s of speech."""
    parts = speaker_parts(_speech(seed, 8 * SAMPLE_RATE_HZ))
    return BuiltCase(speaker_encoder().half().to(device), (parts.to(device),))
