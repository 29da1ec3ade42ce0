"""https://github.com/huggingface/transformers/pull/43839 (2026)

Phi-tiny-MoE loaded in bfloat16 raises as soon as it runs under autocast; without autocast it works.
"""
import torch
import torch.nn.functional as F
from torch import nn


class AmpLayerNorm(nn.LayerNorm):
    def forward(self, x):
        if torch.is_autocast_enabled("cpu"):  # as autocast of CUDA does with layer_norm
            return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)
        return super().forward(x)


class Experts(nn.Module):
    def __init__(self, experts=4, width=32, inner=64):
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def _grouped_linear(self, x, weight, offs):
        return torch._grouped_mm(x, weight, offs=offs)

    def forward(self, x, expert):
        order = expert.argsort()
        offs = torch.bincount(expert, minlength=len(self.up)).cumsum(0).to(torch.int32)
        h = F.silu(self._grouped_linear(x[order], self.up, offs))
        return torch.empty_like(x).index_copy(0, order, self._grouped_linear(h, self.down, offs).to(x.dtype))


class PhiMoe(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, 32), AmpLayerNorm(32)
        self.gate, self.experts, self.head = nn.Linear(32, 4), Experts(), nn.Linear(32, 50)

    def forward(self, tokens):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.embed(tokens).flatten(0, 1)
            n = self.norm(h)
            h = h + self.experts(n, self.gate(n).argmax(-1))
            return self.head(h)


def factory():
    return PhiMoe().bfloat16().eval(), (torch.randint(0, 50, (2, 8)),)
