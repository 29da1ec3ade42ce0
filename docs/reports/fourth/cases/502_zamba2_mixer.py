"""https://github.com/huggingface/transformers/pull/46487, 2026.
NemotronH / Zamba2 in bfloat16: the Mamba2 path fails with
expected mat1 and mat2 to have the same dtype, but got: float != c10::BFloat16."""
import torch
from torch import nn


def mamba_chunk_scan_combined(x, dt, A):
    state = torch.zeros(x.shape[0], x.shape[2])
    out = []
    for t in range(x.shape[1]):
        state = state * torch.exp(dt[:, t].float() * A) + dt[:, t].float() * x[:, t].float()
        out.append(state)
    return torch.stack(out, 1)


class Zamba2MambaMixer(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.in_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.A_log = nn.Parameter(torch.zeros(dim))
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, hidden_states):
        x, dt = self.in_proj(hidden_states).chunk(2, dim=-1)
        dt = nn.functional.softplus(dt)
        scan_output = mamba_chunk_scan_combined(x, dt, -torch.exp(self.A_log.float()))
        out = self.out_proj(scan_output)
        return out


def factory():
    torch.manual_seed(0)
    return Zamba2MambaMixer().to(torch.bfloat16).eval(), (torch.randn(2, 8, 32, dtype=torch.bfloat16),)
