"""https://github.com/wfondrie/depthcharge/pull/82 (2025)

A mass spectrum transformer in bfloat16: nothing is raised, but peaks of different m/z can no longer be told apart as
they can in full precision. The m/z values are given in float32.
"""
import math

import torch
from torch import nn


class FloatEncoder(nn.Module):
    def __init__(self, d_model, min_wavelength=0.001, max_wavelength=10000.0):
        super().__init__()
        d_sin = math.ceil(d_model / 2)
        d_cos = d_model - d_sin
        base = min_wavelength / (2 * math.pi)
        scale = max_wavelength / min_wavelength
        self.register_buffer("sin_term", base * scale ** (torch.arange(d_sin).float() / (d_sin - 1)))
        self.register_buffer("cos_term", base * scale ** (torch.arange(d_cos).float() / (d_cos - 1)))

    def forward(self, X):
        sin_mz = torch.sin(X[:, :, None] / self.sin_term)
        cos_mz = torch.cos(X[:, :, None] / self.cos_term)
        return torch.cat([sin_mz, cos_mz], dim=-1)


class SpectrumTransformerEncoder(nn.Module):
    def __init__(self, d_model=64):
        super().__init__()
        self.mz_encoder = FloatEncoder(d_model, min_wavelength=0.1)
        self.intensity = nn.Linear(1, d_model, bias=False)
        self.layer = nn.TransformerEncoderLayer(d_model, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(d_model, 8)

    def forward(self, mz_array, intensity_array):
        dtype = self.head.weight.dtype
        peaks = self.mz_encoder(mz_array).to(dtype) + self.intensity(intensity_array[:, :, None].to(dtype))
        return self.head(self.layer(peaks).mean(dim=1)).float()


def factory():
    torch.manual_seed(0)
    model = SpectrumTransformerEncoder().to(torch.bfloat16).eval()
    mz = torch.sort(torch.rand(2, 40) * 1000 + 100).values
    return model, (mz, torch.rand(2, 40))
