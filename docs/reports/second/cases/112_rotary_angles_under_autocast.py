"""https://github.com/huggingface/transformers/pull/29285 (2024)

In mixed precision Llama and Gemma train to a higher loss than elsewhere, the more so the longer the text.
"""
import torch
import torch.nn.functional as F
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x, position_ids):
        inv_freq_expanded = self.inv_freq[None, :, None].expand(position_ids.shape[0], -1, 1)
        position_ids_expanded = position_ids[:, None, :].float()
        freqs = (inv_freq_expanded.float() @ position_ids_expanded.float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), dim=-1)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(80, 64)
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64, bias=False) for _ in range(4))
        self.rotary_emb, self.lm_head = RotaryEmbedding(16), nn.Linear(64, 80, bias=False)

    def forward(self, input_ids, position_ids):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.embed(input_ids)
            q, k, v = (f(3 * h).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
            cos, sin = (t[:, None] for t in self.rotary_emb(v, position_ids))
            q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
            h = h + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return self.lm_head(h)


def factory():
    return Llama().eval(), (torch.randint(0, 80, (1, 48)), torch.arange(3000, 3048)[None])
