"""https://github.com/NVIDIA/Megatron-LM/pull/7081 (2026)

bf16 pre-training with the aux-loss-free router: the direction of some expert-bias updates is not
the one that the token counts ask for, and two runs with equal counts drift apart.
"""
import torch
from torch import nn


class TopKRouter(nn.Module):
    def __init__(self, dim=32, num_experts=16, topk=2, bias_update_rate=1e-3):
        super().__init__()
        self.topk, self.bias_update_rate = topk, bias_update_rate
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(num_experts, dim)))
        self.register_buffer("local_tokens_per_expert", torch.zeros(num_experts, dtype=torch.float32))
        self.register_buffer("expert_bias", torch.zeros(num_experts, dtype=torch.float32))

    def forward(self, hidden_states):
        scores = torch.sigmoid((hidden_states @ self.weight.t()).float())
        _, indices = torch.topk(scores + self.expert_bias.float(), self.topk, dim=-1)
        routing_map = torch.zeros_like(scores, dtype=torch.bool).scatter(1, indices, True)
        self.local_tokens_per_expert += routing_map.sum(dim=0)
        return scores * routing_map

    def get_updated_expert_bias(self):
        tokens_per_expert = self.local_tokens_per_expert
        average_tokens = tokens_per_expert.sum() / tokens_per_expert.shape[-1]
        offset = average_tokens - tokens_per_expert
        return self.expert_bias.float() + torch.sign(offset) * self.bias_update_rate


class Float16Module(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module.bfloat16()

    def forward(self, micro_batches):
        for micro_batch in micro_batches.bfloat16():
            self.module(micro_batch)
        return self.module.get_updated_expert_bias()


def factory():
    torch.manual_seed(0)
    return Float16Module(TopKRouter()), (torch.randn(96, 512, 32),)
