"""https://github.com/NVIDIA-NeMo/Automodel/pull/2201 (2026)

DeepSeek-V4 in bfloat16 drifts from the reference over its 61 layers: now and then a token goes to another expert.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Gate(nn.Module):
    def __init__(self, width=64, experts=64, topk=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) * 0.02)
        self.topk = topk

    def forward(self, x):
        scores = F.linear(x.float(), self.weight.float())
        scores = F.softplus(scores).sqrt().to(x.dtype)
        weights, indices = scores.topk(self.topk, dim=-1)
        return weights / weights.sum(-1, keepdim=True), indices


class MoE(nn.Module):
    def __init__(self, width=64, experts=64):
        super().__init__()
        self.gate = Gate(width, experts)
        self.experts = nn.Parameter(torch.randn(experts, width, width) / width**0.5)

    def forward(self, x):
        weights, indices = self.gate(x)
        outputs = torch.einsum("td,tkde->tke", x, self.experts[indices])
        return (outputs * weights[..., None].to(x.dtype)).sum(1)


def factory():
    return MoE().bfloat16().eval(), (torch.randn(96, 64).bfloat16(),)
