"""https://github.com/aigc-apps/EasyAnimate/pull/172 (2024)
In the ComfyUI node the LoRA is merged before every sampling and unmerged after it; after
many runs the base model no longer gives the picture it gave at first.
"""
import torch
from torch import nn


class EasyAnimateTransformer(nn.Module):
    def __init__(self, dim=32, rank=4):
        super().__init__()
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.lora_down = nn.Parameter(torch.randn(rank, dim) * 0.3, requires_grad=False)
        self.lora_up = nn.Parameter(torch.randn(dim, rank) * 0.3, requires_grad=False)

    @torch.no_grad()
    def merge_lora(self, multiplier):
        self.to_q.weight += multiplier * (self.lora_up @ self.lora_down)

    @torch.no_grad()
    def unmerge_lora(self, multiplier):
        self.to_q.weight -= multiplier * (self.lora_up @ self.lora_down)


class Sampler(nn.Module):
    def __init__(self, runs=40):
        super().__init__()
        self.transformer = EasyAnimateTransformer()
        self.runs = runs

    def forward(self, x):
        for i in range(self.runs):
            strength = 0.3 + 0.02 * i
            self.transformer.merge_lora(strength)
            self.transformer.to_q(x)
            self.transformer.unmerge_lora(strength)
        return self.transformer.to_q(x)


def factory():
    torch.manual_seed(0)
    return Sampler().to(torch.bfloat16), (torch.randn(8, 32).bfloat16(),)
