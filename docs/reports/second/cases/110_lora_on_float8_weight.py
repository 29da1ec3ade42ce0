"""https://github.com/Comfy-Org/ComfyUI/pull/12390 (2026)

A LoRA on a float8 checkpoint has almost no effect with dynamic loading; the image is worse than without it.
"""
import torch
import torch.nn.functional as F
from torch import nn


class PatchedLinear(nn.Module):
    """A linear whose LoRA is added to the stored weight when the layer is used."""

    def __init__(self, inputs, outputs, rank=4):
        super().__init__()
        weight = torch.randn(outputs, inputs) / inputs**0.5
        self.register_buffer("weight", weight.to(torch.float8_e4m3fn))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.bfloat16))
        self.lora_down = nn.Parameter(torch.randn(rank, inputs, dtype=torch.bfloat16) / inputs**0.5)
        self.lora_up = nn.Parameter(0.01 * torch.randn(outputs, rank, dtype=torch.bfloat16))

    def cast_weight(self, dtype):
        weight = self.weight.to(torch.float32)
        weight = weight + self.lora_up.float() @ self.lora_down.float()
        weight = weight.to(self.weight.dtype)
        return weight.to(dtype)

    def forward(self, x):
        return F.linear(x, self.cast_weight(x.dtype), self.bias)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = PatchedLinear(96, 192), PatchedLinear(192, 96)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def factory():
    return Block().eval(), (torch.randn(1, 12, 96).bfloat16(),)
