"""https://github.com/unslothai/unsloth/issues/9708 (2026)

Greedy generation of a left-padded batch and of its prompts one at a time disagree in bf16; in float32 they agree.
"""
import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x, mask):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Qwen(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(200, 128), nn.ModuleList(Layer() for _ in range(3))
        self.norm, self.lm_head = nn.RMSNorm(128), nn.Linear(128, 200, bias=False)

    def last_logits(self, tokens, real):
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril() & real[:, None, None]
        mask = mask | torch.eye(length, dtype=torch.bool)  # a padded row attends to itself
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.lm_head(self.norm(x[:, -1])).float()

    def forward(self, prompts, lengths):
        real = torch.arange(prompts.shape[1]) >= prompts.shape[1] - lengths[:, None]
        batched = self.last_logits(prompts, real)
        pairs = zip(prompts, lengths.tolist(), strict=True)
        single = [self.last_logits(p[None, -n:], torch.ones(1, n, dtype=torch.bool)) for p, n in pairs]
        return batched, torch.cat(single)


def factory():
    lengths = torch.tensor([13, 14, 15, 16])
    return Qwen().bfloat16().eval(), (torch.randint(0, 200, (4, 16)), lengths)
