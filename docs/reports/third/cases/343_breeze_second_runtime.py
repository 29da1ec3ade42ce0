"""https://github.com/breezeblue-ai/breeze-tts/issues/8 (2026)

Breeze TTS 2 in BF16: the first streaming runtime works, building a second one around the same model
fails at the first decode step, the cache refuses the key and value states.
"""
import torch
from torch import nn


def _get_dtype(model):
    return next(model.parameters()).dtype


class Backbone(nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.embed = nn.Embedding(50, dim)
        self.qkv = nn.Linear(dim, 3 * dim)


class BreezeForConditionalGeneration(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.lm_head = nn.Linear(dim, 50)
        self.backbone = Backbone(dim)

    def forward(self, token):
        first = BackboneGraph(self).step(token, torch.tensor([0]))
        second = BackboneGraph(self).step(token, torch.tensor([0]))
        return torch.cat([first, second])


class BackboneGraph:
    def __init__(self, model, slots=16):
        self.model, bb = model, model.backbone
        dtype = _get_dtype(model)
        self.keys = torch.zeros(1, bb.heads, slots, bb.hd, dtype=dtype)
        self.values = torch.zeros(1, bb.heads, slots, bb.hd, dtype=dtype)
        model.lm_head.float()

    def step(self, token, position):
        bb = self.model.backbone
        q, k, v = bb.qkv(bb.embed(token)).view(1, 1, 3, bb.heads, bb.hd).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        n = int(position) + 1
        out = nn.functional.scaled_dot_product_attention(q, self.keys[:, :, :n], self.values[:, :, :n])
        return self.model.lm_head(out.transpose(1, 2).reshape(1, 1, -1).float())


def factory():
    torch.manual_seed(0)
    model = BreezeForConditionalGeneration().to(torch.bfloat16).eval()
    return model, (torch.tensor([[7]]),)
