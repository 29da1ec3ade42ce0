"""https://github.com/unslothai/unsloth-zoo/pull/706 (2026)

Full finetuning of Gemma3 on a V100/T4 (no bfloat16) with UNSLOTH_FORCE_FLOAT32 stops with
RuntimeError: expected mat1 and mat2 to have the same dtype, but got: c10::Half != float
LoRA and QLoRA runs of the same notebook work.
"""
import torch
import torch.nn.functional as F
from torch import nn


class Gemma3RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight.float())
        return x.clamp(-65504, 65504)


class Gemma3MLP(nn.Module):
    def __init__(self, dim=32, hidden=64):
        super().__init__()
        self.norm = Gemma3RMSNorm(dim)
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        h = self.norm(x).to(torch.float16)
        h = F.gelu(self.gate_proj(h).float(), approximate="tanh") * self.up_proj(h).float()
        return self.down_proj(h.clamp(-65504, 65504).to(self.down_proj.weight.dtype))


def factory():
    torch.manual_seed(0)
    return Gemma3MLP(), (torch.randn(2, 8, 32),)
