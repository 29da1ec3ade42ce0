"""https://github.com/unslothai/unsloth-zoo/pull/600 (2026)

Gemma-4 GRPO with dtype=torch.float16: step 1 is fine, step 2 dies in the sampler on NaN logits. bfloat16 is
unaffected. Hooks show +inf in the first decoder layer.
"""
import torch
import torch.nn.functional as F
from torch import nn


class Gemma4RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight.float()).to(x.dtype)


class Gemma4TextMLP(nn.Module):
    def __init__(self, dim=64, hidden=128):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)
        self.post_norm = Gemma4RMSNorm(dim)

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        out = self.down_proj(F.gelu(gate, approximate="tanh") * up)
        return x + self.post_norm(out).to(x.dtype)


def factory():
    torch.manual_seed(0)
    mlp = Gemma4TextMLP()
    with torch.no_grad():
        mlp.gate_proj.weight.normal_(std=12.0)
        mlp.up_proj.weight.normal_(std=12.0)
    return mlp.half().eval(), (torch.randn(2, 8, 64).half() * 4,)
