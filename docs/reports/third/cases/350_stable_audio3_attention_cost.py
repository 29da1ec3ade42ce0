"""https://github.com/Stability-AI/stable-audio-3/pull/79 (2026)

Stable Audio 3 medium, the mixed fp16 build: attention takes 4.3 times longer than necessary at L = 4096
and no fused attention kernel is chosen; the numbers are right.
"""
import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, n):
        inv_freq = 1.0 / (10000 ** (torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim))
        freqs = torch.outer(torch.arange(n, dtype=torch.float32), inv_freq)
        return torch.cat((freqs, freqs), dim=-1)


def apply_rotary_pos_emb(t, freqs):
    t = t.float()
    a, b = t.chunk(2, dim=-1)
    return t * freqs.cos() + torch.cat((-b, a), dim=-1) * freqs.sin()


class Attention(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim, bias=False)
        self.rotary = RotaryEmbedding(dim // heads)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        freqs = self.rotary(n)
        q, k = apply_rotary_pos_emb(q, freqs), apply_rotary_pos_emb(k, freqs)
        out = nn.functional.scaled_dot_product_attention(q, k, v.to(q.dtype))
        return self.to_out(out.to(x.dtype).transpose(1, 2).reshape(b, n, d))


def factory():
    torch.manual_seed(0)
    layer = Attention().half().eval()
    for p in layer.parameters():
        p.requires_grad_(False)
    return layer, (torch.randn(1, 512, 64).half(),)
