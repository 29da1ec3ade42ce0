"""https://github.com/Tencent-Hunyuan/UniRL/pull/438 (2026)

Replaying a trajectory in training gives other predictions than the engine that rolled it out; no error.
"""
import math

import torch
from torch import nn


def timestep_embedding(timesteps, dim=64):
    exponent = -math.log(10000) * torch.arange(dim // 2, dtype=torch.float32) / (dim // 2)
    angles = timesteps[:, None].float() * exponent.exp()[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.time_in = nn.Sequential(nn.Linear(64, 48), nn.SiLU(), nn.Linear(48, 48))
        self.x_in, self.out = nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, x, timestep):
        t = self.time_in(timestep_embedding(timestep).to(x.dtype))
        return self.out(torch.nn.functional.gelu(self.x_in(x) + t[:, None]))


class DiffusionStep(nn.Module):
    TIMESTEP_SCALE = 1000.0

    def __init__(self):
        super().__init__()
        self.transformer = Transformer()

    def forward(self, latents, sigma):
        dtype = self.transformer.x_in.weight.dtype
        timestep = sigma.to(device=latents.device, dtype=dtype) * self.TIMESTEP_SCALE
        return self.transformer(latents.to(dtype), timestep)


def factory():
    sigmas = torch.tensor([0.97826087, 0.68181819])
    return DiffusionStep().bfloat16().eval(), (torch.randn(2, 10, 16), sigmas)
