"""https://github.com/huggingface/transformers/pull/41653 (2025)

DeepSeek-V2 MoE block: a router computation seems to be done twice and one of the two is ignored; the loaded
bfloat16 checkpoint does not always pick the experts of the original implementation.
"""
import torch
import torch.nn.functional as F
from torch import nn


class DeepseekV2Moe(nn.Module):
    def __init__(self, hidden_size=128, n_experts=64, top_k=6):
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(hidden_size, n_experts, bias=False)
        self.experts = nn.Parameter(torch.randn(n_experts, hidden_size) * 0.5)

    def route_tokens_to_experts(self, router_logits):
        scores = router_logits.softmax(dim=-1, dtype=torch.float32)
        return torch.topk(scores, k=self.top_k, dim=-1, sorted=False)

    def forward(self, hidden_states):
        residuals = hidden_states
        router_logits = F.linear(hidden_states.type(torch.float32), self.gate.weight.type(torch.float32))
        router_logits = self.gate(hidden_states)
        topk_weights, topk_indices = self.route_tokens_to_experts(router_logits)
        scale = self.experts[topk_indices].float() * topk_weights.unsqueeze(-1)
        return residuals + (hidden_states.float() * scale.sum(dim=-2)).to(hidden_states.dtype)


def factory():
    torch.manual_seed(0)
    return DeepseekV2Moe().to(torch.bfloat16).eval(), (torch.randn(256, 128, dtype=torch.bfloat16),)
