"""https://github.com/xmarre/ComfyUI-DoRA-Dynamic-LoRA-Loader/pull/17 (2026)

The loader reports all LoRA keys as loaded, yet for the adaLN layers the adapter has no effect at all: the patched
weight equals the base weight and the image does not change whatever the strength.
"""
import torch
from torch import nn


class LoRAAdapter:
    def __init__(self, up, down, alpha):
        self.weights = (up, down, alpha)

    def calculate_weight(self, weight, strength, intermediate_dtype=torch.float16):
        up, down, alpha = self.weights
        scale = alpha / down.shape[0]
        mat1 = up.to(intermediate_dtype)
        mat2 = down.to(intermediate_dtype)
        lora_diff = torch.mm(mat1, mat2)
        return weight + ((strength * scale) * lora_diff.to(weight.dtype))


class AdaLNModulation(nn.Module):
    def __init__(self, dim=64, rank=4, alpha=4096.0, strength=1.0):
        super().__init__()
        self.strength = strength
        self.linear = nn.Linear(dim, 2 * dim)
        nn.init.normal_(self.linear.weight, std=1e-5)
        self.adapter = LoRAAdapter(torch.randn(2 * dim, rank) * 5e-5, torch.randn(rank, dim) * 3e-5, alpha)

    def forward(self, vec):
        weight = self.adapter.calculate_weight(self.linear.weight, self.strength)
        return nn.functional.linear(nn.functional.silu(vec), weight, self.linear.bias)


def factory():
    torch.manual_seed(0)
    layer = AdaLNModulation()
    nn.init.zeros_(layer.linear.bias)
    return layer.eval(), (torch.randn(3, 64),)
