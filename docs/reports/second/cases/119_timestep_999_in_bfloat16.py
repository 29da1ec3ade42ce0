"""https://github.com/modelscope/DiffSynth-Studio/pull/1501 (2026)

LoRA training in bf16 stops now and then: IndexError: list index out of range, in add_noise.
"""
import math

import torch
from torch import nn


class DdimScheduler:
    def __init__(self, num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012):
        betas = torch.linspace(math.sqrt(beta_start), math.sqrt(beta_end), num_train_timesteps).square()
        self.alphas_cumprod = torch.cumprod(1.0 - betas, dim=0).tolist()

    def add_noise(self, original_samples, noise, timestep):
        alpha = self.alphas_cumprod[int(timestep.flatten().tolist()[0])]
        return math.sqrt(alpha) * original_samples + math.sqrt(1 - alpha) * noise


class TrainingModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1))
        self.scheduler = DdimScheduler()

    def forward(self, latents, noise, timestep):
        dtype = self.unet[0].weight.dtype
        timestep = timestep.to(dtype=dtype)
        noisy = self.scheduler.add_noise(latents, noise, timestep)
        return (self.unet(noisy).float() - noise.float()).square().mean((1, 2, 3))


def factory():
    latents, noise = torch.randn(2, 4, 12, 12).bfloat16(), torch.randn(2, 4, 12, 12).bfloat16()
    return TrainingModule().bfloat16(), (latents, noise, torch.tensor([999.0, 999.0]))
