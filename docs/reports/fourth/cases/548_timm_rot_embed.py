"""https://github.com/huggingface/pytorch-image-models/pull/2794 (2026)

A float16 or bfloat16 query that goes through apply_rot_embed_cat comes back as
float32; no error.
"""
import torch
from torch import nn


def rot(x):
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)


def apply_rot_embed_cat(x, emb):
    sin_emb, cos_emb = emb.chunk(2, -1)
    return x * cos_emb + rot(x) * sin_emb


class RotaryEmbeddingCat(nn.Module):
    def __init__(self, dim, temperature=10000.0):
        super().__init__()
        bands = temperature ** (-torch.arange(0, dim // 4, dtype=torch.float32) / (dim // 4))
        self.bands = [float(b) for b in bands]

    def get_embed(self, shape):
        grid = torch.stack(torch.meshgrid(
            *[torch.arange(s, dtype=torch.float32) for s in shape], indexing="ij"), -1)
        angles = grid.unsqueeze(-1) * torch.tensor(self.bands)
        angles = angles.reshape(shape[0] * shape[1], -1).repeat_interleave(2, -1)
        return torch.cat([angles.sin(), angles.cos()], -1)


class AttentionRope(nn.Module):
    def __init__(self, dim=64, heads=2):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.rope = RotaryEmbeddingCat(dim // heads)

    def forward(self, x, shape=(4, 4)):
        B, N, C = x.shape
        q = self.q_proj(x).reshape(B, N, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).reshape(B, N, self.heads, -1).transpose(1, 2)
        emb = self.rope.get_embed(shape)
        return apply_rot_embed_cat(q, emb), apply_rot_embed_cat(k, emb)


def factory():
    torch.manual_seed(0)
    return AttentionRope().to(torch.bfloat16).eval(), (torch.randn(1, 16, 64, dtype=torch.bfloat16),)
