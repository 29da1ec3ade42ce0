"""https://github.com/vllm-project/vllm-omni/pull/2391 (2026)
Wan2.2 I2V is configured for bfloat16, but the profile shows the VAE's convolutions and
layout changes in float32; encode and decode take much longer than they should.
"""
import torch
from torch import nn


class AutoencoderKLWan(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Conv3d(3, 8, 3, padding=1)
        self.decoder = nn.Conv3d(8, 3, 3, padding=1)


class Wan22I2VPipeline(nn.Module):
    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.dtype = dtype
        self.vae = AutoencoderKLWan().to(torch.float32)
        self.transformer = nn.Conv3d(8, 8, 1).to(dtype)

    def forward(self, image):
        latents = self.vae.encoder(image.to(self.vae.encoder.weight.dtype))
        latents = self.transformer(latents.to(self.dtype))
        video = self.vae.decoder(latents.to(self.vae.decoder.weight.dtype))
        return video.to(self.dtype)


def factory():
    torch.manual_seed(0)
    return Wan22I2VPipeline(), (torch.randn(1, 3, 2, 16, 16).bfloat16(),)
