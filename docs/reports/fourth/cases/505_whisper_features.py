"""https://github.com/huggingface/transformers/issues/47805, 2026.
whisper-large-v3 loaded without a dtype argument raises on the output of its own feature extractor:
Input type (float) and bias type (c10::Half) should be the same."""
import numpy as np
import torch
from torch import nn


class WhisperFeatureExtractor:
    def __call__(self, wav):
        frames = np.lib.stride_tricks.sliding_window_view(wav, 400)[::160] * np.hanning(400)
        power = np.abs(np.fft.rfft(frames, axis=-1))[:, :80] ** 2
        log_spec = np.log10(np.maximum(power, 1e-10)).T
        return torch.from_numpy(log_spec[None].astype(np.float32))


class WhisperEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.conv1 = nn.Conv1d(80, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)

    def forward(self, input_features):
        hidden = nn.functional.gelu(self.conv1(input_features))
        return nn.functional.gelu(self.conv2(hidden)).permute(0, 2, 1)


def factory():
    rng = np.random.default_rng(0)
    feats = WhisperFeatureExtractor()(0.1 * rng.standard_normal(8000))
    return WhisperEncoder().to(torch.float16).eval(), (feats,)
