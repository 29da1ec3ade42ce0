"""https://github.com/vllm-project/vllm/pull/47797 (2026)

Hunyuan V3 served in bfloat16: the router picks other experts than the reference
implementation for some tokens, although its gate runs in float32.
"""
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def set_default_torch_dtype(dtype):
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(old)


class HYV3MoEFused(nn.Module):
    def __init__(self, dim, num_experts, top_k):
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(dim, num_experts, bias=False, dtype=torch.float32)
        self.expert_bias = nn.Parameter(torch.empty(num_experts))
        self.experts = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(num_experts))

    def forward(self, hidden_states):
        scores = torch.sigmoid(self.gate(hidden_states.float()))
        topk_ids = torch.topk(scores + self.expert_bias.float(), self.top_k, dim=-1).indices
        topk_weights = scores.gather(-1, topk_ids)
        topk_weights = topk_weights / topk_weights.sum(-1, keepdim=True)
        combine = torch.zeros_like(scores).scatter(-1, topk_ids, topk_weights)
        outs = torch.stack([expert(hidden_states) for expert in self.experts], -1)
        return (outs.float() * combine.unsqueeze(-2)).sum(-1).to(hidden_states.dtype)

    def load_weights(self, weights):
        params = dict(self.named_parameters())
        for name, loaded in weights.items():
            params[name].data.copy_(loaded)


def checkpoint(dim, num_experts):
    weights = {f"experts.{i}.weight": torch.randn(dim, dim).bfloat16() / dim ** 0.5 for i in range(num_experts)}
    weights["gate.weight"] = torch.randn(num_experts, dim) * 0.02
    weights["expert_bias"] = 5.0 + 0.02 * torch.randn(num_experts)
    return weights


def factory():
    torch.manual_seed(0)
    weights = checkpoint(32, 16)
    with set_default_torch_dtype(torch.bfloat16):
        model = HYV3MoEFused(32, 16, 2)
    model.load_weights(weights)
    return model.eval(), (torch.randn(64, 32, dtype=torch.bfloat16),)
