"""https://github.com/vllm-project/vllm/pull/54620 (2026)

FunASR-Nano with --dtype float16 transcribes garbage and repeats a token; bfloat16 and float32 are better.
"""
import torch
from torch import nn


class SinusoidalPositionEncoder(nn.Module):
    def encode(self, positions, depth, dtype):
        positions = positions.type(dtype)
        log_timescale_increment = torch.log(torch.tensor([10000], dtype=dtype)) / (depth / 2 - 1)
        inv_timescales = torch.exp(torch.arange(depth / 2).type(dtype) * (-log_timescale_increment))
        scaled_time = positions[:, :, None] * inv_timescales[None, None]
        encoding = torch.cat([torch.sin(scaled_time), torch.cos(scaled_time)], dim=2)
        return encoding.type(dtype)

    def forward(self, x):
        positions = torch.arange(1, x.shape[1] + 1)[None]
        return x + self.encode(positions, x.shape[2], x.dtype)


class AudioEncoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = SinusoidalPositionEncoder()
        self.layer = nn.TransformerEncoderLayer(width, 4, 128, batch_first=True)
        self.out = nn.Linear(width, 32)

    def forward(self, speech):
        return self.out(self.layer(self.embed(speech)))


def factory():
    return AudioEncoder().half().eval(), (torch.randn(1, 600, 64).half(),)
