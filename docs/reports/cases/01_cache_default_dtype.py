# TransformerLensOrg/TransformerLens#1260: generate() in float16 raises "expected scalar type Half but found Float"
# answer: allocate the cache entry in the model's dtype (cfg.dtype), not in torch.get_default_dtype()
import torch
from torch import nn


class CacheEntry:
    def __init__(self, batch, heads, width):
        empty = torch.empty(batch, 0, heads, width, dtype=torch.get_default_dtype())
        self.past_keys, self.past_values = empty, empty.clone()

    def append(self, keys, values):
        self.past_keys = torch.cat([self.past_keys, keys], dim=1)
        self.past_values = torch.cat([self.past_values, values], dim=1)
        return self.past_keys, self.past_values


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(48, 48) for _ in range(4))

    def forward(self, x, entry):
        q, k, v = (layer(x).unflatten(-1, (4, 12)) for layer in (self.q, self.k, self.v))
        k, v = entry.append(k, v)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / 12**0.5
        z = scores.softmax(-1) @ v.transpose(1, 2)
        return self.o(z.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 48)
        self.attn = Attention()

    def forward(self, tokens):
        return self.attn(self.embed(tokens), CacheEntry(tokens.shape[0], 4, 12))


def factory():
    return Model().half().eval(), (torch.randint(0, 50, (1, 6)),)
