"""https://github.com/huggingface/diffusers/issues/14183 (2026)

AuraFlowPipeline works once; the second call of the same pipeline raises in the VAE.
"""
import torch
from torch import nn


class Vae(nn.Module):
    force_upcast = True

    def __init__(self):
        super().__init__()
        self.post_quant_conv, self.conv_out = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 3, 3, padding=1)

    @property
    def dtype(self):
        return self.conv_out.weight.dtype

    def decode(self, z):
        return self.conv_out(nn.functional.silu(self.post_quant_conv(z)))


class AuraFlow(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer, self.vae = nn.Conv2d(4, 4, 3, padding=1), Vae()

    def upcast_vae(self):
        self.vae.to(dtype=torch.float32)

    def generate(self, latents, steps=3):
        for _ in range(steps):
            latents = latents - self.transformer(latents) / steps
        needs_upcasting = self.vae.dtype == torch.float16 and self.vae.force_upcast
        if needs_upcasting:
            self.upcast_vae()
            latents = latents.to(next(iter(self.vae.post_quant_conv.parameters())).dtype)
        image = self.vae.decode(latents / 0.13025)
        return (image / 2 + 0.5).clamp(0, 1)

    def forward(self, latents):
        self.generate(latents)  # warm up
        return self.generate(latents)


def factory():
    return AuraFlow().half().eval(), (torch.randn(1, 4, 12, 12).half(),)
