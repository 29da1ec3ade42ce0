"""https://github.com/vllm-project/vllm/pull/39032 (2026)

NemotronH without mamba_ssm_cache_dtype in its config: long generations lose accuracy, nothing is non-finite.
"""

import torch
from torch import nn


class Mamba2Decode(nn.Module):
    """Decode steps of one layer: the state is read from the cache and written back at each token."""

    def __init__(self, mamba_ssm_cache_dtype=torch.float16):
        super().__init__()
        self.in_proj = nn.Linear(32, 32 + 16 + 16)
        self.A_log = nn.Parameter(torch.zeros(32))
        self.dt_bias = nn.Parameter(torch.full((32,), -9.0))
        self.mamba_ssm_cache_dtype = mamba_ssm_cache_dtype

    def forward(self, tokens, prefill_state):
        cache = prefill_state.to(self.mamba_ssm_cache_dtype)
        dt = nn.functional.softplus(self.dt_bias.float())
        decay = torch.exp(-dt * self.A_log.float().exp())[:, None]
        outputs = []
        for token in tokens.unbind(1):
            x, b, c = self.in_proj(token).float().split([32, 16, 16], -1)
            state = cache.float() * decay + (dt * x)[..., None] * b[:, None, :].abs()
            cache = state.to(self.mamba_ssm_cache_dtype)
            outputs.append((state * c[:, None, :]).sum(-1))
        return torch.stack(outputs, 1).to(tokens.dtype), cache.float()


def factory():
    prefill_state = 4 + torch.rand(1, 32, 16)
    return Mamba2Decode().bfloat16().eval(), (torch.randn(1, 400, 32).bfloat16(), prefill_state)
