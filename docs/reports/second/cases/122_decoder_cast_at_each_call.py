"""https://github.com/huggingface/diffusers/issues/14746 (2026)

The MiniMax-H3 VAE takes 9.7 GiB of weights whatever dtype is asked for, although it decodes in fp16.
"""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.conv_in, self.proj_out = nn.Conv3d(8, width, 3, padding=1), nn.Conv3d(width, 3, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv3d(width, width, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(3))

    def forward(self, z):
        h = self.conv_in(z)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            h = h + block(nn.functional.silu(norm(h)))
        return self.proj_out(h)


class AutoencoderMiniMaxH3(nn.Module):
    keep_in_fp32_modules = ("decoder",)

    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def load(self, dtype):
        for name, module in self.named_modules():
            if name and not name.startswith(self.keep_in_fp32_modules):
                module.to(dtype)
        return self.eval()

    def forward(self, latents, chunks=3):
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
            return torch.cat([self.decoder(z).float() for z in latents.chunk(chunks, dim=2)], dim=2).clone()


def factory():
    return AutoencoderMiniMaxH3().load(torch.float16), (torch.randn(1, 8, 6, 6, 6),)
