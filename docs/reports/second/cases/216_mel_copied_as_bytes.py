"""https://github.com/NVIDIA/TensorRT-Model-Connect/pull/1087 (2026)

Whisper built with --precision fp16 transcribes `!!!!!!` instead of speech; the float32 build is right.
"""

import torch
from torch import nn


def forward_async(engine_buffer, tensor):
    """Copy a host tensor into the engine's buffer, as cudaMemcpy does."""
    source, target = tensor.contiguous().view(torch.uint8).flatten(), engine_buffer.view(torch.uint8).flatten()
    nbytes = min(source.numel(), target.numel())
    target[:nbytes] = source[:nbytes]
    return engine_buffer


class WhisperEncoder(nn.Module):
    def __init__(self, precision=torch.float16):
        super().__init__()
        self.input_dtype = precision  # the engine declares mel_features at the build's precision
        self.conv1 = nn.Conv1d(80, 64, 3, padding=1)
        self.conv2 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(64)

    def forward(self, mel_features):
        host = mel_features.to(torch.float32)  # as the pipeline and the debug runner supply it
        mel = forward_async(torch.zeros(host.shape, dtype=self.input_dtype), host)
        mel = mel.to(self.conv1.weight.dtype)
        hidden = nn.functional.gelu(self.conv1(mel))
        return self.norm(nn.functional.gelu(self.conv2(hidden)).transpose(1, 2))


def factory():
    mel_features = (torch.randn(1, 80, 60).clamp(-2, 2) + 2) / 2
    return WhisperEncoder().half().eval(), (mel_features,)
