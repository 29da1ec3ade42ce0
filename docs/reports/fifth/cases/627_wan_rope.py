"""https://github.com/modelscope/DiffSynth-Studio/pull/1191 (2026)

Wan video generation on an Ascend NPU is much slower than expected; the profile shows that the rotary embedding of each
block runs on the slow AICPU. The videos are as they should be.
"""
import torch
from torch import nn


def precompute_freqs_cis(dim, end=1024, theta=10000.0):
    freqs = theta ** -(torch.arange(0, dim, 2).double() / dim)
    angles = torch.outer(torch.arange(end).double(), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def rope_apply(x, freqs, num_heads):
    batch, length, width = x.shape
    pairs = x.to(torch.float64).reshape(batch, length, num_heads, -1, 2)
    rotated = torch.view_as_complex(pairs) * freqs[:length, None]
    return torch.view_as_real(rotated).flatten(2).to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, freqs):
        q = rope_apply(self.q(x), freqs, self.num_heads)
        k = rope_apply(self.k(x), freqs, self.num_heads)
        q, k, v = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, self.v(x)))
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class WanModel(nn.Module):
    def __init__(self, dim=64, num_heads=4, layers=2):
        super().__init__()
        self.freqs = precompute_freqs_cis(dim // num_heads)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.blocks = nn.ModuleList(SelfAttention(dim, num_heads) for _ in range(layers))

    def forward(self, x):
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x), self.freqs)
        return x


def factory():
    torch.manual_seed(0)
    return WanModel().eval(), (torch.randn(1, 96, 64),)
