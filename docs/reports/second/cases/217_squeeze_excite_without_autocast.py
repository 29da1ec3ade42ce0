"""https://github.com/NVIDIA-NeMo/Speech/pull/14715 (2025)

transcribe_speech.py with stt_es_citrinet_512 raises on dtypes in the Jasper encoder when it computes in bfloat16.
"""

import torch
from torch import nn


class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduction=4):
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction, bias=False),
            nn.ReLU(),
            nn.Linear(channels // reduction, channels, bias=False),
        )

    def forward(self, x, lengths):
        dtype = x.dtype
        mask = torch.arange(x.shape[-1])[None] < lengths[:, None]
        with torch.autocast(x.device.type, enabled=False):  # the mean over all frames is taken in float32
            x = x.float().masked_fill(~mask[:, None], 0.0)
            y = (x.sum(-1) / lengths[:, None]).unsqueeze(1)
            y = self.fc(y).transpose(1, 2)
            x = x * y.sigmoid()
        return x.to(dtype)


class JasperBlock(nn.Module):
    def __init__(self, channels=48):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 5, padding=2)
        self.norm = nn.BatchNorm1d(channels)
        self.se = SqueezeExcite(channels)

    def forward(self, x, lengths):
        return torch.relu(self.se(self.norm(self.conv(x)), lengths) + x)


def factory():
    return JasperBlock().bfloat16().eval(), (torch.randn(2, 48, 30).bfloat16(), torch.tensor([30, 22]))
