"""https://github.com/vladmandic/sdnext/pull/4753 (2026)

Z-Image-Turbo in float16 gives black images: the latents are NaN after the first transformer blocks. The same
weights in bfloat16 or float32 give a good picture.
"""
import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        x1, x3 = self.w1(x), self.w3(x)
        return self.w2(F.silu(x1) * x3)


class ZImageTransformerBlock(nn.Module):
    def __init__(self, dim=64, hidden_dim=160):
        super().__init__()
        self.feed_forward = FeedForward(dim, hidden_dim)
        self.ffn_norm1, self.ffn_norm2 = RMSNorm(dim), RMSNorm(dim)
        self.adaLN_modulation = nn.Linear(dim, 2 * dim)

    def forward(self, x, adaln_input):
        scale_mlp, gate_mlp = self.adaLN_modulation(adaln_input).unsqueeze(1).chunk(2, dim=2)
        ffn_out = self.feed_forward(self.ffn_norm1(x) * (1.0 + scale_mlp))
        return x + gate_mlp.tanh() * self.ffn_norm2(ffn_out)


def factory():
    torch.manual_seed(0)
    block = ZImageTransformerBlock()
    with torch.no_grad():  # a few massive channels, as in the released checkpoint
        block.feed_forward.w1.weight[:6] *= 230
        block.feed_forward.w3.weight[:6] *= 230
        block.feed_forward.w2.weight *= 0.2
    return block.half().eval(), (torch.randn(1, 16, 64).half(), torch.randn(1, 64).half())
