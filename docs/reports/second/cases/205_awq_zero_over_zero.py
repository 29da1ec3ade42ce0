"""https://github.com/casper-hansen/AutoAWQ/pull/519 (2024)

Quantising Qwen2-72B: the loss of every ratio is NaN and no best scale is found; smaller models are fine.
"""

import torch
import torch.nn.functional as F
from torch import nn


class AwqQuantizer(nn.Module):
    """The output of one linear after its scales are searched."""

    def __init__(self, group_size=32):
        super().__init__()
        weight = torch.randn(64, 128) / 128**0.5
        weight[5, 32:64] *= 1e-8  # training left them almost at nothing
        self.checkpoint = {"mlp.gate_proj.weight": weight}
        self.norm = nn.RMSNorm(128)
        self.group_size = group_size

    def scales(self, x, weight, ratio):
        groups = weight.view(-1, self.group_size)
        w_scale = groups.abs() / groups.abs().amax(dim=1, keepdim=True)
        w_mean = w_scale.view(weight.shape).mean(0)
        x_mean = x.abs().view(-1, x.shape[-1]).mean(0)
        scales = (x_mean.pow(ratio) / (w_mean.pow(1 - ratio) + 1e-4)).clamp(min=1e-4)
        return scales / (scales.max() * scales.min()).sqrt()

    def forward(self, x, ratio=0.5):
        x = self.norm(x)
        weight = self.checkpoint["mlp.gate_proj.weight"].to(self.norm.weight.dtype)
        scales = self.scales(x, weight, ratio)
        return F.linear(x / scales, weight * scales)


def factory():
    return AwqQuantizer().half().eval(), (torch.randn(2, 16, 128).half(),)
