"""https://github.com/nari-labs/dia/pull/45 (2025)

Dia on a CPU: "Error during inference: Expected query, key, and value to have the same dtype, but got
query.dtype: c10::BFloat16 key.dtype: float and value.dtype: float instead."
"""
import torch
from torch import nn


class KVCache:
    def __init__(self, heads, length, dim):
        self.k = torch.zeros(2, heads, length, dim)
        self.v = torch.zeros(2, heads, length, dim)
        self.current_idx = 0

    def update(self, k, v):
        self.k[:, :, self.current_idx:self.current_idx + 1] = k
        self.v[:, :, self.current_idx:self.current_idx + 1] = v
        self.current_idx += 1
        return self.k[:, :, :self.current_idx], self.v[:, :, :self.current_idx]


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.q_proj, self.k_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v_proj, self.o_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.hd).transpose(1, 2)

    def forward(self, x, cache):
        Xq_BxNxTxH = self.split(self.q_proj(x))
        attn_k, attn_v = cache.update(self.split(self.k_proj(x)), self.split(self.v_proj(x)))
        out = nn.functional.scaled_dot_product_attention(Xq_BxNxTxH, attn_k, attn_v)
        return self.o_proj(out.transpose(1, 2).reshape(x.shape))


class DiaDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attention = Attention()

    def forward(self, frames):
        cache = KVCache(4, frames.shape[1], 8)
        return torch.cat([self.self_attention(frames[:, t:t + 1], cache) for t in range(frames.shape[1])], 1)


def factory():
    torch.manual_seed(0)
    return DiaDecoder().to(torch.bfloat16).eval(), (torch.randn(2, 6, 32, dtype=torch.bfloat16),)
