# vllm-project/vllm-omni#5808: DreamZero spends its time in a rotation in float64 whose result is bfloat16
# answer: only the angles need the width; make the table in float64, rotate in float32 (complex64)
import torch
from torch import nn


def rope_params(length, width, theta=10000):
    angles = torch.outer(torch.arange(length).double(), theta ** -(torch.arange(0, width, 2).double() / width))
    return torch.polar(torch.ones_like(angles), angles)


def rope_apply(x, freqs):
    pairs = torch.view_as_complex(x.to(torch.float64).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs).flatten(-2).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, x, freqs):
        q, k, v = (t.unflatten(-1, (4, 32)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(rope_apply(q, freqs), rope_apply(k, freqs), v)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Wan(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        freqs = rope_params(x.shape[1], 32)
        for block in self.blocks:
            x = block(x, freqs)
        return x


def factory():
    return Wan().bfloat16().eval(), (torch.randn(1, 128, 128).bfloat16(),)
