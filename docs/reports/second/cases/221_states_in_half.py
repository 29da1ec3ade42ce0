"""https://github.com/fla-org/flash-linear-attention/pull/1152 (2026)

Training MesaNet in bfloat16: loss and gradients soon become NaN; float32 is stable.
"""

import torch
from torch import nn


class MesaNet(nn.Module):
    """Each output solves (h_kk + lambda I) x = q by conjugate gradients and reads h_kv with it."""

    def __init__(self, width=48, heads=3, cg_steps=8):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o_norm, self.o_proj = nn.RMSNorm(width), nn.Linear(width, width, bias=False)
        self.heads, self.cg_steps, self.decay, self.lamb = heads, cg_steps, 0.99, 1.0
        with torch.no_grad():
            self.v_proj.weight.mul_(60000)  # nothing bounds the values

    def solve(self, h_kk, q):
        matrix = h_kk.float() + self.lamb * torch.eye(h_kk.shape[-1])
        x, r = torch.zeros_like(q), q
        p, rr = r, (r * r).sum(-1, keepdim=True)
        for _ in range(self.cg_steps):
            mp = (matrix @ p[..., None])[..., 0]
            alpha = rr / (p * mp).sum(-1, keepdim=True).clamp_min(1e-12)
            x, r = x + alpha * p, r - alpha * mp
            rr, previous = (r * r).sum(-1, keepdim=True), rr
            p = r + rr / previous.clamp_min(1e-12) * p
        return x

    def forward(self, hidden):
        q, k, v = (f(hidden).unflatten(-1, (self.heads, -1)) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (nn.functional.normalize(t.float(), dim=-1).to(torch.float16) for t in (q, k))
        shape = (hidden.shape[0], self.heads, k.shape[-1], v.shape[-1])
        h_kk, h_kv = torch.zeros(shape, dtype=k.dtype), torch.zeros(shape, dtype=k.dtype)
        outputs = []
        for t in range(hidden.shape[1]):
            wide_k, wide_v = k[:, t].float(), v[:, t].float()
            h_kk = (self.decay * h_kk.float() + wide_k[..., None] * wide_k[..., None, :]).to(h_kk.dtype)
            h_kv = (self.decay * h_kv.float() + wide_k[..., None] * wide_v[..., None, :]).to(h_kv.dtype)
            x = self.solve(h_kk, q[:, t].float())
            outputs.append((x[..., None, :] @ h_kv.float()).flatten(-3))
        return self.o_proj(self.o_norm(torch.stack(outputs, 1).to(hidden.dtype)))


def factory():
    return MesaNet().bfloat16().eval(), (torch.randn(1, 24, 48).bfloat16() + 1,)
