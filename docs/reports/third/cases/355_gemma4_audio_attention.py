"""https://github.com/cactus-compute/cactus/pull/734 (2026)

Gemma 4 audio encoder in float16: padded frames come out as NaN and the others drift from the fp32 reference,
so the encoder was moved off the accelerator.
"""
import torch
from torch import nn


class Gemma4AudioAttention(nn.Module):
    def __init__(self, dim=32, heads=4, softcap=50.0, attention_invalid_logits_value=-1.0e9):
        super().__init__()
        self.heads, self.hd, self.softcap = heads, dim // heads, softcap
        self.q_proj, self.k_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v_proj, self.post = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.register_buffer("invalid_logits", torch.tensor(attention_invalid_logits_value))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.hd).transpose(1, 2)

    def forward(self, x, valid):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        logits = torch.tanh(q @ k.transpose(-1, -2) / self.softcap) * self.softcap
        allowed = valid[:, None, :, None] & valid[:, None, None, :]
        logits = torch.where(allowed, logits, self.invalid_logits)
        out = logits.softmax(-1) @ v
        return self.post(out.transpose(1, 2).reshape(x.shape))


def factory():
    torch.manual_seed(0)
    layer = Gemma4AudioAttention().half().eval()
    for p in layer.parameters():
        p.requires_grad_(False)
    valid = torch.arange(24)[None] < torch.tensor([[24], [17]])
    return layer, (torch.randn(2, 24, 32).half(), valid)
