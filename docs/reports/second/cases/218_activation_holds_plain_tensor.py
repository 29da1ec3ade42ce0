"""https://github.com/espnet/espnet/pull/6273 (2025)

BF16 inference with the ESPnet codec model stops in a convolution: the input is float, the bias is bfloat16.
"""

import torch
from torch import nn


class SnakeActivation(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = torch.ones(1, channels, 1)

    def forward(self, x):
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


class ResidualUnit(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.act1, self.act2 = SnakeActivation(channels), SnakeActivation(channels)
        self.conv1 = nn.Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation)
        self.conv2 = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class CodecDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(16, 32, 7, padding=3)
        self.units = nn.Sequential(*(ResidualUnit(32, d) for d in (1, 3)))
        self.out = nn.ConvTranspose1d(32, 1, 8, stride=4, padding=2)

    def forward(self, codes):
        return torch.tanh(self.out(self.units(self.inp(codes))))


def factory():
    return CodecDecoder().bfloat16().eval(), (torch.randn(1, 16, 40).bfloat16(),)
