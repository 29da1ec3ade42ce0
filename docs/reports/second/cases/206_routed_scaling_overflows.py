"""https://github.com/vllm-project/vllm/pull/13232 (2025)

DeepSeek-V2 with --dtype float16 answers `!!!!`; in bfloat16, as the checkpoint is, it answers well.
"""

import torch
from torch import nn

ROUTED_SCALING_FACTOR = 16.0


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.weight


class Expert(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
        with torch.no_grad():
            self.down.weight.mul_(gain)

    def forward(self, x):
        return self.down(nn.functional.silu(self.up(x)))


class DeepseekV2MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 4, bias=False)
        self.experts = nn.ModuleList(Expert(60000.0) for _ in range(4))
        self.shared_experts = Expert(20000.0)

    def forward(self, x):
        shared_output = self.shared_experts(x)
        weights = self.gate(x).softmax(-1)
        routed = sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return routed * ROUTED_SCALING_FACTOR + shared_output


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.input_norm, self.post_norm, self.norm = RMSNorm(64), RMSNorm(64), RMSNorm(64)
        self.attn_out, self.mlp, self.lm_head = nn.Linear(64, 64), DeepseekV2MoE(), nn.Linear(64, 50, bias=False)

    def forward(self, tokens):
        residual = self.embed(tokens)
        hidden = self.attn_out(self.input_norm(residual))
        residual = residual + hidden
        hidden = self.mlp(self.post_norm(residual))
        return self.lm_head(self.norm(residual + hidden))


def factory():
    return Model().half().eval(), (torch.randint(0, 50, (1, 9)),)
