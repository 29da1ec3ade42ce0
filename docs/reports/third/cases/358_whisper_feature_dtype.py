"""https://github.com/huggingface/transformers/pull/47816 (2026; issue 47805)

whisper-large-v3 loaded without a dtype argument: feeding the encoder the output of its own feature
extractor raises "Input type (float) and bias type (c10::Half) should be the same".
"""
import torch
from torch import nn


class WhisperFeatureExtractor:
    def __init__(self, mels=16):
        self.window, self.filters = torch.hann_window(400), torch.rand(201, mels) / 201

    def __call__(self, wave):
        spec = torch.stft(wave, 400, 160, window=self.window, return_complex=True).abs() ** 2
        log_spec = torch.log10((self.filters.T @ spec).clamp(min=1e-10))
        return (torch.maximum(log_spec, log_spec.max() - 8.0) + 4.0) / 4.0


class WhisperEncoder(nn.Module):
    def __init__(self, mels=16, dim=32):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)
        self.layer_norm = nn.LayerNorm(dim)

    def forward(self, input_features):
        inputs_embeds = nn.functional.gelu(self.conv1(input_features))
        inputs_embeds = nn.functional.gelu(self.conv2(inputs_embeds))
        return self.layer_norm(inputs_embeds.permute(0, 2, 1))


class Transcriber(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.feature_extractor = encoder, WhisperFeatureExtractor()

    def forward(self, wave):
        return self.encoder(self.feature_extractor(wave)[None])


def factory():
    torch.manual_seed(0)
    return Transcriber(WhisperEncoder().to(torch.float16).eval()), (torch.randn(8000) * 0.1,)
