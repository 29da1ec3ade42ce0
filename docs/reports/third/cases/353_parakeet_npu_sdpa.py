"""https://github.com/huggingface/transformers/pull/48843 (2026)

ParakeetForCTC with attn_implementation="sdpa" on an Ascend NPU: no error, but the transcript is worse than
with eager attention; the relative positions seem to have no effect.
"""
import torch
from torch import nn

_is_torch_npu_available = True


def sdpa_attention_forward(query, key, value, attention_mask=None, scaling=None):
    if _is_torch_npu_available:
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            attention_mask = torch.logical_not(attention_mask.bool()).to(query.device)
            attention_mask = None if not attention_mask.any() else attention_mask
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)


class ParakeetAttention(nn.Module):
    def __init__(self, dim=32, heads=4, size=40):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.qkv, self.o_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_k_proj = nn.Linear(dim, dim, bias=False)
        self.register_buffer("pos", torch.randn(2 * size - 1, dim))

    def _rel_shift(self, scores):
        b, h, t, p = scores.shape
        return nn.functional.pad(scores, (1, 0)).view(b, h, -1, t)[:, :, 1:].view(b, h, t, p)

    def forward(self, hidden_states):
        b, t, _ = hidden_states.shape
        q, k, v = self.qkv(hidden_states).view(b, t, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        rel = self.relative_k_proj(self.pos).view(-1, self.heads, self.hd).permute(1, 2, 0)
        matrix_bd = self._rel_shift(q @ rel)[..., :t] * self.hd ** -0.5
        out = sdpa_attention_forward(q, k, v, attention_mask=matrix_bd, scaling=self.hd ** -0.5)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


def factory():
    torch.manual_seed(0)
    layer = ParakeetAttention().eval()
    layer.qkv.weight.data *= 3
    for p in layer.parameters():
        p.requires_grad_(False)
    return layer, (torch.randn(1, 40, 32),)
