"""https://github.com/sgl-project/sglang-omni/pull/1715 (2026)

The CosyVoice3 vocoder is configured with dtype: bfloat16 and is no faster than in float32.
"""
import torch
from torch import nn


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(80, 512), nn.GELU(), nn.Linear(512, 80))

    def inference(self, mel, steps=6):
        for i in range(steps):
            mel = mel + self.net(mel) * (1 - i / steps) / steps
        return mel


class Hift(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Conv1d(80, 64, 7, padding=3), nn.ConvTranspose1d(64, 1, 16, stride=8, padding=4)

    def inference(self, mel):
        return torch.tanh(self.up(torch.relu(self.conv(mel.transpose(1, 2)))))


class CosyVoice3Vocoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.flow, self.hift = Flow(), Hift()
        self.fp16 = config["dtype"] == "float16"

    def forward(self, mel):
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.fp16):
            mel = self.flow.inference(mel)
        return self.hift.inference(mel.float())


def factory():
    return CosyVoice3Vocoder({"dtype": "bfloat16"}).eval(), (torch.randn(1, 200, 80),)
