"""https://github.com/AgileRL/AgileRL/pull/623, 2026.
Peak memory of LoRA training under bf16 autocast is about a fifth higher than expected: float32 copies of
every wrapped linear's input stay live until the backward. Gradients are bitwise the same without them."""
import torch
from torch import nn


class LoraLinear(nn.Module):
    def __init__(self, dim=32, r=4):
        super().__init__()
        self.base_layer = nn.Linear(dim, dim).to(torch.bfloat16).requires_grad_(False)
        self.lora_A = nn.Linear(dim, r, bias=False)
        self.lora_B = nn.Linear(r, dim, bias=False)

    def _cast_input_dtype(self, x, dtype):
        return x.to(dtype)

    def forward(self, x):
        result = self.base_layer(x)
        x = self._cast_input_dtype(x, self.lora_A.weight.dtype)
        return result + self.lora_B(self.lora_A(x))


class LLMAlgorithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(LoraLinear(), nn.SiLU(), LoraLinear())

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.layers(x)
        loss = out.float().square().mean()
        loss.backward()
        return loss.detach()


def factory():
    torch.manual_seed(0)
    return LLMAlgorithm(), (torch.randn(4, 16, 32, dtype=torch.bfloat16),)
