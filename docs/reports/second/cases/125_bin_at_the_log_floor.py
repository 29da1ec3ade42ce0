"""https://github.com/k2-fsa/sherpa-onnx/pull/3857 (2026)

One recording makes the whole batch come out empty; without it the others are transcribed well. All in float32.
"""
import torch
from torch import nn


class NemoNormalizePerFeature(nn.Module):
    def forward(self, features):
        mean = features.mean(1, keepdim=True)
        var = features.square().mean(1, keepdim=True) - mean.square()
        inv_std = 1.0 / (var.clamp_min(0).sqrt() + 1e-5)
        return (features - mean) * inv_std


class DynamicallyQuantisedEncoder(nn.Module):
    def __init__(self, features=24, width=48):
        super().__init__()
        self.proj, self.out = nn.Linear(features, width), nn.Linear(width, 30)

    def forward(self, x):
        scale = x.abs().amax() / 127  # one scale for the padded batch
        codes = (x / scale).round().clamp(-128, 127)
        return self.out(torch.relu(self.proj(codes * scale)))


class Parakeet(nn.Module):
    def __init__(self):
        super().__init__()
        self.normalize, self.encoder = NemoNormalizePerFeature(), DynamicallyQuantisedEncoder()

    def forward(self, log_mel):
        return self.encoder(self.normalize(log_mel)).log_softmax(-1)


def factory():
    log_mel = -8 + 2 * torch.randn(3, 200, 24)
    log_mel[0, :, 5] = -15.94  # a bin that lies on the log's floor, but for one frame
    log_mel[0, 90, 5] = -15.87
    return Parakeet().eval(), (log_mel,)
