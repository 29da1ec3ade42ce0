"""https://github.com/huggingface/peft/pull/1010 (2023)

GPT-2 with LoRA under bfloat16 autocast: the attention gets float32 query, key and value. Without
LoRA they are bfloat16.
"""
import torch
from torch import nn
import torch.nn.functional as F


class LoraLinear(nn.Linear):
    def __init__(self, in_features, out_features, r=8, lora_alpha=16):
        super().__init__(in_features, out_features)
        self.lora_A = nn.Linear(in_features, r, bias=False)
        self.lora_B = nn.Linear(r, out_features, bias=False)
        self.scaling = lora_alpha / r

    def forward(self, x):
        previous_dtype = x.dtype
        result = F.linear(x, self.weight, self.bias)
        x = x.to(self.lora_A.weight.dtype)
        result += self.lora_B(self.lora_A(x)) * self.scaling
        return result.to(previous_dtype)


class Block(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(dim)
        self.c_attn = LoraLinear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)

    def _attn(self, query, key, value):
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~keep, torch.finfo(scores.dtype).min).softmax(-1).to(value.dtype) @ value

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, hidden_states):
        query, key, value = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for t in self.c_attn(self.ln_1(hidden_states)).chunk(3, dim=-1))
        out = self._attn(query, key, value).transpose(1, 2).flatten(2)
        return hidden_states + self.c_proj(out)


def factory():
    torch.manual_seed(0)
    return Block(), (torch.randn(2, 16, 64),)
