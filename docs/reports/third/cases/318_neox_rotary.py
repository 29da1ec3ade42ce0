"""https://github.com/EleutherAI/gpt-neox/issues/1305 (2024)

1-3B config with the "fp16" entry replaced by a "bf16" one: the attention fails because attention_probs is Float
instead of BFloat16. With pos_emb "none" it does not happen.
"""
import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000, precision=torch.half):
        super().__init__()
        self.inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.precision = precision

    def forward(self, seq_len):
        emb = torch.outer(torch.arange(seq_len).float(), self.inv_freq).repeat(1, 2)
        return emb.cos().to(self.precision), emb.sin().to(self.precision)


def apply_rotary_pos_emb(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin


class ParallelSelfAttention(nn.Module):
    def __init__(self, neox_args, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.rotary_emb = RotaryEmbedding(dim // heads, precision=neox_args["params_dtype"])

    def forward(self, hidden_states):
        b, s, d = hidden_states.shape
        qkv = self.query_key_value(hidden_states).view(b, s, self.heads, -1).transpose(1, 2)
        query, key, value = qkv.chunk(3, dim=-1)
        cos, sin = self.rotary_emb(s)
        query, key = apply_rotary_pos_emb(query, cos, sin), apply_rotary_pos_emb(key, cos, sin)
        attention_probs = torch.softmax(query @ key.mT / (d // self.heads) ** 0.5, dim=-1)
        return (attention_probs @ value).transpose(1, 2).reshape(b, s, d)


def factory():
    torch.manual_seed(0)
    neox_args = {"bf16": {"enabled": True}, "params_dtype": torch.float32}
    return ParallelSelfAttention(neox_args).to(torch.bfloat16), (torch.randn(2, 6, 32, dtype=torch.bfloat16),)
