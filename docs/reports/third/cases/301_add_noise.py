"""https://github.com/huggingface/diffusers/pull/9004 (2024)

LoRA training with weight_dtype=bfloat16: at the first timesteps the "noisy" latents come back identical to
the clean ones, add_noise adds no noise at all there.
"""
import torch
from torch import nn


class DDPMScheduler:
    def __init__(self, num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012):
        betas = torch.linspace(beta_start**0.5, beta_end**0.5, num_train_timesteps, dtype=torch.float32) ** 2
        self.alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)

    def add_noise(self, original_samples, noise, timesteps):
        alphas_cumprod = self.alphas_cumprod.to(dtype=original_samples.dtype)
        sqrt_alpha_prod = (alphas_cumprod[timesteps] ** 0.5).view(-1, 1, 1, 1)
        sqrt_one_minus_alpha_prod = ((1 - alphas_cumprod[timesteps]) ** 0.5).view(-1, 1, 1, 1)
        return sqrt_alpha_prod * original_samples + sqrt_one_minus_alpha_prod * noise


class TrainTextToImageLora(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise_scheduler = DDPMScheduler()

    def forward(self, latents, noise, timesteps):
        noisy_latents = self.noise_scheduler.add_noise(latents, noise, timesteps)
        return noisy_latents


def factory():
    torch.manual_seed(0)
    latents = torch.randn(4, 4, 8, 8, dtype=torch.bfloat16)
    noise = torch.randn(4, 4, 8, 8, dtype=torch.bfloat16)
    return TrainTextToImageLora(), (latents, noise, torch.tensor([0, 1, 2, 5]))
