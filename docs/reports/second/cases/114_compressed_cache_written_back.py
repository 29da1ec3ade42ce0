"""https://github.com/jagmarques/nexusquant/pull/10 (2026)

The notebook crashes on a CPU: Expected query, key, and value to have the same dtype.
"""
import torch
import torch.nn.functional as F
from torch import nn


def compress_kv_cache(keys, values, bits=4):
    """Quantise and dequantise the cache, a scale for each vector."""
    compressed = []
    for x in (keys, values):
        scale = x.float().abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
        codes = (x.float() / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        compressed.append((codes * scale).half())
    return compressed


class Attention(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def heads(self, x):
        return (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))

    def forward(self, prompt, continuation):
        _, keys, values = self.heads(prompt)
        keys, values = compress_kv_cache(keys, values)
        q, k, v = self.heads(continuation)
        q = q[:, :, -1:]
        attended = F.scaled_dot_product_attention(q, keys, values) + F.scaled_dot_product_attention(q, k, v)
        return self.out(attended.transpose(1, 2).flatten(2))


def factory():
    return Attention().eval(), (torch.randn(1, 20, 48), torch.randn(1, 3, 48))
