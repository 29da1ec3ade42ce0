"""https://github.com/goodfire-ai/spd/pull/491 (2026)

CI transformer under FSDP2 with param_dtype=bf16: the attention block stops with
RuntimeError: Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: float
and value.dtype: c10::BFloat16 instead. Without FSDP mixed precision the same model trains.
"""
import torch
import torch.nn.functional as F
from torch import nn


class RoPEEmbedding(nn.Module):
    def __init__(self, d_head, base=10000.0):
        super().__init__()
        self.inv_freq = 1.0 / (base ** (torch.arange(0, d_head, 2, dtype=torch.float32) / d_head))

    def _apply_rotation(self, x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        rotated = torch.cat([-x2, x1], dim=-1)
        return x * cos + rotated * sin

    def forward(self, q, k):
        pos = torch.arange(q.shape[-2], device=q.device, dtype=torch.float32)
        angles = torch.outer(pos, self.inv_freq.to(q.device))
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return self._apply_rotation(q, cos, sin), self._apply_rotation(k, cos, sin)


class SelfAttention(nn.Module):
    def __init__(self, d_model=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.rope = RoPEEmbedding(d_model // n_heads)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.n_heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = self.rope(q, k)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(att.transpose(1, 2).reshape(b, s, d))


def factory():
    torch.manual_seed(0)
    # the all-gathered unit as FSDP2 hands it to forward: parameters and inputs in bf16
    return SelfAttention().to(torch.bfloat16), (torch.randn(2, 10, 64).to(torch.bfloat16),)
