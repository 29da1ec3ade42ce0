"""https://github.com/TransformerLensOrg/TransformerLens/pull/1276 (2026)

A 4-bit Mistral writes gibberish through the bridge; the same quantized model called directly
through Hugging Face is fine.
"""
import torch
from torch import nn
import torch.nn.functional as F

LEVELS = torch.tensor([-1, -.7, -.53, -.39, -.28, -.18, -.09, 0, .08, .16, .25, .34, .44, .56, .72, 1])


class Linear4bit(nn.Module):
    def __init__(self, dim, out, compute_dtype=torch.float32):
        super().__init__()
        weight = torch.randn(out, dim) / dim ** 0.5
        self.register_buffer("absmax", weight.abs().amax(dim=1, keepdim=True))
        index = (weight.div(self.absmax)[..., None] - LEVELS).abs().argmin(-1).to(torch.uint8)
        self.weight = nn.Parameter(index[:, ::2] * 16 + index[:, 1::2], requires_grad=False)
        self.compute_dtype = compute_dtype

    def forward(self, x):
        index = torch.stack((self.weight // 16, self.weight % 16), dim=-1).flatten(1)
        return F.linear(x.to(self.compute_dtype), LEVELS[index.long()] * self.absmax)


class MistralAttention(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (Linear4bit(dim, dim) for _ in range(4))

    def forward(self, hidden_states):
        q, k, v = (proj(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class AttentionBridge(nn.Module):
    def __init__(self, original_component):
        super().__init__()
        self.original_component = original_component
        self.hook_in, self.hook_out = nn.Identity(), nn.Identity()

    def forward(self, hidden_states):
        hooked = self.hook_in(hidden_states)
        target_dtype = next(self.original_component.parameters()).dtype
        hooked = hooked.to(dtype=target_dtype)
        return self.hook_out(self.original_component(hooked))


def factory():
    torch.manual_seed(0)
    return AttentionBridge(MistralAttention()).eval(), (torch.randn(2, 12, 64),)
