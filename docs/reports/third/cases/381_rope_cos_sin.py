"""https://github.com/pytorch/torchtitan/pull/2575 (2026)
Qwen3 in bfloat16 gives other outputs with compile.enable=true than in eager mode, the
largest difference is about 1.56.
"""
import torch
from torch import nn


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def apply_rotary_emb_cos_sin(xq, xk, rope_cache):
    head_dim = xq.shape[-1]
    cos = rope_cache[..., :head_dim].to(dtype=xq.dtype)
    sin = rope_cache[..., head_dim:].to(dtype=xq.dtype)
    xq_out = (xq * cos) + (rotate_half(xq) * sin)
    xk_out = (xk * cos) + (rotate_half(xk) * sin)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class Attention(nn.Module):
    def __init__(self, dim=64, heads=4, max_seq_len=256):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.wq, self.wk = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(self.head_dim), nn.RMSNorm(self.head_dim)
        for norm in (self.q_norm, self.k_norm):
            nn.init.constant_(norm.weight, 4.0)
        freqs = 1.0 / 1e4 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(max_seq_len).float(), freqs).repeat(1, 2)
        self.rope_cache = torch.cat([angles.cos(), angles.sin()], dim=-1)

    def forward(self, x):
        b, s, _ = x.shape
        xq = self.q_norm(self.wq(x).view(b, s, self.heads, -1)).transpose(1, 2)
        xk = self.k_norm(self.wk(x).view(b, s, self.heads, -1)).transpose(1, 2)
        xq, xk = apply_rotary_emb_cos_sin(xq, xk, self.rope_cache[:s])
        return (xq @ xk.transpose(-1, -2)).float()


def factory():
    torch.manual_seed(0)
    return Attention().to(torch.bfloat16), (torch.randn(1, 128, 64).bfloat16(),)
