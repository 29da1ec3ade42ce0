"""https://github.com/ace-step/ACE-Step-1.5/issues/1274 (2026)

ACE-Step 1.5 on a Quadro RTX 6000 (Turing, no bf16): every generation ends with "Generation produced NaN or
Inf latents", whatever model, prompt or offload setting is used.
"""
import torch
from torch import nn


def pick_dit_dtype(bf16_supported):
    return torch.bfloat16 if bf16_supported else torch.float16


class DiTBlock(nn.Module):
    def __init__(self, dim, gain):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gate_proj, self.up_proj = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, 4 * dim, bias=False)
        self.down_proj = nn.Linear(4 * dim, dim, bias=False)
        for layer in (self.gate_proj, self.up_proj):
            layer.weight.data *= gain

    def forward(self, x):
        h = self.norm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))


class AceStepDiT(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.proj_in, self.proj_out = nn.Linear(16, dim), nn.Linear(dim, 16)
        self.blocks = nn.ModuleList([DiTBlock(dim, gain) for gain in (1, 20, 260, 20)])
        self.norm_out = nn.LayerNorm(dim)

    def forward(self, latents, steps=4):
        for _ in range(steps):
            x = self.proj_in(latents)
            for block in self.blocks:
                x = block(x)
            latents = latents - self.proj_out(self.norm_out(x)) / steps
        return latents


def factory():
    torch.manual_seed(0)
    dtype = pick_dit_dtype(bf16_supported=False)
    model = AceStepDiT().to(dtype).eval()
    for p in model.parameters():
        p.requires_grad_(False)
    return model, (torch.randn(1, 50, 16).to(dtype),)
