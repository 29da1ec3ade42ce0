"""https://github.com/okoge-kaz/llm-recipes/pull/6, 2024.
After model.to(torch.bfloat16) training differs from the reference although only the weights were meant
to be converted."""
import torch
from torch import nn


class MistralRotaryEmbedding(nn.Module):
    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq.float()
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


class MistralAttention(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.rotary_emb = MistralRotaryEmbedding(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def forward(self, x, position_ids):
        cos, sin = (t.to(x.dtype) for t in self.rotary_emb(position_ids))
        q, k = self.rotate(self.q_proj(x), cos, sin), self.rotate(self.k_proj(x), cos, sin)
        return (q.float() @ k.float().transpose(1, 2) / 8).softmax(-1)


def factory():
    torch.manual_seed(0)
    model = MistralAttention()
    model.to(torch.bfloat16)
    return model.eval(), (torch.randn(1, 64, 64, dtype=torch.bfloat16), torch.arange(0, 4096, 64)[None])
