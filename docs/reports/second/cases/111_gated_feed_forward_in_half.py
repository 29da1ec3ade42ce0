"""https://github.com/kohya-ss/musubi-tuner/pull/795 (2025)

Z-Image-Turbo with --mixed_precision fp16: the average loss becomes NaN; with bf16 it does not.
"""
import torch
import torch.nn.functional as F
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, dim=48, hidden=128):
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        with torch.no_grad():
            self.w1.weight.mul_(250)  # products of the two branches beyond 65504, as Z-Image has them
            self.w3.weight.mul_(250)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.feed_forward = FeedForward(dim)
        self.ffn_norm1, self.ffn_norm2 = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.adaln = nn.Linear(32, 2 * dim)

    def forward(self, x, t):
        scale, gate = self.adaln(t)[:, None].chunk(2, -1)
        return x + gate.tanh() * self.ffn_norm2(self.feed_forward(self.ffn_norm1(x) * (1 + scale)))


class ZImage(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(16, 48), nn.Linear(48, 16)
        self.layers = nn.ModuleList(TransformerBlock() for _ in range(3))

    def forward(self, latents, t, target):
        x = self.inp(latents)
        for layer in self.layers:
            x = layer(x, t)
        return F.mse_loss(self.out(x).float(), target.float(), reduction="none").mean((1, 2))


def factory():
    inputs = (torch.randn(2, 20, 16), torch.randn(2, 32), torch.randn(2, 20, 16))
    return ZImage().half(), tuple(x.half() for x in inputs)
