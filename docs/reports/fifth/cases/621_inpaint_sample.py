"""https://github.com/kohya-ss/sd-scripts/pull/2322 (2026)

SDXL inpainting training with --mixed_precision fp16 and --no_half_vae: the very first sample image is black, with
"RuntimeWarning: invalid value encountered in cast". With bf16 the sample images are fine.
"""
import torch
from torch import nn


class AutoencoderKL(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norm_out = nn.GroupNorm(8, width)
        self.conv_out = nn.Conv2d(width, 4, 3, padding=1)

    def encode(self, image):
        hidden = self.down(nn.functional.silu(self.conv_in(image)))
        return self.conv_out(nn.functional.silu(self.norm_out(hidden)))


class LpwInpaintPipeline(nn.Module):
    def __init__(self):
        super().__init__()
        self.vae = AutoencoderKL()
        self.unet = nn.Sequential(nn.Conv2d(9, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 4, 3, padding=1))

    def forward(self, init_image, mask, latents):
        dtype = self.unet[0].weight.dtype
        masked_image = (init_image * (mask < 0.5)).to(dtype=dtype)
        masked_latents = self.vae.encode(masked_image).to(dtype) * 0.13025
        mask = nn.functional.interpolate(mask, size=latents.shape[-2:]).to(dtype)
        noise_pred = self.unet(torch.cat([latents.to(dtype), mask, masked_latents], dim=1))
        return latents - 0.25 * noise_pred.float()


class SampleImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.pipeline = LpwInpaintPipeline()

    def forward(self, init_image, mask, latents):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            return self.pipeline(init_image, mask, latents)


def factory():
    torch.manual_seed(0)
    sampler = SampleImages()
    with torch.no_grad():
        sampler.pipeline.vae.conv_in.weight.mul_(300.0)
        sampler.pipeline.vae.down.weight.mul_(800.0)
    sampler.pipeline.unet.to(torch.float16)
    mask = torch.zeros(1, 1, 32, 32)
    mask[..., 8:24, 8:24] = 1.0
    return sampler, (torch.rand(1, 3, 32, 32) * 2 - 1, mask, torch.randn(1, 4, 16, 16))
