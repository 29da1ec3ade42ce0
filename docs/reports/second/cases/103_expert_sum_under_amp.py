"""https://github.com/Tencent/YOLO-Master/pull/124 (2026)

Training of the mixture of experts stops under AMP: index_add_() of Half and Float.
"""
import torch
import torch.nn.functional as F
from torch import nn


class AmpGroupNorm(nn.GroupNorm):
    def forward(self, x):  # autocast of CUDA computes group_norm in float32
        return F.group_norm(x.float(), self.num_groups, self.weight, self.bias, self.eps)


class Expert(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), AmpGroupNorm(4, width)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class DiversifiedExpertGroup(nn.Module):
    def __init__(self, experts=3, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, images):
        with torch.autocast("cpu", dtype=torch.float16):
            x = self.stem(images)
            weights = self.router(x.mean((2, 3))).softmax(-1)
            out = x.new_zeros(x.shape)
            for i, expert in enumerate(self.experts):
                rows = (weights[:, i] > 0.2).nonzero()[:, 0]
                y = expert(x[rows]) * weights[rows, i].view(-1, 1, 1, 1)
                out.index_add_(0, rows, y)
            return out


def factory():
    return DiversifiedExpertGroup(), (torch.randn(4, 3, 12, 12),)
