"""https://github.com/WalkingMeatAxolotl/AnimaLoraStudio/pull/316 (2026)

V100 with mixed_precision: fp16: training runs at 0.19 it/s and goes out of memory, as if the setting did not
matter.
"""
import torch
from torch import nn


class Context:
    def __init__(self, mixed_precision):
        self.mixed_precision = mixed_precision
        self.dtype = torch.bfloat16 if mixed_precision == "bf16" else torch.float32


class AnimaLoraTrainer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.ctx = Context(args["mixed_precision"])
        self.dit = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(self.ctx.dtype)
        self.dit.requires_grad_(False)

    def forward(self, latents, noise):
        latents, noise = latents.to(self.ctx.dtype), noise.to(self.ctx.dtype)
        pred = self.dit(0.5 * latents + 0.5 * noise)
        return (pred.float() - (noise - latents).float()).pow(2).mean()


def factory():
    torch.manual_seed(0)
    args = {"mixed_precision": "fp16"}
    return AnimaLoraTrainer(args), (torch.randn(4, 64).half(), torch.randn(4, 64).half())
