# huggingface/transformers#34799: GPT-J in bfloat16 cannot write its rotated keys into the static cache
# answer: the sin/cos table is float32 and promotes query and key; cast both back after the rotation: .to(value.dtype)
import torch
import torch.nn.functional as F
from torch import nn


def sinusoidal_positions(length, width):
    inv_freq = 1.0 / (10000 ** (torch.arange(0, width, 2) / width))
    angles = torch.arange(length).float()[:, None] * inv_freq
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def rotate(x, sin, cos):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192, bias=False)

    def forward(self, x, key_cache, value_cache, positions):
        q, k, v = (t.unflatten(-1, (4, 16)) for t in self.qkv(x).chunk(3, -1))
        sin, cos = sinusoidal_positions(32, 16)[positions][:, None].chunk(2, -1)
        q, k = rotate(q, sin, cos), rotate(k, sin, cos)
        key_cache.index_copy_(2, positions, k.transpose(1, 2))
        value_cache.index_copy_(2, positions, v.transpose(1, 2))
        return F.scaled_dot_product_attention(q.transpose(1, 2), key_cache, value_cache)


def factory():
    caches = (torch.zeros(1, 4, 32, 16, dtype=torch.bfloat16) for _ in range(2))
    return Attention().bfloat16().eval(), (torch.randn(1, 5, 64).bfloat16(), *caches, torch.arange(5))
