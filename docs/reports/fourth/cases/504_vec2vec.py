"""https://github.com/Gleghorn-Lab/Protify/pull/49, 2026.
Vec2VecForEmbedding fails mid-forward with a dtype mismatch when the base model runs under autocast."""
import torch
from torch import nn


class Vec2VecForEmbedding(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.base_model = nn.Sequential(nn.Embedding(30, dim), nn.Linear(dim, dim))
        self.vec2vec_model = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, input_ids):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            base_state = self.base_model(input_ids)
        base_vec = base_state.mean(dim=1)
        return self.vec2vec_model(base_vec)


def factory():
    torch.manual_seed(0)
    return Vec2VecForEmbedding().eval(), (torch.randint(0, 30, (2, 12)),)
