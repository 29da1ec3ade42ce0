"""https://github.com/huggingface/peft/issues/3601 (2026)

LoRA with target_parameters on MoE experts fails at the first forward pass of a mixed precision run:
ValueError: Registering a parametrization may not change the dtype of the tensor, unless `unsafe` flag is
enabled. Without autocast it works.
"""
import torch
from torch import nn
from torch.nn.utils import parametrize


class _LoraFactorsProxy(nn.Module):
    def __init__(self, lhs, rhs, scaling):
        super().__init__()
        self.lhs, self.rhs, self.scaling = lhs, rhs, scaling

    def forward(self, W):
        return torch.baddbmm(W, self.lhs, self.rhs, alpha=self.scaling)


class Experts(nn.Module):
    def __init__(self, num_experts=4, hidden=8):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(num_experts, hidden, hidden))

    def forward(self, x):
        return torch.einsum("bh,eho->beo", x, self.gate_up_proj).mean(1)


class ParamWrapper(nn.Module):
    def __init__(self, experts, r=2):
        super().__init__()
        self.base_layer = experts
        E, i, o = experts.gate_up_proj.shape
        self.lora_A = nn.Parameter(torch.randn(E, i, r) * 0.1)
        self.lora_B = nn.Parameter(torch.randn(E, r, o) * 0.1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            proxy = _LoraFactorsProxy(self.lora_A, self.lora_B, 1.0)
            parametrize.register_parametrization(self.base_layer, "gate_up_proj", proxy)
            out = self.base_layer(x)
            parametrize.remove_parametrizations(self.base_layer, "gate_up_proj", leave_parametrized=False)
        return out


def factory():
    torch.manual_seed(0)
    return ParamWrapper(Experts()), (torch.randn(2, 8),)
