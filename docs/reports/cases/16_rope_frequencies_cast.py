# Modalities/modalities#462: rotary phases of bfloat16 frequencies are off by radians at some thousand tokens
# answer: scale inv_freq by the positions in float32; only cos and sin are cast to the activations' dtype
import torch
import torch.nn.functional as F
from torch import nn


class RotaryTransform(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, width, 2) / width)))

    def tables(self, x):
        t = torch.arange(x.shape[-2], dtype=torch.float32)
        freqs = t[:, None] * self.inv_freq.to(x.dtype)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)

    def forward(self, x):
        cos, sin = self.tables(x)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32).bfloat16() for _ in range(3))
        self.rotary = RotaryTransform(32)  # its buffer stays in float32

    def forward(self, x):
        q, k, v = self.rotary(self.q(x)), self.rotary(self.k(x)), self.v(x)
        return F.scaled_dot_product_attention(4 * q, 4 * k, v)


def factory():
    return Attention().eval(), (torch.randn(1, 2048, 32).bfloat16(),)
