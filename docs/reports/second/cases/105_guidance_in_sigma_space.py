"""https://github.com/huggingface/diffusers/pull/7006 (2024)

InstructPix2Pix in float16 with rescale_betas_zero_snr and a high guidance scale returns black images.
"""
import torch
from torch import nn


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.text = nn.Conv2d(8, 32, 3, padding=1), nn.Linear(16, 32)
        self.mid, self.out = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x, text):
        h = torch.nn.functional.silu(self.inp(x) + self.text(text)[:, :, None, None])
        return 4 * self.out(torch.nn.functional.silu(self.mid(h)))


def euler_step(v, sigma, sigma_next, sample):
    """Return the next sample of a model that predicts v, computed in float32."""
    sample = sample.float()
    pred_original = v.float() * (-sigma / (sigma**2 + 1) ** 0.5) + sample / (sigma**2 + 1)
    return (sample + (sample - pred_original) / sigma * (sigma_next - sigma)).to(v.dtype)


class Pix2Pix(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = Unet()
        self.sigmas = [4096.0, 60.0, 9.0, 1.0, 0.0]  # what a zero terminal SNR gives

    def forward(self, noise, image_latents, text, guidance_scale=12.0, image_guidance_scale=1.5):
        latents = noise * self.sigmas[0]
        images = torch.cat([image_latents, image_latents, torch.zeros_like(image_latents)])
        texts = torch.cat([text, torch.zeros_like(text), torch.zeros_like(text)])
        for sigma, sigma_next in zip(self.sigmas, self.sigmas[1:], strict=False):
            latent_model_input = torch.cat([latents] * 3)
            scaled = latent_model_input / (sigma**2 + 1) ** 0.5
            noise_pred = self.unet(torch.cat([scaled, images], dim=1), texts)
            noise_pred = latent_model_input - sigma * noise_pred
            text_pred, image_pred, uncond = noise_pred.chunk(3)
            noise_pred = (
                uncond + guidance_scale * (text_pred - image_pred) + image_guidance_scale * (image_pred - uncond)
            )
            noise_pred = (noise_pred - latents) / (-sigma)
            latents = euler_step(noise_pred, sigma, sigma_next, latents)
        return latents


def factory():
    inputs = (torch.randn(1, 4, 16, 16), torch.randn(1, 4, 16, 16), 5 * torch.randn(1, 16))
    return Pix2Pix().half().eval(), tuple(x.half() for x in inputs)
