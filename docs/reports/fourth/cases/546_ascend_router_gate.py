"""https://github.com/vllm-project/vllm-ascend/pull/9617 (2026)

DeepSeek-like MoE models served in bfloat16 on NPU: accuracy is low in agent
workloads, nothing is raised.
"""
import torch
from torch import nn
import torch.nn.functional as F


class GateLinear(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) / width ** 0.5)

    def forward(self, x):
        return F.linear(x, self.weight)


class DeepseekV2MoE(nn.Module):
    def __init__(self, width=128, experts=64, top_k=6, inner=16):
        super().__init__()
        self.top_k = top_k
        self.gate = GateLinear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width ** 0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner ** 0.5)

    def forward(self, x):
        router_logits = self.gate(x)
        scores = torch.sigmoid(router_logits)
        weights, ids = torch.topk(scores, self.top_k, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        h = F.silu(torch.einsum("td,edi->tei", x, self.up))
        y = torch.einsum("tei,eid->ted", h, self.down)
        picked = y.gather(1, ids.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return (picked * weights.unsqueeze(-1)).sum(1)


def factory():
    torch.manual_seed(0)
    return DeepseekV2MoE().to(torch.bfloat16).eval(), (torch.randn(256, 128, dtype=torch.bfloat16),)
